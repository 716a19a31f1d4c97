"""The ledger: the small records of one run as rows in SQLite, in a file that several commands share, or in memory.

A file heals itself: one of another run or build, or a damaged one, is made anew; where a file cannot be written (a
read-only folder, a full disk), the ledger is kept in memory. Both are told in one line of the log. A killed writer
leaves the file as it was after its last transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from hashlib import blake2b
from importlib import resources
from pathlib import Path
from typing import TypeAlias

import structlog

from headrace.infra.errors import HeadraceError
from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.topic_reader import PartitionId
from headrace.ledger.feeder_snapshot import FeederSnapshot
from headrace.ledger.readable import Readable
from headrace.ledger.rows import Row, Rows
from headrace.ledger.run_streams import RunStreams
from headrace.ledger.worker_rows import forget_worker, write_status
from headrace.schemas.records import WorkerStatus

CLUSTER = "home"
"""Name of the run's own cluster in the column `cluster`."""
WITH_IDS = (
    "outcome",
    "episode_error",
    "batch",
    "trained",
    "eviction",
    "weights",
    "evaluation",
    "revision",
    "scaling",
    "dead_letter",
    "death",
    "task",
    "delivery",
    "curated",
)
WHERE_LATE = "component = 'train' AND use = 0 AND verdict IN ('expired', 'surplus')"
"""Condition of an index: outcomes of groups that reached the trainer too late."""
BUSY_S = 30.0
"""Longest wait for another command that writes; a transaction takes a second at most."""
UNUSABLE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
"""Codes of errors after which a file is made anew."""
REFUSED = frozenset({
    sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_AUTH,
})  # fmt: skip
"""Codes of errors after which the ledger is kept in memory. All others are defects, and are raised."""
MOST_REMAKES = 3
OTHER_FILES = ("schemas/digests.py", "schemas/episode_errors.py", "schemas/topics.py", "infra/weights/paths.py")
"""Files of other rooms that decide what rows hold."""
log = structlog.get_logger()
Place: TypeAlias = tuple[int, int, int]
"""Id of a partition, its position, and the time of its newest record."""


class LedgerRemade(Exception):
    """The ledger was made anew while it was used, and is empty: its topics must be read again from the beginning."""


