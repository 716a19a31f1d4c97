"""`headrace gc`: deletes the objects that nothing needs any more.

The order is the guarantee:

1. The objects of the store are listed.
2. All records are read up to the ends of their topics, which are asked for after the listing. An open transaction hides
   the records after it, so this waits until it ends. A record that comes later names an object that was put shortly
   before. `put` writes an object again if the stored one is older than twelve hours (`TAKEN_AS_STORED`), so that object
   has a recent date, and objects with a recent date are spared.
3. Weights and checkpoints that are not needed any more are announced (ObjectsRetired), in a transaction.
4. Then each object is checked once more and deleted, unless it was written again meanwhile. S3 has no conditional
   deletion, so an object that is written again in the milliseconds between check and deletion is lost. This can only
   happen if a trainer resumes in just that moment and makes the same bytes as more than a day ago.

So nothing is deleted if a topic cannot be read to its end, or holds a record that this build does not know. If a
command is killed between 3 and 4, the next one finishes its work. The transactional id is the run's: if two run at
once, the second fences the first, unless the first has reached 4; then both delete the same objects.
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
from headrace.infra.kafka.topic_reader import TopicReader, find_start_positions
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.progress import open_progress
from headrace.infra.run.retired import CHECKPOINTS, WEIGHTS, Ranges
from headrace.infra.run.run import Run, list_runs, read_revisions
from headrace.infra.store.object_store import SPARED_BY_GC, ListedObject, StoreAddress
from headrace.infra.weights.paths import RECENT_VERSIONS
from headrace.ops.figures.best_version import find_best_version
from headrace.ops.reading import REPORT_EVERY
from headrace.ops.retention.keeping import checkpoints_to_retire, find_retired_ranges, weights_to_retire
from headrace.ops.retention.marking import Marker, Unreadable, VersionRef
from headrace.schemas import codec
from headrace.schemas.ids import now_ms
from headrace.schemas.records import ObjectsRetired, RecipeRevision
from headrace.schemas.topics import Topics, key_of_retired, policy_of, trainer_component, variant_of

log = structlog.get_logger()

COLLECTOR = "gc"
DELETED_AT_ONCE = 8
"""Number of objects that are deleted in parallel."""
DELETE_WITHIN = SPARED_BY_GC / 2
"""Time after the listing within which objects are deleted."""
COLLECTOR_PATIENCE_S = 10.0

UNNAMED = "no record names it"
RETIRED = {WEIGHTS: "version that no worker starts from", CHECKPOINTS: "older checkpoint"}


class TooSlow(HeadraceError):
    """Deleting took so long that the list of unneeded objects is out of date."""


class SharedPrefix(HeadraceError):
    """Runs of other clusters, whose records cannot be read, may have objects under the same prefix as this run."""


@dataclass(frozen=True, slots=True)
class CollectionRequest:
    """The options of `headrace gc`."""

    keep_versions: int = RECENT_VERSIONS
    """Number of the newest versions whose weights are kept; at least the number that workers need."""
    keep_checkpoints: int | None = None
    """Number of the newest checkpoints that are kept; None for all."""
    older_than: timedelta = SPARED_BY_GC
    """Smallest age of an object to delete, and of a newer version or checkpoint that replaces it."""
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
    """Number and bytes of some objects."""

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
    """The result of `headrace gc`, or of its dry run."""

    run: str
    dry_run: bool
    prefix: str
    """Prefix of the run's objects in the bucket."""
    older_than_s: float
    records: int
    """Number of records read."""
    none_of_ours: int
    """Number of records among them that belong to other runs or cannot be decoded."""
    collected: tuple[CollectedKind, ...]
    spared: int
    """Number of objects that were to be deleted, but were written again meanwhile, and are kept."""
    kept: dict[str, Counted]
    """Kept objects by reason: named | young | foreign."""
    retired: tuple[RetiredVersions, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The retirements to announce, and the objects to delete after that."""

    retired: dict[tuple[str, str], Ranges]
    """(policy, weights or checkpoints) to all retired versions, old and new; only if there are new ones."""
    added: dict[tuple[str, str], Ranges]
    """The newly retired versions among them."""
    doomed: list[Doomed]
    kept: dict[str, Counted]
    """Kept objects by reason (named | young | foreign), with their number and bytes."""


def command(run: Run, request: CollectionRequest, *, rests: bool) -> Collected:
    """Call `collect` for `headrace gc`, for a run whose broker this command may have started."""
    # On a cluster that the recipe names, components may run that this machine does not know of.
    return collect(run, request, rests=rests and not run.recipe.kafka.bootstrap)


def collect(run: Run, request: CollectionRequest, *, rests: bool = False) -> Collected:
    """Delete the objects that nothing needs, or in a dry run only find them; return the result.

    Args:
        run: The run whose objects are collected.
        request: The options.
        rests: Whether it is known that no process writes to the run or its store now.

    If it stops before the first deletion, nothing has changed; if it stops later, the next `gc` continues.

    Raises:
        UsageError: The age is so low that objects whose records are not written yet could be deleted.
        SharedPrefix: Runs of other clusters may have objects under the same prefix.
        Unreadable, KafkaAway, KafkaRefused: Not all records can be read.
        Fenced: Another `gc` of the run began.
        StoreError: The store failed.
    """
    if request.older_than < SPARED_BY_GC and not rests:
        raise UsageError(
            f"--older-than must be {SPARED_BY_GC.days}d or more, because a running component may write an object up "
            f"to {SPARED_BY_GC.days}d before the record that names it. Less is possible only for a stopped run with an "
            "embedded Kafka, given by --data"
        )
    if request.dry_run:
        return _build_report(run, request, *_read_and_plan(run, request), spared=0)
    with closing(TransactionalWriter(run.connection, f"{run.address.run}.{COLLECTOR}", run.topic_names)) as writer:
        due_s = seconds_awake_or_asleep() + DELETE_WITHIN.total_seconds()
        marker, plan = _read_and_plan(run, request)
        if plan.retired:
            announce(run, writer, plan)
    return _build_report(run, request, marker, plan, spared=_delete(run, request, plan.doomed, due_s))


def _read_and_plan(run: Run, request: CollectionRequest) -> tuple[Marker, Plan]:
    sharing = list_runs_beside(run)
    prefix, listed = run.store_address.prefix, run.store.list_objects()
    # The store's clock dates the objects. Our clock may be hours ahead of it, and would make new objects look old.
    answers = (run.store.now(one.key) for one in listed)
    now = next((answer for answer in answers if answer is not None), datetime.now(UTC))
    marker = Marker(run.run_id, run.topics, run.recipe.policy_variants, prefix, listed)
    _read(run.connection, sharing, marker)
    return marker, plan(marker, request, now, prefix)


# -------------------------------------------------------------------------------------------------------- what to read


def list_runs_beside(run: Run) -> list[str]:
    """Return the runs of the cluster whose objects may be under this run's prefix, including this run.

    An offline experiment, for example, shares the store of its source. Raises SharedPrefix if the prefix is not the id
    of one of these runs: then runs of other clusters may have put objects there.
    """
    bucket, prefix = run.store_address.bucket, run.store_address.prefix
    sharing: dict[str, list[RecipeRevision]] = {}
    for name in list_runs(run.connection, COLLECTOR_PATIENCE_S):
        revisions = read_revisions(RunAddress(run.connection, name))
        if not revisions and _has_records(run.connection, Topics(name).recipe):
            raise Unreadable(
                f"{Topics(name).recipe} has records, but no readable recipe revision. So it is not known where run "
                f"{name} keeps its objects, and nothing is deleted"
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
    """Return whether a run may have objects under a prefix. The store's host is ignored: a host has several names."""
    try:
        url = str(json.loads(revision.store)["url"])
        there = StoreAddress.from_url(url)
    except (ValueError, KeyError, TypeError, UsageError):
        return True
    return there.bucket == bucket and (there.prefix.startswith(prefix) or prefix.startswith(there.prefix))


def _has_records(connection: Connection, topic: str) -> bool:
    with TopicReader(connection, find_start_positions(connection, [topic])) as reader:
        return any(True for _ in reader.catch_up())


def _read(connection: Connection, runs: Iterable[str], marker: Marker) -> None:
    """Read every topic of these runs, including topics of policies and workflows that a recipe has dropped."""
    with translate_kafka_errors("listing topics"):
        known = get_admin(connection).list_topics(timeout=10).topics
    beginnings = tuple(f"{name}." for name in runs)
    topics = [topic for topic in known if topic.startswith(beginnings)]
    with (
        open_progress("reading records") as tell,
        TopicReader(connection, find_start_positions(connection, topics), COLLECTOR) as r,
    ):
        ends = r.ends()
        for count, message in enumerate(r.catch_up(), 1):
            marker.fold_message(message)
            if count % REPORT_EVERY == 0:
                tell(sum(r.positions.values()), sum(ends.values()))


# ---------------------------------------------------------------------------------------------------------- what to do


def plan(marker: Marker, request: CollectionRequest, now: datetime, prefix: str) -> Plan:
    """Decide what to retire and delete, after all records were read. No I/O."""
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
        # The best version that is left. The newest evaluations may still lack a workflow.
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
                retired[policy, what] = find_retired_ranges(versions, those)
                added[policy, what] = find_retired_ranges(versions, new)
    doomed = [Doomed(one, _find_kind(one, prefix), UNNAMED) for one in marker.find_unnamed()]
    for one, refs in marker.find_named_by_versions():
        if refs <= gone:
            doomed.append(Doomed(one, _find_kind(one, prefix), RETIRED[next(iter(refs))[1]]))
    old_enough = [one for one in doomed if now - one.one.modified >= request.older_than]
    kept_objects = {
        "named": _count(marker.list_own(), [one.one for one in doomed]),
        "young": _count((one.one for one in doomed), [one.one for one in old_enough]),
        "foreign": _count(marker.foreign, ()),
    }
    return Plan(retired, added, old_enough, kept_objects)


def _find_kind(one: ListedObject, prefix: str) -> str:
    return one.key.removeprefix(prefix).partition("/")[0]


def _count(objects: Iterable[ListedObject], without: Iterable[ListedObject]) -> Counted:
    left_out = {one.key for one in without}
    sizes = [one.size_bytes for one in objects if one.key not in left_out]
    return Counted(len(sizes), sum(sizes))


def announce(run: Run, writer: TransactionalWriter, what: Plan) -> None:
    """Publish which versions are retired, so that a reader who misses an object later finds the record."""
    writer.begin()
    writer.produce(_build_record(run, policy, kind, ranges) for (policy, kind), ranges in what.retired.items())
    writer.commit()
    # `gc` has marked versions before it deletes their objects.
    log.info("objects.retired", run=run.address.run, policies=sorted({policy for policy, _ in what.retired}))


def _build_record(run: Run, policy_variant: str, what: str, ranges: Ranges) -> Outgoing:
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
    """Return the seconds of a clock that nobody sets and that continues while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def _delete(run: Run, request: CollectionRequest, doomed: list[Doomed], due_s: float) -> int:
    """Delete objects; return how many were kept because they were written again since the listing.

    An object that was written again is recognized by its age until half of the smallest age has passed. No deletion
    begins later. Raises TooSlow.
    """

    def delete(one: Doomed) -> bool:
        if seconds_awake_or_asleep() > due_s:
            raise TooSlow(
                f"not all objects could be deleted within {DELETE_WITHIN.total_seconds() / 3600:.0f} h of listing "
                "them. After that time gc cannot tell whether a trainer has written an object again, so the rest is "
                "kept: give the command again to continue"
            )
        # Checked as late as possible: a trainer that resumes may make the same bytes, and write them again.
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


def _build_report(run: Run, request: CollectionRequest, marker: Marker, done: Plan, *, spared: int) -> Collected:
    return Collected(
        run=run.address.run,
        dry_run=request.dry_run,
        prefix=run.store_address.prefix,
        older_than_s=request.older_than.total_seconds(),
        records=marker.records,
        none_of_ours=marker.none_of_ours,
        collected=tuple(_group_doomed(done.doomed)),
        spared=spared,
        kept=done.kept,
        retired=tuple(RetiredVersions(policy, what, ranges) for (policy, what), ranges in done.added.items()),
    )


def _group_doomed(doomed: Iterable[Doomed]) -> Iterator[CollectedKind]:
    """Yield one row for all objects of a kind and reason."""
    objects, sizes = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for one in doomed:
        objects[one.kind, one.why] += 1
        sizes[one.kind, one.why] += one.one.size_bytes
    for (kind, why), count in sorted(objects.items()):
        yield CollectedKind(kind, why, count, sizes[kind, why])
