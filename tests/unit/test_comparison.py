from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from drawn_page import drawn

from headrace.app.views.chart import check_picture
from headrace.app.views.comparison_page import comparison_page, plot
from headrace.infra.errors import UsageError
from headrace.ops.compare.comparison import (
    Comparison,
    Interval,
    MeanCurve,
    PlayedRun,
    build_comparison,
    compute_interval,
    compute_mean_curve,
    list_points,
    student_t,
)
from headrace.ops.compare.run_result import GroupsResult, PolicyResult, RunResult, read_result
from headrace.ops.plain_json import plain


def test_the_quantile_of_students_distribution_is_that_of_the_tables() -> None:
    # NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2, the column of 0.975.
    table = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 30: 2.042, 100: 1.984}
    assert {freedom: student_t(freedom) for freedom in table} == pytest.approx(table, abs=6e-4)
    assert (student_t(4, 0.99), student_t(7, 0.5)) == pytest.approx((4.604, 0.711), abs=6e-4)
    with pytest.raises(ValueError, match="got 0"):
        student_t(0)


def test_an_interval_is_t_times_the_standard_error_either_way() -> None:
    # deviation sqrt(2.5), five values: 2.7764 x 1.58114 / 2.23607
    five = compute_interval([1, 2, 3, 4, 5])
    assert (five.mean, five.n) == (3.0, 5)
    assert (five.low, five.high) == (pytest.approx(3 - 1.96324, abs=1e-4), pytest.approx(3 + 1.96324, abs=1e-4))
    # deviation 0.141421, two values: 12.7062 x 0.1
    assert compute_interval([0.4, None, 0.6]).high == pytest.approx(0.5 + 1.27062, abs=1e-4)
    assert (compute_interval([0.5, None]), compute_interval([None])) == (
        Interval(0.5, None, None, 1),
        Interval(None, None, None, 0),
    )


def test_curves_are_averaged_where_all_are_known_with_straight_lines_between_points() -> None:
    first, second = [(0, 0.0), (4, 0.4)], [(1, 0.3), (2, 0.4), (3, 0.5), (9, 9.0)]
    found = compute_mean_curve([first, second, []], "version")
    assert found.x == [1, 2, 3, 4]
    assert found.mean == [0.2, 0.3, 0.4, pytest.approx((0.4 + 0.5 + 8.5 / 6) / 2, abs=1e-5)]
    assert found.high[0] == pytest.approx(0.2 + 12.7062 * 0.1, abs=1e-4)
    found = compute_mean_curve([[(10.0, 1.0), (70.0, 7.0)], [(4.0, 0.0), (80.0, 0.0)]], "seconds")
    assert (len(found.x), found.x[:2], found.x[-1], found.mean[:2]) == (61, [10.0, 11.0], 70.0, [0.5, 0.55])
    assert compute_mean_curve([[(0, 1.0), (1, 1.0)], [(2, 1.0), (3, 1.0)]], "seconds") == MeanCurve([], [], [], [])


def test_a_version_whose_evaluation_lacks_a_workflow_is_no_point() -> None:
    curve = [[0, 0.8], [0, 0.1], [20, 0.85], [20, 0.15], [40, 0.86]]
    block = policy(eval_curve=curve, progress=[[v, v, v] for v in (0, 20, 40)])
    assert list_points(block, "held_out", "version") == [(0, pytest.approx(0.45)), (20, pytest.approx(0.5))]


def test_the_discarded_share_leaves_out_what_the_end_of_the_run_cut_off() -> None:
    some = GroupsResult(6, {"zero_variance": 3, "run_end": 2}, dead=1, replayed=0)
    none = GroupsResult(0, {"run_end": 2}, dead=0, replayed=0)
    assert (some.trained_share, some.discarded_share, none.discarded_share) == (0.5, 0.3, None)


def summary(end: float, dropped: dict[str, int], *, ok: bool = True) -> dict[str, Any]:
    block = {
        "versions": 2,
        "reward_last": end,
        "eval_first": 0.125,
        "eval_last": end - 0.1,
        "groups": {"trained": 10, "discarded": dropped, "dead": 0, "replayed": 4},
        "lengths": {"trained": 10.0, "discarded": 20 * end, "bias": {"ratio": 2 * end, "low": 0.5, "high": 2.0}},
        "trajectories": 160,
        "reward_curve": [[0, 0.3], [1, 0.4], [2, end]],
        "eval_curve": [[0, 0.2], [2, end - 0.1]],
        "progress": [[0, 0, 4.0], [1, 80, 6.0], [2, 160, 8.0]],
    }
    audit = {"ok": ok, "lost": 0 if ok else 3, "doubled": 0}
    selection = {"sums": {"rejected": 30}, "products": {"rejected": round(10 * end)}}
    ends = dict.fromkeys(("reward_first", "reward_last", "eval_first", "eval_last"))
    return {"wall_s": 20.0, **ends, "audit": audit, "selection": selection, "policies": {"solver": block}}


