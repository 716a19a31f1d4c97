"""`headrace gc`: deletes the objects that nothing needs any more.

The order is the guarantee:

1. The store is listed.
2. All records are read up to the ends of their topics, which are asked for after the listing. A transaction that is
   open then hides what follows it, and is waited for. A record that comes later names an object that was put shortly
   before: `put` leaves none older than twelve hours as it is (`TAKEN_AS_STORED`), so that object is young by its date,
   and what is young is spared.
3. What was published or taken and is needed no more is announced (ObjectsRetired), in a transaction.
4. Then each object is checked once more and deleted: one that was written again meanwhile is young. S3 has no
   conditional deletion, so an object that is written again in the milliseconds between check and deletion is lost. That
   takes bytes of more than a day ago, made again by a trainer that comes back in just that moment.

So nothing happens when a topic cannot be read to its end, or holds a record that this build cannot know; and who is
killed between 3 and 4 is finished by the next. The transactional id is the run's: of two at once the second fences the
first, unless that has come to 4, where both delete the same.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import structlog

from headrace.infra.errors import HeadraceError, UsageError
from headrace.infra.failpoints import reach
from headrace.infra.kafka.clients import Connection, Outgoing, RunAddress, get_admin, translate_kafka_errors
from headrace.infra.kafka.topic_reader import TopicReader, find_whole_topics
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.progress import open_progress
from headrace.infra.run.retired import CHECKPOINTS, WEIGHTS, Ranges
from headrace.infra.run.run import Run, list_runs, read_revisions
from headrace.infra.store.object_store import SPARED_BY_GC, ListedObject, StoreAddress
from headrace.infra.weights.paths import RECENT_VERSIONS
from headrace.ops.figures.best_version import find_best_version
from headrace.ops.reading import REPORT_EVERY
from headrace.ops.retention.keeping import checkpoints_to_retire, ranges_of, weights_to_retire
from headrace.ops.retention.marking import Marker, Unreadable, VersionRef
from headrace.schemas import codec
from headrace.schemas.ids import now_ms
from headrace.schemas.records import ObjectsRetired, RecipeRevision
from headrace.schemas.topics import Topics, key_of_retired, policy_of, trainer_component, variant_of

log = structlog.get_logger()

COLLECTOR = "gc"
DELETED_AT_ONCE = 8
"""Objects that are deleted beside one another."""
DELETE_WITHIN = SPARED_BY_GC / 2
"""Time after the listing within which objects are deleted."""
COLLECTOR_PATIENCE_S = 10.0

UNNAMED = "no record names it"
RETIRED = {WEIGHTS: "version that no worker starts from", CHECKPOINTS: "older checkpoint"}


class TooSlow(HeadraceError):
    """Deleting took so long that the list of needless objects is out of date."""


class SharedPrefix(HeadraceError):
    """Runs of other clusters may have their objects where this run's are, and their records cannot be read."""


