"""When what left the window untrained is reported."""

from __future__ import annotations

import pytest

from headrace.schemas.ids import UseId
from headrace.trainers.batches.evictions import EVICTIONS_WAIT_S, Evictions
from headrace.trainers.batches.window import Waiting, WindowEviction

LEFT = WindowEviction(Waiting(UseId("sums", 0, 0), 0, 0, 0, 0, 0, None), "expired")


@pytest.fixture
def late() -> Evictions[None]:
    """Evictions that have waited for long enough."""
    times = iter([0.0])
    evictions = Evictions[None](lambda: next(times, EVICTIONS_WAIT_S + 1))
    evictions.add([LEFT])
    return evictions


def test_what_is_taken_is_reported_once_and_what_is_left_at_the_end_of_the_run_too(late: Evictions[None]) -> None:
    late.end([LEFT.entry])
    assert [eviction.verdict for eviction in late.pop_all()] == ["expired", "run_end"]
    assert not late
    assert not late.is_due(is_idle=True, has_batch=True)
