"""Mixes several environments by weights into one."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from headrace.envs.contract import Environment, GivesExamples, LateScore, Problem, Score, Split, WorkedExample
from headrace.envs.data.rows import list_left_out_of, read_data_of
from headrace.envs.registry import load_environment
from headrace.schemas.records import ReadData

MOST_DRAWS = 100_000
"""Longest cycle of draws; finer weights would make no difference in a run."""
OWN_TIER = re.compile("(source_)+tier")
"""Keys in a problem's `extra` for its tier in its source: the longest is of the outermost mixture."""


@dataclass(frozen=True, slots=True)
class _Source:
    name: str
    environment: Environment
    weight: int


class Mixture:
    """Draws from several environments in proportion to their weights.

    Draw t takes the source with the largest deficit w_s * t - issued_s (w normalised, t counts this draw; ties: the
    first listed). With whole weights w_s, of the sum W, that repeats after W draws, in which source s came w_s times.
    So the problem at an index is a pure function of the index, and each source is always within about one draw of its
    share. A source begins again after its end.

    Args:
        seed: Seed of the run; every source is built with it.
        sources: Tables with `use` (the environment's name), its settings, `weight` (above 0; default 1) and `name` (the
            tier of its problems; default `use`). List them easiest first, because a curriculum uses them as tiers.
        tiers: Names of the sources to draw from; all by default.

    Raises ValueError for sources that cannot be built or distinguished, and for weights in no simple proportion.
    """

    name = "mixture"

    def __init__(self, seed: int, sources: Sequence[Mapping[str, Any]], tiers: Sequence[str] = ()) -> None:
        names = [_name_source(number, source) for number, source in enumerate(sources, start=1)]
        if not names or len(set(names)) < len(names):
            raise ValueError(
                "sources must be one or more tables with different names (a table's name is its `name`, by default its "
                f"`use`); got the names {', '.join(names) or 'none'}"
            )
        if isinstance(tiers, str) or set(tiers) - set(names):
            raise ValueError(f"tiers must be a list of names of sources, from {', '.join(names)}; got {tiers!r}")
        self._seed, self._settings = seed, dict(zip(names, sources, strict=True))
        chosen = {name: source for name, source in self._settings.items() if not tiers or name in tiers}
        weights = _scale_to_integers({name: source.get("weight", 1) for name, source in chosen.items()})
        self._sources = [_Source(name, _build(name, seed, chosen[name]), weights[name]) for name in chosen]
        self._scorers = {source.name: source.environment for source in self._sources}
        """The built sources: also those that are not asked, once one of their problems came."""
        self._building = threading.Lock()
        self._cycle = _draw_by_largest_deficit([source.weight for source in self._sources])
        if all(isinstance(source.environment, GivesExamples) for source in self._sources):
            self.example = self._example  # an attribute, so that a mixture gives examples only if all its sources do

    def size(self, split: Split) -> int | None:
        """Return the number of draws until every problem of every source has come.

        By then some sources have begun again. None if a source has no end, 0 if one is empty.
        """
        sizes = [source.environment.size(split) for source in self._sources]
        if None in sizes:
            return None
        if 0 in sizes:
            return 0
        draws = sum(source.weight for source in self._sources)
        rounds = [Fraction(size or 0, source.weight) for size, source in zip(sizes, self._sources, strict=True)]
        return math.ceil(max(rounds) * draws)

    def problem(self, split: Split, index: int) -> Problem:
        """Return the problem at an index. Raises ValueError for an empty source.

        Its tier is the name of its source, with that of its held-out set if it has one: `gsm8k/test`.
        """
        source, own_index = self._find_source(split, index)
        found = source.environment.problem(split, own_index)
        extra = {**found.extra, f"source_{_find_own_tier(found.extra)}": found.tier}
        is_of_set = split == "held_out" and found.tier in getattr(source.environment, "held_out_names", ())
        tier = f"{source.name}/{found.tier}" if is_of_set else source.name
        return replace(found, task_id=f"{source.name}/{found.task_id}", tier=tier, extra=extra)

    def score(self, problem: Problem, text: str) -> Score:
        """Let the source score its own problem, also one that is not asked: the feeder may have raised the tier."""
        environment, own = self._find_own(problem)
        return environment.score(own, text)

    def late_score(self, problem: Problem) -> LateScore | None:
        """See `LateScore`."""
        environment, own = self._find_own(problem)
        found: LateScore | None = getattr(environment, "late_score", lambda _: None)(own)
        return found

    def prepare_scoring(self) -> None:
        """Let the sources that are built do what takes long."""
        for environment in self._scorers.values():
            getattr(environment, "prepare_scoring", lambda: None)()

    @property
    def processes(self) -> int:
        """The number of child processes that score; 0 for the usual one."""
        return int(any(getattr(environment, "processes", 0) for environment in self._scorers.values()))

    def _find_own(self, problem: Problem) -> tuple[Environment, Problem]:
        """Return the source of a problem, and the problem as the source made it."""
        source = max((one for one in self._settings if problem.task_id.startswith(f"{one}/")), key=len)
        own_tier = _find_own_tier(problem.extra)
        extra = {key: value for key, value in problem.extra.items() if key != own_tier}
        task_id = problem.task_id.removeprefix(f"{source}/")
        own = replace(problem, task_id=task_id, tier=problem.extra[own_tier], extra=extra)
        return self._get_environment(source), own

    def prepare_tiers(self) -> None:
        """Build all sources, so that no score has to wait for one. Raises ValueError for one that cannot be built."""
        for name in self._settings:
            self._get_environment(name)

    def _get_environment(self, name: str) -> Environment:
        with self._building:  # scores run in several threads
            if name not in self._scorers:
                self._scorers[name] = _build(name, self._seed, self._settings[name])
            return self._scorers[name]

    def read_data(self) -> tuple[ReadData, ...]:
        """Read the data of all sources that have some. Raises TaskFileError."""
        return tuple(one for source in self._sources for one in read_data_of(source.environment))

    def list_left_out(self) -> tuple[str, ...]:
        """Return which rows of its sources no problem comes from. Raises TaskFileError."""
        return tuple(one for source in self._sources for one in list_left_out_of(source.environment))

    def tiers(self) -> tuple[str, ...]:
        """Return the names of all sources, in the order of the recipe."""
        return tuple(self._settings)

    def asked(self) -> tuple[str, ...]:
        """Return the names of the sources in use."""
        return tuple(source.name for source in self._sources)

    def _example(self, index: int) -> WorkedExample:
        """Return a worked example, from the sources by weight."""
        source, own_index = self._find_source("warm_start", index)
        assert isinstance(source.environment, GivesExamples)  # noqa: S101 - checked when it was built
        return source.environment.example(own_index)

    def _find_source(self, split: Split, index: int) -> tuple[_Source, int]:
        if index < 0:
            raise ValueError(f"index must be 0 or more, got {index}")
        rounds, turn = divmod(index, len(self._cycle))
        number, before = self._cycle[turn]
        source = self._sources[number]
        own_index = rounds * source.weight + before
        size = source.environment.size(split)
        return source, own_index if size is None else own_index % max(size, 1)


