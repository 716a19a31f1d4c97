"""Half a minute of members that come and go, some with a word and some without."""

from __future__ import annotations

from pathlib import Path

import pytest
from launched import Launched
from rebalances import churn

VERSIONS = 80


@pytest.mark.faults
def test_workers_and_curators_that_join_and_leave_all_the_time_lose_and_double_nothing(tmp_path: Path) -> None:
    launched = Launched(tmp_path / "run", [f"trainer.steps={VERSIONS}"])
    try:
        coming, wrong = churn(launched, seed=5)
    finally:
        launched.leave_nothing()

    assert not wrong
    assert coming.left, "some left in good order"
    assert coming.killed, "and some did not"
