"""A log in memory: partitions, transactions and consumer groups, as far as the protocol rests on them.

A record of a transaction stands in its partition from when it was produced. Readers of committed records stop in
front of an open transaction, and never see an aborted one. Marks of transactions take no offset.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from headrace.infra.kafka.clients import Message, Outgoing
from headrace.infra.kafka.topic_reader import PartitionId

STATE = "m.state"
KEYS: dict[bytes, int] = {}
"""Keys of `state`, numbered. Records of one key stand together there: the order of others means nothing."""
ROOM = 1000
"""Records of one key."""
ENTRIES: list[Entry] = []
"""All that were ever written, in any world: a copy of a world names them by number."""


class Blocked(BaseException):
    """What a process does now waits for somebody: the step cannot be taken yet."""


class IsFenced(Exception):
    """Another process has the transactional id."""


class NotMember(Exception):
    """The group has another epoch, or does not know the member."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A record on its partition."""

    uid: int
    message: Message
    transaction: str = ""
    """Transactional id of whoever wrote it and has not ended the transaction."""
    is_aborted: bool = False

    def __reduce__(self) -> tuple[object, ...]:
        return _entry, (self.uid,)


def written(message: Message, transaction: str = "", *, is_aborted: bool = False) -> Entry:
    """Return a new entry."""
    entry = Entry(len(ENTRIES), message, transaction, is_aborted)
    ENTRIES.append(entry)
    return entry


def _entry(uid: int) -> Entry:
    return ENTRIES[uid]


@dataclass(slots=True)
class Transaction:
    """One that is open."""

    epoch: int
    offsets: dict[tuple[str, str, int], tuple[int, str]] = field(default_factory=dict)
    """(group, topic, partition) to what is committed with it."""


@dataclass(slots=True)
class Member:
    """Of a group; `wants` is the newest assignment, `has` what it knows of."""

    name: str
    epoch: int
    has: set[PartitionId] = field(default_factory=set)
    wants: set[PartitionId] = field(default_factory=set)


