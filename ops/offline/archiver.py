"""`headrace archive`: copies topics of a run into an archive; a later call adds only new records."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from headrace.infra.archive.locations import InStore, Location, location_of
from headrace.infra.archive.manifest import ArchivedObject
from headrace.infra.archive.reading import Archive
from headrace.infra.archive.writing import ArchiveWriter
from headrace.infra.errors import HeadraceError, UsageError
from headrace.infra.kafka.clients import TAIL_IS_LOST, KafkaRefused, LogTruncated
from headrace.infra.kafka.topic_admin import fetch_topic_ids
from headrace.infra.kafka.topic_offsets import fetch_begin_offsets, fetch_end_offsets
from headrace.infra.kafka.topic_reader import PartitionId, TopicReader, find_start_positions, refuse_lost_tail
from headrace.infra.progress import open_progress
from headrace.infra.run.run import STORE_NAME, Run
from headrace.ops.reading import REPORT_EVERY, list_topics
from headrace.schemas import codec
from headrace.schemas.avro import Plain, SchemaError
from headrace.schemas.records import ClaimCheck, CuratedGroup, TrajectoryGroup
from headrace.schemas.topics import NEWEST_OF_KEY, TopicSpec

CLAIM_FIELDS = {"store", "key", "sha256", "size_bytes"}
GROUPS = {TrajectoryGroup.__name__, CuratedGroup.__name__}
NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
WHOLE_BELOW_BYTES = 1 << 30
"""Objects of weights and checkpoints are archived without a question if they have fewer bytes in all."""
COPIED_ANYWAY = "groups"
"""Kind of the objects that trajectories need."""


class NoRoom(HeadraceError):
    """The disk of the archive is full."""


@dataclass(frozen=True, slots=True)
class Gone:
    """Records that were deleted before they were archived."""

    topic: str
    partition: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class TopicContents:
    """The part of a topic that the archive holds."""

    partitions: int
    files: int
    records: int
    bytes: int
    new_records: int
    """Records that this call added; `new_bytes` are their bytes."""
    new_bytes: int


@dataclass(frozen=True, slots=True)
class ArchivedObjects:
    """The objects in the archive."""

    count: int
    bytes: int
    new: int
    missing: dict[str, str]
    """Key of each object that could not be read, to the reason."""


@dataclass(frozen=True, slots=True)
class Archived:
    """The contents of an archive, and which part of it is new."""

    archive: str
    run: str
    run_id: str
    topics: dict[str, TopicContents]
    """Topic, without the run's name, to what was archived."""
    objects: ArchivedObjects
    raw: int
    """Values without a known schema, kept as bytes."""
    gone: tuple[Gone, ...]
    seconds: float


@dataclass(slots=True)
class _Reading:
    """The partitions to read."""

    ends: dict[PartitionId, int]
    """End of each partition, used only for the progress: just after a broker's start it may be wrong."""
    gone: list[Gone] = field(default_factory=list)


def list_group_claims(name: str, fields: Plain) -> list[ClaimCheck]:
    """Return the objects that a trajectories or curated record needs: a group in the store, and attachments."""
    return list_all_claims(name, fields) if name in GROUPS else []


def list_all_claims(name: str, fields: Plain) -> list[ClaimCheck]:
    """Return the objects that a record names, and for a curated record also those that its group names."""
    found = list(_claims_in(fields))
    if name == CuratedGroup.__name__ and fields["group"]:
        with suppress(SchemaError):  # whoever reads the record reports the error
            found += _claims_in(codec.decode_as_written(fields["group"])[1])
    return found


def _claims_in(value: Any) -> Iterator[ClaimCheck]:
    if isinstance(value, dict):
        if value.keys() == CLAIM_FIELDS:
            if value["key"]:
                yield ClaimCheck(**value)
        else:
            for inner in value.values():
                yield from _claims_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _claims_in(inner)


def refuse_to_choose(size_bytes: int) -> bool:
    """Raise UsageError, because nobody can be asked whether to copy so many bytes."""
    raise UsageError(
        f"weights and checkpoints of this run are {size_bytes / 1e9:.1f} GB: give --with-weights to copy them too, so "
        "that training can begin from the archive, or --without-weights"
    )


