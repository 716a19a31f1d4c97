"""Which numbers a curator takes for issued, over a log in memory whose tasks the feeder deletes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Self

import pytest
from made_recipes import sums_recipe

from headrace.consumers.curate import issued_numbers
from headrace.consumers.curate.issued_numbers import IssuedNumbers
from headrace.infra.kafka.clients import Connection, Message, RunAddress
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import StoreAddress
from headrace.schemas.headers import Stamp
from headrace.schemas.records import RecipeRevision

SUMS = sums_recipe()
WORDS = sums_recipe(workflows={"words": SUMS.model_dump(mode="json")["workflows"]["sums"]})


@dataclass
class Log:
    """What the feeder has written: one partition of tasks for each stream, and its newest snapshot."""

    tasks: dict[str, list[Message]] = field(default_factory=dict)
    begins: dict[str, int] = field(default_factory=dict)
    snapshot: dict[str, int] = field(default_factory=dict)
    news: list[RecipeRevision] = field(default_factory=list)
    snapshots_read: int = 0

    def issue(self, stream: str, count: int) -> None:
        """Write tasks and the snapshot that knows of them, as one transaction."""
        topic = f"t.tasks.{stream}"
        for number in range(self.snapshot.get(stream, 0), self.snapshot.get(stream, 0) + count):
            stamp, there = Stamp("run-1", stream, number), self.tasks.setdefault(topic, [])
            there.append(Message(topic, 0, len(there), stamp.key, b"", stamp.to_headers()))
        self.snapshot[stream] = self.snapshot.get(stream, 0) + count

    def delete_played(self, stream: str) -> None:
        topic = f"t.tasks.{stream}"
        self.begins[topic] = len(self.tasks[topic])

    def read_newest_snapshot(self, *_: Any) -> Any:
        self.snapshots_read += 1
        return SimpleNamespace(body=json.dumps({"next": self.snapshot}).encode())

    def look(self) -> list[RecipeRevision]:
        found, self.news = self.news, []
        return found


class Reader:
    """A `TopicReader` of tasks."""

    def __init__(self, log: Log, positions: Mapping[tuple[str, int], int]) -> None:
        self._log, self.positions = log, dict(positions)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read_until(self, ends: Mapping[tuple[str, int], int]) -> Iterator[Message]:
        for partition_id, end in ends.items():
            begin = max(self.positions[partition_id], self._log.begins.get(partition_id[0], 0))
            self.positions[partition_id] = max(begin, end)
            yield from self._log.tasks.get(partition_id[0], [])[begin:end]

    def catch_up(self) -> Iterator[Message]:
        return self.read_until({one: len(self._log.tasks.get(one[0], ())) for one in self.positions})

    def close(self) -> None:
        pass


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    found = Log()
    there = {"t.tasks.sums", "t.tasks.more"}

    def find(_: Connection, topics: list[str]) -> dict[tuple[str, int], int]:
        assert there.issuperset(topics), "a topic that somebody has deleted"
        return {(topic, 0): 0 for topic in topics}

    monkeypatch.setattr(issued_numbers, "TopicReader", lambda _, positions, *__: Reader(found, positions))
    monkeypatch.setattr(
        issued_numbers, "fetch_stable_ends", lambda _, ids: {one: len(found.tasks.get(one[0], ())) for one in ids}
    )
    monkeypatch.setattr(issued_numbers, "find_start_positions", find)
    monkeypatch.setattr(issued_numbers, "read_newest_snapshot", found.read_newest_snapshot)
    monkeypatch.setattr(issued_numbers, "RecipeNews", lambda *_: found)
    return found


def joined(*revisions: Recipe) -> Run:
    return Run(
        RunAddress(Connection("127.0.0.1:1"), "t"), "run-1", revisions, StoreAddress("127.0.0.1:1", "bin", "k", "s")
    )


def test_a_number_whose_task_was_deleted_before_a_look_at_it_was_issued(log: Log) -> None:
    log.issue("sums", 2)
    issued = IssuedNumbers(joined(SUMS))
    assert issued.has_number("sums", 1)
    log.issue("sums", 2)
    log.delete_played("sums")
    assert [issued.has_number("sums", number) for number in (2, 3, 4)] == [True, True, False]


def test_the_snapshot_is_read_again_for_a_number_that_would_be_refused_and_once_for_many(log: Log) -> None:
    issued = IssuedNumbers(joined(SUMS))
    for _ in range(3):
        log.issue("sums", 2)
        assert issued.has_number("sums", log.snapshot["sums"] - 1)
    assert log.snapshots_read == 1, "tasks tell of what is issued"
    assert not any(issued.has_number("sums", number) for number in range(100, 200))
    assert log.snapshots_read == 2


def test_groups_of_a_workflow_that_a_later_recipe_dropped_were_issued(log: Log) -> None:
    log.issue("words", 3)
    log.issue("sums", 2)
    issued = IssuedNumbers(joined(WORDS, SUMS))
    assert [issued.has_number("words", number) for number in (2, 3)] == [True, False]
    assert [issued.has_number("sums", number) for number in (1, 2)] == [True, False]
    assert not issued.has_number("nosuch", 0)


def test_a_workflow_that_is_back_while_a_curator_runs_is_followed(log: Log) -> None:
    more = sums_recipe(workflows={"more": SUMS.model_dump(mode="json")["workflows"]["sums"]})
    log.issue("more", 1)
    issued = IssuedNumbers(joined(more, SUMS))
    assert [issued.has_number("more", number) for number in (0, 1)] == [True, False]
    log.news.append(RecipeRevision("run-1", 2, recipe=more.to_json()))
    log.issue("more", 2)
    assert [issued.has_number("more", number) for number in (2, 3)] == [True, False]
    log.issue("more", 1)
    assert [issued.has_number("more", number) for number in (3, 4)] == [True, False]
