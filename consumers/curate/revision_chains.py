"""The chains of one partition: consecutive recipe revisions with the same chain settings share a chain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from headrace.consumers.algorithms.chain import Chain, load_chain
from headrace.consumers.curate.chain_ends import ChainEnds
from headrace.consumers.curate.context import CuratorContext, UnknownRevision
from headrace.infra.recipe.settings import Recipe
from headrace.schemas.records import TrajectoryGroup


def load_policy_chain(recipe: Recipe, policy_variant: str) -> Chain:
    """Return the chain of a policy or shadow; `max_staleness` gets the trainer's limit, random draws the recipe's seed.

    Settings in the recipe's chain take precedence.
    """
    return load_chain(_list_plug_ins(recipe, policy_variant), recipe.seed)


def _list_plug_ins(recipe: Recipe, policy_variant: str) -> list[tuple[str, dict[str, Any]]]:
    limits = {"max_staleness": {"limit": recipe.trainer_of(policy_variant).max_staleness}}
    return [(one.use, {**limits.get(one.use, {}), **one.settings}) for one in recipe.chain_of(policy_variant)]


def find_first_of_chain(recipe_of: Callable[[int], Recipe], revision: int, policy_variant: str) -> int:
    """Return the first of the consecutive revisions up to this one that have the same chain.

    They share one chain, so its memory survives changes elsewhere in the recipe. Raises UnknownRevision.
    """

    def read_chain_settings(number: int) -> tuple[Any, ...]:
        recipe = recipe_of(number)
        return recipe.seed, _list_plug_ins(recipe, policy_variant)

    own = read_chain_settings(revision)
    with suppress(UnknownRevision):
        while revision > 0 and read_chain_settings(revision - 1) == own:
            revision -= 1
    return revision


class RevisionChains:
    """Chains by revision. A chain is named by its first revision."""

    def __init__(self, context: CuratorContext) -> None:
        self._context = context
        self._chains: dict[int, Chain] = {}
        self._firsts: dict[int, int] = {}
        self._limits: dict[int, int] = {}
        self._ends = ChainEnds()
        self._flagged: Counter[str] = Counter()
        """Number of trajectories flagged by ended chains, by algorithm."""

    def of(self, revision: int) -> Chain:
        """Return the chain of a revision. Raises UnknownRevision."""
        first = self.name_of(revision)
        if first not in self._chains:
            self._chains[first] = load_policy_chain(self._context.recipe_of(first), self._context.policy_variant)
        return self._chains[first]

    def name_of(self, revision: int) -> int:
        """Return the name of a revision's chain. Raises UnknownRevision."""
        if revision not in self._firsts:
            context = self._context
            self._firsts[revision] = find_first_of_chain(context.recipe_of, revision, context.policy_variant)
        return self._firsts[revision]

    def max_staleness(self, revision: int) -> int:
        """Return the trainer's staleness limit in a revision."""
        if revision not in self._limits:
            trainer = self._context.recipe_of(revision).trainer_of(self._context.policy_variant)
            self._limits[revision] = trainer.max_staleness
        return self._limits[revision]

    def by_name(self) -> Mapping[int, Chain]:
        """Return all chains by name."""
        return self._chains

    def end(self, group: TrajectoryGroup, low_watermark: Callable[[str], int]) -> list[int]:
        """Drop the chains that get no group after this one, with their memory; return their names.

        `low_watermark` is as in `ChainEnds.pop_finished`.
        """
        self._ends.note_number(group.revision, group.stream, group.number)
        if len(self._ends.revisions) <= 1:
            return []
        streams = self._context.recipe_of(max(self._ends.revisions)).workflows_of(self._context.policy)
        over = {self.name_of(revision) for revision in self._ends.pop_finished(streams, low_watermark)}
        ended = sorted(over - {self.name_of(revision) for revision in self._ends.revisions})
        for first in ended:
            self._flagged.update(self._chains.pop(first).count_flagged())
        return ended

    @property
    def flagged(self) -> Counter[str]:
        """Number of trajectories flagged by `repetition` and `gibberish`, also with `monitor`, by algorithm."""
        counts = self._flagged.copy()
        for chain in self._chains.values():
            counts.update(chain.count_flagged())
        return counts

    def forget_stale(self, clock: int) -> None:
        """Let all chains forget groups that are too old for a replay."""
        for chain in self._chains.values():
            chain.forget_stale(clock)

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain JSON."""
        return {
            "chains": {str(first): chain.snapshot() for first, chain in sorted(self._chains.items())},
            "ends": self._ends.snapshot(),
            "flagged": self._flagged,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a snapshot."""
        for first, known in state["chains"].items():
            self.of(int(first)).restore(known)
        self._ends.restore(state.get("ends", {}))
        self._flagged = Counter(state.get("flagged", {}))
