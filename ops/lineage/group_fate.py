"""`headrace lineage --group`: follows one group through the topics of a run, from its task to its conclusion.

The ledger has its conclusions. Its task and what workers produced are searched for on their topics, because no record
gives their offsets; only records of the group are decoded. The classes below are what `--json` prints, field by field.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.dead_letters import REDRIVEN
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.run.run import Run
from headrace.ledger.feeder_snapshot import NO_SNAPSHOT, read_issued
from headrace.ledger.follow import ask_ledger
from headrace.ledger.ledger import Ledger
from headrace.ops.lineage.lineage import (
    PLACE_IN_BATCH,
    decode_readable,
    describe_range,
    find_trained_policies,
    read_at,
    search_number,
)
from headrace.schemas import codec
from headrace.schemas.avro import SchemaError
from headrace.schemas.episode_errors import group_errors
from headrace.schemas.headers import HeaderError, Stamp, task_key
from headrace.schemas.ids import GroupId
from headrace.schemas.records import EpisodeError, Outcome, Task, TrajectoryGroup
from headrace.schemas.topics import is_eval, policy_of, variant_of

_USES = f"""
    SELECT trained.version, use, {PLACE_IN_BATCH}, n_groups, curated_partition, curated_offset
    FROM trained JOIN batch ON batch.id = batch_id
    WHERE trained.variant = ? AND stream = ? AND number = ? ORDER BY trained.id
"""
_CONCLUSIONS = """
    SELECT partition, offset FROM outcome JOIN partition ON partition.id = partition_id
    WHERE variant = ? AND stream = ? AND number = ? AND level = 'group'
"""
_DEAD_LETTERS = f"""
    SELECT offset, reason, detail, component, topic, source_partition, source_offset,
        EXISTS (SELECT 1 FROM dead_letter AS back WHERE back.reason = '{REDRIVEN}' AND back.redrives = one.offset), use
    FROM dead_letter AS one WHERE stream = ? AND number = ? AND policy IN ('', ?) AND (? OR topic = ?) ORDER BY id
"""


@dataclass(frozen=True, slots=True)
class PlayAttempt:
    """A record on `trajectories`. Workers may repeat a record; the first readable one counts."""

    partition: int
    offset: int
    attempt: int
    """How often the task had been issued again when this attempt was played."""
    counts: bool
    """False for a repeated record, which the curator skipped, and for the message of a dead letter."""
    worker: str
    region: str
    trajectories: int
    failures: tuple[str, ...]
    """Reasons of the episodes that failed."""
    reason: str
    """Why there is no trajectory; empty if there are any."""
    head_version: int
    min_version: int
    max_version: int
    started_ms: int
    finished_ms: int
    object_key: str
    """Key of the group in the store; empty if the group is in the record."""
    errors: tuple[EpisodeError, ...] = ()
    """Errors of its failed episodes, the most frequent first."""
    traceback: str = ""
    """Traceback of the first error that the worker had not seen before; empty if there was none."""
    unreadable: str = ""
    """Why its value cannot be read; empty if it can."""


@dataclass(frozen=True, slots=True)
class TrainedUse:
    """A version that the group trained."""

    version: int
    use: int
    place: int
    """Its index in the batch, from 0."""
    of: int
    """Number of groups in that batch."""
    partition: int
    """Partition of the curated topic."""
    offset: int


@dataclass(frozen=True, slots=True)
class Concluded:
    """An outcome."""

    verdict: str
    reason: str
    component: str
    use: int
    partition: int
    """Partition of `outcomes`."""
    offset: int
    rewards: tuple[float, ...]
    min_version: int
    max_version: int
    task_id: str
    tier: str


@dataclass(frozen=True, slots=True)
class GroupDeadLetter:
    """A dead letter."""

    offset: int
    """Offset in `dead-letters`."""
    reason: str
    detail: str
    component: str
    topic: str
    """Topic of its message."""
    message_partition: int
    message_offset: int
    redriven: bool
    """True if its message was sent back, which opened the task again."""
    use: int = 0
    """Use of the group; the dead letter of a replay concludes only that use."""


@dataclass(frozen=True, slots=True)
class GroupLineage:
    """The records and the conclusion of one group, for one policy."""

    run: str
    policy: str
    stream: str
    number: int
    fate: str
    """State of its first use: trained | dropped | expired | surplus | run_end | dead | kept (waits for the trainer) |
    produced (waits for the curator) | issued (waits for a worker) | never_issued."""
    reason: str
    """Reason for which it was dropped, or became a dead letter."""
    issued_next: int
    """The stream's next number: all lower numbers were issued."""
    on_tasks: tuple[int, ...]
    """Attempts whose task is still on the tasks topic."""
    attempts: tuple[PlayAttempt, ...]
    concluded: tuple[Concluded, ...]
    letters: tuple[GroupDeadLetter, ...]
    trained: tuple[TrainedUse, ...]

    @property
    def is_known(self) -> bool:
        """Whether any topic holds a record of it. Even a task that was never issued may have a record."""
        return self.fate != "never_issued" or bool(self.on_tasks or self.attempts or self.letters)


