"""Cuts training sequences into optimizer minibatches, and these into packed or padded micro-batches.

Everything here is a pure function of (sequences, settings, seed, version), so a version can be re-trained from its
lineage. It uses no torch, no clock, and no random generator whose stream may change between releases.

Only this module shifts predictions: the logits at position t-1 predict token t. So a micro-batch lists, for each
trained token, the flat position of its *predecessor*, but all other values at the token itself.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.infra.errors import HeadraceError
from headrace.schemas.field_types import Float32s, Int32s
from headrace.trainers.advantages import Int64s

Bools = npt.NDArray[np.bool_]
Experts = npt.NDArray[np.uint8 | np.uint16]


class BatchError(HeadraceError):
    """Sequences that cannot be trained on."""


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """One sequence of T tokens with all data for the loss. Raises BatchError if its parts do not agree."""

    ids: Int32s
    """int32[T]"""
    mask: Bools
    """bool[T], True where the policy being trained generated the token; the first token has no prediction."""
    behaviour_logprobs: Float32s
    """float32[T], as the engine reported them at `temperature`; 0 on tokens that were not generated."""
    versions: Int32s
    """int32[T], the weight version that generated the token; -1 on tokens that were not generated."""
    advantage: float | Float32s
    """One advantage for all tokens, or float32[T]."""
    temperature: float | Float32s
    """Temperature of the log-probabilities: one for all tokens, or float32[T]."""
    group: int = 0
    """Index of its group in the batch; sequences of one group are never split over minibatches."""
    routing: Experts | None = None
    """uint8 or uint16 [n, layers, experts per token]: experts of the first n <= T tokens in the engine."""

    def __post_init__(self) -> None:
        names = ("ids", "mask", "behaviour_logprobs", "versions")
        shapes = [getattr(self, name).shape for name in names]
        if len(set(shapes)) != 1 or self.ids.ndim != 1 or self.ids.size == 0:
            raise BatchError(
                f"{', '.join(names)} of a sequence must be vectors of the same length, at least 1; got the shapes "
                f"{', '.join(map(str, shapes))}"
            )
        if self.mask[0]:
            raise BatchError(
                "the first token of a sequence is marked as generated, but no token before it predicts it: begin each "
                "sequence with a token of the prompt"
            )
        for name, one in (("advantages", self.advantage), ("temperatures", self.temperature)):
            if np.shape(one) not in ((), self.ids.shape):
                raise BatchError(
                    f"{name} must be one number, or one number for each of the {self.ids.size} tokens; got shape "
                    f"{np.shape(one)}"
                )
        temperatures = np.asarray(self.temperature)
        if not ((temperatures > 0) & np.isfinite(temperatures)).all():
            raise BatchError(f"temperature must be above 0 and finite, got {self.temperature}")
        versions, logprobs = self.versions[self.mask], self.behaviour_logprobs[self.mask]
        if (versions < 0).any():
            raise BatchError(f"the weight version of a generated token must be 0 or more, got {versions.min()}")
        if not (finite := np.isfinite(logprobs)).all():
            raise BatchError(f"the log-probability of a generated token must be finite, got {logprobs[~finite][0]}")
        if self.routing is not None and (self.routing.ndim != 3 or len(self.routing) > self.ids.size):
            raise BatchError(
                "routing must have the shape [tokens, layers, experts per token], with at most "
                f"{self.ids.size} tokens; got {list(self.routing.shape)}"
            )

    @property
    def advantages(self) -> Float32s:
        """float32[T]."""
        return np.broadcast_to(np.asarray(self.advantage, np.float32), self.ids.shape)

    @property
    def temperatures(self) -> Float32s:
        """float32[T]."""
        return np.broadcast_to(np.asarray(self.temperature, np.float32), self.ids.shape)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One forward and backward pass over S sequences: the inputs, and flat arrays of the N trained tokens."""

    ids: Int64s
    """Packed: int64[1, T], one sequence after the other. Padded: int64[S, width], with 0 on the right, to which no
    earlier token attends. The last token of a sequence predicts no trained token, so it is not an input."""
    positions: Int64s
    """int64[N], the position in the flattened outputs that predicts each token."""
    targets: Int64s
    """int64[N], token t."""
    behaviour_logprobs: Float32s
    """float32[N], the log-probability of each token when it was sampled."""
    advantages: Float32s
    """float32[N]"""
    temperatures: Float32s
    """float32[N]"""
    versions: Int32s
    """int32[N], the version that generated each token."""
    sequences: Int64s
    """int64[N], the sequence of each token within the micro-batch, 0..S-1, non-decreasing."""
    inputs: Int64s
    """int64[I], the positions in the flattened ids that are not padding."""
    lengths: tuple[int, ...] = ()
    """Inputs of each packed sequence, T in all; empty when padded."""
    routing: npt.NDArray[np.int16] | None = None
    """int16[ids.size, layers, experts per token]: the experts of each flattened input, -1 for unknown ones; None if
    all are unknown."""

    @property
    def position_ids(self) -> Int64s:
        """int64, in the shape of `ids`: the position of each input in its own sequence."""
        if not self.lengths:
            return np.tile(np.arange(self.ids.shape[1]), (len(self.ids), 1))
        return np.concatenate([np.arange(length) for length in self.lengths])[None]