def archive(
    run: Run,
    out: Path | str,
    topics: Iterable[str] = (),
    *,
    with_weights: bool | None = None,
    ask: Callable[[int], bool] = refuse_to_choose,
) -> Archived:
    """Archive the new records of a run's topics, up to their present ends; return what the archive holds now.

    Args:
        run: The run.
        out: Location of the archive, as `location_of` takes it.
        topics: Names without the run's; by default all but the compacted ones, which hold offsets of this cluster.
        with_weights: Whether to copy the objects of weights and checkpoints too, and `state`, which names checkpoints.
            An archive that was begun without them also gets those that it skipped. None: as the archive began; a new
            archive of all topics copies them if they have less than `WHOLE_BELOW_BYTES`.
        ask: Decides whether a new archive copies more bytes than that, given their number.

    Raises:
        UsageError: A topic that does not exist, a folder that cannot be used, nobody to ask.
        ArchiveBusy, ArchiveCorrupt: As `ArchiveWriter`.
        NoRoom, KafkaAway, StoreUnavailable: The archive is complete up to that point; the next call continues there.
    """
    began = time.monotonic()

    def fetch(claim: ClaimCheck, path: Path) -> None:
        run.store.get_to_file(claim.key, claim.sha256, claim.size_bytes, path)

    def claims(name: str, fields: Plain) -> list[ClaimCheck]:
        return list_all_claims(name, fields) if writer.manifest.with_weights else list_group_claims(name, fields)

    location = _find_location(run, out)
    try:
        with ArchiveWriter(location, run.address.run, run.run_id, fetch, claims) as writer:
            named = list(topics)
            if with_weights is None and not writer.manifest.topics:
                with_weights = not named and _can_copy_weights(run, ask)
            _agree_on_weights(writer, with_weights=with_weights)
            specs = choose_topics(run, named, with_weights=writer.manifest.with_weights)
            reading = _add_topics(run, writer, specs)
            writer.retry_missing_objects()
            _read(run, writer, reading)
            return _build_report(run, writer, reading, time.monotonic() - began)
    except OSError as error:
        if error.errno in NO_ROOM:
            where = f"for the archive {out}"
            if isinstance(location, InStore):
                where = f"in {gettempdir()}, where files of the archive {out} grow until they are sent"
            raise NoRoom(
                f"no disk space or quota is left {where}: free some space, and give the command again; the files "
                "that the manifest lists are complete"
            ) from error
        raise


def _find_location(run: Run, out: Path | str) -> Location:
    """Return the location of the archive. Raises UsageError for a location among the run's own objects."""
    found, own = location_of(out, run.store_address), run.store_address
    if isinstance(found, InStore) and found.address.bucket == own.bucket:
        prefix = found.address.prefix
        if prefix.startswith(own.prefix) or own.prefix.startswith(prefix):
            raise UsageError(
                f"{found} overlaps the objects of run {run.address.run}, where `headrace gc` deletes all objects that "
                "no record names: give another prefix"
            )
    return found


def _can_copy_weights(run: Run, ask: Callable[[int], bool]) -> bool:
    prefix = run.store_address.prefix
    kinds = ((one, one.key.removeprefix(prefix).partition("/")[0]) for one in run.store.list_objects())
    size_bytes = sum(one.size_bytes for one, kind in kinds if kind != COPIED_ANYWAY)
    return size_bytes < WHOLE_BELOW_BYTES or ask(size_bytes)


def _agree_on_weights(writer: ArchiveWriter, *, with_weights: bool | None) -> None:
    """Keep the archive's choice, or add weights from now on. Raises UsageError if an archive would lose its weights."""
    if with_weights is None or writer.manifest.with_weights == with_weights:
        return
    if not with_weights:
        raise UsageError(
            f"the archive {writer.location} holds weights: leave out --without-weights, or give another --out"
        )
    _add_missing_objects(writer)
    writer.manifest.with_weights = True
    if writer.manifest.topics:
        writer.save()


def _add_missing_objects(writer: ArchiveWriter) -> None:
    """Count as missing the objects that archived records name, and that the archive was begun without."""
    if not writer.manifest.topics:
        return
    # A writer's location that read another's manifest would have the writer's own take its place.
    held = Archive(writer.location, writer.manifest)
    for topic in held.manifest.topics:
        for message in (message for partition_id in held.partitions(topic) for message in held.messages(partition_id)):
            with suppress(SchemaError):  # kept as bytes
                schema, fields = codec.decode_as_written(message.value)
                for claim in list_all_claims(str(schema["name"]).rpartition(".")[2], fields):
                    if claim.key not in writer.manifest.objects and claim.store == STORE_NAME:
                        why = "the archive was begun without weights"
                        found = ArchivedObject(sha256=claim.sha256, size_bytes=claim.size_bytes, why=why)
                        writer.manifest.missing.setdefault(claim.key, found)


