"""What stands in for confluent-kafka: a consumer, a transactional writer, an admin client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from headrace.infra.kafka.clients import Fenced, Message, Outgoing
from headrace.infra.kafka.topic_reader import PartitionId, TopicReader
from headrace.infra.kafka.transactions import Aborted, GroupOffsets, Ticket
from protocol.broker import STAGE, Blocked, IsFenced, NotMember

Rebalanced = Callable[[Any, list[TopicPartition]], object]


class Cut(BaseException):
    """The process is stopped in the midst of a turn."""


@dataclass(slots=True)
class RawMessage:
    """As librdkafka hands it over: a record, or an error at an offset."""

    message: Message
    code: int = 0

    def error(self) -> KafkaError | None:
        return KafkaError(self.code) if self.code else None

    def topic(self) -> str:
        return self.message.topic

    def partition(self) -> int:
        return self.message.partition

    def offset(self) -> int:
        return self.message.offset

    def key(self) -> bytes:
        return self.message.key

    def value(self) -> bytes | None:
        return None if self.message.is_null else self.message.value

    def headers(self) -> list[tuple[str, bytes]]:
        return list(self.message.headers)

    def timestamp(self) -> tuple[int, int]:
        return 0, 0


class Consumer:
    """Reads by hand, or as a member of a group; one of a group hears of a rebalance in `consume`."""

    def __init__(self, config: Mapping[str, Any], on_commit: Callable[..., None] | None = None) -> None:
        self._group, self._on_commit = str(config["group.id"]), on_commit
        self._by_hand = not config.get("group.protocol")
        self._reset, self._tells_end = config["auto.offset.reset"], bool(config.get("enable.partition.eof"))
        self._positions: dict[PartitionId, int] = {}
        self._ends: dict[PartitionId, int] = {}
        """Where a reader was told that it is at an end."""
        self._paused: set[PartitionId] = set()
        self._topics: tuple[str, ...] = ()
        self._callbacks: dict[str, Rebalanced] = {}
        self.member = ""
        self.epoch = -1

    # ---------------------------------------------------------------------------------------------------- membership

    def subscribe(self, topics: list[str], **callbacks: Rebalanced) -> None:
        self._topics, self._callbacks = tuple(topics), callbacks
        self._join()

    def _join(self) -> None:
        self.member = STAGE.actor
        STAGE.broker.join(self._group, self.member, self._topics)

    def _rebalance(self) -> None:
        """What a poll does first. One who is no member any more has lost all, and joins anew."""
        if self._by_hand:
            return
        found = STAGE.broker.heartbeat(self._group, self.member)
        if found is None:
            lost, self._positions = _partitions(self._positions), {}
            self._callbacks["on_lost"](self, lost)
            self._join()
            found = STAGE.broker.heartbeat(self._group, self.member)
            assert found is not None
        gone, new = found
        self.epoch = STAGE.broker.epoch_of(self._group, self.member)
        if gone:
            self._callbacks["on_revoke"](self, _partitions(gone))
        if new:
            self._callbacks["on_assign"](self, _partitions(new))

    def assign(self, partitions: list[TopicPartition]) -> None:
        self._positions = {(tp.topic, tp.partition): tp.offset for tp in partitions}
        self._ends.clear()

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        for tp in partitions:
            self._positions[tp.topic, tp.partition] = tp.offset

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        for tp in partitions:
            self._positions.pop((tp.topic, tp.partition), None)

    def seek(self, tp: TopicPartition) -> None:
        self._positions[tp.topic, tp.partition] = tp.offset

    def pause(self, partitions: list[TopicPartition]) -> None:
        self._paused.update((tp.topic, tp.partition) for tp in partitions)

    def resume(self, partitions: list[TopicPartition]) -> None:
        self._paused.difference_update((tp.topic, tp.partition) for tp in partitions)

    def consumer_group_metadata(self) -> tuple[str, str, int]:
        return self._group, self.member, self.epoch

    # ------------------------------------------------------------------------------------------------------- offsets

    def committed(self, asked: list[TopicPartition], timeout: float = 0) -> list[TopicPartition]:
        found = STAGE.broker.committed(self._group, [(tp.topic, tp.partition) for tp in asked])
        return [
            TopicPartition(tp.topic, tp.partition, *found.get((tp.topic, tp.partition), (-1001, ""))) for tp in asked
        ]

    def commit(self, offsets: list[TopicPartition], asynchronous: bool = True) -> list[TopicPartition]:
        commits = {(tp.topic, tp.partition): (tp.offset, tp.metadata or "") for tp in offsets}
        try:
            STAGE.broker.commit(self._group, self.member, self.epoch, commits)
        except NotMember as error:
            refused = KafkaError(KafkaError.UNKNOWN_MEMBER_ID)
            if not asynchronous:
                raise KafkaException(refused) from error
            assert self._on_commit is not None
            self._on_commit(refused, offsets)
        else:
            if asynchronous and self._on_commit is not None:
                self._on_commit(None, offsets)
        return []

    # ------------------------------------------------------------------------------------------------------- records

    def consume(self, most: int = 1, timeout: float = 0) -> list[RawMessage]:
        self._rebalance()
        found: list[RawMessage] = []
        for partition_id in sorted(self._positions.keys() - self._paused):
            found += self._of(partition_id, most - len(found))
        return found

    def poll(self, timeout: float = 0) -> RawMessage | None:
        return next(iter(self.consume(1)), None)

    def _of(self, partition_id: PartitionId, most: int) -> Iterator[RawMessage]:
        broker, position = STAGE.broker, self._position(partition_id)
        if position > broker.end(partition_id) or position < broker.begins[partition_id]:
            if self._reset == "error":
                yield RawMessage(Message(*partition_id, -1, b"", b""), KafkaError._AUTO_OFFSET_RESET)
                return
            position = broker.begins[partition_id]
        self._positions[partition_id] = position
        for _ in range(most):
            message = broker.fetch(partition_id, self._positions[partition_id])
            if message is None:
                yield from self._end(partition_id)
                return
            self._positions[partition_id] = message.offset + 1
            yield RawMessage(message)

    def _position(self, partition_id: PartitionId) -> int:
        """Return the position; a member begins where its group has committed, else where the reset says."""
        position = self._positions[partition_id]
        if position >= 0:
            return position
        if position == OFFSET_BEGINNING:
            return STAGE.broker.begins[partition_id]
        committed = {} if self._by_hand else STAGE.broker.committed(self._group, [partition_id])
        return committed.get(partition_id, (STAGE.broker.begins[partition_id], ""))[0]

    def _end(self, partition_id: PartitionId) -> Iterator[RawMessage]:
        end = STAGE.broker.stable(partition_id)
        self._positions[partition_id] = max(self._positions[partition_id], end)
        if self._tells_end and self._ends.get(partition_id) != end:
            self._ends[partition_id] = end
            yield RawMessage(Message(*partition_id, end, b"", b""), KafkaError._PARTITION_EOF)

    def get_watermark_offsets(self, tp: TopicPartition, cached: bool = False) -> tuple[int, int]:
        partition_id = tp.topic, tp.partition
        return STAGE.broker.begins[partition_id], STAGE.broker.end(partition_id)

    def close(self) -> None:
        if not self._by_hand:
            STAGE.broker.leave(self.member)


def _partitions(partition_ids: Iterable[PartitionId]) -> list[TopicPartition]:
    return [TopicPartition(*partition_id) for partition_id in sorted(partition_ids)]


def follow(
    reader: TopicReader, goes_on: Callable[[], bool], ends: Mapping[PartitionId, int], _s: float
) -> Iterator[Message]:
    """Stand in for `TopicReader._read_while`: where nothing comes, whoever reads waits for another process."""
    while goes_on():
        before = dict(reader.positions)
        found = reader.poll(timeout_s=0)
        if not found and goes_on() and before == reader.positions:
            raise Blocked
        yield from found


class Writer:
    """Stands in for `TransactionalWriter`. `cut` names where the process is stopped, once."""

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = self.component = transactional_id
        self.epoch = STAGE.broker.take_over(transactional_id)
        self.cut = ""
        self.is_open = False

    def begin(self) -> None:
        self._guarded(lambda: STAGE.broker.begin(self.transactional_id, self.epoch))
        self.is_open = True

    def produce(self, outgoing: Iterable[Outgoing]) -> list[Ticket]:
        return [Ticket(STAGE.broker.append(record, self.transactional_id)) for record in outgoing]

    def flush(self) -> None:
        """All is delivered."""

    def send_offsets(self, offsets: GroupOffsets) -> None:
        name, member, epoch = offsets.member
        found = {(tp.topic, tp.partition): (tp.offset, tp.metadata or "") for tp in offsets.positions}
        try:
            STAGE.broker.send_offsets(self.transactional_id, name, (member, epoch), found)
        except NotMember as error:
            self.abort()
            raise Aborted("sending offsets: the group has moved") from error

    def commit(self) -> None:
        if self.cut:
            self.cut = ""
            raise Cut
        self._end(is_aborted=False)

    def abort(self) -> None:
        if self.is_open:
            self._end(is_aborted=True)

    def refuse_hanging_commit(self) -> None:
        """The broker of the model ends every commit."""

    def _end(self, *, is_aborted: bool) -> None:
        self.is_open = False
        broker, me = STAGE.broker, self.transactional_id
        self._guarded(lambda: broker.end_transaction(me, self.epoch, is_aborted=is_aborted))

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except IsFenced as error:
            self.is_open = False
            raise Fenced(f"{self.transactional_id} was taken over") from error


@dataclass(slots=True)
class TopicMetadata:
    partitions: dict[int, None]
    error: None = None


class Admin:
    """Lists topics; deletes nothing, as what is deleted is not read again."""

    def list_topics(self, topic: str | None = None, timeout: float = 0) -> Any:
        known = {name: TopicMetadata(dict.fromkeys(range(n))) for name, n in STAGE.broker.partitions.items()}
        return type("Listed", (), {"topics": known})

    def delete_records(self, asked: object, request_timeout: float = 0) -> dict[object, object]:
        return {}


class Contact:
    """No client of the model loses its brokers; what a contact remembers would only multiply the states."""

    is_in_doubt = False

    def __init__(self, *_: object) -> None:
        pass

    def note_answer(self) -> None:
        pass

    def has_lost_brokers(self) -> bool:
        return False

    def refuse_loss(self, **_: object) -> None:
        pass


LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # the client's own gap


def offsets(
    _cluster: object, partitions: list[PartitionId], spec: OffsetSpec, isolation: IsolationLevel
) -> dict[PartitionId, int]:
    """Stand in for `topic_offsets._fetch_offsets`: ends, also of what is committed, or beginnings."""
    broker = STAGE.broker
    if isolation == IsolationLevel.READ_COMMITTED:
        return {partition_id: broker.stable(partition_id) for partition_id in partitions}
    return {
        partition_id: broker.end(partition_id) if spec is LATEST else broker.begins[partition_id]
        for partition_id in partitions
    }
