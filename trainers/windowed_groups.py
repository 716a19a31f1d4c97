"""Groups that wait for training: decoded, and known to be what this learner can train on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.infra.recipe.settings import TrainerSettings
from headrace.trainers.batches.batch import BatchError
from headrace.trainers.batches.groups import DecodedGroup, PreparedGroup, compute_or_check_advantages, prepare_group
from headrace.trainers.learner.limits import Limits


@dataclass(frozen=True, slots=True)
class WindowedGroup:
    """A group in the window, and what the learner would be given of it."""

    decoded: DecodedGroup
    prepared: PreparedGroup
    newest: int
    """Version of its newest token."""

    @property
    def size_bytes(self) -> int:
        """Of its arrays of tokens, as the group has them and as the learner takes them."""
        sampled = (s for member in self.decoded.trajectory_group.trajectories for s in member.sequences)
        return sum(one.ids.nbytes + one.logprobs.nbytes for one in sampled) + sum(
            one.ids.nbytes
            + one.mask.nbytes
            + one.behaviour_logprobs.nbytes
            + one.versions.nbytes
            + (0 if one.routing is None else one.routing.nbytes)
            for one in self.prepared.sequences
        )


def build_windowed_group(
    decoded: DecodedGroup,
    limits: Limits,
    settings: TrainerSettings,
    tokenizer_hash: Callable[[], str],
    newest_version: float,
) -> WindowedGroup:
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
        raise BatchError(f"its tokens are of tokenizer {tokenizer[:16]!r}, which is not this policy's")
    ready = compute_or_check_advantages(prepare_group(decoded), settings)
    if not any(sequence.mask.any() for sequence in ready.sequences):
        raise BatchError("it has no token to train on")
    for sequence in ready.sequences:
        limits.check(sequence)
    newest = max(int(sequence.versions.max()) for sequence in ready.sequences)
    if newest > newest_version:
        raise BatchError(f"it has tokens of version {newest}, and {newest_version} is the newest there is")
    return WindowedGroup(decoded, ready, newest)