@dataclass(frozen=True, slots=True)
class Minibatch:
    """The micro-batches of one optimizer step."""

    sequences: int
    """Number of sequences in its groups, also those without a trained token."""
    micro_batches: tuple[MicroBatch, ...]


def cut_minibatches(
    sequences: Sequence[TrainingSequence],
    count: int,
    token_budget: int,
    *,
    seed: int,
    version: int,
    packed: bool = False,
) -> tuple[Minibatch, ...]:
    """Cut a batch into at most `count` optimizer steps of whole groups, each cut into micro-batches.

    The groups' order comes from a hash of (seed, version, group). Sequences without a trained token cost no forward
    pass; a step without trained tokens is left out. Raises BatchError if the batch has no token to train on.
    """
    trained = [sequence for sequence in sequences if sequence.mask.any()]
    if not trained:
        raise BatchError(
            f"version {version} cannot be made: no sequence of its batch has a generated token to train on (sequences: "
            f"{len(sequences)})"
        )
    groups = sorted({sequence.group for sequence in sequences}, key=lambda group: _draw(seed, version, group))
    assemble = pack if packed else pad
    steps = []
    for part in np.array_split(np.array(groups), min(count, len(groups))):
        chosen = set(part.tolist())
        every = [sequence for sequence in sequences if sequence.group in chosen]
        members = [sequence for sequence in every if sequence.mask.any()]
        micro_batches = tuple(assemble(cut) for cut in cut_micro_batches(members, token_budget, packed=packed))
        if micro_batches:
            steps.append(Minibatch(len(every), micro_batches))
    return tuple(steps)


def cut_micro_batches(
    sequences: Sequence[TrainingSequence], token_budget: int, *, packed: bool = False
) -> list[list[TrainingSequence]]:
    """Cut sequences, longest first, into micro-batches of at most `token_budget` tokens with padding, or of one."""
    if token_budget < 1:
        raise BatchError(f"the token budget of a micro-batch must be at least 1, got {token_budget}")
    cuts: list[list[TrainingSequence]] = []
    taken = token_budget
    for sequence in sorted(sequences, key=lambda sequence: -sequence.ids.size):
        cost = sequence.ids.size if packed or not cuts else cuts[-1][0].ids.size
        if not cuts or taken + cost > token_budget:
            cuts.append([])
            taken, cost = 0, sequence.ids.size
        cuts[-1].append(sequence)
        taken += cost
    return cuts


