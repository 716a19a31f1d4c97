"""`headrace offline up RECIPE --from ARCHIVE`: a recipe over archived trajectories, with no server and no worker.

The trajectories go through the recipe's chain, the policy trains on the kept groups, and some versions are evaluated on
held-out problems. Each step writes its folder atomically. Given again, the command continues after the last step.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean

import structlog

from headrace.infra.archive.reading import Archive
from headrace.infra.atomic_files import write_atomically
from headrace.infra.embedded.data_folder import DataFolder
from headrace.infra.errors import UsageError
from headrace.infra.progress import open_progress
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.revisions import find_differences, replace_experiment
from headrace.ops.figures.run_figures import Selection
from headrace.ops.figures.summary import Lengths
from headrace.ops.offline.archived_recipe import read_newest_recipe
from headrace.ops.offline.held_out import evaluate
from headrace.ops.offline.offline_curator import curate_offline
from headrace.ops.plain_json import encode_json, plain
from headrace.ops.summary_file import check_summary_path

log = structlog.get_logger()

CURATED, TRAINED, HELD_OUT, EXPERIMENT = "curated", "trained", "held-out", "experiment"
"""Contents of the data folder: two folders, and the report of each step as JSON."""
SECONDS = "seconds.json"
"""File with the duration of all finished steps."""
ELSEWHERE = ("name", "about", "kafka.", "store.", "launch.", "evaluate.")
"""Keys in which a recipe may differ from the archived recipe, but which have no effect here."""


@dataclass(frozen=True, slots=True)
class OfflineRequest:
    """The options of `headrace offline up`."""

    recipe: Recipe
    archive: str
    data: Path
    summary: Path | None = None


@dataclass(frozen=True, slots=True)
class OfflineGroups:
    """Counts of the archived groups; the names of the fields are those of a run's summary."""

    issued: int
    kept: int
    trained: int
    discarded: dict[str, int]
    dead: int
    replays: int
    replayed: int


@dataclass(frozen=True, slots=True)
class OfflinePolicy:
    """The result of the policy; None for values that cannot be measured on an archive."""

    versions: int
    reward_first: None
    reward_last: None
    eval_first: float | None
    eval_last: float | None
    groups: OfflineGroups
    reward_curve: tuple[()]
    eval_curve: Sequence[Sequence[float]]
    """(version, held-out reward)."""
    trajectories: int
    progress: Sequence[Sequence[float]]
    """(version, trajectories, seconds)."""
    lengths: Lengths
    weights_hash: str


@dataclass(frozen=True, slots=True)
class OfflineData:
    """Folder and archive of the experiment."""

    folder: str
    archive: str


@dataclass(frozen=True, slots=True)
class OfflineSummary:
    """The result of a recipe on an archive; the names of the fields are those of a run's summary."""

    run: str
    versions: int
    reward_first: None
    reward_last: None
    eval_first: float | None
    eval_last: float | None
    groups: OfflineGroups
    audit: None
    selection: dict[str, Selection]
    policies: dict[str, OfflinePolicy]
    wall_s: float = 0.0
    ignored: tuple[str, ...] = ()
    """Keys of the recipe that have no effect on an archive."""
    data: OfflineData = OfflineData("", "")


def run_offline(request: OfflineRequest) -> OfflineSummary:
    """Curate, train and evaluate; return a summary like that of a run, which the caller writes to `request.summary`.

    `trajectories` counts every use of a trained trajectory. There is no training reward and no audit, because nothing
    was played. `ignored` are the keys of the recipe that have no effect on an archive.

    Raises UsageError for a summary file that cannot be written, for a recipe with other policies than the archive's, or
    with a selector, and for a folder that holds a run or another experiment; FolderInUse; and what `curate_offline`,
    `train_offline` and `evaluate` raise.
    """
    recipe, clock = request.recipe, _WallClock(request.data)
    check_summary_path(request.summary)
    if len(recipe.policies) > 1:
        raise UsageError(
            "the recipe has several policies: train one of them with `headrace offline train --policy NAME`"
        )
    if recipe.feed.selector != type(recipe.feed)().selector:
        named = ", ".join(one.describe() for one in recipe.feed.selector)
        raise UsageError(
            f"feed.selector is {named}, but an archive has no tasks to choose: leave feed.selector out, or use "
            "`headrace up`"
        )
    archive = Archive(request.archive)
    asked = _build_experiment_recipe(archive, recipe)
    folder = DataFolder(request.data)
    with folder.hold("`headrace offline up`"):
        if folder.read() is not None:
            raise UsageError(f"{folder.root} holds a run: give another folder by --data")
        _claim_folder(request, archive)
        [policy] = recipe.policies
        curated = _curate(request, policy, clock)
        trained = _train(request, policy, clock)
        held_out = _evaluate(request, policy, asked, trained.newest, clock)
        return replace(
            _build_summary(asked, policy, (curated, trained, held_out), _read_batches(request)),
            wall_s=round(clock.seconds, 1),
            ignored=tuple(line for line in find_differences(asked, recipe) if not line.startswith(ELSEWHERE)),
            data=OfflineData(str(request.data), request.archive),
        )


