"""Turns curated groups into the sequences that the learner trains on."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from headrace.infra.recipe.settings import TrainerSettings
from headrace.infra.store.object_sources import ObjectSource
from headrace.schemas import codec
from headrace.schemas.field_types import Float32s
from headrace.schemas.records import CuratedGroup, Routing, Sampling, Sequence, TrajectoryGroup
from headrace.trainers.advantages import RewardedSequence
from headrace.trainers.batches.batch import BatchError, Experts, TrainingSequence
from headrace.trainers.batches.estimator import load_estimator

MOST_WEIGHT = 1e6
"""Largest weight of a group, so that weighted advantages stay finite."""
_ROUTING_BYTES = {"uint8": 1, "uint16": 2}


@dataclass(frozen=True, slots=True)
class DecodedGroup:
    """A curated group with its trajectories decoded."""

    curated: CuratedGroup
    trajectory_group: TrajectoryGroup


@dataclass(frozen=True, slots=True)
class PreparedGroup:
    """A group with its sequences for statistics and for training, before advantages are compared."""

    decoded: DecodedGroup
    """The group's record and trajectories."""
    rewarded: tuple[RewardedSequence, ...]
    """Its sequences, kept or not, without those that validation refused."""
    sequences: tuple[TrainingSequence, ...]
    """The kept sequences in the same order; their advantage is 0 until it is computed."""
    has_advantages: bool = False
    """Whether advantages are computed already, as they do not depend on other groups of the batch."""

    @classmethod
    def of_record(cls, curated: CuratedGroup) -> PreparedGroup:
        """Return a replay of which only the record is left: it can be evicted, but never trained on."""
        return cls(DecodedGroup(curated, TrajectoryGroup()), (), ())

    @property
    def newest(self) -> int:
        """Version of the newest kept token; -1 if there is none."""
        return max((int(sequence.versions.max()) for sequence in self.sequences), default=-1)

    @property
    def size_bytes(self) -> int:
        """Bytes of its token arrays, in the group and in the learner's form."""
        sampled = (s for member in self.decoded.trajectory_group.trajectories for s in member.sequences)
        return sum(one.ids.nbytes + one.logprobs.nbytes for one in sampled) + sum(
            one.ids.nbytes
            + one.mask.nbytes
            + one.behaviour_logprobs.nbytes
            + one.versions.nbytes
            + (0 if one.routing is None else one.routing.nbytes)
            for one in self.sequences
        )


def decode_group(objects: ObjectSource, curated: CuratedGroup) -> DecodedGroup:
    """Return a curated group with its trajectories, fetched if the record holds a claim check."""
    group = codec.decode(curated.group, TrajectoryGroup)
    if group.claim is not None:
        group = codec.decode(objects.get_group(group.claim), TrajectoryGroup)
    return DecodedGroup(curated, group)


def prepare_group(decoded: DecodedGroup) -> PreparedGroup:
    """Return a group with its decoded sequences.

    Members whose curated reward is NaN do not count and are left out. A sequence has its own reward if the workflow set
    one, else its trajectory's shaped reward. Further rewards, after those of the trajectories, belong to failed
    episodes that count: each has one sequence of every role, and is not trained on.

    Raises BatchError for a group that cannot be trained on.
    """
    kept, count = set(decoded.curated.kept), len(decoded.trajectory_group.trajectories)
    if not 0 <= decoded.curated.weight <= MOST_WEIGHT:
        raise BatchError(
            f"the weight of the group's gradient must be from 0 to {MOST_WEIGHT:g}, got {decoded.curated.weight}"
        )
    rewards, failures = len(decoded.curated.rewards), len(decoded.trajectory_group.failures)
    if rewards not in (count, count + failures):
        raise BatchError(
            f"the curated record does not fit its group: it must have {count} rewards, one for each trajectory, or "
            f"{count + failures}, with one more for each failed episode; got {rewards}"
        )
    if not kept <= set(range(count)):
        raise BatchError(
            f"the curated record does not fit its group: it keeps the trajectories {sorted(kept)[:8]}, but the group "
            f"has {count}, numbered from 0"
        )
    rewarded: list[RewardedSequence] = []
    sequences: list[TrainingSequence] = []
    for number, trajectory in enumerate(decoded.trajectory_group.trajectories):
        if math.isnan(decoded.curated.rewards[number]):
            continue
        for sequence in trajectory.sequences:
            reward = decoded.curated.rewards[number] if sequence.reward is None else sequence.reward
            rewarded.append(_build_rewarded_sequence(sequence, number, reward, kept=number in kept))
            if number in kept:
                sequences.append(_build_training_sequence(sequence, decoded.trajectory_group.logprob_convention))
    roles = sorted({one.role for one in rewarded})
    for number, reward in enumerate(decoded.curated.rewards[count:], start=count):
        if not math.isnan(reward):
            rewarded += (RewardedSequence(number, role, reward, length=0, kept=False) for role in roles)
    return PreparedGroup(decoded, tuple(rewarded), tuple(sequences))


