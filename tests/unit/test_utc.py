from __future__ import annotations

import pytest

from headrace.infra.utc import format_utc


def test_a_time_is_written_in_utc() -> None:
    assert format_utc(1_764_000_000_000) == "2025-11-24 16:00:00 UTC"
    assert format_utc(0, "%H:%M") == "00:00"


@pytest.mark.parametrize("ms", [1_764_000_000_000_000, -(10**17), 2**63 - 1])
def test_a_number_that_is_no_time_is_shown_as_it_is(ms: int) -> None:
    assert format_utc(ms) == f"an unknown time ({ms} ms)"