@dataclass(frozen=True, slots=True)
class CollectionRequest:
    """What the command line asked for."""

    keep_versions: int = RECENT_VERSIONS
    """Newest versions whose weights are kept; a worker's own number if that is more."""
    keep_checkpoints: int | None = None
    """Newest checkpoints that are kept; None for all."""
    older_than: timedelta = SPARED_BY_GC
    """Objects, and records that make others dispensable, must be this old."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Doomed:
    """An object to be deleted."""

    one: ListedObject
    kind: str
    """First part of its key after the prefix."""
    why: str


@dataclass(frozen=True, slots=True)
class Counted:
    """Some objects."""

    objects: int
    bytes: int


@dataclass(frozen=True, slots=True)
class CollectedKind:
    """The objects of one kind and reason that were deleted, or would be."""

    kind: str
    """First part of their keys after the prefix."""
    why: str
    objects: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RetiredVersions:
    """Versions that are announced as retired."""

    policy: str
    what: str
    """weights | checkpoints."""
    versions: Ranges
    """(first, last) of each range."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What `headrace gc` did, or would do."""

    run: str
    dry_run: bool
    prefix: str
    """Prefix of the run's objects in the bucket."""
    older_than_s: float
    records: int
    """Number of records read."""
    none_of_ours: int
    """Records among them that are of other runs or cannot be decoded."""
    collected: tuple[CollectedKind, ...]
    spared: int
    """Objects among them that were written again meanwhile, and stay."""
    kept: dict[str, Counted]
    """Why others stay: named | young | foreign."""
    retired: tuple[RetiredVersions, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be announced, and then deleted."""

    retired: dict[tuple[str, str], Ranges]
    """(policy, weights or checkpoints) to all versions ever retired; only where new ones are."""
    added: dict[tuple[str, str], Ranges]
    """The new ones among them."""
    doomed: list[Doomed]
    kept: dict[str, Counted]
    """Why others stay: named | young | foreign, to how many objects and bytes."""


def command(run: Run, request: CollectionRequest, *, rests: bool) -> Collected:
    """Do what `headrace gc` was asked; `collect`, for a run whose broker this command may have started."""
    # The recipe's own cluster may have components that this machine knows nothing of.
    return collect(run, request, rests=rests and not run.recipe.kafka.bootstrap)


def collect(run: Run, request: CollectionRequest, *, rests: bool = False) -> Collected:
    """Delete what nothing needs, or with a dry run show what that would be; return what was found.

    Args:
        run: The run whose objects are collected.
        request: What to keep.
        rests: Whether it is known that no process writes to the run or its store now.

    Until the first deletion nothing has changed; after it, the next `gc` continues.

    Raises:
        UsageError: The age is so low that objects whose records are not written yet could be deleted.
        SharedPrefix: See there.
        Unreadable, KafkaAway, KafkaRefused: Not all records can be read.
        Fenced: Another `gc` of the run began.
        StoreError: The store failed.
    """
    if request.older_than < SPARED_BY_GC and not rests:
        raise UsageError(
            f"--older-than must be {SPARED_BY_GC.days}d or more, as a running component may write an object so long "
            "before the record that names it; less is possible only for a stopped run with an embedded Kafka, given by "
            "--data"
        )
    if request.dry_run:
        return _report(run, request, *_read_and_plan(run, request), spared=0)
    with closing(TransactionalWriter(run.connection, f"{run.address.run}.{COLLECTOR}", run.topic_names)) as writer:
        due_s = seconds_awake_or_asleep() + DELETE_WITHIN.total_seconds()
        marker, plan = _read_and_plan(run, request)
        if plan.retired:
            announce(run, writer, plan)
    return _report(run, request, marker, plan, spared=_delete(run, request, plan.doomed, due_s))


def _read_and_plan(run: Run, request: CollectionRequest) -> tuple[Marker, Plan]:
    sharing = runs_beside(run)
    prefix, listed = run.store_address.prefix, run.store.list_objects()
    # The clock that dates the objects: ours may be hours ahead of it, and what is on its way would look old.
    answers = (run.store.now(one.key) for one in listed)
    now = next((answer for answer in answers if answer is not None), datetime.now(UTC))
    marker = Marker(run.run_id, run.topics, run.recipe.policy_variants, prefix, listed)
    _read(run.connection, sharing, marker)
    return marker, plan(marker, request, now, prefix)


# -------------------------------------------------------------------------------------------------------- what to read


def runs_beside(run: Run) -> list[str]:
    """Return the runs of the cluster whose objects may lie under this run's prefix, this one among them.

    An offline experiment, for one, begins with the store of its source. Raises SharedPrefix when the prefix is not that
    of one of them alone: runs of other clusters may then have put objects there.
    """
    bucket, prefix = run.store_address.bucket, run.store_address.prefix
    sharing: dict[str, list[RecipeRevision]] = {}
    for name in list_runs(run.connection, COLLECTOR_PATIENCE_S):
        revisions = read_revisions(RunAddress(run.connection, name))
        if not revisions and _has_records(run.connection, Topics(name).recipe):
            raise Unreadable(
                f"{Topics(name).recipe} has records, but no recipe revision that can be read. So it is not known where "
                f"run {name} keeps its objects, and nothing is deleted"
            )
        if name == run.address.run or any(_can_overlap(revision, bucket, prefix) for revision in revisions):
            sharing[name] = revisions
    run_ids = {revision.run_id for revisions in sharing.values() for revision in revisions}
    if run.recipe.store.endpoint and prefix not in {f"{run_id}/" for run_id in run_ids}:
        raise SharedPrefix(
            f"run {run.address.run} keeps its objects under prefix {prefix!r} of bucket {bucket}. That is not the run "
            "id of a run of this cluster, so runs of other clusters may have objects there too. Their records cannot "
            "be read from here, so nothing is deleted. New runs have a prefix of their own"
        )
    return sorted(sharing)


def _can_overlap(revision: RecipeRevision, bucket: str, prefix: str) -> bool:
    """Return whether a run may have objects under a prefix. Its host is not looked at: it has several names."""
    try:
        url = str(json.loads(revision.store)["url"])
        there = StoreAddress.from_url(url)
    except (ValueError, KeyError, TypeError, UsageError):
        return True
    return there.bucket == bucket and (there.prefix.startswith(prefix) or prefix.startswith(there.prefix))


def _has_records(connection: Connection, topic: str) -> bool:
    with TopicReader(connection, find_whole_topics(connection, [topic])) as reader:
        return any(True for _ in reader.catch_up())


def _read(connection: Connection, runs: Iterable[str], marker: Marker) -> None:
    """Read every topic of these runs, also those of policies and workflows that the recipe has dropped since."""
    with translate_kafka_errors("listing topics"):
        known = get_admin(connection).list_topics(timeout=10).topics
    beginnings = tuple(f"{name}." for name in runs)
    topics = [topic for topic in known if topic.startswith(beginnings)]
    with (
        open_progress("reading records") as tell,
        TopicReader(connection, find_whole_topics(connection, topics), COLLECTOR) as r,
    ):
        ends = r.ends()
        for count, message in enumerate(r.catch_up(), 1):
            marker.fold_message(message)
            if count % REPORT_EVERY == 0:
                tell(sum(r.positions.values()), sum(ends.values()))


# ---------------------------------------------------------------------------------------------------------- what to do


def plan(marker: Marker, request: CollectionRequest, now: datetime, prefix: str) -> Plan:
    """Decide, when all was read. No I/O."""
    before = marker.retired
    at_ms = int((now - request.older_than).timestamp() * 1000)
    retired: dict[tuple[str, str], Ranges] = {}
    added: dict[tuple[str, str], Ranges] = {}
    gone: set[VersionRef] = set()
    for policy, kept in marker.policies.items():
        dropped: set[int] = set()
        if request.keep_checkpoints is not None:
            dropped = checkpoints_to_retire(kept.checkpoints, request.keep_checkpoints, at_ms)
        dropped |= {version for version in kept.checkpoints if before.has_version(policy, CHECKPOINTS, version)}
        # The best of what is left. What was evaluated lately may still lack a workflow.
        best = find_best_version(
            result
            for written_ms, result in kept.evaluations
            if written_ms <= at_ms and not before.has_version(policy, WEIGHTS, result.version)
        )
        old = weights_to_retire(
            kept.weights,
            kept.checkpoints.keys() - dropped,
            request.keep_versions,
            at_ms,
            best.version if best else None,
        )
        old |= {version for version in kept.weights if before.has_version(policy, WEIGHTS, version)}
        for what, versions, those in ((WEIGHTS, kept.weights, old), (CHECKPOINTS, kept.checkpoints, dropped)):
            gone |= {(policy, what, version) for version in those}
            if new := {version for version in those if not before.has_version(policy, what, version)}:
                retired[policy, what] = ranges_of(versions, those)
                added[policy, what] = ranges_of(versions, new)
    doomed = [Doomed(one, _kind(one, prefix), UNNAMED) for one in marker.find_unnamed()]
    for one, refs in marker.of_versions():
        if refs <= gone:
            doomed.append(Doomed(one, _kind(one, prefix), RETIRED[next(iter(refs))[1]]))
    old_enough = [one for one in doomed if now - one.one.modified >= request.older_than]
    kept_objects = {
        "named": _count(marker.list_own(), [one.one for one in doomed]),
        "young": _count((one.one for one in doomed), [one.one for one in old_enough]),
        "foreign": _count(marker.foreign, ()),
    }
    return Plan(retired, added, old_enough, kept_objects)


def _kind(one: ListedObject, prefix: str) -> str:
    return one.key.removeprefix(prefix).partition("/")[0]


def _count(objects: Iterable[ListedObject], without: Iterable[ListedObject]) -> Counted:
    left_out = {one.key for one in without}
    sizes = [one.size_bytes for one in objects if one.key not in left_out]
    return Counted(len(sizes), sum(sizes))


def announce(run: Run, writer: TransactionalWriter, what: Plan) -> None:
    """Show what is retired; who misses an object afterwards finds the record."""
    writer.begin()
    writer.produce(_record(run, policy, kind, ranges) for (policy, kind), ranges in what.retired.items())
    writer.commit()
    log.info("objects.retired", run=run.address.run, policies=sorted({policy for policy, _ in what.retired}))


def _record(run: Run, policy_variant: str, what: str, ranges: Ranges) -> Outgoing:
    record = ObjectsRetired(
        run_id=run.run_id,
        policy=policy_of(policy_variant),
        variant=variant_of(policy_variant),
        what=what,
        versions=np.array(ranges, np.int32).reshape(-1),
        created_ms=now_ms(),
    )
    topic, partition = run.state_partition_id(trainer_component(policy_variant))
    return Outgoing(topic, codec.encode(record), key_of_retired(policy_variant, what), partition=partition)


def seconds_awake_or_asleep() -> float:
    """Return the seconds of a clock that is never set and runs on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def _delete(run: Run, request: CollectionRequest, doomed: list[Doomed], due_s: float) -> int:
    """Delete objects; return how many were left, because they were written again since the listing.

    What was written again since then is younger than an object must be, until half of that age has passed: no deletion
    begins later. Raises TooSlow.
    """

    def delete(one: Doomed) -> bool:
        if seconds_awake_or_asleep() > due_s:
            raise TooSlow(
                f"not all objects could be deleted within {DELETE_WITHIN.total_seconds() / 3600:.0f} h of listing "
                "them. After that, an object that was written again could look old. So the rest is kept: give the "
                "command again to continue"
            )
        # Looked at last of all: a trainer that comes back and makes the same bytes writes them again.
        age = run.store.age(one.one.key)
        if age is not None and age < request.older_than:
            return False
        run.store.delete(one.one.key)
        reach(f"{COLLECTOR}.deleted")
        return True

    left = 0
    with open_progress("deleting objects") as tell, ThreadPoolExecutor(DELETED_AT_ONCE) as pool:
        for done, deleted in enumerate(pool.map(delete, doomed), 1):
            left += not deleted
            tell(done, len(doomed))
    return left


def _report(run: Run, request: CollectionRequest, marker: Marker, done: Plan, *, spared: int) -> Collected:
    return Collected(
        run=run.address.run,
        dry_run=request.dry_run,
        prefix=run.store_address.prefix,
        older_than_s=request.older_than.total_seconds(),
        records=marker.records,
        none_of_ours=marker.none_of_ours,
        collected=tuple(_rows(done.doomed)),
        spared=spared,
        kept=done.kept,
        retired=tuple(RetiredVersions(policy, what, ranges) for (policy, what), ranges in done.added.items()),
    )


def _rows(doomed: Iterable[Doomed]) -> Iterator[CollectedKind]:
    """Yield one row for all of a kind and reason."""
    objects, sizes = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for one in doomed:
        objects[one.kind, one.why] += 1
        sizes[one.kind, one.why] += one.one.size_bytes
    for (kind, why), count in sorted(objects.items()):
        yield CollectedKind(kind, why, count, sizes[kind, why])