@dataclass(frozen=True, slots=True)
class GroupFate:
    """The records and the conclusion of one group, for each requested policy."""

    run: str
    group: str
    """STREAM:NUMBER."""
    policies: dict[str, GroupLineage]


def group_lineage(run: Run, ledger: Ledger, policy: str, stream: str, number: int) -> GroupLineage:
    """Return what happened to a group, for one of the policies that its stream trains."""
    dead_letters = _find_dead_letters(run, ledger, policy, stream, number)
    attempts = _find_attempts(run, policy, stream, number, dead_letters)
    concluded = _read_conclusions(run, ledger, policy, stream, number)
    trained = _find_uses(ledger, policy, stream, number)
    issued = _read_next_numbers(ledger).get(stream, 0)
    fate, reason = find_fate(trained, concluded, dead_letters)
    if not fate:
        fate = "produced" if any(attempt.counts for attempt in attempts) else "issued"
        fate = fate if number < issued else "never_issued"
    return GroupLineage(
        run=run.address.run,
        policy=policy,
        stream=stream,
        number=number,
        fate=fate,
        reason=reason,
        issued_next=issued,
        on_tasks=_find_waiting_attempts(run, stream, number),
        attempts=attempts,
        concluded=concluded,
        letters=dead_letters,
        trained=trained,
    )


def find_fate(
    trained: Iterable[TrainedUse], concluded: Iterable[Concluded], dead_letters: Iterable[GroupDeadLetter]
) -> tuple[str, str]:
    """Return how a task was concluded, and the reason; two empty words if nothing concluded it."""
    if any(use.use == 0 for use in trained):
        return "trained", ""
    firsts = [one for one in concluded if one.use == 0]
    for one in firsts:
        if one.verdict != "kept":
            return one.verdict, one.reason
    for dead_letter in dead_letters:
        if not dead_letter.redriven and dead_letter.reason != REDRIVEN and not dead_letter.use:
            return "dead", dead_letter.reason
    return ("kept", "") if firsts else ("", "")


def _find_uses(ledger: Ledger, policy: str, stream: str, number: int) -> tuple[TrainedUse, ...]:
    """Return the versions that a group trained, oldest first."""
    return tuple(TrainedUse(*row) for row in ledger.query(_USES, policy, stream, number))


def parse_group(run: Run, text: str) -> GroupId:
    """Read STREAM:NUMBER. Raises UsageError if it names no training task; the error names the streams of the run."""
    stream, _, digits = text.rpartition(":")
    if not stream or not digits.isdecimal():
        raise UsageError(f"{text!r} is not a group: write STREAM:NUMBER, as in {next(iter(run.recipe.workflows))}:12")
    if is_eval(stream):
        raise UsageError(
            f"{text} is a task of an evaluation, so no version is trained on it: `headrace inspect --trajectory "
            f"{text}:0` shows its first trajectory"
        )
    find_trained_policies(run, stream)
    return GroupId(stream, int(digits))


def _read_next_numbers(ledger: Ledger) -> dict[str, int]:
    """Return the next number of every stream; none before the feeder's first snapshot, or if it cannot be read."""
    with suppress(*NO_SNAPSHOT):
        snapshot = ledger.feeder.decode()
        if snapshot is not None and snapshot.run_id == ledger.run_id:
            return read_issued(json.loads(snapshot.body))
    return {}


def _find_waiting_attempts(run: Run, stream: str, number: int) -> tuple[int, ...]:
    key = task_key(stream, number)
    messages = (m for m in read_all(run.connection, [run.topics.tasks(stream)]) if m.key == key)
    return tuple(task.attempt for _, task in decode_readable(run, messages, Task))


