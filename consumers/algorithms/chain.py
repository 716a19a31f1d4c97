"""Data algorithms one after the other, as the recipe lists them."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, cast

from consumers.algorithms.contract import Again, Algorithm, Candidate, Drop, Keep, Result
from infra.errors import HeadraceError, UsageError

ALGORITHMS = {
    "validate": "consumers.algorithms.validate:Validate",
    "max_staleness": "consumers.algorithms.max_staleness:MaxStaleness",
    "drop_zero_variance": "consumers.algorithms.zero_variance:DropZeroVariance",
}


class ChainError(HeadraceError):
    """An algorithm broke its contract, or a snapshot is of another chain."""


class UnknownAlgorithm(UsageError):
    """The recipe names an algorithm that there is not, or gives one settings that it refuses."""


class Chain:
    """Named algorithms in order; itself used like one algorithm."""

    def __init__(self, algorithms: Sequence[tuple[str, Algorithm]]) -> None:
        self._algorithms = tuple(algorithms)

    @property
    def replays(self) -> bool:
        """Whether any of its algorithms may ask for a group again."""
        return any(hasattr(algorithm, "holds") for _, algorithm in self._algorithms)

    def holds(self) -> set[tuple[str, int]]:
        """Return (stream, number) of every group that may still be asked for again."""
        replaying = [algorithm for _, algorithm in self._algorithms if hasattr(algorithm, "holds")]
        return {numbered for algorithm in replaying for numbered in algorithm.holds()}

    def process(self, candidate: Candidate, clock: int) -> tuple[Result, ...]:
        """Return the Keep or Drop that the candidate ends with, then the Agains of every algorithm that saw it.

        A Keep's candidate says which of its trajectories were rejected, and why. An algorithm after a Drop sees
        nothing. Raises ChainError when an algorithm does not return exactly one Keep or Drop.
        """
        verdict: Keep | Drop = Keep(candidate)
        again: list[Result] = []
        for use, algorithm in self._algorithms:
            if isinstance(verdict, Drop):
                break
            results = tuple(algorithm.process(verdict.candidate, clock))
            verdict = _verdict(use, results)
            again += [result for result in results if isinstance(result, Again)]
        return (verdict, *again)

    def snapshot(self) -> dict[str, Any]:
        """Return the state of all algorithms, as plain JSON."""
        return {"chain": [[use, algorithm.snapshot()] for use, algorithm in self._algorithms]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Give every algorithm its state back. Raises ChainError when the snapshot is of another chain."""
        states = state["chain"]
        ours, theirs = [use for use, _ in self._algorithms], [use for use, _ in states]
        if ours != theirs:
            raise ChainError(f"a snapshot of the chain {theirs} does not fit {ours}; load the chain of its revision")
        for (_, algorithm), (_, own) in zip(self._algorithms, states, strict=True):
            algorithm.restore(own)


def _verdict(use: str, results: Sequence[Result]) -> Keep | Drop:
    verdicts = [result for result in results if isinstance(result, Keep | Drop)]
    if len(verdicts) != 1:
        raise ChainError(f"algorithm {use} returned {len(verdicts)} verdicts for one group: one Keep or Drop is due")
    return verdicts[0]


def load_chain(uses: Sequence[tuple[str, Mapping[str, Any]]]) -> Chain:
    """Build a chain from names and settings; a name is a shipped one or `package.module:Name`.

    Raises UnknownAlgorithm, with the nearest names or the settings that an algorithm takes.
    """
    return Chain([(use, _load(number, use, settings)) for number, (use, settings) in enumerate(uses, start=1)])


def _load(number: int, use: str, settings: Mapping[str, Any]) -> Algorithm:
    where = f"algorithm {number} of the chain, {use}"
    build = _found(where, use)
    try:
        bound = inspect.signature(build).bind(**settings)
    except TypeError as error:
        takes = ", ".join(inspect.signature(build).parameters) or "no settings"
        raise UnknownAlgorithm(f"{where}: {error}; it takes {takes}") from error
    try:
        return cast("Algorithm", build(*bound.args, **bound.kwargs))
    except (TypeError, ValueError) as error:
        raise UnknownAlgorithm(f"{where}: {error}") from error


def _found(where: str, use: str) -> Any:
    module, _, attribute = ALGORITHMS.get(use, use).partition(":")
    if not module or not attribute:
        nearest = difflib.get_close_matches(use, ALGORITHMS, n=len(ALGORITHMS), cutoff=0.0)
        raise UnknownAlgorithm(f"{where}: take one of {', '.join(nearest)}, or your own as `package.module:Name`")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise UnknownAlgorithm(f"{where}: importing {module} failed ({error})") from error
    except AttributeError as error:
        raise UnknownAlgorithm(f"{where}: module {module} has no {attribute!r}") from error
