"""How many requests a server gets at once, against the best number that is known beforehand."""

from __future__ import annotations

import pytest
from benchmarks.admission import measure

from headrace.producers.engines.served.admission import FIRST, NO_LIMIT, Admission
from headrace.producers.engines.served.server_api import ServerLoad


@pytest.mark.parametrize("answers", ["short", "long"])
def test_the_limit_that_is_found_is_nearly_as_fast_as_the_best_that_is_known_beforehand_and_retracts_little(
    answers: str,
) -> None:
    found = measure(answers, 6000, 20)
    assert found.share >= 0.95
    assert found.retractions <= 1.5
    assert found.limit != FIRST


def read(running: int = 0, waiting: int = 0, used: int = 0, capacity: int = 1000, retractions: int = 0) -> ServerLoad:
    return ServerLoad(running, waiting, used, capacity, retractions)


@pytest.mark.parametrize(
    ("ended", "held_back", "loads", "limit"),
    [
        (16, 1, [read(16, used=475)], 32),
        (15, 1, [read(16, used=475)], 16),
        (16, 1, [read(10, used=475)], 20),
        (16, 1, [read(16, used=1)], 64),
        (16, 0, [read(16, used=475)], 16),
        (16, 1, [read(16, used=970)], 17),
        (16, 1, [read(7, used=600)], 16),
        (16, 1, [read(15, waiting=1, used=475)], 16),
        (16, 1, [read(15, waiting=1, used=475, retractions=1)], 30),
        (16, 1, [read(16, used=475, retractions=17)], 16),
        (0, 1, [read(16, used=475, retractions=24)], 16),
        (0, 1, [read(10, waiting=6, used=990, retractions=25)], 10),
        (0, 1, [read(4, waiting=12, used=990)], 16),
        (0, 1, [read(4, waiting=12, used=990)] * 2, 12),
        (0, 1, [read(4, waiting=12, used=990, retractions=1)] * 2, 16),
        (0, 0, [read(16, capacity=50 * 100)], 50),
        (0, 1, [read(16, capacity=0)], NO_LIMIT),
    ],
)
def test_the_limit_grows_where_there_is_room_and_is_cut_for_retractions_and_a_queue(
    ended: int, held_back: int, loads: list[ServerLoad], limit: int
) -> None:
    admission, exact = Admission(), Admission(7)
    for one in (admission, exact):
        one.note_request(100)
        one.look(read(), 16, held_back)
        for _ in range(ended):
            one.note_ended()
        for load in loads:
            one.look(load, 16, held_back)
    assert (admission.limit, exact.limit) == (limit, 7)


def test_retractions_from_before_the_first_reading_or_from_before_a_start_are_not_counted() -> None:
    admission = Admission()
    for retractions in (1000, 1020, 0, 4):
        admission.look(read(10, waiting=6, used=990, retractions=retractions), FIRST + 1, 9)
    assert admission.limit == FIRST
    admission.look(read(10, waiting=6, used=990, retractions=5), FIRST + 1, 9)
    assert admission.limit == 10
