"""Groups that wait for training: decoded, and known to be what this learner can train on."""

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
    """Return a group that can be trained on.

    Args:
        decoded: The group with its trajectories.
        limits: Limits of the model.
        settings: Settings of the trainer.
        tokenizer_hash: Returns the BLAKE3 of the policy's tokenizer, empty where there is none; asked of a group that
            names one, as it may have to be fetched.
        newest_version: No token can be of a later one; infinite where nobody knows.

    Raises BatchError, RewardError and AdvantageError for what makes it unusable.
    """
    tokenizer = decoded.trajectory_group.tokenizer_hash
    if tokenizer and tokenizer != tokenizer_hash():
        raise BatchError(
            f"the group was generated with another tokenizer (BLAKE3 {tokenizer[:16]}…) than this policy's: check that "
            "the engine serves this policy"
        )
    ready = compute_or_check_advantages(prepare_group(decoded), settings)
    if not any(sequence.mask.any() for sequence in ready.sequences):
        raise BatchError("the group has no token to train on")
    for sequence in ready.sequences:
        limits.check(sequence)
    if ready.newest > newest_version:
        raise BatchError(
            f"the group has tokens of version {ready.newest}, but the trainer's newest version is {newest_version}"
        )
    return ready
