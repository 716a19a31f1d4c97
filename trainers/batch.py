"""From training sequences to optimizer minibatches and padded micro-batches.

Everything here is a pure function of (sequences, settings, seed, version), so that a version can be re-trained from its
lineage: no torch, no clock, and no random generator whose stream may change between releases.

The one place where predictions are shifted: the logits at position t-1 predict token t, so a micro-batch lists, for
each trained token, the flat position of its *predecessor* in the padded ids and everything else at the token itself.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from infra.errors import HeadraceError

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Float32s = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]


class BatchError(HeadraceError):
    """Sequences that cannot be trained on."""


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """One sequence of T tokens with all that the loss needs. Raises BatchError when its parts do not agree."""

    ids: Int32s
    """int32[T]"""
    mask: Bools
    """bool[T], True where the policy being trained generated the token; the first token has no prediction."""
    behaviour_logprobs: Float32s
    """float32[T], as the engine reported them at `temperature`; 0 where not generated."""
    versions: Int32s
    """int32[T], the weight version that generated the token; -1 where not generated."""
    advantage: float
    temperature: float
    group: int = 0
    """Place of its group in the batch; sequences of one group are never split over minibatches."""

    def __post_init__(self) -> None:
        shapes = {array.shape for array in (self.ids, self.mask, self.behaviour_logprobs, self.versions)}
        if len(shapes) != 1 or self.ids.ndim != 1 or self.ids.size == 0:
            raise BatchError(f"ids, mask, log-probabilities and versions differ in shape or are empty: {shapes}")
        if self.mask[0]:
            raise BatchError("the first token of a sequence is marked as generated: nothing can predict it")
        if not 0 < self.temperature < np.inf or not np.isfinite(self.advantage):
            raise BatchError(f"temperature {self.temperature} must be > 0, advantage {self.advantage} finite")
        if (self.versions[self.mask] < 0).any() or not np.isfinite(self.behaviour_logprobs[self.mask]).all():
            raise BatchError("a generated token lacks its weight version or a finite log-probability")


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One forward and backward pass: padded inputs and, flat, the N trained tokens."""

    ids: Int64s
    """int64[rows, width], padded on the right with 0; padding is never attended to by an earlier token."""
    positions: Int64s
    """int64[N], row * width + (t - 1): where in the flattened outputs token t is predicted."""
    targets: Int64s
    """int64[N], token t."""
    behaviour: Float32s
    """float32[N], its log-probability when it was sampled."""
    advantages: Float32s
    """float32[N]"""
    temperatures: Float32s
    """float32[N]"""
    versions: Int32s
    """int32[N], the version that generated it."""


@dataclass(frozen=True, slots=True)
class Minibatch:
    """The micro-batches of one optimizer step."""

    tokens: int
    """Trained tokens of all micro-batches, the denominator of the token mean; never 0."""
    micro_batches: tuple[MicroBatch, ...]


def numbered(groups: Iterable[Iterable[TrainingSequence]]) -> list[TrainingSequence]:
    """Return the sequences of a batch, group after group, each with its group's place in the batch."""
    return [replace(sequence, group=place) for place, group in enumerate(groups) for sequence in group]


def minibatches(
    sequences: Sequence[TrainingSequence], count: int, token_budget: int, *, seed: int, version: int
) -> tuple[Minibatch, ...]:
    """Cut a batch into at most `count` optimizer steps of whole groups, each cut into micro-batches.

    The groups' order comes from a hash of (seed, version, group). Sequences without a trained token cost no forward
    pass; a step that would have none is left out. Raises BatchError when no token at all is left to train on.
    """
    trained = [sequence for sequence in sequences if sequence.mask.any()]
    if not trained:
        raise BatchError(f"version {version}: none of {len(sequences)} sequences has a token to train on")
    groups = sorted({sequence.group for sequence in trained}, key=lambda group: _draw(seed, version, group))
    steps = []
    for part in np.array_split(np.array(groups), min(count, len(groups))):
        chosen = set(part.tolist())
        members = [sequence for sequence in trained if sequence.group in chosen]
        micro_batches = tuple(pad(members_cut) for members_cut in micro_batch_cuts(members, token_budget))
        steps.append(Minibatch(sum(micro.targets.size for micro in micro_batches), micro_batches))
    return tuple(steps)


def micro_batch_cuts(sequences: Sequence[TrainingSequence], token_budget: int) -> list[list[TrainingSequence]]:
    """Longest first, as many sequences at a time as fit into `token_budget` tokens with padding, at least one."""
    if token_budget < 1:
        raise BatchError(f"the token budget of a micro-batch must be at least 1, got {token_budget}")
    ordered = sorted(sequences, key=lambda sequence: -sequence.ids.size)
    cuts = []
    begin = 0
    while begin < len(ordered):
        rows = max(1, token_budget // ordered[begin].ids.size)
        cuts.append(ordered[begin : begin + rows])
        begin += rows
    return cuts


def pad(sequences: Sequence[TrainingSequence]) -> MicroBatch:
    """Pad sequences into one micro-batch and line up every trained token with the position that predicts it."""
    lengths = np.array([sequence.ids.size for sequence in sequences])
    # The last token of a row predicts nothing that is trained, so it is not an input.
    width = max(int(lengths.max()) - 1, 1)
    columns = np.arange(width)
    ids = np.zeros((len(sequences), width), np.int64)
    ids[columns < (lengths - 1)[:, None]] = np.concatenate([sequence.ids[:-1] for sequence in sequences])
    mask = np.concatenate([sequence.mask for sequence in sequences])
    starts = np.cumsum(lengths) - lengths
    row = np.repeat(np.arange(len(sequences)), lengths)[mask]
    column = np.flatnonzero(mask) - starts[row] - 1
    per_row = np.array([(sequence.advantage, sequence.temperature) for sequence in sequences], np.float32)
    return MicroBatch(
        ids=ids,
        positions=row * width + column,
        targets=np.concatenate([sequence.ids for sequence in sequences])[mask].astype(np.int64),
        behaviour=np.concatenate([sequence.behaviour_logprobs for sequence in sequences])[mask].astype(np.float32),
        advantages=per_row[row, 0],
        temperatures=per_row[row, 1],
        versions=np.concatenate([sequence.versions for sequence in sequences])[mask].astype(np.int32),
    )


def staleness(steps: Sequence[Minibatch], base_version: int) -> Int64s:
    """Histogram int64[max+1] of base_version - version over the trained tokens.

    Raises BatchError for a token of a version newer than `base_version`: it cannot have been generated yet.
    """
    ages = base_version - np.concatenate([micro.versions for step in steps for micro in step.micro_batches])
    if ages.min() < 0:
        raise BatchError(f"a token of version {base_version - ages.min()} came to a trainer at {base_version}")
    return np.bincount(ages)


def _draw(seed: int, version: int, group: int) -> bytes:
    return hashlib.blake2b(struct.pack("<qqq", seed, version, group), digest_size=16).digest()
