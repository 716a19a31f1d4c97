"""The kill matrix's fixed subset, and what every matrix promises of its cells."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from cells import MOMENTS, OWN_POINTS, PAIRS, SINGLES, plan
from matrix import line, run_matrix, subset
from rich.console import Console

SEED = 4


def test_a_matrix_kills_every_kind_and_pair_at_so_many_moments_drawn_by_its_seed() -> None:
    cells = plan(SEED)

    assert Counter(cell.kinds for cell in cells) == dict.fromkeys((*((k,) for k in SINGLES), *PAIRS), MOMENTS)
    assert len(set(cells)) > len(cells) * 0.9, "nearly all differ"
    assert {cell.point for cell in cells} >= {point for points in OWN_POINTS.values() for point in points}
    assert cells == plan(SEED)
    assert cells != plan(SEED + 1)


@pytest.mark.faults
@pytest.mark.timeout(1200)
def test_whoever_is_killed_at_whichever_moment_the_run_goes_on_and_its_audit_closes(tmp_path: Path) -> None:
    report = run_matrix(subset(SEED), tmp_path, Console(width=200))

    assert report.ok, "\n".join([*report.red, *(line(row) for row in report.rows if row.red)])
    assert {kind for row in report.rows for kind in row.cell.kinds} == set(SINGLES)
