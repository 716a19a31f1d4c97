"""Compares what a chain chose, in curated records, with the group inside and with the outcomes. No I/O."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Sequence

from blake3 import blake3

from headrace.consumers.algorithms.chain import Chain
from headrace.consumers.curate.revision_chains import load_policy_chain
from headrace.infra.errors import HeadraceError
from headrace.infra.recipe.settings import Recipe
from headrace.ops.audit.deep import UnfitValue
from headrace.schemas.ids import LONGEST_NAME
from headrace.schemas.records import CuratedGroup, Outcome, TrajectoryGroup


class KeptChecks:
    """Takes in the outcomes of single trajectories of one policy or shadow, and then its curated records.

    Between the outcomes and its curated record, some 200 bytes are kept for a group with a rejected trajectory.

    Args:
        variant: Policy or shadow.
        revisions: All recipes of the run, by revision.
    """

    def __init__(self, variant: str, revisions: Sequence[Recipe]) -> None:
        chains = [load_known_chain(one, variant) for one in revisions]
        self._filters = {at for at, chain in enumerate(chains) if chain is not None and not chain.can_reorder}
        """Revisions whose chain only takes trajectories out."""
        self._unshaped = {at for at, chain in enumerate(chains) if chain is not None and not chain.can_shape}
        """Revisions whose chain changes no reward."""
        self._rejected: dict[tuple[str, int], array[int]] = {}
        """(stream, number) to the digests of the ids of the trajectories that outcomes reject."""

    def fold_rejection(self, outcome: Outcome) -> None:
        """Take in the outcome of a single trajectory."""
        found = self._rejected.setdefault((outcome.stream, outcome.number), array("Q"))
        found.append(_compute_digest(outcome.trajectory_id))

    def check_first_use(self, curated: CuratedGroup, group: TrajectoryGroup, *, has_outcomes: bool) -> None:
        """Compare a first use with its group, if the trajectories are there and not in a store that is left out.

        Args:
            curated: The record; its `kept` and `rewards` fit the number of trajectories.
            group: The group inside.
            has_outcomes: Whether the group's outcomes were read. In a running run, they may be newer than what was read
                of `outcomes`.

        Raises UnfitValue.
        """
        rejected = self._rejected.pop((curated.stream, curated.number), array("Q"))
        if group.claim is not None:
            return
        if curated.revision in self._filters and any(
            one >= other for one, other in zip(curated.kept, curated.kept[1:], strict=False)
        ):
            raise UnfitValue(
                f"its `kept` is {curated.kept}, but must rise: the chain of recipe revision {curated.revision} only "
                "takes trajectories out"
            )
        if curated.revision in self._unshaped:
            _check_rewards(curated, group)
        if has_outcomes:
            _check_left_out(curated, group, rejected)


def _check_rewards(curated: CuratedGroup, group: TrajectoryGroup) -> None:
    """Compare rewards that were not shaped. NaN is the reward of one that is left out and not counted.

    Whether it counts depends on the rule that took it out, which may differ between releases. So either is accepted.
    The rewards that follow are those of failed episodes that count: 0.
    """
    own = tuple(trajectory.reward for trajectory in group.trajectories)
    if curated.rewards == own:
        return
    kept, failed = set(curated.kept), (0.0,) * (len(curated.rewards) - len(own))
    for index, (found, wanted) in enumerate(zip(curated.rewards, (*own, *failed), strict=True)):
        if found != wanted and (index in kept or not math.isnan(found)):
            whose = f"of trajectory {index}" if index < len(own) else "of a failed episode"
            raise UnfitValue(
                f"the reward {whose} is {found} in the record, but {wanted} in its group, and the chain of recipe "
                f"revision {curated.revision} changes no rewards"
            )


def _check_left_out(curated: CuratedGroup, group: TrajectoryGroup, rejected: array[int]) -> None:
    """Compare the left-out trajectories with those that outcomes reject. Ids may repeat, so all are counted."""
    kept = set(curated.kept)
    left_out = [index for index in range(len(group.trajectories)) if index not in kept]
    if len(left_out) != len(rejected):
        raise UnfitValue(
            f"it leaves out {len(left_out)} of the trajectories of its group, but outcomes reject {len(rejected)} of "
            "them"
        )
    ids = {_compute_digest(one := group.trajectories[index].id): one for index in left_out}
    odd = Counter(_compute_digest(group.trajectories[index].id) for index in left_out) - Counter(rejected)
    # Early builds wrote the trajectory's position in place of its id.
    by_position = (f"{curated.stream}:{curated.number}:{index}" for index in left_out)
    if odd and Counter(map(_compute_digest, by_position)) != Counter(rejected):
        wrong = ids[next(iter(odd))]
        raise UnfitValue(f"it leaves out trajectory {wrong!r:.60} of its group, but no outcome rejects that trajectory")


def _compute_digest(trajectory_id: str) -> int:
    """Return a digest of eight bytes of an id, as long as outcomes have it."""
    return int.from_bytes(blake3(trajectory_id[:LONGEST_NAME].encode()).digest(8), "little")


def load_known_chain(recipe: Recipe, variant: str) -> Chain | None:
    """Return the chain of a policy or shadow; None if the recipe lacks the shadow, or an algorithm is not installed.

    Groups older than a shadow go through the chain of a later recipe.
    """
    if variant not in recipe.policy_variants:
        return None
    try:
        return load_policy_chain(recipe, variant)
    except HeadraceError:
        return None