def _find_attempts(
    run: Run, policy: str, stream: str, number: int, dead_letters: tuple[GroupDeadLetter, ...]
) -> tuple[PlayAttempt, ...]:
    topic = run.topics.trajectories(policy)
    dead = {
        (dead_letter.message_partition, dead_letter.message_offset)
        for dead_letter in dead_letters
        if dead_letter.topic == topic
    }
    attempts: list[PlayAttempt] = []
    for message in search_number(run, topic, stream, number):
        attempt = _describe_attempt(message, run.run_id)
        counted = any(before.counts for before in attempts)
        counts = not counted and not attempt.unreadable and (message.partition, message.offset) not in dead
        attempts.append(replace(attempt, counts=counts))
    return tuple(attempts)


def _describe_attempt(message: Message, run_id: str) -> PlayAttempt:
    group, stamp, unreadable = TrajectoryGroup(), Stamp("", "", -1), ""
    try:
        stamp = Stamp.from_headers(message.headers)
        group = codec.decode(message.value, TrajectoryGroup)
        unreadable = "" if stamp.run_id == run_id else f"it is a record of another run, {stamp.run_id}"
    except (HeaderError, SchemaError) as error:
        unreadable = str(error)
    return PlayAttempt(
        partition=message.partition,
        offset=message.offset,
        attempt=stamp.attempt,
        counts=False,
        worker=group.worker,
        region=group.region,
        trajectories=group.n_asked - len(group.failures) if group.claim else len(group.trajectories),
        failures=tuple(failure.reason for failure in group.failures),
        reason=group.reason,
        head_version=stamp.head_version,
        min_version=stamp.min_version,
        max_version=stamp.max_version,
        started_ms=group.started_ms,
        finished_ms=group.finished_ms,
        object_key=group.claim.key if group.claim else "",
        errors=group_errors(group.errors),
        traceback=next((failure.traceback for failure in group.errors if failure.traceback), ""),
        unreadable=unreadable,
    )


def _read_conclusions(run: Run, ledger: Ledger, policy: str, stream: str, number: int) -> tuple[Concluded, ...]:
    places = ledger.query(_CONCLUSIONS, policy, stream, number)
    return tuple(
        Concluded(
            verdict=outcome.verdict,
            reason=outcome.reason,
            component=outcome.component,
            use=outcome.use,
            partition=message.partition,
            offset=message.offset,
            rewards=outcome.rewards,
            min_version=outcome.min_version,
            max_version=outcome.max_version,
            task_id=outcome.task_id,
            tier=outcome.tier,
        )
        for message, outcome in read_at(run, run.topics.outcomes(policy), Outcome, places)
    )


def _find_dead_letters(run: Run, ledger: Ledger, policy: str, stream: str, number: int) -> tuple[GroupDeadLetter, ...]:
    """Return the dead letters of a group; for a shadow, its own outcomes report what it could not read."""
    by, tasks = (stream, number, policy_of(policy)), run.topics.tasks(stream)
    rows = ledger.query(_DEAD_LETTERS, *by, not variant_of(policy), tasks)
    return tuple(GroupDeadLetter(*[*facts, bool(redriven), use]) for *facts, redriven, use in rows)


def look_up_group(run: Run, policy: str | None, group: str, ledger: Path | None = None) -> GroupFate:
    """Return what happened to a group that a user names: for one policy, or for all that its stream trains if None.

    `ledger` is the file of the run's ledger; None to read its topics into memory. Raises UsageError, also for a group
    that was never issued.
    """
    if run.source:
        raise UsageError(
            f"run {run.address.run} is an offline experiment, trained on the groups of run {run.source}: write "
            f"{run.source} instead of {run.address.run} after --run"
        )
    stream, number = parse_group(run, group)
    trained = find_trained_policies(run, stream)
    chosen = trained if policy is None else (run.resolve(policy),)
    if policy is not None and policy_of(policy) not in trained:
        raise UsageError(f"stream {stream} trains {', '.join(trained)}, not {policy}")
    found = ask_ledger(
        run, ledger, lambda one: {name: group_lineage(run, one, name, stream, number) for name in chosen}
    )
    if not any(one.is_known for one in found.values()):
        issued = max(one.issued_next for one in found.values())
        some = describe_range(f"{stream}:0", f"{stream}:{issued - 1}")
        there = some if issued else f"no task of {stream} was issued yet"
        raise UsageError(f"run {run.address.run} never issued a group {group}: {there}")
    return GroupFate(run.address.run, group, found)
