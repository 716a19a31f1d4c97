"""Which deaths of a component count towards giving it up."""

from __future__ import annotations

from headrace.infra.process.patience import SERVER_AWAY, Deaths, Patience

PATIENCE = Patience(most_short_lives=3, most_deaths=5, short_life_s=60)


def deaths(*each: tuple[int, float, object]) -> bool:
    """Whether these deaths, each (exit code, seconds lived, progress), are too many."""
    found = Deaths(PATIENCE)
    for one in each:
        found.count(*one)
    return found.has_too_many


def test_short_lives_in_a_row_are_too_many_and_a_long_one_between_them_begins_anew() -> None:
    assert deaths(*[(1, 1.0, None)] * 3)
    assert not deaths((1, 1.0, None), (1, 1.0, None), (1, 61.0, None), (1, 1.0, None), (1, 1.0, None))
    assert not deaths(*[(SERVER_AWAY, 1.0, None)] * 9), "a server was away"


def test_deaths_at_the_same_progress_are_too_many_whatever_their_lives_and_exit_codes() -> None:
    at = ({"solver": 7}, 0)
    assert deaths((1, 61.0, at), (SERVER_AWAY, 5.0, at), (-9, 900.0, at), (SERVER_AWAY, 61.0, at), (0, 61.0, at))
    assert not deaths(*[(SERVER_AWAY, 61.0, at)] * 4)
    assert not deaths(*[(SERVER_AWAY, 61.0, at)] * 4, (SERVER_AWAY, 61.0, ({"solver": 8}, 0)))


def test_deaths_while_nobody_can_get_further_count_for_nothing() -> None:
    at = ({"solver": 7}, 0)
    assert not deaths(*[(SERVER_AWAY, 61.0, None)] * 9)
    assert deaths(*[(SERVER_AWAY, 61.0, at)] * 3, *[(SERVER_AWAY, 61.0, None)] * 9, *[(SERVER_AWAY, 61.0, at)] * 2)