class Ledger:
    """The rows of one run.

    Args:
        path: File of the ledger; None to keep it in memory, and in a temporary file where that is too small.
        run_id: Id of the run; records of other runs are skipped.
        streams: Policies, shadows and streams of the run.
    """

    def __init__(self, path: Path | None, run_id: str, streams: RunStreams) -> None:
        self.run_id, self.streams, self.path = run_id, streams, path
        self._readable = Readable(run_id, streams)
        self._about = {"run": run_id, "build": _hash_build(), "streams": streams.digest}
        self._is_refused, self._remakes = False, 0
        try:
            self._open()
        except sqlite3.Error as error:
            self._remake(error, in_memory=_find_code(error) in REFUSED)

    def _open(self) -> None:
        # An empty name: in memory as long as it is small, and then in a temporary file.
        where = self.path or (":memory:" if self._is_refused else "")
        self._db = sqlite3.connect(where, timeout=BUSY_S, isolation_level=None)
        if self.path is not None:
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
        with self._writing():
            if not self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'about'").fetchone():
                for statement in _read_tables().split(";"):
                    self._db.execute(statement)
                self._db.executemany("INSERT INTO about VALUES (?, ?)", self._about.items())
            elif dict(self._db.execute("SELECT name, value FROM about")) != self._about:
                raise sqlite3.DatabaseError("it is of another run or release, or of a recipe with other policies")
        self._data_version = -1
        self._reload()

    def _remake(self, error: Exception, *, in_memory: bool) -> None:
        """Empty the ledger after an error: in memory, or in a new file."""
        log.info("ledger.made_anew", file=str(self.path), why=str(error), in_memory=in_memory or self.path is None)
        self.close()
        if in_memory or not _remove_file(self.path):
            self.path, self._is_refused = None, True
        try:
            self._open()
        except sqlite3.Error:
            self.path, self._is_refused = None, True
            self._open()

    def empty(self, why: str) -> None:
        """Make the ledger anew, because what it holds is not what the topics hold."""
        self._remake(sqlite3.DatabaseError(why), in_memory=False)

    @contextmanager
    def _healing(self) -> Iterator[None]:
        """Make the ledger anew after an error of its file, and raise LedgerRemade."""
        try:
            yield
        except sqlite3.Error as error:
            code = _find_code(error)
            if code not in UNUSABLE | REFUSED or self._remakes >= MOST_REMAKES:
                raise
            self._remakes += 1
            self._remake(error, in_memory=code in REFUSED)
            raise LedgerRemade(str(error)) from error

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One transaction, or a part of the one that is under way; another writer is waited for."""
        if self._has_transaction():
            yield
            return
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._data_version = -1  # what is known of the file was changed with it: it is read again
            if self._has_transaction():
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _has_transaction(self) -> bool:
        return self._db.in_transaction

    def _reload(self) -> None:
        """Take in what another command has written."""
        [(data_version,)] = self._db.execute("PRAGMA data_version")
        if data_version == self._data_version:
            return
        self._data_version = data_version
        self._places: dict[PartitionId, Place] = {
            (topic, partition): (row_id, position, at_ms)
            for row_id, topic, partition, position, at_ms in self._db.execute(
                "SELECT id, topic, partition, position, at_ms FROM partition WHERE cluster = ?", (CLUSTER,)
            )
        }
        last = {table: self._db.execute(f"SELECT max(id) FROM {table}").fetchone()[0] for table in WITH_IDS}
        self._next_ids = {table: (row_id or 0) + 1 for table, row_id in last.items()}
        self._feeder = FeederSnapshot()
        for offset, key, value in self._db.execute("SELECT offset, key, value FROM feeder_state ORDER BY id"):
            self._feeder.fold_message(Message(self.streams.recipe.topics.state, 0, offset, key, value))

    # --------------------------------------------------------------------------------------------------------- writing

    def add(self, messages: Sequence[Message], arrived_ms: int = 0) -> None:
        """Write the rows of messages, each partition's in order. Messages that were added before are skipped.

        Args:
            messages: Messages of any topics; unreadable ones and those of other runs have no rows.
            arrived_ms: Time of arrival by this machine's clock, if they are new. It is used to tell whether a worker is
                alive, because the worker's own clock may be wrong.

        Raises:
            LedgerRemade: The ledger was damaged, or could not be written.
            Exception: A defect in making the rows of a message; the rows of all others are written.
        """
        defect: Exception | None = None
        with self._healing(), self._writing():
            self._reload()
            rows = Rows(self._next_ids)
            has_feeder = False
            for message in messages:
                partition_id = self._take_place(message)
                if partition_id is None:
                    continue
                if message.topic == self.streams.recipe.topics.state:
                    has_feeder |= self._feeder.fold_message(message)
                    continue
                try:
                    record = self._readable.add_rows(rows, message, partition_id)
                except HeadraceError:  # such as KafkaAway, where a schema is asked for: nothing is written
                    raise
                except Exception as error:  # noqa: BLE001 - raised below
                    defect = defect or error
                    continue
                if isinstance(record, WorkerStatus):
                    write_status(self._db, message, record, arrived_ms)
                elif self._readable.is_end_of_worker(message):
                    forget_worker(self._db, message.key)
            self._write_rows(rows)
            if has_feeder:
                self._write_feeder()
            self._write_places()
        if defect is not None:
            raise defect

    def make_rows(self) -> Rows:
        """Return an empty list of rows to be filled and given to `write`, for an owner that reads messages itself."""
        return Rows(self._next_ids)

    def write(self, rows: Rows) -> None:
        """Write rows that the owner has made. Raises LedgerRemade."""
        with self._healing(), self._writing():
            self._write_rows(rows)
            self._write_places()

    def find_partition(self, topic: str, partition: int) -> int:
        """Return the id of a partition."""
        if (topic, partition) not in self._places:
            self._add_partition(topic, partition)
        return self._places[topic, partition][0]

    def _add_partition(self, topic: str, partition: int) -> None:
        found = self._db.execute(
            "INSERT INTO partition (cluster, topic, partition, position) VALUES (?, ?, ?, 0)",
            (CLUSTER, topic, partition),
        )
        self._places[topic, partition] = (found.lastrowid or 0, 0, 0)

    def _take_place(self, message: Message) -> int | None:
        """Return the id of a message's partition, and move past the message; None if it was added before."""
        partition = message.topic, message.partition
        if partition not in self._places:
            self._add_partition(*partition)
        row_id, position, at_ms = self._places[partition]
        if message.offset < position:
            return None
        self._places[partition] = row_id, message.offset + 1, max(at_ms, message.timestamp_ms)
        return row_id

    def _write_rows(self, rows: Rows) -> None:
        first_outcome = rows.of["outcome"][0][0] if rows.of["outcome"] else None
        for table, some in rows.of.items():
            if some:
                marks = ", ".join("?" * len(some[0]))
                self._db.executemany(f"INSERT INTO {table} VALUES ({marks})", some)
        self._db.executemany("INSERT OR IGNORE INTO dirty VALUES (?, ?, ?)", rows.dirty)
        if first_outcome is not None:
            self._db.execute(_ROLL_UP, (first_outcome,))
        if rows.of["episode_error"]:
            self._db.execute(_ROLL_UP_ERRORS, (rows.of["episode_error"][0][0],))

    def _write_feeder(self) -> None:
        self._db.execute("DELETE FROM feeder_state")
        kept = [(message.offset, message.key, message.value) for message in self._feeder.messages()]
        self._db.executemany("INSERT INTO feeder_state (offset, key, value) VALUES (?, ?, ?)", kept)

    def _write_places(self) -> None:
        places = [(position, at_ms, row_id) for row_id, position, at_ms in self._places.values()]
        self._db.executemany("UPDATE partition SET position = ?, at_ms = ? WHERE id = ?", places)

    def advance(self, positions: Mapping[PartitionId, int]) -> None:
        """Note how far partitions were read, past the marks of transactions. Raises LedgerRemade."""
        with self._healing(), self._writing():
            self._reload()
            for partition, position in positions.items():
                if (known := self._places.get(partition)) is not None and known[1] < position:
                    self._places[partition] = known[0], position, known[2]
            self._write_places()

    # --------------------------------------------------------------------------------------------------------- reading

    @property
    def topics(self) -> tuple[str, ...]:
        """Topics whose messages have rows."""
        return self._readable.topics

    @property
    def young_topics(self) -> tuple[str, ...]:
        """Those of them that runs of older builds may lack."""
        return self._readable.young_topics

    @property
    def positions(self) -> dict[PartitionId, int]:
        """Next offset of every partition that is in the ledger."""
        return {partition: position for partition, (_, position, _) in self._places.items()}

    @property
    def newest_ms(self) -> int:
        """Time of the newest record, in ms since the epoch; 0 before the first."""
        return max((at_ms for _, _, at_ms in self._places.values()), default=0)

    @property
    def feeder(self) -> FeederSnapshot:
        """The feeder's newest snapshot."""
        return self._feeder

    def query(self, sql: str, *values: object, **named: object) -> list[Row]:
        """Return the rows of a query, with its values in order or by name. Raises LedgerRemade."""
        with self._healing():
            return self._db.execute(sql, named or values).fetchall()

    def iterate(self, sql: str, *values: object) -> Iterator[Row]:
        """Yield the rows of a query one by one, for results of any size. Raises LedgerRemade."""
        with self._healing():
            yield from self._db.execute(sql, values)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Give the database for one transaction, in which all queries see one moment. Raises LedgerRemade."""
        with self._healing(), self._writing():
            self._reload()
            yield self._db

    def close(self) -> None:
        """Close the file."""
        if hasattr(self, "_db"):
            self._db.close()


_ROLL_UP = """
    INSERT INTO decided
    SELECT variant, stream, revision, head_version, count(*), sum(verdict = 'kept'), sum(n_asked), sum(samples),
        sum(tokens), sum(samples > 0), total(reward_total), sum(reward_count), min(reward_low), max(reward_high),
        max(CASE WHEN succeeds THEN at_ms END), max(at_ms), min(at_ms)
    FROM outcome WHERE id >= ? AND decides GROUP BY 1, 2, 3, 4
    ON CONFLICT DO UPDATE SET
        groups = groups + excluded.groups, kept = kept + excluded.kept, asked = asked + excluded.asked,
        samples = samples + excluded.samples, tokens = tokens + excluded.tokens,
        rewarded = rewarded + excluded.rewarded, reward_total = reward_total + excluded.reward_total,
        reward_count = reward_count + excluded.reward_count,
        reward_low = coalesce(min(reward_low, excluded.reward_low), reward_low, excluded.reward_low),
        reward_high = coalesce(max(reward_high, excluded.reward_high), reward_high, excluded.reward_high),
        succeeded_ms = coalesce(max(succeeded_ms, excluded.succeeded_ms), succeeded_ms, excluded.succeeded_ms),
        curated_ms = max(curated_ms, excluded.curated_ms), first_ms = min(first_ms, excluded.first_ms)
