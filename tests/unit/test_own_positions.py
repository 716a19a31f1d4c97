"""A state of any size is written in records that a broker takes, and read again."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace.infra.errors import HeadraceError
from headrace.infra.kafka.clients import MESSAGE_BYTES, Connection, Message, Outgoing
from headrace.infra.run import own_positions
from headrace.infra.run.own_positions import LARGEST_BODY, OwnPositions, Role, read_newest_snapshot

NOWHERE, STATE = Connection("k:1"), ("r.state", 0)
LOG: list[Message] = []
SMALL, OTHER = b'{"open": []}', b'{"open": [1]}'


def vast(seed: int) -> bytes:
    """A state that does not fit into a record, even compressed; here all sizes are a thousandth of what they are."""
    return json.dumps({"open": np.random.default_rng(seed).bytes(9 << 10).hex()}).encode()


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch) -> None:
    LOG.clear()
    monkeypatch.setattr(own_positions, "LARGEST_BODY", LARGEST_BODY >> 10)
    monkeypatch.setattr(own_positions, "read_partition", lambda *_: iter(LOG))
    monkeypatch.setattr(own_positions, "find_start_positions", lambda *_: {})
    monkeypatch.setattr(own_positions, "TopicReader", lambda *_: SimpleNamespace(positions={("r.in", 0): 7}))


def restored() -> OwnPositions:
    return OwnPositions(Role(NOWHERE, "evaluate", "run-1", STATE, ("r.in",)))


def write(*records: Outgoing) -> None:
    for one in records:
        assert len(one.value) << 10 < MESSAGE_BYTES
        LOG.append(Message(*STATE, len(LOG), one.key, one.value, is_null=one.is_null))


def seen_by_the_feeder() -> Any:
    snapshot = read_newest_snapshot(NOWHERE, STATE, "evaluate")
    return snapshot and (snapshot.body, snapshot.positions)


def test_a_state_that_is_too_large_for_a_record_is_written_in_pieces_and_restored() -> None:
    own = restored()
    assert (own.restored, seen_by_the_feeder()) == (None, None)
    for body in (SMALL, vast(1), vast(2), OTHER):
        write(*own.snapshot(body, {"sums|3": b"[]"}))
        again = restored()
        assert again.restored == body
        assert again.parts == {"sums|3": b"[]"}
        assert seen_by_the_feeder() == (body, {"r.in[0]": 7})
        own = again
    held = {message.key: not message.is_null for message in LOG}
    assert [key for key, is_there in held.items() if is_there] == [b"evaluate|sums|3", b"evaluate"], "pieces leave"


def test_the_records_of_a_state_that_fits_are_as_they_always_were() -> None:
    [record] = restored().snapshot(SMALL)
    assert (record.key, record.is_null) == (b"evaluate", False)


def test_a_reader_takes_the_pieces_of_the_snapshot_that_it_takes() -> None:
    own = restored()
    write(*own.snapshot(vast(1)))
    *pieces, _ = own.snapshot(vast(2))
    write(*pieces[:2])  # the rest of the transaction is not there yet
    assert seen_by_the_feeder() == (vast(1), {"r.in[0]": 7})


def test_a_snapshot_without_one_of_its_pieces_is_an_error_with_a_sentence() -> None:
    write(*restored().snapshot(vast(1))[1:])
    with pytest.raises(HeadraceError, match="the newest snapshot of evaluate lacks 1 of its 2 pieces"):
        restored()
