"""Audit and figures read a feeder's state also where it does not fit into a record."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from made_ledger import make_figures
from made_recipes import sums_recipe

from headrace.infra.kafka.clients import Connection, Message, Outgoing
from headrace.infra.run import own_positions
from headrace.infra.run.own_positions import LARGEST_BODY, OwnPositions, Role
from headrace.ledger.feeder_snapshot import FeederSnapshot
from headrace.ops.audit.fold import AuditFold

RECIPE = sums_recipe()
STATE = (RECIPE.topics.state, 0)


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> OwnPositions:
    """The feeder's positions; here all sizes are a thousandth of what they are."""
    monkeypatch.setattr(own_positions, "LARGEST_BODY", LARGEST_BODY >> 10)
    monkeypatch.setattr(own_positions, "read_partition", lambda *_: iter(()))
    monkeypatch.setattr(own_positions, "find_start_positions", lambda *_: {})
    monkeypatch.setattr(own_positions, "TopicReader", lambda *_: SimpleNamespace(positions={}))
    return OwnPositions(Role(Connection("k:1"), "feed", "r", STATE, ()))


def state(issued: int, selector_bytes: int = 0) -> bytes:
    selector = {"seen": np.random.default_rng(issued).bytes(selector_bytes).hex()}
    return json.dumps({"next": {"sums": issued}, "sources": {"sums": {"selector": selector}}}).encode()


def place(*records: Outgoing) -> list[Message]:
    return [Message(*STATE, offset, one.key, one.value, is_null=one.is_null) for offset, one in enumerate(records)]


def read_issued(messages: list[Message]) -> tuple[int, int, int]:
    """Return the issued tasks that an audit, an audit of a live run, and the page count."""
    audit, live = AuditFold("r", RECIPE), AuditFold("r", RECIPE)
    figures, newest = make_figures("r", RECIPE), FeederSnapshot()
    for message in messages:
        audit.fold_message(message)
        figures.ledger.add([message])
        newest.fold_message(message)
    audit.fold_feeder_snapshot()
    live.begin(newest)
    assert not audit.account.found
    shown = figures.compute_figures({}, 0).groups.issued
    return audit.account.issued["sums"], live.account.known.issued_before["sums"], shown


def test_issued_numbers_are_read_from_a_feeder_state_that_was_cut_into_pieces(own: OwnPositions) -> None:
    whole, cut, less = own.snapshot(state(6)), own.snapshot(state(7, 9 << 10)), own.snapshot(state(8, 5 << 10))
    assert [len(one) for one in (whole, cut, less)] == [1, 3, 3], "two pieces; then one piece and the end of the other"
    assert read_issued(place(*whole)) == (6, 6, 6)
    assert read_issued(place(*whole, *cut)) == (7, 7, 7)
    assert read_issued(place(*whole, *cut, *less[:1])) == (7, 7, 7), "with the pieces that were before it"
    assert read_issued(place(*cut, *less)) == (8, 8, 8)
    piece, newest = place(cut[0], *whole)
    assert read_issued([replace(piece, value=b"?"), newest]) == (6, 6, 6), "a piece that nothing needs is not read"


def test_a_piece_that_is_missing_or_damaged_is_a_problem_of_the_audit(own: OwnPositions) -> None:
    first, second, body = place(*own.snapshot(state(7, 9 << 10)))
    for messages, why in (
        ([first, body], "lacks 1 of its 2 pieces"),
        ([first, replace(second, value=b"?"), body], "lacks 1 of its 2 pieces"),
        ([replace(first, value=second.value), second, body], "pieces of the newest snapshot of feed are damaged"),
    ):
        audit = AuditFold("r", RECIPE)
        for message in messages:
            audit.fold_message(message)
        audit.fold_feeder_snapshot()
        assert why in " ".join(map(str, audit.account.found.listed))
