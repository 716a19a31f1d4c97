"""One policy of a trial: the decisions of the recipe's chain on its groups, and one optimizer step of its trainer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from tokenizers import Tokenizer

from headrace.consumers.algorithms.contract import Candidate
from headrace.consumers.curate.context import CuratorContext
from headrace.consumers.curate.curated_records import build_curated
from headrace.consumers.curate.curator import CuratorPartition
from headrace.infra.errors import HeadraceError
from headrace.infra.kafka.clients import Message
from headrace.infra.own_frames import cut_traceback
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.run import STORE_NAME
from headrace.infra.weights.files import TOKENIZER_FILE
from headrace.ops.lineage.seen import AdvantagesBySequence, GroupSeen, compute_shown_advantages, describe_group
from headrace.ops.offline.archived_start import Start
from headrace.producers.rollout.group_records import build_outgoing, encode_claim
from headrace.schemas import codec
from headrace.schemas.records import ClaimCheck, CuratedGroup, DeadLetter, Outcome, TrajectoryGroup
from headrace.trainers.batches.groups import DecodedGroup, build_batch_sequences, prepare_group
from headrace.trainers.batches.token_texts import TokenTexts

RUN_ID = "trial"
"""Run id of records that reach no topic."""


@dataclass(frozen=True, slots=True)
class GroupTried:
    """A group, and the decision of the recipe's chain on it."""

    verdict: str
    """kept | dropped | dead."""
    reason: str
    """Reason of a drop or a dead letter."""
    rejected: dict[str, str]
    """Ids of its trajectories that the chain rejected, to the reason."""
    group: GroupSeen


@dataclass(frozen=True, slots=True)
class StepTried:
    """One optimizer step on the groups that the chain kept, or on all groups if it kept none."""

    groups: int
    """Number of groups in the step."""
    chain_kept: int
    """Number of groups that the chain kept."""
    tokens: int
    """Number of tokens that were trained on."""
    loss: float | None
    """None if it was not finite, so that no step was taken."""
    grad_norm: float | None
    """Norm of the gradient before it is clipped."""
    has_advantages: bool
    """Whether any advantage is not 0."""
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class PolicyTried:
    """The result of a trial for one policy."""

    model: str
    """Origin of its weights, in words."""
    warm_start: bool
    """Whether a run would warm it up before version 0; here it is not."""
    has_given_answers: bool
    """Whether `--answer` gave its answers."""
    groups: tuple[GroupTried, ...]
    step: StepTried | None
    no_step: str
    """Why there is no step; empty if there is one."""
    left_out: str
    """The characters of results that the policy did not read, as its alphabet lacks them."""


def try_policy(
    recipe: Recipe,
    start: Start,
    groups: Sequence[tuple[TrajectoryGroup, bytes]],
    has_given_answers: bool,
    left_out: str,
) -> PolicyTried:
    """Put a policy's groups, with their bytes, through its chain, and take one step on the kept groups."""
    policy = groups[0][0].policy
    fates = _curate(recipe, policy, groups)
    taken, advantages, step, no_step = _try_step(start, fates)
    texts = TokenTexts(Tokenizer.from_buffer(start.files[TOKENIZER_FILE]))
    seen = []
    for fate in fates:
        whole = fate.kept or DecodedGroup(CuratedGroup(), fate.group)
        of_group = advantages[taken.index(fate)] if fate in taken else {}
        seen.append(
            GroupTried(
                verdict=fate.verdict,
                reason=fate.reason,
                rejected=fate.rejected,
                group=describe_group(whole, of_group, texts, index=None, each=True),
            )
        )
    has_warm_start = recipe.policies[policy].warm_start is not None
    return PolicyTried(start.origin, has_warm_start, has_given_answers, tuple(seen), step, no_step, left_out)


@dataclass(slots=True, eq=False)
class _Fate:
    """A group, and a curator's decision on it."""

    group: TrajectoryGroup
    value: bytes
    kept: DecodedGroup | None = None
    verdict: str = ""
    reason: str = ""
    rejected: dict[str, str] = field(default_factory=dict)


def _curate(recipe: Recipe, policy: str, groups: Sequence[tuple[TrajectoryGroup, bytes]]) -> list[_Fate]:
    """Send a policy's groups through a curator's partition, the large ones behind claim checks.

    Afterwards another one takes its snapshot, as after a restart. Raises ChainError, and the errors of own algorithms.
    """
    topics, topic = recipe.topics, recipe.topics.trajectories(policy)
    stored: dict[str, bytes] = {}
    context = CuratorContext(RUN_ID, policy, topics, lambda _revision: recipe, lambda claim: stored[claim.key])
    partition, fates = CuratorPartition(context, (topic, 0), 1), []
    for offset, (group, value) in enumerate(groups):
        fate = _Fate(codec.decode(value, TrajectoryGroup), value)
        claim = ClaimCheck(STORE_NAME, str(offset), "", len(value))
        stored[claim.key] = value
        is_large = len(value) > recipe.rollout.inline_limit_bytes
        out = build_outgoing(topics, group, encode_claim(group, claim) if is_large else value, {topic: 1})
        for one in partition.handle(Message(topic, 0, offset, out.key, out.value, list(out.headers))):
            if one.topic == topics.curated(policy):
                curated = codec.decode(one.value, CuratedGroup)
                if curated.use == 0:
                    fate.kept = DecodedGroup(curated, fate.group)
            elif one.topic == topics.dead_letters:
                dead_letter = codec.decode(one.value, DeadLetter)
                fate.verdict, fate.reason = "dead", f"{dead_letter.reason}: {dead_letter.detail}"
            else:
                _note_outcome(codec.decode(one.value, Outcome), fate)
        fates.append(fate)
    CuratorPartition(context, (topic, 0), 1).restore(partition.snapshot())
    return fates


def _note_outcome(outcome: Outcome, fate: _Fate) -> None:
    if outcome.level == "trajectory":
        fate.rejected[outcome.trajectory_id] = outcome.reason
    elif outcome.use == 0:
        fate.verdict, fate.reason = outcome.verdict, outcome.reason


def _try_step(
    start: Start, fates: Sequence[_Fate]
) -> tuple[list[_Fate], list[AdvantagesBySequence], StepTried | None, str]:
    """Return the groups of the step, their advantages, and the step, or why there is none."""
    learner = start.learner
    settings = learner.settings
    taken = [fate for fate in fates if fate.kept is not None] or [fate for fate in fates if fate.group.trajectories]
    kept = sum(fate.kept is not None for fate in taken)
    if not taken:
        return [], [], None, "no episode gave a trajectory"
    batch = [
        fate.kept
        or DecodedGroup(build_curated(Candidate.of(fate.group), fate.value, settings.max_staleness), fate.group)
        for fate in taken
    ]
    try:
        advantages = compute_shown_advantages(batch, settings)
        sequences = build_batch_sequences(map(prepare_group, batch), settings)
        metrics = learner.step(sequences, learner.version + 1)
    except HeadraceError as error:
        if cut_traceback(error):
            raise  # an error in the user's own code
        return [], [], None, str(error)
    step = StepTried(
        groups=len(batch),
        chain_kept=kept,
        tokens=sum(int(sequence.mask.sum()) for sequence in sequences),
        loss=metrics.get("loss"),
        grad_norm=metrics.get("grad_norm_mean"),
        has_advantages=any(bool(np.any(one)) for group in advantages for one in group.values()),
        metrics=metrics,
    )
    return taken, advantages, step, ""