@dataclass(slots=True)
class Group:
    """A consumer group with the range assignor."""

    topics: tuple[str, ...]
    epoch: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    commits: dict[PartitionId, tuple[int, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Harm:
    """What was done to a run that no protocol prevents: its audit does not close any more."""

    kind: str
    number: int = -1
    in_words: str = ""
    """What the audit has to say of the number; empty where nothing is asked of it."""
    named_by: int = 0
    """The version at which it says so at the latest."""


class Broker:
    """The cluster, and the object store beside it."""

    def __init__(self, partitions: dict[str, int]) -> None:
        self.partitions = partitions
        self.now = 0.0
        self.log: defaultdict[PartitionId, list[Entry]] = defaultdict(list)
        self.begins: defaultdict[PartitionId, int] = defaultdict(int)
        self.epochs: defaultdict[str, int] = defaultdict(int)
        """Of transactional ids."""
        self.transactions: dict[str, Transaction] = {}
        """Open ones, by transactional id."""
        self.groups: dict[str, Group] = {}
        self.objects: dict[str, bytes] = {}
        """Of the object store."""
        self.is_store_frozen = False
        self.marks: set[str] = set()
        """What happened to this world, for its promises: the loud ends of processes."""
        self.harm: Harm | None = None

    # ------------------------------------------------------------------------------------------------------ reading

    def end(self, partition_id: PartitionId) -> int:
        """Return the high watermark."""
        entries = self.log[partition_id]
        return entries[-1].message.offset + 1 if entries else self.begins[partition_id]

    def stable(self, partition_id: PartitionId) -> int:
        """Return up to where a reader of committed records gets."""
        is_open = (entry.message.offset for entry in self.log[partition_id] if entry.transaction)
        return next(is_open, self.end(partition_id))

    def fetch(self, partition_id: PartitionId, position: int) -> Message | None:
        """Return the first committed record at or after a position."""
        for entry in self.log[partition_id]:
            if entry.transaction:
                return None
            if entry.message.offset >= position and not entry.is_aborted:
                return entry.message
        return None

    def committed_messages(self, topic: str) -> Iterable[Message]:
        """Yield all committed records of a topic, also those behind an open transaction."""
        for partition in range(self.partitions[topic]):
            for entry in self.log[topic, partition]:
                if not (entry.transaction or entry.is_aborted):
                    yield entry.message

    # ------------------------------------------------------------------------------------------------------ writing

    def append(self, record: Outgoing, transaction: str = "") -> int:
        """Write a record; return its offset."""
        count = self.partitions[record.topic]
        partition = record.partition if record.partition >= 0 else sum(record.key) % count
        partition_id = (record.topic, partition)
        offset = self._next_of_key(partition_id, record.key) if record.topic == STATE else self.end(partition_id)
        value, headers = record.value, list(record.headers)
        message = Message(record.topic, partition, offset, record.key, value, headers, 0, record.is_null)
        insort(self.log[partition_id], written(message, transaction), key=_offset)
        return offset

    def _next_of_key(self, partition_id: PartitionId, key: bytes) -> int:
        first = KEYS.setdefault(key, len(KEYS)) * ROOM
        return first + sum(first <= entry.message.offset < first + ROOM for entry in self.log[partition_id])

    def take_over(self, transactional_id: str) -> int:
        """Fence whoever had the id, abort its open transaction; return the epoch."""
        self.epochs[transactional_id] += 1
        if transactional_id in self.transactions:
            self._ended(transactional_id, is_aborted=True)
        return self.epochs[transactional_id]

    def begin(self, transactional_id: str, epoch: int) -> None:
        self._check(transactional_id, epoch)
        self.transactions[transactional_id] = Transaction(epoch)

    def _check(self, transactional_id: str, epoch: int) -> None:
        if self.epochs[transactional_id] != epoch:
            raise IsFenced(transactional_id)

    def end_transaction(self, transactional_id: str, epoch: int, *, is_aborted: bool) -> None:
        """Commit or abort. Raises IsFenced for whoever no longer has the id."""
        self._check(transactional_id, epoch)
        transaction = self.transactions[transactional_id]
        self._ended(transactional_id, is_aborted=is_aborted)
        for (group, topic, partition), commit in transaction.offsets.items() if not is_aborted else ():
            self.groups[group].commits[topic, partition] = commit

    def _ended(self, transactional_id: str, *, is_aborted: bool) -> None:
        del self.transactions[transactional_id]
        for entries in self.log.values():
            for at, entry in enumerate(entries):
                if entry.transaction == transactional_id:
                    entries[at] = written(entry.message, is_aborted=is_aborted)

    def expire_transactions(self) -> None:
        """Abort what is open for too long, and fence who opened it."""
        for transactional_id in list(self.transactions):
            self.take_over(transactional_id)

    # ------------------------------------------------------------------------------------------------------- groups

    def join(self, name: str, member: str, topics: tuple[str, ...]) -> None:
        group = self.groups.setdefault(name, Group(topics))
        group.members[member] = Member(member, group.epoch)
        self._assign(group)

    def leave(self, member: str) -> None:
        """Take a member out of its group: it left, or its session has timed out."""
        for group in self.groups.values():
            if group.members.pop(member, None) is not None:
                self._assign(group)

    def _assign(self, group: Group) -> None:
        group.epoch += 1
        names = sorted(group.members)
        for member in group.members.values():
            member.wants = set()
        for topic in group.topics:
            for partition in range(self.partitions[topic]) if names else ():
                group.members[names[partition % len(names)]].wants.add((topic, partition))

    def heartbeat(self, name: str, member: str) -> tuple[set[PartitionId], set[PartitionId]] | None:
        """Return the partitions to give up and those to own from now on; None for one that is no member."""
        group = self.groups[name]
        me = group.members.get(member)
        if me is None:
            return None
        gone = me.has - me.wants
        me.has -= gone
        me.epoch = group.epoch
        taken = {partition_id for other in group.members.values() if other is not me for partition_id in other.has}
        new = me.wants - me.has - taken
        me.has |= new
        return gone, new

    def is_current(self, name: str, member: str, epoch: int) -> bool:
        me = self.groups[name].members.get(member)
        return me is not None and me.epoch == epoch

    def epoch_of(self, name: str, member: str) -> int:
        me = self.groups[name].members.get(member)
        return me.epoch if me is not None else -1

    def key(self) -> Any:
        """Return all that decides what follows: what can be read, by whom it was read, and who may write."""
        topics = tuple(
            (partition_id, self.begins[partition_id], tuple(map(_seen, entries)))
            for partition_id, entries in sorted(self.log.items())
        )
        is_open = tuple(
            (one, at.epoch, tuple(sorted(at.offsets.items()))) for one, at in sorted(self.transactions.items())
        )
        return (
            topics, tuple(self._group_key(name) for name in sorted(self.groups)), tuple(sorted(self.epochs.items())),
            is_open, tuple(sorted(self.objects)), self.is_store_frozen, self.now, tuple(sorted(self.marks)),
            self.harm,
        )  # fmt: skip

    def _group_key(self, name: str) -> Any:
        group = self.groups[name]
        names = sorted(group.members)
        members = tuple(
            (name, tuple(sorted(me.has)), tuple(sorted(me.wants)), me.epoch)
            for name, me in ((name, group.members[name]) for name in names)
        )
        return name, group.epoch, members, tuple(sorted(group.commits.items()))

    def send_offsets(
        self, transactional_id: str, name: str, member: tuple[str, int], offsets: dict[PartitionId, tuple[int, str]]
    ) -> None:
        """Add offsets to a transaction; `member` is (name, epoch). Raises NotMember."""
        if not self.is_current(name, *member):
            raise NotMember(member)
        self.transactions[transactional_id].offsets.update(
            {(name, *partition_id): commit for partition_id, commit in offsets.items()}
        )

    def commit(self, name: str, member: str, epoch: int, offsets: dict[PartitionId, tuple[int, str]]) -> None:
        """Commit offsets outside of a transaction."""
        if not self.is_current(name, member, epoch):
            raise NotMember(member)
        self.groups[name].commits.update(offsets)

    def committed(self, name: str, partition_ids: Iterable[PartitionId]) -> dict[PartitionId, tuple[int, str]]:
        """Return what a group has committed; waits for transactions that may change it."""
        wanted = set(partition_ids)
        for transaction in self.transactions.values():
            if any(group == name and (topic, partition) in wanted for group, topic, partition in transaction.offsets):
                raise Blocked
        commits = self.groups[name].commits if name in self.groups else {}
        return {partition_id: commits[partition_id] for partition_id in wanted if partition_id in commits}


def _offset(entry: Entry) -> int:
    return entry.message.offset


def _seen(entry: Entry) -> Any:
    message = entry.message
    return message.offset, message.key, message.value, entry.transaction, entry.is_aborted


class Stage:
    """The broker of the world in which a step is taken now; processes know no other."""

    broker: Broker
    actor = ""
    """Name of the process whose turn it is."""


STAGE = Stage()


def now() -> float:
    """Return the time, in seconds."""
    return STAGE.broker.now


class Cluster:
    """Stands in for `Connection`: the broker on the stage, whichever that is."""

    bootstrap, compression = "model", "none"
    client: ClassVar[dict[str, str]] = {}

    def config(self, **more: object) -> dict[str, object]:
        """Return the settings of a client, as `Connection.config` does."""
        return {name.replace("_", "."): value for name, value in more.items()}