def build_batch_sequences(groups: Iterable[PreparedGroup], settings: TrainerSettings) -> list[TrainingSequence]:
    """Return the sequences of a whole batch, group after group, with their advantages and their groups' indices.

    It is a pure function of groups and settings, so a remade version gets the same sequences. Advantages that
    `compute_or_check_advantages` has computed are not computed again.

    Raises RewardError if no advantage can be computed, and the errors of `load_estimator`.
    """
    batch = list(groups)
    if not all(group.has_advantages for group in batch):
        return _build_sequences_with_advantages(batch, settings)
    return [replace(sequence, group=index) for index, group in enumerate(batch) for sequence in group.sequences]


def compute_or_check_advantages(group: PreparedGroup, settings: TrainerSettings) -> PreparedGroup:
    """Return a group after making sure that its advantages can be computed.

    The returned group has its advantages, unless they depend on the other groups of its batch: then they were computed
    only as a check. Raises as `build_batch_sequences`.
    """
    sequences = _build_sequences_with_advantages([group], settings)
    if load_estimator(settings).whole_batch:
        return group
    return replace(group, sequences=tuple(sequences), has_advantages=True)


def _build_sequences_with_advantages(batch: list[PreparedGroup], settings: TrainerSettings) -> list[TrainingSequence]:
    """Return a batch's sequences with their advantages; only this function computes them.

    At the end each group's weight scales them, as importance weights scale the gradient of a prioritised replay (Schaul
    et al. 2016, arXiv 1511.05952); statistics ignore the weight.
    """
    rewarded = [replace(one, group=index) for index, group in enumerate(batch) for one in group.rewarded]
    advantages = load_estimator(settings)(rewarded)
    kept = (each for each, one in zip(advantages, rewarded, strict=True) if one.kept)
    return [
        replace(
            sequence,
            group=index,
            advantage=_spread_advantage(sequence, next(kept) * np.float32(group.decoded.curated.weight)),
            routing=sequence.routing if settings.replay_routing else None,
        )
        for index, group in enumerate(batch)
        for sequence in group.sequences
    ]


def _spread_advantage(sequence: TrainingSequence, found: np.float32 | Float32s) -> float | Float32s:
    """Return one number for all tokens, or float32[T] with 0 on tokens that were not generated."""
    if not isinstance(found, np.ndarray):
        return float(found)
    advantages = np.zeros(sequence.ids.size, np.float32)
    advantages[sequence.mask] = found
    return advantages


def _build_rewarded_sequence(sequence: Sequence, trajectory: int, reward: float, *, kept: bool) -> RewardedSequence:
    mask = build_loss_mask(sequence)
    turns = [span.turn for span in sequence.spans if span.kind == "generated" and span.length]
    return RewardedSequence(
        trajectory,
        sequence.role,
        reward,
        turn=turns[0] if turns else 0,
        length=int(mask.sum()),
        baseline=sequence.baseline,
        kept=kept,
        token_rewards=_find_token_rewards(sequence, mask, reward),
    )


def _find_token_rewards(
    sequence: Sequence, mask: npt.NDArray[np.bool_], reward: float
) -> npt.NDArray[np.float64] | None:
    """Return the reward of each generated token, float64[generated tokens]; None if no span has its own reward.

    A span's reward goes to its last generated token, else to the last generated token before the span, else to the
    first one. The rest of the reward, from shaping or from scoring the answer as a whole, goes to the last token.
    """
    given = [span.reward for span in sequence.spans if span.reward is not None]
    if not given or not mask.any():
        return None
    generated, end = np.cumsum(mask), 0
    rewards = np.zeros(int(generated[-1]), np.float64)
    for span in sequence.spans:
        end += span.length
        if span.reward is not None:
            rewards[max(int(generated[end - 1]) - 1, 0) if end else 0] += span.reward
    rewards[-1] += reward - sum(given)
    rewards.setflags(write=False)  # advantages are computed from them more than once
    return rewards