def result(found: dict[str, Any]) -> RunResult:
    return read_result(json.dumps(found).encode())


def policy(**changed: Any) -> PolicyResult:
    found = summary(0.5, {})
    found["policies"]["solver"] |= changed
    return result(found).policies["solver"]


@pytest.fixture
def found() -> Comparison:
    runs = {
        "s-ds-1": PlayedRun("ds", 1, result(summary(0.4, {"run_end": 2, "zero_variance": 8})), ""),
        "s-ds-2": PlayedRun("ds", 2, result(summary(0.6, {"zero_variance": 10}, ok=False)), ""),
        "s-fifo-1": PlayedRun("fifo", 1, None, "error: no room"),
    }
    return build_comparison("s", "a <sweep>", runs)


def test_variants_are_summed_up_over_their_seeds_and_a_failed_run_is_not_counted(found: Comparison) -> None:
    fifo, ds = found.variants["fifo"], found.variants["ds"]
    assert (fifo.runs, fifo.failed, fifo.wall_s, fifo.policies) == (0, [1], Interval(None, None, None, 0), {})
    assert (ds.runs, ds.failed, ds.wall_s.mean, ds.skipped.mean) == (2, [], 20, 35)
    solver = ds.policies["solver"]
    assert (solver.reward.mean, solver.reward.n) == (0.5, 2)
    assert (solver.held_out_first.mean, solver.held_out.mean) == (0.125, pytest.approx(0.4))
    assert solver.trained_share.mean == 0.5
    assert solver.discarded_share.mean == pytest.approx((8 / 18 + 10 / 20) / 2)
    assert (solver.length_trained.mean, solver.length_discarded.mean) == (10, 10)
    assert (solver.length_bias.mean, solver.length_bias.high) == (1, pytest.approx(1 + 2.541, abs=1e-3))
    assert [(reason, one.mean) for reason, one in solver.discarded.items()] == [("zero_variance", 9), ("run_end", 1)]
    assert solver.curves["held_out"]["trajectories"].x[-1] == 160
    assert solver.curves["reward"]["version"].mean == [0.3, 0.35, 0.4]
    assert json.loads(json.dumps(plain(found))) == plain(found)


def test_a_variant_may_name_the_one_from_which_its_differences_are_computed() -> None:
    ends = {"plain": ("", 0.25), "other": ("other", 0.5), "third": ("other", 0.625)}
    runs = {name: PlayedRun(name, 1, result(summary(end, {})), "", over) for name, (over, end) in ends.items()}
    found = build_comparison("s", "", runs).variants
    assert [one.policies["solver"].over_first["reward"].mean for one in found.values()] == [None, None, 0.125]


def test_the_page_shows_a_row_for_each_variant_and_names_what_is_wrong(found: Comparison) -> None:
    page = drawn(comparison_page(found), 200)
    for words in ("0.500 ± 1.271", "9 zero_variance, 1 run_end", "35 ± 13", "run s-fifo-1 failed: error: no room"):
        assert words in page
    assert "the audit of run s-ds-2 does not close: groups lost: 3, groups doubled: 0" in page


def test_variants_are_compared_with_the_first_one_seed_by_seed() -> None:
    ends = {"plain": {1: 0.25, 2: 0.5, 3: 0.75}, "ds": {1: 0.5, 2: 0.625, 4: 0.875}}
    runs = {
        f"s-{variant}-{seed}": PlayedRun(variant, seed, result(summary(end, {})), "")
        for variant, by_seed in ends.items()
        for seed, end in by_seed.items()
    }
    found = build_comparison("s", "", runs)
    solver = {name: one.policies["solver"] for name, one in found.variants.items()}
    reward, held_out = solver["ds"].over_first["reward"], solver["ds"].over_first["held_out"]
    assert (reward.mean, reward.n, held_out.mean) == (0.1875, 2, pytest.approx(0.1875))
    assert reward.high == pytest.approx(0.1875 + 12.706 * 0.0625, abs=1e-3)
    assert solver["plain"].over_first["reward"].n == 0
    page = drawn(comparison_page(found), 80)
    assert "0.125 ± 0.000" in page
    assert "+0.188 ± 0.794" in page
    assert "…" not in page, "all fits a terminal of 80"


def test_the_picture_is_drawn_and_the_page_beside_it_needs_no_other_file(found: Comparison, tmp_path: Path) -> None:
    for file in ("sweep.svg", "missing/sweep.png"):
        with pytest.raises(UsageError, match="--plot"):
            check_picture(tmp_path / file, ".png")
    check_picture(tmp_path / "sweep.png", ".png")
    assert plot(found, tmp_path / "sweep.png") == [tmp_path / "sweep.png", tmp_path / "sweep.html"]
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "sweep.html").read_text()
    assert "<p>a &lt;sweep&gt;</p>" in page
    assert 'src="' not in page.replace('src="data:image/png;base64,iVBOR', "")
