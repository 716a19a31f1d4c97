"""Runs data algorithms one after the other, as the recipe lists them."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, cast

from headrace.consumers.algorithms.contract import Algorithm, Candidate, Drop, Keep, Replay, Result
from headrace.consumers.algorithms.degenerate import Flagging
from headrace.consumers.algorithms.order import find_wrong_order
from headrace.consumers.algorithms.replay import ReplayMemory
from headrace.consumers.algorithms.returned import WrongResult, check_state, read_replay, read_verdict
from headrace.consumers.algorithms.sizes import drop_if_nothing_left
from headrace.infra.errors import HeadraceError, UsageError
from headrace.infra.own_frames import read_error_text
from headrace.infra.recipe.named import check_settings, find_named
from headrace.schemas.ids import GroupId

ALGORITHMS = {
    "failures": "headrace.consumers.algorithms.failures:Failures",
    "validate": "headrace.consumers.algorithms.validate:Validate",
    "max_staleness": "headrace.consumers.algorithms.max_staleness:MaxStaleness",
    "length_bounds": "headrace.consumers.algorithms.length_bounds:LengthBounds",
    "mask_truncated": "headrace.consumers.algorithms.mask_truncated:MaskTruncated",
    "drop_zero_variance": "headrace.consumers.algorithms.drop_zero_variance:DropZeroVariance",
    "repetition": "headrace.consumers.algorithms.repetition:Repetition",
    "gibberish": "headrace.consumers.algorithms.gibberish:Gibberish",
    "scale_rewards": "headrace.consumers.algorithms.scale_rewards:ScaleRewards",
    "overlong": "headrace.consumers.algorithms.overlong:Overlong",
    "linear_length": "headrace.consumers.algorithms.linear_length:LinearLength",
    "kimi_length": "headrace.consumers.algorithms.kimi_length:KimiLength",
    "normalise_rewards": "headrace.consumers.algorithms.normalise_rewards:NormaliseRewards",
    "pods": "headrace.consumers.algorithms.pods:Pods",
    "best_and_worst": "headrace.consumers.algorithms.best_and_worst:BestAndWorst",
    "random_m": "headrace.consumers.algorithms.random_m:RandomM",
    "gfpo": "headrace.consumers.algorithms.gfpo:Gfpo",
    "replay_latest": "headrace.consumers.algorithms.replay_latest:ReplayLatest",
    "replay_uniform": "headrace.consumers.algorithms.replay_uniform:ReplayUniform",
    "replay_dots": "headrace.consumers.algorithms.replay_dots:ReplayDots",
    "replay_recency": "headrace.consumers.algorithms.replay_recency:ReplayRecency",
    "replay_prioritised": "headrace.consumers.algorithms.replay_prioritised:ReplayPrioritised",
}
"""Shipped algorithms by name, in the order of `headrace.consumers.algorithms.order` and of docs/data-algorithms.md."""


class ChainError(UsageError):
    """An algorithm broke its contract or fails on every group, or a snapshot is of another chain. Do not restart."""


class AlgorithmFailed(HeadraceError):
    """An algorithm failed on one group, or returned an invalid result; the message ends with the place in its code."""


class UnknownAlgorithm(UsageError):
    """The recipe names an unknown algorithm, or gives an algorithm invalid settings."""


class Chain:
    """Named algorithms in order; it is used like one algorithm."""

    def __init__(self, algorithms: Sequence[tuple[str, Algorithm]]) -> None:
        self._algorithms = tuple(algorithms)
        self._shipped = frozenset(type(one) for _, one in algorithms if _find_shipped_name("", one))
        """Shipped algorithms, whose results are not checked at run time because tests check them."""

    @property
    def can_replay(self) -> bool:
        """Whether any of its algorithms may replay a group."""
        return any(hasattr(algorithm, "holds") for _, algorithm in self._algorithms)

    def holds(self) -> set[GroupId]:
        """Return every group that may still be replayed."""
        replaying = [algorithm for _, algorithm in self._algorithms if hasattr(algorithm, "holds")]
        return {GroupId(*group) for algorithm in replaying for group in algorithm.holds()}

    def count_flagged(self) -> dict[str, int]:
        """Return how many trajectories each algorithm flagged, also algorithms that only monitor."""
        counts: dict[str, int] = {}
        for name, algorithm in self._algorithms:
            if isinstance(algorithm, Flagging):
                counts[name] = counts.get(name, 0) + algorithm.flagged
        return counts

    def forget_stale(self, clock: int) -> None:
        """Let replays forget groups that are too old for any later clock; this changes no later result.

        Otherwise a chain that gets no more groups would keep them for ever.
        """
        for _, algorithm in self._algorithms:
            if isinstance(algorithm, ReplayMemory):
                algorithm.forget_stale(clock)

    def process(self, candidate: Candidate, clock: int) -> tuple[Result, ...]:
        """Return the final Keep or Drop of the candidate, then the Replays of every algorithm that saw it.

        A Keep's candidate lists its rejected trajectories with the reasons. Algorithms after a Drop are not called.
        Raises AlgorithmFailed if an algorithm raises, or does not return exactly one valid Keep or Drop.
        """
        verdict: Keep | Drop = drop_if_nothing_left(candidate) or Keep(candidate)
        again: list[Result] = []
        for name, algorithm in self._algorithms:
            if isinstance(verdict, Drop):
                break
            try:
                found = algorithm.process(verdict.candidate, clock)
                results = (found,) if isinstance(found, _VERDICT) else tuple(found)
            except (Exception, SystemExit) as error:
                raise AlgorithmFailed(f"algorithm {name} failed: {_describe(error)}") from error
            before, verdict = verdict.candidate, _find_verdict(name, results)
            replays = [result for result in results if isinstance(result, Replay)] if len(results) > 1 else []
            if type(algorithm) not in self._shipped:
                verdict, replays = _read_own_results(name, verdict, replays, before)
            again += replays
        return (verdict, *again)

    def snapshot(self) -> dict[str, Any]:
        """Return the state of all algorithms as plain JSON.

        Raises ChainError if a user's own algorithm has a state that it would not get back.
        """
        states = [[name, algorithm.snapshot()] for name, algorithm in self._algorithms]
        for (name, algorithm), (_, state) in zip(self._algorithms, states, strict=True):
            if type(algorithm) not in self._shipped:
                _check_own_state(name, algorithm, state)
        return {"chain": states}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of every algorithm. Raises ChainError if the snapshot is of another chain."""
        states = state["chain"]
        ours, theirs = [name for name, _ in self._algorithms], [name for name, _ in states]
        if ours != theirs:
            raise ChainError(
                f"the snapshot is of a chain with the algorithms {', '.join(theirs) or '(none)'}, but this chain has "
                f"{', '.join(ours) or '(none)'}: load the chain of the recipe revision that the snapshot is of"
            )
        for (_, algorithm), (_, own) in zip(self._algorithms, states, strict=True):
            algorithm.restore(own)


