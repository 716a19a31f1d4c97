"""`headrace replay`: writes an archive's topics into a Kafka that does not hold them yet, each record once.

Records keep topic, partition, order, key, value, headers and time. One header is added: the decision of the run's
curators, which depended on what was published and issued at that time. Offsets are new, because transaction markers
take up offsets too. If the topics hold the archive's first records already, a killed replay continues after them; any
other records are refused. The recipe comes last, so that no component joins an incomplete run.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace.infra.archive.reading import Archive
from headrace.infra.embedded.data_folder import REPLAYING, DataFolder, RunNotes
from headrace.infra.embedded.kafka_server import EmbeddedKafka
from headrace.infra.embedded.servers import await_leaders
from headrace.infra.embedded.store_server import EmbeddedStore
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Connection, Message, Outgoing
from headrace.infra.kafka.dead_letters import TAKEN, VERDICT_HEADER
from headrace.infra.kafka.run_address import parse_run
from headrace.infra.kafka.topic_admin import ensure_topics
from headrace.infra.kafka.topic_offsets import fetch_end_offsets
from headrace.infra.kafka.topic_reader import PartitionId, TopicReader
from headrace.infra.kafka.transactions import TransactionalWriter, split_into_transactions
from headrace.infra.progress import open_progress
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.run import parse_store
from headrace.infra.store.object_store import ObjectStore, StoreAddress, StoredObject
from headrace.ops.offline.refusals import read_first_revision, read_refusals
from headrace.schemas.records import RecipeRevision
from headrace.schemas.topics import NEWEST_OF_KEY, TopicSpec

REPLAYER = "replay"
MOST_REPLAYED_RECORDS = 2_000
"""Largest number of records in one transaction."""


@dataclass(frozen=True, slots=True)
class Target:
    """The Kafka and the store that an archive is written into."""

    connection: Connection
    store: StoreAddress | None
    """None if there is no store for objects: the recipe names none, and there is no folder for an embedded one."""


@dataclass(slots=True)
class Fed:
    """Counts of the records of one topic that were written, or were there already."""

    records: int = 0
    there: int = 0
    """Records that were already there."""


@dataclass(frozen=True, slots=True)
class FedTopic:
    """Records of a topic in the cluster, and how many of them are new."""

    records: int
    new_records: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay: the written topics and objects."""

    archive: str
    run: str
    run_id: str
    into: str
    """The run's address, or the data folder."""
    topics: dict[str, FedTopic]
    """Topic, without the run's name, to what was written."""
    objects: int
    """Objects written to the store."""
    seconds: float


def replay(root: Path | str, into: str | None, data: Path | None, topics: Iterable[str] = ()) -> Replayed:
    """Write an archive into the cluster of a run's address, or of a data folder; return what was written.

    Args:
        root: The archive.
        into: `kafka://HOST:PORT/RUN`, where RUN is the archived run's name.
        data: A new folder, in which an embedded Kafka and store are started meanwhile.
        topics: Names without the run's; by default all but the compacted ones, which hold offsets of the old cluster.

    Raises:
        UsageError: No such archive or topic, another run's name, topics that hold other records.
        ArchiveCorrupt: A file differs from the manifest.
        Aborted, KafkaAway, StoreUnavailable: Give the command again; it continues where it stopped.
        Fenced: Another replay took over.
    """
    began, archive = time.monotonic(), Archive(root)
    newest = _find_newest_revision(archive)
    chosen = _choose_topics(archive, topics)
    with _open_target(archive, newest, into, data) as target:
        specs = _list_topics_to_create(archive, newest, chosen)
        ensure_topics(target.connection, specs)
        objects = _put_objects(archive, target)
        found = _write_topics(archive, target.connection, chosen)
    prefix = f"{archive.manifest.run}."
    return Replayed(
        archive=str(root),
        run=archive.manifest.run,
        run_id=archive.manifest.run_id,
        into=into or str(data),
        topics={
            name.removeprefix(prefix): FedTopic(fed.records, fed.records - fed.there) for name, fed in found.items()
        },
        objects=objects,
        seconds=round(time.monotonic() - began, 3),
    )


def _find_newest_revision(archive: Archive) -> RecipeRevision:
    ours = archive.revisions()
    if not ours:
        raise UsageError(f"the archive {archive.root} holds no recipe of its run: archive the run again")
    return ours[-1]


def _choose_topics(archive: Archive, asked: Iterable[str]) -> list[str]:
    """Return the topics to write, the recipe last. Raises UsageError for a topic that is not archived."""
    run, recipe = archive.manifest.run, archive.topics.recipe
    wanted = [f"{run}.{name}" for name in asked]
    for name in wanted:
        archive.partitions(name)
    if not wanted:
        held = archive.manifest.topics
        wanted = [name for name in held if held[name].config.get("cleanup.policy") != NEWEST_OF_KEY["cleanup.policy"]]
    return [*(name for name in dict.fromkeys(wanted) if name != recipe), recipe]


def _list_topics_to_create(archive: Archive, newest: RecipeRevision, chosen: Iterable[str]) -> list[TopicSpec]:
    """Return every topic of the run, so that its components find all they need, and topics that no recipe names."""
    recipe = Recipe.from_json(newest.recipe)
    specs = recipe.build_topic_specs(archive.revisions()[0].state_partitions or 1)
    held, named = archive.manifest.topics, {spec.name for spec in specs}
    others = [name for name in chosen if name not in named]
    return [*specs, *(TopicSpec(name, len(held[name].partitions), held[name].config) for name in others)]


