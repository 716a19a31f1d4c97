"""`headrace inspect`: shows what a trainer saw, the groups of a step, or one trajectory token by token. No torch.

Texts are decoded with the tokenizer published with the weights, and advantages are computed as the trainer did.
`--json` prints the classes below and those of `seen.py`, field by field.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from headrace.infra.errors import UsageError
from headrace.infra.kafka.topic_reader import name_offset, read_key
from headrace.infra.run.run import Run, find_groups_run
from headrace.ops.lineage.lineage import describe_range, find_trained_policies
from headrace.ops.lineage.seen import AdvantagesBySequence, GroupSeen, compute_shown_advantages, describe_group
from headrace.schemas import codec
from headrace.schemas.avro import SchemaError
from headrace.schemas.episode_errors import describe_error
from headrace.schemas.headers import task_key
from headrace.schemas.ids import GroupId
from headrace.schemas.records import BatchTrained, CuratedGroup, TrajectoryGroup
from headrace.schemas.topics import is_eval
from headrace.trainers.batches.estimator import load_estimator
from headrace.trainers.batches.groups import DecodedGroup, decode_group
from headrace.trainers.batches.token_texts import token_texts
from headrace.trainers.batches.trained_groups import read_trained_groups
from headrace.trainers.versions.history import History, read_history


@dataclass(frozen=True, slots=True)
class StepSeen:
    """One step of a trainer."""

    run: str
    policy: str
    version: int
    """The version that the step made."""
    epoch: int
    revision: int
    base_hash: str
    weights_hash: str
    metrics: dict[str, float]
    groups_trained: int
    """Number of groups of the whole step; `groups` holds the requested ones."""
    groups: tuple[GroupSeen, ...]


@dataclass(frozen=True, slots=True)
class TrajectoryFound:
    """One trajectory with every token, and where it was found."""

    run: str
    policy: str
    version: int | None
    """Version that was trained on it; None if none was."""
    found_on: str
    """`topic[partition]@offset`."""
    group: GroupSeen
    """The group, with only this trajectory in it."""


# ------------------------------------------------------------------------------------------------------------ one step


def step(run: Run, policy: str, version: int, chosen: slice | str) -> StepSeen:
    """Return a step with some of its groups: those of a slice of the batch, or the group that a word names.

    Raises UsageError if there is no such step or group, LineageBroken if a group is gone.
    """
    history = read_history(run, policy)
    batch = next((batch for batch in history.batches if batch.version == version), None)
    if batch is None:
        raise UsageError(
            f"policy {policy} of run {run.address.run} has {_explain_missing_step(version, history.batches)}"
        )
    indices = range(len(batch.groups))[chosen] if isinstance(chosen, slice) else [_find_index(batch, chosen)]
    groups = _add_advantages(run, policy, batch, indices)
    texts = token_texts(run, policy, history.files)
    seen = [
        describe_group(group, advantages, texts, index=index)
        for index, (group, advantages) in zip(indices, groups, strict=True)
    ]
    return StepSeen(
        run=run.address.run,
        policy=policy,
        version=version,
        epoch=batch.epoch,
        revision=batch.revision,
        base_hash=batch.base_hash,
        weights_hash=batch.weights_hash,
        metrics=batch.metrics,
        groups_trained=len(batch.groups),
        groups=tuple(seen),
    )


def _add_advantages(
    run: Run, policy: str, batch: BatchTrained, indices: Sequence[int]
) -> list[tuple[DecodedGroup, AdvantagesBySequence]]:
    """Return some groups of a batch with their advantages. Other groups are read only if the advantages need them."""
    settings = run.revisions[batch.revision].trainer_of(policy)
    needed = range(len(batch.groups)) if load_estimator(settings).whole_batch else indices
    part = replace(batch, groups=tuple(batch.groups[index] for index in needed))
    [(_, wholes)] = read_trained_groups(find_groups_run(run), policy, [part])
    found = dict(zip(needed, zip(wholes, compute_shown_advantages(wholes, settings), strict=True), strict=True))
    return [found[index] for index in indices]


def _explain_missing_step(version: int, batches: Sequence[BatchTrained]) -> str:
    if not batches:
        return f"no step {version}: nothing is trained yet"
    start = "; version 0 is the start, which no step made" if version == 0 and batches[0].version == 1 else ""
    return f"no step {version}: {describe_range(batches[0].version, batches[-1].version)}{start}"


def _find_index(batch: BatchTrained, word: str) -> int:
    """Return the index in the batch of the group that a word names: an index, or STREAM:NUMBER (its first use).

    Raises UsageError.
    """
    names = [f"{group.stream}:{group.number}" for group in batch.groups]
    if word in names:
        return names.index(word)
    if word.isdecimal() and int(word) < len(names):
        return int(word)
    raise UsageError(
        f"step {batch.version} has no group {word!r}: give an index from 0 to {len(names) - 1}, or one of "
        f"{', '.join(names[:4])}{' …' if len(names) > 4 else ''}"
    )


# ------------------------------------------------------------------------------------------------------ one trajectory


def trajectory(run: Run, policy: str | None, name: str) -> TrajectoryFound:
    """Return a trajectory with every token, trained or not. Raises UsageError if no trajectory has that name."""
    stream, number, sample = _parse_trajectory_name(run, name)
    policies = find_trained_policies(run, stream.removeprefix("eval."))
    if policy is None and len(policies) > 1:
        raise UsageError(f"{stream}:{number} has trajectories of {', '.join(policies)}: choose one by --policy")
    acted = run.resolve(policy or policies[0])
    history = read_history(run, acted)
    found = _find_trained(run, acted, history, GroupId(stream, number)) or _find_produced(
        find_groups_run(run), acted, stream, number
    )
    if found is None:
        raise UsageError(f"no worker has produced a readable group {stream}:{number} for policy {acted}")
    group, members = found.group, found.group.trajectory_group.trajectories
    chosen = [index for index, member in enumerate(members) if member.id == f"{stream}:{number}:{sample}"]
    if not chosen:
        raise UsageError(f"group {stream}:{number} has {_describe_members(group.trajectory_group)}, but no {name}")
    texts = token_texts(run, acted, history.files)
    seen = describe_group(group, found.advantages, texts, index=found.index, only=chosen[0])
    return TrajectoryFound(run.address.run, acted, found.version, found.where, seen)


@dataclass(frozen=True, slots=True)
class _Found:
    group: DecodedGroup
    where: str
    version: int | None = None
    index: int | None = None
    advantages: AdvantagesBySequence = field(default_factory=dict)


def _find_trained(run: Run, policy: str, history: History, group: GroupId) -> _Found | None:
    """Return the earliest trained use of a group, at the position that its batch names."""
    uses = (
        (use.use, batch.version, index, batch)
        for batch in history.batches
        for index, use in enumerate(batch.groups)
        if GroupId.of(use) == group
    )
    _, version, index, batch = min(uses, key=lambda one: one[:3], default=(0, 0, 0, None))
    if batch is None:
        return None
    [(whole_group, advantages)] = _add_advantages(run, policy, batch, [index])
    use = batch.groups[index]
    where = f"{find_groups_run(run).topics.curated(policy)}[{use.partition}]@{use.offset}"
    return _Found(whole_group, where, version, index, advantages)


def _find_produced(run: Run, policy: str, stream: str, number: int) -> _Found | None:
    """Return the group as a worker produced it, from its first readable record."""
    topics = run.topics
    topic = topics.eval_groups(policy) if is_eval(stream) else topics.trajectories(policy)
    partition_id = (topic, number % run.partitions)
    for message in read_key(run.connection, partition_id, task_key(stream, number)):
        try:
            group = codec.decode(message.value, TrajectoryGroup)
            uncurated = CuratedGroup(stream=stream, number=number, group=message.value, rewards=())
            if group.run_id == run.run_id:
                where = name_offset(message)
                return _Found(decode_group(run, uncurated), where)
        except SchemaError:
            continue
    return None


def _parse_trajectory_name(run: Run, name: str) -> tuple[str, int, int]:
    stream, _, rest = name.partition(":")
    number, _, sample = rest.partition(":")
    if not (stream and number.isdecimal() and sample.isdecimal()):
        raise UsageError(
            f"{name!r} is not a trajectory: write STREAM:NUMBER:SAMPLE, as in {next(iter(run.recipe.workflows))}:12:0"
        )
    return stream, int(number), int(sample)


def _describe_members(group: TrajectoryGroup) -> str:
    ids = ", ".join(member.id for member in group.trajectories) or "no trajectory"
    failed = ", ".join(
        f"sample {failure.sample} failed ({failure.reason}{f': {describe_error(failure)}' if failure.detail else ''})"
        for failure in group.failures
    )
    return f"{ids}; {failed}" if failed else ids


# ----------------------------------------------------------------------------------------------------- the command line


def look_up_step(run: Run, policy: str | None, version: int, group: str | None, limit: int) -> StepSeen:
    """Return the step that a user names. Raises UsageError and LineageBroken.

    Args:
        run: The run.
        policy: Policy of the step; None for the only one.
        version: The version that the step made.
        group: The only group to show, by its index in the batch or as STREAM:NUMBER; the first groups if None.
        limit: How many groups to show; 0 for all.
    """
    return step(run, run.resolve(policy), version, group if group is not None else slice(limit or None))
