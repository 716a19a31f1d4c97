"""An environment whose worlds are at an OpenEnv server (https://github.com/huggingface/OpenEnv)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any
from urllib.parse import quote

import structlog

from headrace.envs.contact import CONTACT
from headrace.envs.contract import Problem, Score, Split
from headrace.envs.messages import show_value
from headrace.envs.openenv.opening import OpenedWorld, Opening, open_at
from headrace.envs.openenv.routes import Routes
from headrace.envs.worlds.contract import WorldFailed
from headrace.infra.errors import UsageError
from headrace.infra.recipe.named import check_kinds
from headrace.schemas.ids import derive_seed

ADDRESS = re.compile(r"https?://(\S+@)?(\[[\da-fA-F:.]+\]|[^\s/:?#\[]+)(:\d{1,5})?(/[^\s?#]*)?")
SEEDS = 2**31
"""Seeds are below: random generators of many libraries take no larger ones."""

log = structlog.get_logger()


class OpenEnv:
    """Worlds of a server, for the workflow `world`. Nothing is asked of the server before it is needed.

    Args:
        seed: Derives the seeds of training problems.
        url: Address of the server, as `http://host:port`.
        env: Name of the world among those with tasks; by default the server's first.
        tasks: Most training problems; 0 for all.
        train: Name of the server's split for training; by default one of the type `train`, else the first.
        held_out: Name of the split that is held out; by default one of the type `test`, else `validation`.
        prompt: What stands before the first observation.
        observation: The field of an observation that the policy reads; by default all.
        start_limit_s: Seconds for the start of an episode.

    Raises UsageError or ValueError for settings.
    """

    processes = 1
    """Child processes: nothing runs there, as the worlds are elsewhere."""
    open_limit_s = None
    """No limit of the whole: each wait for the server has its own, and the line for places ends as places.py says."""

    def __init__(  # noqa: PLR0913 - the settings by name
        self,
        seed: int,
        url: str,
        *,
        env: str = "",
        tasks: int = 0,
        train: str = "",
        held_out: str = "",
        prompt: str = "",
        observation: str = "",
        start_limit_s: float = 60.0,
    ) -> None:
        given = {"url": url, "env": env, "tasks": tasks, "train": train, "held_out": held_out, "prompt": prompt}
        check_kinds("openenv", OpenEnv, given | {"observation": observation, "start_limit_s": start_limit_s})
        if not ADDRESS.fullmatch(url):
            raise ValueError(f"url must be the address of a server, as http://host:port; got {url!r}")
        if tasks < 0 or not start_limit_s > 0:
            raise ValueError(f"tasks must be 0 or more, start_limit_s above 0; got {tasks} and {start_limit_s}")
        self.name, self._seed, self._env, self._most = f"openenv:{env}" if env else "openenv", seed, env, tasks
        self._routes, self._asked = Routes(url.rstrip("/")), {"train": train, "held_out": held_out}
        self._prompt, self._field, self._start_limit_s = prompt, observation, start_limit_s
        self._times_full = 0

    def size(self, split: Split) -> int | None:
        """Return the number of tasks; None for endless seeds. Raises ConnectionError and WorldFailed."""
        if split == "warm_start":
            return 0
        _, count = self._splits.get(split, ("", 0 if self._splits else None))
        if split == "train" and self._most:
            return self._most if count is None else min(count, self._most)
        return count

    def problem(self, split: Split, index: int) -> Problem:
        """Return a task or a seed; what it is about, the world's first observation says."""
        seed = derive_seed("openenv", 0 if split == "held_out" else self._seed, split, index) % SEEDS
        reset: dict[str, Any] = {"seed": seed}
        if split in self._splits:
            reset |= {"split": self._splits[split][0], "index": index}
        return Problem(f"{split} {index}", self._prompt, extra={"reset": reset})

    def score(self, problem: Problem, text: str) -> Score:  # noqa: ARG002
        """Raise UsageError: the server gives the rewards."""
        raise UsageError('worlds of OpenEnv are played: use workflow = "world"')

    async def open_world(self, problem: Problem) -> OpenedWorld:
        """See `OpensWorlds.open_world`. Raises also OutOfTime."""
        needs_text = not problem.text.strip()
        opened = await open_at(
            self._routes,
            Opening(problem.extra["reset"], self._field, self._start_limit_s, needs_text, self._note_full),
        )
        CONTACT.get().note_reached()
        return opened

    @property
    def version(self) -> str:
        """Name and version of the world, if the server tells them. Raises ConnectionError."""
        try:
            told = self._routes.find("/metadata")
        except WorldFailed:  # a page of a proxy, say: it is only a note
            return ""
        parts = [told.get(key) for key in ("name", "version")] if isinstance(told, dict) else []
        return " ".join(part for part in parts if isinstance(part, str) and part)

    @cached_property
    def _splits(self) -> dict[str, tuple[str, int | None]]:
        """Our split to the server's, and its number of tasks; empty for a server without tasks."""
        name, kinds = self._find_world()
        if unknown := [asked for asked in self._asked.values() if asked and asked not in kinds]:
            raise WorldFailed(f"{self._routes.url} has no split {unknown[0]!r}; it has {', '.join(kinds) or 'none'}")
        train = self._asked["train"] or _find_kind(kinds, "train") or next(iter(kinds), "")
        others = {split: kind for split, kind in kinds.items() if split != train}
        held_out = self._asked["held_out"] or _find_kind(others, "test") or _find_kind(others, "validation")
        if train and train == held_out:
            raise WorldFailed(f"held_out would be {train!r}, the split for training: name another, or leave it out")
        chosen = {"train": train, "held_out": held_out}
        return {ours: (theirs, self._count_tasks(name, theirs)) for ours, theirs in chosen.items() if theirs}

    def _find_world(self) -> tuple[str, dict[str, str]]:
        """Return the world's name as in a path, and its splits with their types."""
        names = self._routes.find("/list_environments")
        there = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
        if self._env and there and self._env.lower() not in map(str.lower, there):
            raise WorldFailed(f"{self._routes.url} has no world {self._env!r}; it has {', '.join(there)}")
        name = quote(self._env or next(iter(there), ""), safe="")
        listed = self._routes.find(f"/{name}/splits") if name else None
        splits = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
        if self._env and not splits:
            raise WorldFailed(f"{self._routes.url} lists no splits of tasks for {self._env!r}: leave `env` out")
        return name, {str(one.get("name")): str(one.get("type")) for one in splits}

    def _count_tasks(self, name: str, split: str) -> int | None:
        told = self._routes.find(f"/{name}/num_tasks", {"split": split})
        if told is None:
            return None
        count = told.get("num_tasks") if isinstance(told, dict) else None
        if type(count) is not int or count < 0:
            raise WorldFailed(f"{self._routes.url} does not count the tasks of split {split}, got {show_value(told)}")
        return count

    def _note_full(self, why: str) -> None:
        self._times_full += 1
        if str(self._times_full).strip("0") == "1":
            # An episode waits for a place at an OpenEnv server. Logged at the 1st, 10th, 100th time.
            log.warning(
                "world.full",
                url=self._routes.url,
                why=why,
                times=self._times_full,
                remedy="let the server serve more sessions",
            )


def _find_kind(kinds: Mapping[str, str], kind: str) -> str:
    """Return the first split of a type; empty if there is none."""
    return next((name for name, one in kinds.items() if one == kind), "")