class _WallClock:
    """Measures how long an experiment has taken, over all its commands.

    A command that was killed counts up to the last step that it finished. Seconds in a folder without an experiment are
    those of another one, and do not count.
    """

    def __init__(self, data: Path) -> None:
        self._path, self._began = data / SECONDS, time.monotonic()
        has_begun = self._path.exists() and (data / f"{EXPERIMENT}.json").exists()
        self._before = float(json.loads(self._path.read_text())) if has_begun else 0.0

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return self._before + time.monotonic() - self._began

    def save_seconds(self) -> None:
        """Save the seconds, after a step."""
        write_atomically(self._path, json.dumps(round(self.seconds, 3)).encode())


def _build_experiment_recipe(archive: Archive, recipe: Recipe) -> Recipe:
    """Return the archived recipe with the experiment's changes. Raises UsageError if its policies differ."""
    run = read_newest_recipe(archive)
    if run.policies.keys() != recipe.policies.keys():
        raise UsageError(
            f"the recipe has the policies {', '.join(recipe.policies)}, but the archive {archive.root} has "
            f"{', '.join(run.policies)}: use the same policies. An experiment on an archive can change only chain, "
            "trainer, seed and evaluation"
        )
    return replace_experiment(run, recipe).model_copy(update={"evaluate": recipe.evaluate, "name": recipe.name})


def identify_archive(archive: Archive) -> str:
    """Return the identity of an archive with its present content: the hash of its manifest."""
    return hashlib.sha256(archive.manifest.to_bytes()).hexdigest()


def _claim_folder(request: OfflineRequest, archive: Archive) -> None:
    path, now = (
        request.data / f"{EXPERIMENT}.json",
        {"recipe": request.recipe.to_json(), "archive": identify_archive(archive)},
    )
    if path.exists():
        before = json.loads(path.read_text())
        changed = find_differences(Recipe.from_json(before["recipe"]), request.recipe)
        if before["archive"] != now["archive"]:
            changed.append(f"--from: {request.archive} is another archive, or has changed since the experiment began")
        if changed:
            listed = "".join(f"\n  {line}" for line in changed)
            raise UsageError(
                f"{request.data} holds an experiment with other settings:{listed}\nGive another folder by --data, or "
                f"delete {request.data}"
            )
    elif there := [name for name in (CURATED, TRAINED) if (request.data / name).exists()]:
        raise UsageError(
            f"{request.data} holds {there[0]} but no {path.name}, so it is not the folder of a `headrace offline up`: "
            "give another folder by --data"
        )
    write_atomically(path, json.dumps(now, indent=1).encode())


@dataclass(frozen=True, slots=True)
class CuratedStep:
    """The parts of the report of `headrace offline curate` that are used here."""

    read: int
    kept: int
    again: int
    dropped: dict[str, int]
    dead: dict[str, int]


@dataclass(frozen=True, slots=True)
class TrainedStep:
    """The parts of the report of `headrace offline train` that are used here."""

    versions: list[int]
    seconds: list[float]
    """Time at which each version was made; the first value is the beginning."""
    evicted: dict[str, int]
    unusable: dict[str, int]
    replays_lost: dict[str, int]
    weights_hash: str

    @property
    def newest(self) -> int:
        """The last version."""
        return self.versions[-1]


def _curate(request: OfflineRequest, policy: str, clock: _WallClock) -> CuratedStep:
    out, report = request.data / CURATED, request.data / f"{CURATED}.json"
    if not report.exists():
        if out.exists():
            shutil.rmtree(out)
        found = curate_offline(request.archive, policy, request.recipe, out)
        write_atomically(report, encode_json(found, None).encode())
        clock.save_seconds()
    read = json.loads(report.read_text())
    return CuratedStep(**{field.name: read[field.name] for field in fields(CuratedStep)})


