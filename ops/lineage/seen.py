"""A group in readable form: rewards, advantages, texts and tokens side by side. No I/O, no torch.

The classes are what `headrace inspect --json` prints, field by field.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.infra.recipe.settings import TrainerSettings
from headrace.schemas.episode_errors import group_errors
from headrace.schemas.records import EpisodeError, Trajectory
from headrace.schemas.records import Sequence as TokenSequence
from headrace.trainers.batches.batch import BatchError
from headrace.trainers.batches.groups import (
    DecodedGroup,
    build_batch_sequences,
    build_loss_mask,
    expand_token_versions,
    prepare_group,
)
from headrace.trainers.batches.token_texts import TokenTexts

GENERATED = "generated"

TokenAdvantages = npt.NDArray[np.float32]
"""float32[T]; 0 on a token that was not generated."""
AdvantagesBySequence = Mapping[tuple[int, int], TokenAdvantages]
"""(trajectory, sequence) to the advantages of a sequence that was trained on."""


@dataclass(frozen=True, slots=True)
class SpanSeen:
    """Tokens of one origin."""

    kind: str
    """prompt | generated | observation | injected."""
    turn: int
    tokens: int
    text: str
    """Text without special tokens."""
    finish_reason: str
    reward: float | None


@dataclass(frozen=True, slots=True)
class TokenSeen:
    """One token."""

    id: int
    text: str
    """Text of the token. If several tokens make a character, the last has it, and the others are empty."""
    special: bool
    kind: str
    """Kind of the span that it is in."""
    turn: int
    version: int | None
    """Version of the weights that generated it; None if it was not generated."""
    logprob: float | None
    """Log-probability that the engine recorded."""
    advantage: float | None
    """Advantage that the trainer used; None if the token was not generated, or not trained on."""


@dataclass(frozen=True, slots=True)
class SequenceSeen:
    """One sequence of a trajectory."""

    role: str
    agent_id: str
    advantage: float | None
    """Mean of the advantages that the trainer used, over generated tokens; None if it was not trained on."""
    tokens: int
    """Number of generated tokens."""
    logprob_mean: float | None
    """Mean over the generated tokens; None if there are none."""
    logprob_min: float | None
    versions: dict[str, int]
    """Weight version to the number of tokens that it generated."""
    spans: tuple[SpanSeen, ...]
    each: tuple[TokenSeen, ...] = ()
    """Every token; empty unless a single trajectory is shown."""


@dataclass(frozen=True, slots=True)
class TrajectorySeen:
    """One member of a group."""

    id: str
    reward: float
    """Reward that the environment gave."""
    shaped_reward: float | None
    """Reward that the advantages use; None if the trajectory was malformed, or not curated."""
    reward_parts: dict[str, float]
    trained: bool
    sequences: tuple[SequenceSeen, ...]


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """The shown part of a group."""

    stream: str
    number: int
    use: int
    place: int | None
    """Its index in the batch, from 0; None if it was not trained on."""
    task_id: str
    tier: str
    worker: str
    region: str
    head_version: int
    failures: tuple[str, ...]
    """Reasons of the episodes that gave no trajectory."""
    trajectories: tuple[TrajectorySeen, ...]
    errors: tuple[EpisodeError, ...] = ()
    """Errors of its failed episodes, the most frequent first."""


def compute_shown_advantages(batch: Sequence[DecodedGroup], settings: TrainerSettings) -> list[AdvantagesBySequence]:
    """Return, by group, the advantages of every trained sequence, computed as the trainer did.

    If `Estimator.whole_batch` is true, `batch` must hold all groups of the batch, in their order.
    """
    trained = iter(build_batch_sequences(map(prepare_group, batch), settings))
    return [
        {
            (member, index): np.where(sequence.mask, sequence.advantages, np.float32(0))
            for member, one in enumerate(group.trajectory_group.trajectories)
            if member in group.curated.kept and not math.isnan(group.curated.rewards[member])
            for index, sequence in zip(range(len(one.sequences)), trained, strict=False)
        }
        for group in batch
    ]


def describe_group(
    found: DecodedGroup,
    advantages: AdvantagesBySequence,
    texts: TokenTexts,
    *,
    index: int | None,
    only: int | None = None,
    each: bool = False,
) -> GroupSeen:
    """Return a group in readable form; with `each`, every token of it; with `only`, one member and its tokens."""
    group, shaped = found.trajectory_group, found.curated.rewards
    members = range(len(group.trajectories)) if only is None else [only]
    return GroupSeen(
        stream=group.stream,
        number=group.number,
        use=found.curated.use,
        place=index,
        task_id=group.task_id,
        tier=group.tier,
        worker=group.worker,
        region=group.region,
        head_version=group.head_version,
        failures=tuple(failure.reason for failure in group.failures),
        trajectories=tuple(
            _see_trajectory(
                group.trajectories[member],
                shaped[member] if shaped and not math.isnan(shaped[member]) else None,
                [advantages.get((member, n)) for n in range(len(group.trajectories[member].sequences))],
                texts,
                each=each or only is not None,
            )
            for member in members
        ),
        errors=group_errors(group.errors),
    )


def _see_trajectory(
    one: Trajectory,
    shaped: float | None,
    advantages: Sequence[TokenAdvantages | None],
    texts: TokenTexts,
    *,
    each: bool,
) -> TrajectorySeen:
    return TrajectorySeen(
        id=one.id,
        reward=one.reward,
        shaped_reward=shaped,
        reward_parts=one.reward_parts,
        trained=any(advantage is not None for advantage in advantages),
        sequences=tuple(
            describe_sequence(sequence, advantage, texts, each=each)
            for sequence, advantage in zip(one.sequences, advantages, strict=True)
        ),
    )


def describe_sequence(
    sequence: TokenSequence, advantages: TokenAdvantages | None, texts: TokenTexts, *, each: bool = False
) -> SequenceSeen:
    """Return a sequence in readable form; with `each`, every token of it. A malformed sequence gets no tokens."""
    if not _is_well_formed(sequence):
        return SequenceSeen(sequence.role, sequence.agent_id, None, 0, None, None, {}, ())
    tokens = _see_tokens(sequence, advantages, texts)
    mask = build_loss_mask(sequence)
    logprobs = sequence.logprobs[mask]
    versions = Counter(token.version for token in tokens if token.version is not None)
    return SequenceSeen(
        role=sequence.role,
        agent_id=sequence.agent_id,
        advantage=None if advantages is None else _compute_mean(advantages[mask]),
        tokens=int(logprobs.size),
        logprob_mean=float(logprobs.mean()) if logprobs.size else None,
        logprob_min=float(logprobs.min()) if logprobs.size else None,
        versions={str(version): count for version, count in sorted(versions.items())},
        spans=tuple(_split_into_spans(sequence, tokens)),
        each=tuple(tokens) if each else (),
    )


def _is_well_formed(sequence: TokenSequence) -> bool:
    """Return whether the parts of a sequence fit together: in a group that the chain dropped they may not."""
    try:
        build_loss_mask(sequence)
        expand_token_versions(sequence)
    except BatchError:
        return False
    return sequence.logprobs.size == sequence.ids.size and bool((sequence.ids >= 0).all())


def _compute_mean(advantages: TokenAdvantages) -> float:
    return float(advantages.mean(dtype=np.float64)) if advantages.size else 0.0


def _see_tokens(sequence: TokenSequence, advantages: TokenAdvantages | None, texts: TokenTexts) -> list[TokenSeen]:
    ids: list[int] = sequence.ids.tolist()
    spans = [span for span in sequence.spans for _ in range(span.length)]
    each = zip(
        ids,
        texts.pieces(ids),
        spans,
        expand_token_versions(sequence).tolist(),
        sequence.logprobs.tolist(),
        [None] * len(ids) if advantages is None else advantages.tolist(),
        strict=True,
    )
    return [
        TokenSeen(
            id=token,
            text=text,
            special=texts.is_special(token),
            kind=span.kind,
            turn=span.turn,
            version=version if span.kind == GENERATED else None,
            logprob=logprob if span.kind == GENERATED else None,
            advantage=advantage if span.kind == GENERATED else None,
        )
        for token, text, span, version, logprob, advantage in each
    ]


def _split_into_spans(sequence: TokenSequence, tokens: Sequence[TokenSeen]) -> Iterator[SpanSeen]:
    begin = 0
    for span in sequence.spans:
        text = "".join(token.text for token in tokens[begin : begin + span.length] if not token.special)
        yield SpanSeen(span.kind, span.turn, span.length, text, span.finish_reason, span.reward)
        begin += span.length