def _find_own_tier(extra: Mapping[str, Any]) -> str:
    """Return the longest key for a tier; `tier` if there is none."""
    return max(filter(OWN_TIER.fullmatch, map(str, extra)), key=len, default="tier")


def _draw_by_largest_deficit(weights: Sequence[int]) -> list[tuple[int, int]]:
    """Return the draws of one cycle: (number of the source, how often it was drawn before)."""
    total = sum(weights)
    issued = [0] * len(weights)
    cycle = []
    for draw in range(1, total + 1):
        deficits = [weight * draw - total * count for weight, count in zip(weights, issued, strict=True)]
        number = deficits.index(max(deficits))
        cycle.append((number, issued[number]))
        issued[number] += 1
    return cycle


def _scale_to_integers(weights: Mapping[str, Any]) -> dict[str, int]:
    """Return the smallest whole numbers in the same proportion."""
    for name, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise ValueError(f"weight of source {name} must be a number above 0; got {weight!r}")
    exact = {name: Fraction(str(weight)) for name, weight in weights.items()}
    scale = math.lcm(*(weight.denominator for weight in exact.values()))
    whole = {name: int(weight * scale) for name, weight in exact.items()}
    divisor = math.gcd(*whole.values())
    found = {name: weight // divisor for name, weight in whole.items()}
    if sum(found.values()) > MOST_DRAWS:
        given = ", ".join(map(str, weights.values()))
        raise ValueError(
            f"the weights {given}, scaled to whole numbers, must not add up to more than {MOST_DRAWS}: use simpler "
            "weights, such as 3 and 1, or 0.7 and 0.3"
        )
    return found


def _name_source(number: int, source: Any) -> str:
    if not isinstance(source, Mapping) or not isinstance(source.get("use"), str):
        raise ValueError(  # noqa: TRY004 - a bad setting of an environment is a ValueError
            f'source {number} must be a table with `use`, as in {{ use = "arithmetic", weight = 3 }}; got {source!r}'
        )
    return str(source.get("name", source["use"]))


def _build(name: str, seed: int, source: Mapping[str, Any]) -> Environment:
    settings = {key: value for key, value in source.items() if key not in ("use", "name", "weight")}
    try:
        return load_environment(source["use"], seed, settings)
    except ValueError as error:
        raise ValueError(f"source {name}: {error}") from error
