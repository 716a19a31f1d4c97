"""Whether a whole group is sound, in some passes over all its tokens together: the common case, at little cost."""

from __future__ import annotations

import math
from typing import Any

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
    sequences = [sequence for member in members for sequence in member.sequences]
    if len({member.id for member in members if member.sequences}) < len(members) or not sequences:
        return False
    tokens, others = _not_generated(sequences, head_version)
    return tokens > 0 and _are_finite(members) and _sound_tokens(sequences, tokens, others, vocabulary)


def _not_generated(sequences: list[Sequence], head_version: int) -> tuple[int, list[tuple[int, int]]]:
    """Return how many tokens there are, and of those not generated where they begin, over all, and how many they are.

    No tokens where the spans, version runs and lengths of a sequence do not fit each other, or nothing of it was
    generated. Spans and runs are walked together: `end` is where the run ends that was read last.
    """
    others: list[tuple[int, int]] = []
    before = 0
    for sequence in sequences:
        runs = sequence.version_runs.tolist()
        position = end = at = turn = generated = 0
        last, was_made = len(runs) - 1, False
        for span in sequence.spans:
            kind, length = span.kind, span.length
            made = kind == "generated"
            if length <= 0 or (position and span.turn < turn) or (made is not was_made and not 0 < end == position):
                return 0, []
            if made:
                generated += length
            elif kind in SPAN_KINDS:
                others.append((before + position, length))
            else:
                return 0, []
            was_made, turn = made, span.turn
            position += length
            while end < position:
                if at >= last:
                    return 0, []
                version, count = runs[at], runs[at + 1]
                if count <= 0 or (version >= 0) is not made or version > head_version:
                    return 0, []
                end += count
                at += 2
        if not (generated and at == len(runs) and position == end == sequence.ids.size == sequence.logprobs.size):
            return 0, []
        before += position
    return before, others


def _are_finite(members: list[Trajectory]) -> bool:
    """Return whether rewards and baselines of members, sequences and spans are finite, those that are given."""
    told = 0.0
    for member in members:
        told += member.reward
        for sequence in member.sequences:
            if sequence.reward is not None:
                told += sequence.reward
            if sequence.baseline is not None:
                told += sequence.baseline
            for span in sequence.spans:
                if span.reward is not None:
                    told += span.reward
    return math.isfinite(told)


def _sound_tokens(sequences: list[Sequence], tokens: int, others: list[tuple[int, int]], vocabulary: int) -> bool:
    """Return whether ids are in the vocabulary and log-probabilities finite, at most 0, and 0 where not generated."""
    all_ids: list[Any] = [sequence.ids for sequence in sequences]
    all_logprobs: list[Any] = [sequence.logprobs for sequence in sequences]
    # Half the time of numpy's concatenate. Arrays that are no tensors of a record are left to the closer look.
    try:
        ids, logprobs = b"".join(all_ids), b"".join(all_logprobs)
    except ValueError:
        return False
    if not len(ids) == len(logprobs) == 4 * tokens:
        return False
    for start, length in others:
        if not logprobs.startswith(bytes(4 * length), 4 * start):
            return False
    values, numbers = np.frombuffer(logprobs, np.float32), np.frombuffer(ids, np.uint32)
    # Finding where costs a third of `max`. The largest is NaN when any is.
    lowest, highest = values.item(values.argmin()), values.item(values.argmax())
    return (
        numbers.item(numbers.argmax()) < (vocabulary or _NO_VOCABULARY)
        and lowest > -math.inf
        and highest <= LOGPROB_SLACK
    )