_VERDICT = (Keep, Drop)
MOST_FRAMES = 4


def _describe(error: BaseException) -> str:
    """Return an error and the innermost code lines of its traceback, in one line."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is ours
    where = ", ".join(f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames[-MOST_FRAMES:])
    return f"{type(error).__name__}: {read_error_text(error)} ({where or 'in the call itself'})"


def _find_verdict(name: str, results: Sequence[Result]) -> Keep | Drop:
    verdicts = [result for result in results if isinstance(result, _VERDICT)]
    if len(verdicts) != 1:
        raise AlgorithmFailed(f"algorithm {name} must return exactly one Keep or Drop for a group; got {len(verdicts)}")
    return verdicts[0]


def _read_own_results(
    name: str, verdict: Keep | Drop, replays: list[Replay], before: Candidate
) -> tuple[Keep | Drop, list[Replay]]:
    try:
        return read_verdict(verdict, before), [read_replay(one) for one in replays]
    except WrongResult as wrong:
        raise AlgorithmFailed(f"algorithm {name} returned a result that cannot be used: {wrong}") from wrong


def _check_own_state(name: str, algorithm: Algorithm, state: Any) -> None:
    try:
        check_state(algorithm, state)
    except WrongResult as wrong:
        raise ChainError(f"algorithm {name} would not get its state back after a restart: {wrong}") from wrong


def load_chain(named: Sequence[tuple[str, Mapping[str, Any]]], seed: int = 1) -> Chain:
    """Build a chain from names and settings; a name is a shipped one or `package.module:Name`.

    An algorithm that takes a `seed` gets this one unless its settings have one. Raises UnknownAlgorithm, whose message
    has the nearest names, the settings that an algorithm takes, or the error in the order.
    """
    built = [
        _load(f"algorithm {number} of the chain, {name}", name, own, seed)
        for number, (name, own) in enumerate(named, 1)
    ]
    wrong = find_wrong_order(
        [_find_shipped_name(name, algorithm) for (name, _), algorithm in zip(named, built, strict=True)]
    )
    if wrong:
        raise UnknownAlgorithm(f"the order of the chain is wrong: {wrong}")
    return Chain([(name, algorithm) for (name, _), algorithm in zip(named, built, strict=True)])


def _find_shipped_name(name: str, algorithm: Algorithm) -> str:
    """Return the short name of a shipped algorithm, also if the recipe gives its import path; else `name`."""
    kind = type(algorithm)
    target = f"{kind.__module__}:{kind.__qualname__}"
    return next((known for known, shipped in ALGORITHMS.items() if shipped == target), name)


def _load(where: str, name: str, settings: Mapping[str, Any], seed: int) -> Algorithm:
    try:
        build = find_named(where, name, ALGORITHMS)
        check_settings(where, build, settings)
        signature = inspect.signature(build)
    except UsageError as error:
        raise UnknownAlgorithm(str(error)) from error
    except ValueError as error:
        raise UnknownAlgorithm(f"{where}: {error}") from error
    takes = signature.parameters
    if "seed" in takes:
        settings = {"seed": seed, **settings}
    try:
        bound = signature.bind(**settings)
    except TypeError as error:
        raise UnknownAlgorithm(f"{where}: {error}; the algorithm takes {', '.join(takes) or 'no settings'}") from error
    try:
        algorithm = build(*bound.args, **bound.kwargs)
    except (TypeError, ValueError) as error:
        raise UnknownAlgorithm(f"{where}: {read_error_text(error)}") from error
    lacking = [name for name in ("process", "snapshot", "restore") if not callable(getattr(algorithm, name, None))]
    if lacking:
        raise UnknownAlgorithm(
            f"{where}, lacks {' and '.join(lacking)}: an algorithm must have the methods process, snapshot and restore "
            "(see docs/own-data-algorithm.md)"
        )
    return cast("Algorithm", algorithm)
