"""Decodes groups and checks that this learner can train on them."""

from __future__ import annotations

from collections.abc import Callable

from headrace.infra.recipe.settings import TrainerSettings
from headrace.trainers.batches.batch import BatchError
from headrace.trainers.batches.groups import DecodedGroup, PreparedGroup, compute_or_check_advantages, prepare_group
from headrace.trainers.learner.limits import Limits


def prepare_checked_group(
    decoded: DecodedGroup,
    limits: Limits,
    settings: TrainerSettings,
    tokenizer_hash: Callable[[], str],
    newest_version: float,
) -> PreparedGroup:
    """Return a prepared group that can be trained on.

    Args:
        decoded: The group with its trajectories.
        limits: Limits of the model.
        settings: Settings of the trainer.
        tokenizer_hash: Returns the BLAKE3 of the policy's tokenizer, empty if there is none. It is called only for a
        group that names a tokenizer, because it may have to fetch the policy's.
        newest_version: The newest version that a token can have; infinite if unknown.

    Raises BatchError, RewardError and AdvantageError for an unusable group.
    """
    tokenizer = decoded.trajectory_group.tokenizer_hash
    if tokenizer and tokenizer != (own := tokenizer_hash()):
        raise BatchError(
            f"the group was generated with another tokenizer (BLAKE3 {tokenizer[:16]}…) than this policy's "
            f"({f'BLAKE3 {own[:16]}…' if own else 'it has none'}): check that the engine serves this policy"
        )
    ready = compute_or_check_advantages(prepare_group(decoded), settings)
    if not any(sequence.mask.any() for sequence in ready.sequences):
        raise BatchError("the group has no token to train on: none of its kept trajectories has a generated token")
    for sequence in ready.sequences:
        limits.check(sequence)
    if ready.newest > newest_version:
        raise BatchError(
            f"the group names version {ready.newest} for some of its tokens, but no such version exists yet: the "
            f"trainer's newest is {newest_version}"
        )
    return ready