def _train(request: OfflineRequest, policy: str, clock: _WallClock) -> TrainedStep:
    from headrace.ops.offline.offline_trainer import TrainingRequest, train_offline  # torch

    out, report = request.data / TRAINED, request.data / f"{TRAINED}.json"
    if not report.exists():
        if out.exists():
            shutil.rmtree(out)
        began, seconds = time.monotonic(), [0.0]
        recipe = request.recipe
        training = TrainingRequest(policy=policy, start=request.archive, like=recipe, keep_every=recipe.evaluate.every)
        with open_progress("versions") as tell:

            def report_step(done: int, most: int) -> None:
                seconds.append(round(time.monotonic() - began, 2))
                tell(done, most)

            found = train_offline(request.data / CURATED, out, training, report_step)
        write_atomically(report, encode_json({**plain(found), "seconds": seconds}, None).encode())
        clock.save_seconds()
    read = json.loads(report.read_text())
    read["versions"] = [one["version"] for one in read["versions"]]
    return TrainedStep(**{field.name: read[field.name] for field in fields(TrainedStep)})


def _evaluate(request: OfflineRequest, policy: str, asked: Recipe, newest: int, clock: _WallClock) -> list[list[float]]:
    """Return (version, held-out reward), means over workflows, of the kept versions and of the newest.

    If all episodes of a version failed in a workflow, the version has no reward, because means over other workflows
    cannot be compared. It is measured again when the command is given again.
    """
    path = request.data / f"{HELD_OUT}.json"
    noted: dict[str, float | None] = json.loads(path.read_text()) if path.exists() else {}
    known = {version: reward for version, reward in noted.items() if reward is not None}
    kept = request.data / TRAINED / "versions"
    folders = {int(folder.name): folder for folder in kept.iterdir()} if kept.is_dir() else {}
    for version, folder in sorted({**folders, newest: request.data / TRAINED}.items()):
        if str(version) not in known:
            results = evaluate(asked, {policy: folder})
            measured = [one[policy] for one in results.values() if policy in one]
            rewards = [one.avg_at_k for one in measured if one.avg_at_k is not None and math.isfinite(one.avg_at_k)]
            if rewards and len(rewards) == len(results):
                known[str(version)] = fmean(rewards)
            if failed := sum(one.failures for one in measured):
                # The held-out reward leaves these episodes out.
                log.warning("evaluation.episodes_failed", policy=policy, version=version, failures=failed)
            write_atomically(path, json.dumps(known).encode())
            clock.save_seconds()
    ordered = sorted(known.items(), key=lambda one: int(one[0]))
    return [[int(version), round(reward, 4)] for version, reward in ordered]


def _read_batches(request: OfflineRequest) -> list[tuple[list[int], int]]:
    """Return for every version the uses of its groups, and how many trajectories it was trained on."""
    lines = (request.data / TRAINED / "batches.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [([use for _, _, use in one["groups"]], one["trajectories"]) for one in found]


def _build_summary(
    recipe: Recipe,
    policy: str,
    parts: tuple[CuratedStep, TrainedStep, list[list[float]]],
    batches: Sequence[tuple[Sequence[int], int]],
) -> OfflineSummary:
    """Return the summary, with the values of a run's summary that are known here."""
    curated, trained, held_out = parts
    newest = trained.newest
    uses = [use for batch, _ in batches for use in batch]
    lost = Counter(trained.evicted) + Counter(trained.unusable) - Counter(trained.replays_lost)
    discarded = Counter(curated.dropped) + lost
    discarded["run_end"] += curated.kept - uses.count(0) - lost.total()
    groups = OfflineGroups(
        issued=curated.read,
        kept=curated.kept,
        trained=uses.count(0),
        discarded=dict(+discarded),
        dead=sum(curated.dead.values()),
        replays=curated.again,
        replayed=len(uses) - uses.count(0),
    )
    trained_on = list(accumulate(count for _, count in batches))
    rows = zip(trained.versions, trained_on, trained.seconds[1:], strict=True)
    evals = [reward for _, reward in held_out]
    first, last = evals[0] if len(evals) > 1 else None, evals[-1] if evals else None
    block = OfflinePolicy(
        versions=newest,
        reward_first=None,
        reward_last=None,
        eval_first=first,
        eval_last=last,
        groups=groups,
        reward_curve=(),
        eval_curve=held_out,
        trajectories=trained_on[-1],
        progress=[[newest - len(batches), 0, 0.0], *map(list, rows)],
        lengths=Lengths(None, None, None),
        weights_hash=trained.weights_hash,
    )
    return OfflineSummary(
        run=recipe.name,
        versions=newest,
        reward_first=None,
        reward_last=None,
        eval_first=first,
        eval_last=last,
        groups=groups,
        audit=None,
        selection={},
        policies={policy: block},
    )
