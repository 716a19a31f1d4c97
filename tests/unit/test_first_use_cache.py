"""The groups that replays are of: remembered within bounds, else read again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.infra.kafka.clients import Message
from headrace.infra.run.first_uses import CuratedReplay
from headrace.schemas import codec
from headrace.schemas.records import CuratedGroup
from headrace.schemas.topics import Topics
from headrace.trainers.batches import first_use_cache
from headrace.trainers.batches.first_use_cache import FirstUseCache, LoggedFirstUses, estimate_bytes

KEPT, REWARDS = (0, 2), (1.0, 0.0, 0.5)
HELD = estimate_bytes(CuratedGroup("r", "sums", 1, group=bytes(100), kept=KEPT, rewards=REWARDS))


class Log:
    """A partition of curated groups, and what is asked of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.records: list[CuratedGroup] = []
        self.asked: list[object] = []
        monkeypatch.setattr(first_use_cache, "find_first_uses", self._found)
        monkeypatch.setattr(first_use_cache, "read_one", self._one)

    def put(self, number: int, use: int = 0, size: int = 100) -> tuple[Message, CuratedGroup]:
        fresh = {} if use else {"group": bytes([number]) * size, "kept": KEPT, "rewards": REWARDS}
        self.records.append(CuratedGroup("r", "sums", number, use, first_back=3 if use else 0, **fresh))
        return self._message(len(self.records) - 1), self.records[-1]

    def _message(self, offset: int) -> Message:
        return Message("t.curated.solver", 0, offset, b"", codec.encode(self.records[offset]))

    def _found(
        self, _connection: object, topic: str, run_id: str, replays: list[CuratedReplay]
    ) -> dict[CuratedReplay, Message]:
        assert (topic, run_id) == ("t.curated.solver", "r")
        self.asked += replays
        return {
            replay: self._message(offset)
            for replay in replays
            for offset, one in enumerate(self.records)
            if (one.number, one.use) == (replay.number, 0)
        }

    def _one(self, _connection: object, _partition_id: object, offset: int) -> Message:
        self.asked.append(offset)
        return self._message(offset)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    return Log(monkeypatch)


def memory(**bounds: int) -> FirstUseCache:
    run: Any = SimpleNamespace(connection=None, run_id="r", topics=Topics("t"))
    return FirstUseCache(LoggedFirstUses(run, "solver"), **bounds)


def test_a_replay_is_read_from_the_log_once_and_then_remembered(log: Log) -> None:
    state = memory()
    state.complete(*log.put(7))
    for use in (1, 2, 3):
        found = state.complete(*log.put(7, use))
        assert found is not None
        assert (found.use, found.group, found.kept, found.rewards) == (use, bytes([7]) * 100, KEPT, REWARDS)
    assert log.asked == [CuratedReplay(0, 1, "sums", 7, back=3)]


def test_from_the_first_replay_on_what_is_read_is_remembered(log: Log) -> None:
    state = memory()
    for number in range(4):
        state.complete(*log.put(number))
    assert not state._firsts, "a run without replays remembers nothing"
    state.complete(*log.put(0, 1))
    state.complete(*log.put(4))
    state.complete(*log.put(4, 1))
    assert len(log.asked) == 1


def test_memory_is_bounded_and_what_left_it_is_read_at_its_offset(log: Log) -> None:
    state = memory(most_bytes=10 * HELD, most_offsets=50)
    state.complete(*log.put(0))
    state.complete(*log.put(0, 1))
    for number in range(1, 200):
        state.complete(*log.put(number))
        assert len(state._firsts) * HELD == state._firsts.currsize <= 10 * HELD
        assert len(state._offsets) <= 50
    del log.asked[:]
    state.complete(*log.put(199, 1))
    assert log.asked == []
    found = state.complete(*log.put(170, 1))
    assert found is not None
    assert (found.group, log.asked) == (bytes([170]) * 100, [171]), "its offset is known"
    state.complete(*log.put(3, 1))
    assert isinstance(log.asked[-1], CuratedReplay), "nor its offset any more"


def test_a_group_larger_than_the_memory_is_not_remembered(log: Log) -> None:
    state = memory(most_bytes=HELD - 1)
    state.complete(*log.put(0))
    assert state.complete(*log.put(0, 1)) is not None
    assert (state._firsts.currsize, len(state._firsts)) == (0, 0)


def test_a_replay_whose_first_use_is_gone_has_no_group(log: Log) -> None:
    assert memory().complete(*log.put(5, 1)) is None