@contextmanager
def _open_target(archive: Archive, newest: RecipeRevision, into: str | None, data: Path | None) -> Iterator[Target]:
    recipe, run = Recipe.from_json(newest.recipe), archive.manifest.run
    if (into is None) == (data is None):
        raise UsageError("give either --into kafka://HOST:PORT/RUN or --data NEW_FOLDER")
    if into is not None:
        address = parse_run(into)
        if address.run != run:
            raise UsageError(f"--into {into}: a replay keeps the name of its run, {run}: end the address in /{run}")
        yield Target(address.connection, parse_store(newest) if recipe.store.endpoint else None)
        return
    folder = DataFolder(data or Path())
    with ExitStack() as started:
        started.enter_context(folder.hold(REPLAYING))
        notes = folder.read()
        if notes is not None and (notes.run, notes.run_id) != (run, archive.manifest.run_id):
            raise UsageError(
                f"{folder.root} holds run {notes.run} with id {notes.run_id}, but the archive is of run {run} with id "
                f"{archive.manifest.run_id}: give another folder by --data"
            )
        kafka = started.enter_context(EmbeddedKafka(folder.kafka))
        connection = Connection(kafka.bootstrap)
        await_leaders(connection)
        store = parse_store(newest) if recipe.store.endpoint else None
        if store is None and archive.manifest.objects:
            store = started.enter_context(EmbeddedStore(folder.store)).address(recipe.store.bucket)
        folder.write(RunNotes(run, kafka.bootstrap, embedded_kafka=True, run_id=archive.manifest.run_id, finished=True))
        yield Target(connection, store)


# ------------------------------------------------------------------------------------------------------------- objects


def _put_objects(archive: Archive, target: Target) -> int:
    """Put the archive's objects under the keys that its records name; return how many there are."""
    held = archive.manifest.objects
    if not held:
        return 0
    if target.store is None:
        raise UsageError(
            f"the archive {archive.root} holds objects ({len(held)}), but its recipe has no store.endpoint to put them "
            "into (the run had an embedded store): give --data NEW_FOLDER instead of --into, to get an embedded store"
        )
    with ObjectStore(replace(target.store, prefix="")) as store, open_progress("putting objects") as tell:
        store.ensure_bucket()
        for count, (key, one) in enumerate(held.items(), 1):
            with archive.open_object(key) as path:
                store.put_file(StoredObject(key, one.sha256, one.size_bytes), path)
            tell(count, len(held))
    return len(held)


# ------------------------------------------------------------------------------------------------------------- records


def _write_topics(archive: Archive, connection: Connection, topics: list[str]) -> dict[str, Fed]:
    """Write the missing records. The transactional id is the run's, so a second replay fences the first."""
    whole = sum(archive.manifest.topics[topic].records for topic in topics)
    found = {topic: Fed() for topic in topics}
    with (
        closing(TransactionalWriter(connection, f"{archive.manifest.run}.{REPLAYER}", topics)) as writer,
        open_progress("replaying") as tell,
    ):
        for topic in topics:
            for partition_id in archive.partitions(topic):
                rest, fed = _add_verdicts(archive, partition_id), found[topic]
                there = _skip_written(connection, partition_id, rest)
                fed.there, fed.records = fed.there + there, fed.records + there
                for batch in split_into_transactions(rest, MOST_REPLAYED_RECORDS):
                    _write(writer, batch)
                    fed.records += len(batch)
                    tell(sum(one.records for one in found.values()), whole)
    return found


def _add_verdicts(archive: Archive, partition_id: PartitionId) -> Iterator[Message]:
    """Yield a partition's messages; trajectories get a header with the decision of the run's curators.

    The dead letters give the old offsets, which are not valid now. A run of an older release has no such decisions.
    """
    begin, first = archive.topics.trajectories(""), read_first_revision(archive)
    if not partition_id[0].startswith(begin) or not (first.asks_for_published or first.asks_for_issued):
        yield from archive.messages(partition_id)
        return
    refused = read_refusals(archive, partition_id[0].removeprefix(begin))
    for message in archive.messages(partition_id):
        verdict = refused.get((message.partition, message.offset), TAKEN)
        yield replace(message, headers=[*message.headers, (VERDICT_HEADER, verdict.encode())])


def _skip_written(connection: Connection, partition_id: PartitionId, archived: Iterator[Message]) -> int:
    """Skip the archived records that a partition holds already; return their number. Raises UsageError for others."""
    count = 0
    if not fetch_end_offsets(connection, [partition_id])[partition_id]:
        return count
    with TopicReader(connection, {partition_id: 0}, REPLAYER) as reader:
        for message in reader.catch_up():
            same = next(archived, None)
            if same is None or _get_content(same) != _get_content(message):
                raise UsageError(
                    f"the record at offset {message.offset} of {partition_id[0]}[{partition_id[1]}] on "
                    f"{connection.bootstrap} differs from the archive: replay into a Kafka without topics of this run"
                )
            count += 1
    return count


def _get_content(message: Message) -> tuple[Any, ...]:
    return message.key, message.value, message.is_null, message.headers, message.timestamp_ms


def _write(writer: TransactionalWriter, batch: Iterable[Message]) -> None:
    writer.begin()
    writer.produce(
        Outgoing(one.topic, one.value, one.key, one.headers, one.partition, one.timestamp_ms, is_null=one.is_null)
        for one in batch
    )
    writer.commit()