def _build_training_sequence(sequence: Sequence, convention: str) -> TrainingSequence:
    return TrainingSequence(
        ids=sequence.ids,
        mask=build_loss_mask(sequence),
        behaviour_logprobs=sequence.logprobs,
        versions=expand_token_versions(sequence),
        advantage=0.0,
        temperature=_find_temperature(sequence, convention),
        routing=None if sequence.routing is None else decode_routing(sequence.routing),
    )


def _find_temperature(sequence: Sequence, convention: str) -> float | Float32s:
    """Return the temperature of a sequence's log-probabilities: one number, or float32[T]."""
    if convention not in {"raw", "tempered", "masked"}:
        raise BatchError(f"logprob_convention must be raw, tempered or masked, got {convention!r}")
    spans = [(span.length, span.sampling or Sampling()) for span in sequence.spans if span.kind == "generated"]
    for _, how in spans:
        if (how.top_p, how.top_k, how.min_p) != (1.0, 0, 0.0):
            raise BatchError(
                "tokens must be sampled from the whole vocabulary (top_p = 1, top_k = 0, min_p = 0), got "
                f"top_p = {how.top_p}, top_k = {how.top_k}, min_p = {how.min_p}"
            )
        if convention == "raw" and how.temperature not in {0.0, 1.0}:
            raise BatchError(
                "with logprob_convention = raw, tokens must be sampled at temperature 0 or 1; got temperature "
                f"{how.temperature}"
            )
    # At temperature 0 (greedy) log-probabilities are those of the unscaled logits.
    divisors = {how.temperature or 1.0 for _, how in spans}
    if len(divisors) < 2:
        return divisors.pop() if divisors else 1.0
    temperatures = np.ones(sequence.ids.size, np.float32)
    temperatures[build_loss_mask(sequence)] = np.repeat(
        [how.temperature or 1.0 for _, how in spans], [n for n, _ in spans]
    )
    return temperatures


def build_loss_mask(sequence: Sequence) -> npt.NDArray[np.bool_]:
    """Return bool[T], True on generated spans. Raises BatchError if the spans do not cover the ids."""
    kinds = np.array([span.kind == "generated" for span in sequence.spans], np.bool_)
    return np.repeat(kinds, _check_cover([span.length for span in sequence.spans], sequence.ids.size, "spans"))


def decode_routing(routing: Routing) -> Experts:
    """Return the experts [tokens, layers, per_token] as a view. Raises BatchError if the bytes do not fit."""
    shape = (routing.tokens, routing.layers, routing.per_token)
    width = _ROUTING_BYTES.get(routing.dtype)
    if width is None or min(shape) < 0 or math.prod(shape) * width != len(routing.ids):
        raise BatchError(
            "the recorded routing must be of type uint8 or uint16, and have as many bytes as its shape needs; got "
            f"type {routing.dtype}, shape {list(shape)} and {len(routing.ids)} bytes"
        )
    return np.frombuffer(routing.ids, f"<u{width}").reshape(shape)


def expand_token_versions(sequence: Sequence) -> npt.NDArray[np.int32]:
    """Return int32[T], the version of each token; -1 on tokens that were not generated.

    Raises BatchError as `build_loss_mask`.
    """
    versions, lengths = sequence.version_runs[::2], sequence.version_runs[1::2].tolist()
    if len(versions) != len(lengths):
        raise BatchError(
            "version_runs must hold pairs of a version and a number of tokens, got an odd count of numbers: "
            f"{sequence.version_runs.size}"
        )
    return np.repeat(versions, _check_cover(lengths, sequence.ids.size, "version runs"))


def _check_cover(lengths: list[int], total: int, what: str) -> list[int]:
    """Return lengths that add up to a total. Raises BatchError otherwise, before memory is allocated for them."""
    if min(lengths, default=0) < 0 or sum(lengths) != total:
        raise BatchError(
            f"the lengths of a sequence's {what} must be 0 or more and add up to its {total} token ids; the "
            f"{len(lengths)} {what} add up to {sum(lengths)}"
        )
    return lengths