def choose_topics(run: Run, asked: Iterable[str], *, with_weights: bool = False) -> list[TopicSpec]:
    """Return the topics to archive, with their settings. Raises UsageError for a topic that does not exist.

    The recipe topic is always included: it holds the recipe, and the schemas of all other records. The topics of
    policies and workflows that a later revision has dropped are included too.
    """
    by_name = {spec.name: spec for recipe in run.revisions for spec in recipe.build_topic_specs(run.state_partitions)}
    there = list_topics(run.connection)
    wanted = [f"{run.address.run}.{name}" for name in asked]
    if missing := [name for name in wanted if name not in there]:
        ours = sorted(name.partition(".")[2] for name in there if name.startswith(f"{run.address.run}."))
        raise UsageError(f"there is no topic {', '.join(missing)}: choose from {', '.join(ours)}")
    if not wanted:
        compacted = NEWEST_OF_KEY["cleanup.policy"]
        kept = {spec.name for spec in by_name.values() if spec.config.get("cleanup.policy") != compacted}
        wanted = [name for name in by_name if name in kept or (with_weights and name == run.topics.state)]
    names = dict.fromkeys([run.topics.recipe, *wanted])
    return [by_name.get(name, TopicSpec(name, 0)) for name in names if name in there]


def _add_topics(run: Run, writer: ArchiveWriter, specs: Iterable[TopicSpec]) -> _Reading:
    """Add the topics to the archive, and return the partitions to read."""
    configs = {spec.name: spec.config for spec in specs}
    partition_ids, ids = find_start_positions(run.connection, configs), fetch_topic_ids(run.connection, configs)
    for topic, config in configs.items():
        writer.add_topic(topic, sum(partition_id[0] == topic for partition_id in partition_ids), config, ids[topic])
    positions = {partition_id: writer.next_offset(partition_id) for partition_id in partition_ids}
    try:
        refuse_lost_tail(run.connection, positions)
    except LogTruncated as error:
        raise KafkaRefused(
            f"the cluster has lost records that the archive {writer.location} has: {error.lost}. {TAIL_IS_LOST}, "
            "so this archive cannot be continued. Bring back a replica that has the records; or keep this archive, and "
            "give another --out for the records that are left"
        ) from error
    found = _Reading(fetch_end_offsets(run.connection, partition_ids))
    for partition_id, begin in fetch_begin_offsets(run.connection, partition_ids).items():
        if begin > positions[partition_id]:
            found.gone.append(Gone(*partition_id, positions[partition_id], begin))
    return found


def _read(run: Run, writer: ArchiveWriter, reading: _Reading) -> None:
    positions = {partition_id: writer.next_offset(partition_id) for partition_id in reading.ends}
    first, whole = sum(positions.values()), sum(reading.ends.values())
    with open_progress("archiving") as tell, TopicReader(run.connection, positions, "archive") as reader:
        for count, message in enumerate(reader.catch_up(), 1):
            if count % REPORT_EVERY == 0:
                tell(sum(reader.positions.values()) - first, whole - first)
            writer.write(message)
        writer.save(reader.positions)


def _build_report(run: Run, writer: ArchiveWriter, reading: _Reading, seconds: float) -> Archived:
    manifest, prefix = writer.manifest, f"{run.address.run}."
    return Archived(
        archive=str(writer.location),
        run=manifest.run,
        run_id=manifest.run_id,
        topics={
            name.removeprefix(prefix): TopicContents(
                partitions=len(topic.partitions),
                files=sum(len(series.files) for series in topic.partitions),
                records=topic.records,
                bytes=topic.bytes,
                new_records=writer.new[name].records if name in writer.new else 0,
                new_bytes=writer.new[name].bytes if name in writer.new else 0,
            )
            for name, topic in manifest.topics.items()
        },
        objects=ArchivedObjects(
            count=len(manifest.objects),
            bytes=sum(one.size_bytes for one in manifest.objects.values()),
            new=writer.new_objects,
            missing={key: one.why for key, one in manifest.missing.items()},
        ),
        raw=writer.raw,
        gone=tuple(replace(one, topic=one.topic.removeprefix(prefix)) for one in reading.gone),
        seconds=round(seconds, 3),
    )