"""


def _remove_file(path: Path | None) -> bool:
    """Remove the file of a ledger, with those that SQLite has beside it; return whether that is possible."""
    if path is None:
        return True
    try:
        for end in ("", "-wal", "-shm"):
            Path(f"{path}{end}").unlink(missing_ok=True)
    except OSError:
        return False
    return True


def _find_code(error: sqlite3.Error) -> int:
    """Return SQLite's primary code of an error; 0 for an error of how it is used."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


@cache
def _read_tables() -> str:
    text = resources.files("headrace.ledger").joinpath("tables.sql").read_text()
    return "\n".join(line for line in text.splitlines() if not line.startswith("--"))


_ROLL_UP_ERRORS = """
    INSERT INTO error_kind
    SELECT variant, stream, kind, sum(episodes), min(id), min(CASE WHEN has_traceback THEN id END)
    FROM episode_error WHERE id >= ? GROUP BY 1, 2, 3
    ON CONFLICT DO UPDATE SET
        episodes = episodes + excluded.episodes, traced_id = coalesce(traced_id, excluded.traced_id)
"""


@cache
def _hash_build() -> str:
    """Return a hash of this room's files: rows that another build has written may mean something else."""
    files = [one for one in resources.files("headrace.ledger").iterdir() if one.is_file()]
    made = blake2b(digest_size=16)
    others = [resources.files("headrace").joinpath(one) for one in OTHER_FILES]
    for file in (*sorted(files, key=lambda one: one.name), *others):
        made.update(file.read_bytes())
    return made.hexdigest()