def pack(sequences: Sequence[TrainingSequence]) -> MicroBatch:
    """Put sequences end to end into one row; attention must not cross between sequences."""
    lengths = [_count_inputs(sequence) for sequence in sequences]
    ids = np.concatenate([sequence.ids[:length] for sequence, length in zip(sequences, lengths, strict=True)])
    return _build_micro_batch(
        sequences, ids[None].astype(np.int64), np.cumsum([0, *lengths[:-1]], dtype=np.int64), lengths
    )


def pad(sequences: Sequence[TrainingSequence]) -> MicroBatch:
    """Put every sequence into its own row, as wide as the longest."""
    lengths = [_count_inputs(sequence) for sequence in sequences]
    ids = np.zeros((len(sequences), max(lengths)), np.int64)
    for row, sequence, length in zip(ids, sequences, lengths, strict=True):
        row[:length] = sequence.ids[:length]
    return _build_micro_batch(sequences, ids, np.arange(len(sequences), dtype=np.int64) * ids.shape[1], ())


def _count_inputs(sequence: TrainingSequence) -> int:
    return max(sequence.ids.size - 1, 1)


def _build_micro_batch(
    sequences: Sequence[TrainingSequence], ids: Int64s, starts: Int64s, lengths: Sequence[int]
) -> MicroBatch:
    """Align every trained token with the position that predicts it; `starts` are the sequences' flat positions."""
    mask = np.concatenate([sequence.mask for sequence in sequences])
    owners = np.repeat(np.arange(len(sequences)), [sequence.ids.size for sequence in sequences])[mask]
    indices = np.concatenate([np.flatnonzero(sequence.mask) for sequence in sequences])
    return MicroBatch(
        ids=ids,
        positions=starts[owners] + indices - 1,
        targets=np.concatenate([sequence.ids for sequence in sequences])[mask].astype(np.int64),
        behaviour_logprobs=np.concatenate([sequence.behaviour_logprobs for sequence in sequences])[mask].astype(
            np.float32
        ),
        advantages=np.concatenate([sequence.advantages for sequence in sequences])[mask],
        temperatures=np.concatenate([sequence.temperatures for sequence in sequences])[mask],
        versions=np.concatenate([sequence.versions for sequence in sequences])[mask].astype(np.int32),
        sequences=owners,
        inputs=np.concatenate(
            [start + np.arange(_count_inputs(one)) for start, one in zip(starts, sequences, strict=True)]
        ),
        lengths=tuple(lengths),
        routing=_flatten_routing(sequences, starts, ids.size),
    )


def _flatten_routing(sequences: Sequence[TrainingSequence], starts: Int64s, size: int) -> npt.NDArray[np.int16] | None:
    shapes = {sequence.routing.shape[1:] for sequence in sequences if sequence.routing is not None}
    if not shapes:
        return None
    if len(shapes) > 1:
        raise BatchError(
            "all routing of a batch must have the same [layers, experts per token], got "
            f"{' and '.join(str(list(shape)) for shape in sorted(shapes))}"
        )
    flat = np.full((size, *shapes.pop()), -1, np.int16)
    for start, sequence in zip(starts.tolist(), sequences, strict=True):
        if sequence.routing is not None:
            known = sequence.routing[: _count_inputs(sequence)]
            flat[start : start + len(known)] = known
    return flat


def count_staleness(steps: Sequence[Minibatch], base_version: int) -> Int64s:
    """Histogram int64[max+1] of base_version - version over the trained tokens.

    Raises BatchError for a token of a version newer than `base_version`, which does not exist yet.
    """
    ages = base_version - np.concatenate([micro.versions for step in steps for micro in step.micro_batches])
    if ages.min() < 0:
        raise BatchError(
            f"a token was generated by version {base_version - ages.min()}, but the trainer's newest version is "
            f"{base_version}"
        )
    return np.bincount(ages)


def _draw(seed: int, version: int, group: int) -> bytes:
    return hashlib.blake2b(struct.pack("<qqq", seed, version, group), digest_size=16).digest()
