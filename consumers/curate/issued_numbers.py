"""Knows which numbers the feeder has issued: a group of any other number is an error, and concludes nothing.

A task is committed before any worker can see it. So a number was never issued if it is neither on `tasks`, read to its
end after the group came, nor below the next number in the feeder's snapshot. A refusal is on the log: the group becomes
a dead letter, and a snapshot follows at once, so that a restore never repeats the decision. An acceptance needs no
record, because an issued number stays issued. Replayed trajectories use the run's recorded decisions.
"""

from __future__ import annotations

import json
import time

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.dead_letters import NOT_ISSUED, verdict_of
from headrace.infra.kafka.decoding import MessageRefused, decode_own_stamp
from headrace.infra.kafka.topic_offsets import fetch_stable_ends
from headrace.infra.kafka.topic_reader import PartitionId, TopicReader, find_start_positions
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.own_positions import read_newest_snapshot
from headrace.infra.run.run import RecipeNews, Run
from headrace.schemas.headers import Stamp
from headrace.schemas.topics import FEEDER, workflow_of

MET_S = 1.0
"""Seconds for which an end is not trusted: a restarted broker may report an end that is too low."""


class IssuedNumbers:
    """The next number of every stream. The topics are read only if a higher number is checked.

    It starts with the feeder's newest snapshot, and then follows the end of `tasks`: the snapshot includes all tasks
    committed before the first look at `tasks`. Before it refuses a number, it reads the snapshot again, because the
    feeder deletes played tasks, perhaps before they were read here.
    """

    def __init__(self, run: Run) -> None:
        self._run, self._news = run, RecipeNews(run.address, run.recipe_end)
        self._streams = set(run.recipe.streams)
        self._former = {name for recipe in run.revisions for name in recipe.streams} - self._streams
        """Streams of earlier recipes only: the snapshot has all their numbers, so their topics are not read."""
        self._next: dict[str, int] = {}
        self._reader: TopicReader | None = None
        self._met: dict[PartitionId, int] = {}
        """Ends of `tasks` that reading has reached, so that many forged groups cause few delays."""
        self._met_until = 0.0

    def is_issued(self, message: Message, stamp: Stamp) -> bool:
        """Return whether the number of a message's group was issued. Raises as `has_number`."""
        verdict = verdict_of(message)
        return self.has_number(stamp.stream, stamp.number) if verdict is None else verdict != NOT_ISSUED

    def has_number(self, stream: str, number: int) -> bool:
        """Return whether a number was issued. Raises KafkaAway, KafkaRefused or LogTruncated."""
        if number < self._next.get(stream, 0):
            return True
        if stream not in self._streams:
            self._learn_streams()
        if stream not in self._streams | self._former:
            return False
        reader = self._reader if stream in self._next and self._reader is not None else self._open_reader()
        if number >= self._next[stream]:
            self._read_new_tasks(reader, stream, number)
        return number < self._next[stream]

    def _learn_streams(self) -> None:
        """Take in the streams of later recipes, whose tasks are then read too."""
        for revision in self._news.look():
            if revision.run_id == self._run.run_id:
                self._streams.update(Recipe.from_json(revision.recipe).streams)
                self.close()

    def _open_reader(self) -> TopicReader:
        """Start reading at the end of `tasks`, and take earlier numbers from the snapshot."""
        self.close()
        connection, topics = self._run.connection, self._run.topics
        partition_ids = find_start_positions(connection, [topics.tasks(stream) for stream in self._streams])
        # Before the end, because a transaction that is open there may have no snapshot yet.
        self._reader = TopicReader(connection, fetch_stable_ends(connection, partition_ids), f"issued.{topics.run}")
        self._met = {}
        self._take_snapshot()
        return self._reader

    def _take_snapshot(self) -> None:
        snapshot = read_newest_snapshot(self._run.connection, self._run.state_partition_id(FEEDER), FEEDER)
        known = json.loads(snapshot.body)["next"] if snapshot is not None else {}
        streams = self._streams | self._former
        self._next = {stream: max(int(known.get(stream, 0)), self._next.get(stream, 0)) for stream in streams}

    def _read_new_tasks(self, reader: TopicReader, stream: str, number: int) -> None:
        """Read to the reported end of committed tasks; if the number is not found, to an end that reading reached.

        If it is still not found, the task may have been deleted; then an earlier snapshot knows it. Open transactions
        after this end are ignored, because no worker has seen their tasks.
        """
        ends = fetch_stable_ends(self._run.connection, reader.positions)
        for message in reader.read_until(ends):
            self._fold_task(message)
        is_met = ends == self._met and time.monotonic() < self._met_until
        if number >= self._next[stream] and not is_met:
            with TopicReader(self._run.connection, reader.positions) as anew:
                for message in anew.catch_up():
                    self._fold_task(message)
            if number >= self._next[stream]:
                self._take_snapshot()
            self._met, self._met_until = ends, time.monotonic() + MET_S

    def _fold_task(self, message: Message) -> None:
        try:
            stamp = decode_own_stamp(message, self._run.run_id)
        except MessageRefused:  # the workers write its dead letter
            return
        topics = {self._run.topics.tasks(one) for one in (stamp.stream, workflow_of(stamp.stream))}
        if stamp.stream in self._next and message.topic in topics:
            self._next[stamp.stream] = max(self._next[stamp.stream], stamp.number + 1)

    def close(self) -> None:
        """Stop reading."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
