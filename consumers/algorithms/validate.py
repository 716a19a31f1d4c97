"""Rejects malformed trajectories before any other rule sees them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from headrace.consumers.algorithms.contract import Candidate, Rejection, Result, Stateless
from headrace.consumers.algorithms.sizes import drop_if_nothing_left, keep_or_drop
from headrace.consumers.algorithms.soundness import LOGPROB_SLACK, SPAN_KINDS, is_group_sound
from headrace.infra.recipe.ranges import at_least
from headrace.schemas.episode_errors import MALFORMED
from headrace.schemas.records import Sequence, Span, Trajectory

GroupFault = tuple[str, str]
"""Reason and detail."""


class Validate(Stateless):
    """Reject malformed trajectories; drop a group with fewer than two sound trajectories.

    A sound trajectory has: a finite reward; ids, log-probabilities, versions and spans of the same length; spans of
    known kinds whose turns never decrease, so that each turn's input begins with the last turn's input; a token before
    the first generated token; a version on every generated token, at most the record's head_version; neither version
    nor log-probability on other tokens; finite log-probabilities not above 0; token ids in the vocabulary; at least one
    generated token; and an id that is unique in the group. Rejected trajectories do not count in the group's
    statistics. Failed episodes count towards the two if `failures` says so.

    `vocabulary` is the number of token ids, 0 if unknown. A group without trajectories is dropped with its own reason.
    """

    def __init__(self, vocabulary: int = 0) -> None:
        at_least(0, vocabulary=vocabulary)
        self._vocabulary = vocabulary

    def process(self, candidate: Candidate, clock: int) -> Iterable[Result]:  # noqa: ARG002 - the protocol's
        """Keep the sound trajectories."""
        group = candidate.group
        if (nothing := drop_if_nothing_left(candidate)) is not None:
            return [nothing]
        members = group.trajectories
        if len(candidate.kept) < len(members):
            members = tuple([members[index] for index in candidate.kept])
        if is_group_sound(members, group.head_version, self._vocabulary):
            return [keep_or_drop(candidate, "failures" if group.failures else "too_few")]
        rejections = list(self._find_rejections(candidate))
        sound = candidate.without(rejections, counted=False) if rejections else candidate
        return [keep_or_drop(sound, MALFORMED)]

    def _find_rejections(self, candidate: Candidate) -> Iterator[Rejection]:
        seen: set[str] = set()
        for index in candidate.kept:
            trajectory = candidate.group.trajectories[index]
            fault = self._find_fault(trajectory, candidate.group.head_version)
            if fault is None and trajectory.id in seen:
                fault = "duplicate", f"the id {trajectory.id} is in the group more than once"
            seen.add(trajectory.id)
            if fault is not None:
                yield Rejection(index, *fault)

    def _find_fault(self, trajectory: Trajectory, head_version: int) -> GroupFault | None:
        if not math.isfinite(trajectory.reward):
            return "reward", f"reward {trajectory.reward}"
        for number, sequence in enumerate(trajectory.sequences):
            fault = find_sequence_fault(sequence, head_version, self._vocabulary)
            if fault is not None:
                return fault[0], f"sequence {number}: {fault[1]}"
        spans = (span for sequence in trajectory.sequences for span in sequence.spans)
        if not any(span.kind == "generated" and span.length for span in spans):
            return "empty_mask", "nothing was generated, so there is nothing to train on"
        return None


def find_sequence_fault(sequence: Sequence, head_version: int, vocabulary: int = 0) -> GroupFault | None:
    """Return why a sequence cannot be trained on, or None."""
    return (
        _find_span_fault(sequence)
        or _find_length_fault(sequence)
        or _find_token_fault(sequence, vocabulary)
        or _find_version_fault(sequence, head_version)
    )


def _find_span_fault(sequence: Sequence) -> GroupFault | None:
    length, lengths = sequence.ids.size, [span.length for span in sequence.spans]
    if min(lengths, default=0) < 0 or sum(lengths) != length:
        return (
            "spans",
            f"the spans have {lengths} tokens: none may be below 0, and the sum must be {length}, the number of ids",
        )
    unknown = {span.kind for span in sequence.spans} - SPAN_KINDS
    if unknown:
        known = ", ".join(sorted(SPAN_KINDS))
        return "spans", f"unknown kinds of span: {', '.join(sorted(unknown))}; the known ones: {known}"
    turns = [span.turn for span in sequence.spans if span.length]
    if turns != sorted(turns):
        return "prefix", f"the spans have the turn numbers {turns}, but none may be lower than the one before"
    first = next((span.kind for span in sequence.spans if span.length), "")
    if first == "generated":
        return "no_prompt", "the first token is marked as generated, but a token of a prompt must come first"
    return None


def _find_length_fault(sequence: Sequence) -> GroupFault | None:
    length = sequence.ids.size
    if sequence.logprobs.size != length:
        return "lengths", f"the sequence has {length} token ids, but {sequence.logprobs.size} log-probabilities"
    counts = sequence.version_runs[1::2].tolist()
    if sequence.version_runs.size % 2 or min(counts, default=1) <= 0 or sum(counts) != length:
        runs = sequence.version_runs[:16].tolist()
        covered = f"the runs have {sum(counts)} tokens and begin with {runs}"
        wanted = f"pairs of a version and a number of tokens, at least 1 in each pair and {length} in all"
        return "versions", f"the version runs must be {wanted}; {covered}"
    given = (sequence.reward, sequence.baseline, *(span.reward for span in sequence.spans))
    if not all(value is None or math.isfinite(value) for value in given):
        return "reward", "a reward or baseline of the sequence or its spans is not finite"
    return None


def _find_token_fault(sequence: Sequence, vocabulary: int) -> GroupFault | None:
    ids, logprobs = sequence.ids, sequence.logprobs
    if not ids.size:
        return None
    if ids.min() < 0 or (vocabulary and ids.max() >= vocabulary):
        allowed = f"from 0 to {vocabulary - 1}" if vocabulary else "0 or more"
        return "token_id", f"the token ids are from {ids.min()} to {ids.max()}, but must be {allowed}"
    lowest, highest = float(logprobs.min()), float(logprobs.max())
    if not (math.isfinite(lowest) and math.isfinite(highest)):  # both are NaN if any value is
        return "logprob", f"{np.count_nonzero(~np.isfinite(logprobs))} log-probabilities are not finite"
    if highest > LOGPROB_SLACK:
        return "logprob", f"a log-probability is {highest}, above 0"
    return None


def _find_version_fault(sequence: Sequence, head_version: int) -> GroupFault | None:
    for span, start, versions in _iterate_span_versions(sequence):
        if span.kind == "generated":
            if min(versions) < 0:
                return "versions", f"the generated tokens from position {start} on include one without a weight version"
            if max(versions) > head_version:
                return "ahead", f"a token is of version {max(versions)}, but the worker's newest was {head_version}"
        elif max(versions) >= 0 or np.count_nonzero(sequence.logprobs[start : start + span.length]):
            return "mask", f"the {span.kind} at position {start} must have no weight version and no log-probability"
    return None


def _iterate_span_versions(sequence: Sequence) -> Iterator[tuple[Span, int, list[int]]]:
    """Yield every span with tokens, its start, and the versions of the runs that it overlaps."""
    runs = sequence.version_runs.tolist()
    position = end = run = 0
    for span in sequence.spans:
        start, versions = position, [runs[2 * run - 2]] if end > position else []
        position += span.length
        while end < position:
            versions.append(runs[2 * run])
            end += runs[2 * run + 1]
            run += 1
        if span.length:
            yield span, start, versions
