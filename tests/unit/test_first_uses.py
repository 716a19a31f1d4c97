"""Where the first use of a replay is looked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.infra.kafka.clients import Connection, Message
from headrace.infra.run import first_uses
from headrace.infra.run.first_uses import CuratedReplay, find_first_uses


@pytest.mark.parametrize("back", [3, 0, -5])
def test_nothing_is_looked_for_behind_the_replay_itself(monkeypatch: pytest.MonkeyPatch, back: int) -> None:
    read: list[tuple[int, int]] = []

    def read_range(_: Connection, partition_id: tuple[str, int], begin: int, end: int) -> Iterator[Message]:
        read.append((begin, end))
        return iter(())

    monkeypatch.setattr(first_uses, "read_range", read_range)
    monkeypatch.setattr(first_uses, "fetch_begin_offsets", lambda _, partition_ids: dict.fromkeys(partition_ids, 0))
    replay = CuratedReplay(0, 100, "sums", 1, back)
    assert find_first_uses(Connection("nowhere:1"), "curated", "r", [replay]) == {}
    assert max(end for _, end in read) == 101 - max(back, 0)
    assert min(begin for begin, _ in read) == 0
