"""Whether a whole group is sound, in some passes over all its tokens together: the common case, at little cost."""

from __future__ import annotations

import math
from itertools import accumulate

import numpy as np

from schemas.records import Sequence, Trajectory

SPAN_KINDS = frozenset({"prompt", "generated", "observation", "injected"})
LOGPROB_SLACK = 1e-4
"""An engine's log-softmax may round a certain token to just above 0."""
_NO_VOCABULARY = 1 << 31
"""A negative int32 read as uint32 is this or more."""


def all_sound(members: list[Trajectory], head_version: int, vocabulary: int) -> bool:
    """Return True where `validate` finds no fault in any member; False where it has to look at each of them.

    False does not say that there is one: what is rare, as a span of length 0, is left to the closer look.
    """
    if len({member.id for member in members}) < len(members):
        return False
    told = [member.reward for member in members]
    lengths: list[int] = []
    generated: list[bool] = []
    for member in members:
        begin = len(generated)
        for sequence in member.sequences:
            edges = _span_edges(sequence, told, lengths, generated)
            if not edges or edges != _version_edges(sequence, head_version):
                return False
        if True not in generated[begin:]:
            return False
    sequences = [sequence for member in members for sequence in member.sequences]
    return (
        bool(sequences)
        and math.isfinite(sum(told))
        and _sound_tokens(sequences, lengths, generated, vocabulary or _NO_VOCABULARY)
    )


def _span_edges(sequence: Sequence, told: list[float], lengths: list[int], generated: list[bool]) -> list[int]:
    """Append what its spans say; return where generated tokens begin and end, then the end, or nothing if in doubt."""
    edges: list[int] = []
    position = turn = 0
    was_made = False
    for span in sequence.spans:
        kind, length = span.kind, span.length
        made = kind == "generated"
        if length <= 0 or kind not in SPAN_KINDS or (position and span.turn < turn) or (made and not position):
            return []
        if made is not was_made:
            edges.append(position)
            was_made = made
        if span.reward is not None:
            told.append(span.reward)
        generated.append(made)
        lengths.append(length)
        position += length
        turn = span.turn
    if sequence.reward is not None:
        told.append(sequence.reward)
    if sequence.baseline is not None:
        told.append(sequence.baseline)
    edges.append(position)
    return edges if 0 < position == sequence.ids.size == sequence.logprobs.size else []


def _version_edges(sequence: Sequence, head_version: int) -> list[int]:
    """Return where tokens that have a version begin and end, then the end, or nothing if in doubt."""
    runs = sequence.version_runs.tolist()
    if len(runs) % 2:
        return []
    edges: list[int] = []
    position = 0
    was_made = False
    numbers = iter(runs)
    for version, count in zip(numbers, numbers, strict=True):
        if count <= 0 or version > head_version:
            return []
        made = version >= 0
        if made is not was_made:
            edges.append(position)
            was_made = made
        position += count
    edges.append(position)
    return edges


def _sound_tokens(sequences: list[Sequence], lengths: list[int], generated: list[bool], vocabulary: int) -> bool:
    """Return whether ids are in the vocabulary and log-probabilities finite, at most 0, and 0 where not generated."""
    if np.concatenate([sequence.ids for sequence in sequences]).view(np.uint32).max() >= vocabulary:
        return False
    logprobs = np.concatenate([sequence.logprobs for sequence in sequences])
    starts = [0, *accumulate(lengths)][:-1]
    # The least and the largest of every span; NaN is both wherever there is one.
    lowest, highest = np.minimum.reduceat(logprobs, starts).tolist(), np.maximum.reduceat(logprobs, starts).tolist()
    for low, high, made in zip(lowest, highest, generated, strict=True):
        if not (-math.inf < low and high <= LOGPROB_SLACK if made else low == high == 0):
            return False
    return True
