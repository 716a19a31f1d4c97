"""`headrace inspect`: shows what a trainer saw, the groups of a step, or one trajectory token by token. No torch.

Texts are decoded with the tokenizer published with the weights, and advantages are computed as the trainer did.
`--json` prints the classes below and those of `seen.py`, field by field.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from headrace.infra.errors import UsageError
from headrace.infra.kafka.topic_reader import name_offset
from headrace.infra.run.run import Run, find_groups_run
from headrace.infra.weights.paths import WHOLE
from headrace.ledger.follow import ask_ledger
from headrace.ledger.ledger import Ledger
from headrace.ops.lineage.lineage import (
    PLACE_IN_BATCH,
    decode_readable,
    describe_range,
    find_trained_policies,
    read_at,
    read_batch,
    search_number,
)
from headrace.ops.lineage.seen import AdvantagesBySequence, GroupSeen, compute_shown_advantages, describe_group
from headrace.schemas import codec
from headrace.schemas.avro import SchemaError
from headrace.schemas.episode_errors import describe_error
from headrace.schemas.records import BatchTrained, CuratedGroup, NamedObject, TrajectoryGroup, WeightsPublished
from headrace.schemas.topics import is_eval
from headrace.trainers.batches.estimator import load_estimator
from headrace.trainers.batches.groups import DecodedGroup, decode_group
from headrace.trainers.batches.token_texts import token_texts
from headrace.trainers.batches.trained_groups import read_trained_groups

_STEPS = "SELECT min(version), max(version) FROM batch WHERE variant = ? AND version >= 0"
_ANCHORS = f"SELECT value FROM weights WHERE variant = ? AND (publishes OR kind = '{WHOLE}') ORDER BY id DESC"
_EARLIEST_USE = f"""
    SELECT partition, offset, {PLACE_IN_BATCH}
    FROM trained JOIN batch ON batch.id = batch_id JOIN partition ON partition.id = partition_id
    WHERE trained.variant = ? AND stream = ? AND number = ? ORDER BY use, batch.version, trained.id LIMIT 1
"""


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


def step(run: Run, policy: str | None, version: int, chosen: slice | str, ledger: Path | None = None) -> StepSeen:
    """Return the step of a policy, by default the only one, that made a version, with some of its groups.

    Raises UsageError if there is no such step or group, LineageBroken if a group is gone.

    Args:
        run: The run.
        policy: Policy of the step.
        version: The version that the step made.
        chosen: A slice of the batch; or the only group, by its index in the batch or as STREAM:NUMBER.
        ledger: File of the run's ledger; None to read its topics into memory.
    """
    name = run.resolve(policy)
    return ask_ledger(run, ledger, lambda one: _find_step(run, one, name, version, chosen))


def _find_step(run: Run, ledger: Ledger, policy: str, version: int, chosen: slice | str) -> StepSeen:
    batch = read_batch(run, ledger, policy, version)
    if batch is None:
        missing = _explain_missing_step(version, *ledger.query(_STEPS, policy)[0])
        raise UsageError(f"policy {policy} of run {run.address.run} has {missing}")
    indices = range(len(batch.groups))[chosen] if isinstance(chosen, slice) else [_find_index(batch, chosen)]
    groups = _add_advantages(run, policy, batch, indices)
    texts = token_texts(run, policy, _find_files(ledger, policy))
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


def _find_files(ledger: Ledger, policy: str) -> tuple[NamedObject, ...]:
    """Return config and tokenizer, as the newest anchor names them."""
    events = (codec.decode(value, WeightsPublished) for (value,) in ledger.query(_ANCHORS, policy))
    return next((event.files for event in events if event.files), ())


def _explain_missing_step(version: int, first: int | None, last: int | None) -> str:
    if first is None:
        return f"no step {version}: nothing is trained yet"
    start = "; version 0 is the start, which no step made" if version == 0 and first == 1 else ""
    return f"no step {version}: {describe_range(first, last)}{start}"


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


def trajectory(run: Run, policy: str | None, name: str, ledger: Path | None = None) -> TrajectoryFound:
    """Return a trajectory with every token, trained or not. Raises UsageError if no trajectory has that name.

    `ledger` is the file of the run's ledger; None to read its topics into memory.
    """
    stream, number, _ = parsed = _parse_trajectory_name(run, name)
    policies = find_trained_policies(run, stream.removeprefix("eval."))
    if policy is None and len(policies) > 1:
        raise UsageError(f"{stream}:{number} has trajectories of {', '.join(policies)}: choose one by --policy")
    acted = run.resolve(policy or policies[0])
    return ask_ledger(run, ledger, lambda one: _find_trajectory(run, one, acted, *parsed))


def _find_trajectory(run: Run, ledger: Ledger, acted: str, stream: str, number: int, sample: int) -> TrajectoryFound:
    found = _find_trained(run, ledger, acted, stream, number)
    found = found or _find_produced(find_groups_run(run), acted, stream, number)
    if found is None:
        raise UsageError(f"no worker has produced a readable group {stream}:{number} for policy {acted}")
    group, members = found.group, found.group.trajectory_group.trajectories
    name = f"{stream}:{number}:{sample}"
    chosen = [index for index, member in enumerate(members) if member.id == name]
    if not chosen:
        raise UsageError(f"group {stream}:{number} has {_describe_members(group.trajectory_group)}, but no {name}")
    texts = token_texts(run, acted, _find_files(ledger, acted))
    seen = describe_group(group, found.advantages, texts, index=found.index, only=chosen[0])
    return TrajectoryFound(run.address.run, acted, found.version, found.where, seen)


@dataclass(frozen=True, slots=True)
class _Found:
    group: DecodedGroup
    where: str
    version: int | None = None
    index: int | None = None
    advantages: AdvantagesBySequence = field(default_factory=dict)


def _find_trained(run: Run, ledger: Ledger, policy: str, stream: str, number: int) -> _Found | None:
    """Return the earliest trained use of a group, at the position that its batch names."""
    for *place, index in ledger.query(_EARLIEST_USE, policy, stream, number):
        for _, batch in read_at(run, run.topics.batches(policy), BatchTrained, [place]):
            [(whole_group, advantages)] = _add_advantages(run, policy, batch, [index])
            use = batch.groups[index]
            where = f"{find_groups_run(run).topics.curated(policy)}[{use.partition}]@{use.offset}"
            return _Found(whole_group, where, batch.version, index, advantages)
    return None


def _find_produced(run: Run, policy: str, stream: str, number: int) -> _Found | None:
    """Return the group as a worker produced it, from its first readable record."""
    topics = run.topics
    topic = topics.eval_groups(policy) if is_eval(stream) else topics.trajectories(policy)
    for message, _ in decode_readable(run, search_number(run, topic, stream, number), TrajectoryGroup):
        uncurated = CuratedGroup(stream=stream, number=number, group=message.value, rewards=())
        with suppress(SchemaError):
            return _Found(decode_group(run, uncurated), name_offset(message))
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
