"""Draws problems without end, by tier: what the generated worlds have in common."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import ClassVar

from headrace.envs.contract import Split


def check_choice(what: str, given: Sequence[str], known: Sequence[str]) -> None:
    """Raise ValueError, which names the setting, unless it is a list of at least one of the known names."""
    if isinstance(given, str) or not given or not set(given) <= set(known):
        raise ValueError(f"{what} must be a list of {', '.join(known)}; got {given!r}")


class DrawnByTier:
    """Problems without end; held-out ones are the same for every seed.

    Args:
        seed: Of the problems.
        tiers: In use, drawn alike.

    Raises ValueError for an unknown tier.
    """

    all_tiers: ClassVar[tuple[str, ...]]
    """All tiers, easiest first."""
    stream: ClassVar[str]
    """Name of the draws. Another one would give other problems."""

    def __init__(self, seed: int, tiers: Sequence[str]) -> None:
        check_choice("tiers", tiers, self.all_tiers)
        self._seed, self._tiers = seed, tuple(tiers)

    def tiers(self) -> tuple[str, ...]:
        """See `HasTiers`."""
        return self.all_tiers

    def asked(self) -> tuple[str, ...]:
        """See `HasTiers`."""
        return tuple(tier for tier in self.all_tiers if tier in self._tiers)

    def size(self, split: Split) -> int | None:  # noqa: ARG002 - the protocol's
        """Return None: the problems do not end."""
        return None

    def begin_draw(self, split: Split, index: int) -> tuple[str, Random]:
        """Return the task id of a problem, and what draws it."""
        seed = 0 if split == "held_out" else self._seed
        return f"{split}:{seed}:{index}", Random(f"{self.stream} {split} {seed} {index}")  # noqa: S311
