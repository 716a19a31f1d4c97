from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_page import drawn

from headrace.app.views.discards_page import describe_bias, discards_page, plot
from headrace.infra.errors import UsageError
from headrace.ops.discards import Bias, Discards, GroupFates, Moments, PolicyDiscards, compute_bias, summarize_fates
from headrace.ops.plain_json import plain
from headrace.schemas.records import BatchTrained, Eviction, GroupUse, Outcome


def outcome(number: int, length: int, *, reason: str = "", reward: float = 1.0, head: int = 0, **more: Any) -> Outcome:
    made = Outcome(
        stream="sums", number=number, component="curate", verdict="dropped" if reason else "kept", reason=reason,
        lengths=(length - 1, length + 1), rewards=(reward, 0.0), min_version=0, head_version=head,
    )  # fmt: skip
    return replace(made, **more)


def batch(version: int, *numbers: int, gone: dict[int, str] | None = None) -> BatchTrained:
    evictions = tuple(Eviction(GroupUse("sums", number), verdict) for number, verdict in (gone or {}).items())
    return BatchTrained(
        version=version, groups=tuple(GroupUse("sums", number) for number in numbers), evictions=evictions
    )


def a_ledger() -> GroupFates:
    ledger = GroupFates()
    for number, length in enumerate([4, 6, 20, 30, 8, 50]):
        ledger.outcome(outcome(number, length, reward=0.5))
    ledger.outcome(outcome(6, 3, reason="zero_variance", reward=0.0))
    ledger.outcome(outcome(7, 40, reason="stale", head=4))
    ledger.outcome(outcome(8, 60, reason="stale", head=6))
    ledger.outcome(outcome(1, 9, reason="truncated", level="trajectory", lengths=(9,), rewards=(0.0,)))
    ledger.batch(batch(1, 0, 1))
    ledger.batch(batch(-1, gone={2: "surplus"}))
    ledger.batch(batch(2, 4))
    ledger.batch(batch(-1, gone={3: "expired"}))
    return ledger


def test_every_group_is_counted_once_under_what_became_of_it() -> None:
    found = summarize_fates(a_ledger())
    discarded = {reason: row.groups for reason, row in found.discarded.items()}
    assert discarded == {"stale": 2, "zero_variance": 1, "surplus": 1, "expired": 1}
    assert {reason: row.groups for reason, row in found.trajectories.items()} == {"truncated": 1}
    assert (found.trained.groups, found.waiting) == (3, 1)
    assert found.trained.length == pytest.approx(6)
    assert found.before_end.length == pytest.approx((3 + 40 + 60 + 20 + 30) / 5)


def test_what_was_left_at_the_end_of_the_run_is_apart_where_it_is_about_what_a_rule_chose() -> None:
    ledger = a_ledger()
    before = summarize_fates(ledger)
    assert before.before_end.bias == before.bias
    ledger.batch(batch(-1, gone={5: "run_end"}))
    found = summarize_fates(ledger)
    assert found.before_end == before.before_end
    assert found.discarded["run_end"].length == pytest.approx(50)
    assert found.bias.ratio > before.bias.ratio
    assert found.discarded["stale"].length == pytest.approx(50)


def test_the_age_is_taken_when_the_fate_was_decided() -> None:
    found = summarize_fates(a_ledger()).discarded
    assert found["stale"].age == pytest.approx(5), "by the curator's clock"
    assert (found["surplus"].age, found["expired"].age) == (1, 2), "by the trainer's version"
    assert summarize_fates(a_ledger()).trained.age == pytest.approx(1 / 3)


def test_uses_after_the_first_and_letters_of_the_trainer_are_not_counted_again() -> None:
    ledger = a_ledger()
    before = summarize_fates(ledger)
    ledger.outcome(outcome(0, 99, reason="stale", use=1))
    ledger.outcome(outcome(3, 99, reason="expired", component="train"))
    ledger.batch(BatchTrained(version=3, groups=(GroupUse("sums", 0, use=1), GroupUse("sums", 0))))
    assert summarize_fates(ledger) == before


def test_lengths_rewards_and_ages_are_told_in_bins_that_add_up() -> None:
    found = summarize_fates(a_ledger())
    assert found.trained.cells == ((4, 0.25, 0, 2), (8, 0.25, 1, 1))
    assert found.discarded["stale"].cells == ((32, 0.5, 4, 1), (32, 0.5, 6, 1))
    assert json.loads(json.dumps(plain(found), allow_nan=False)) == plain(found)


def test_what_was_never_generated_has_no_age_and_what_was_never_judged_no_reward() -> None:
    ledger = GroupFates()
    ledger.outcome(outcome(0, 0, reason="no_trajectories", lengths=(), rewards=(math.nan,), min_version=-1))
    row = summarize_fates(ledger).discarded["no_trajectories"]
    assert (row.length, row.reward, row.age, row.cells) == (None, None, None, ((None, None, None, 1),))


def test_a_group_that_was_sent_back_and_trained_is_a_trained_one() -> None:
    ledger = GroupFates()
    for number in (0, 1):
        ledger.outcome(outcome(number, 4))
    ledger.batch(batch(-1, gone={0: "dead", 1: "dead"}))
    found = summarize_fates(ledger)
    assert ({reason: one.groups for reason, one in found.discarded.items()}, found.trained.groups) == ({"dead": 2}, 0)
    ledger.batch(batch(1, 0))
    found = summarize_fates(ledger)
    assert ({reason: one.groups for reason, one in found.discarded.items()}, found.trained.groups) == ({"dead": 1}, 1)


def test_rewards_that_are_huge_are_counted() -> None:
    ledger = GroupFates()
    worst = -sys.float_info.max
    ledger.outcome(outcome(0, 4, reason="stale", rewards=(worst, worst)))
    row = summarize_fates(ledger).discarded["stale"]
    assert (row.reward, [cell[1] for cell in row.cells]) == (worst, [None])


def test_groups_of_which_nothing_came_back_do_not_count_as_short() -> None:
    ledger = GroupFates()
    for number in range(10):
        ledger.outcome(outcome(number, 100 + number))
        ledger.outcome(outcome(10 + number, 200 + number, reason="stale"))
        ledger.outcome(outcome(20 + number, 0, reason="timeout", lengths=(), rewards=(), min_version=-1))
    ledger.batch(batch(1, *range(10)))
    found = summarize_fates(ledger).bias
    assert found.ratio == pytest.approx(204.5 / 104.5)
    assert found.low > 1.9


def moments(values: list[float]) -> Moments:
    found = Moments()
    for value in values:
        found.add(value)
    return found


def test_the_interval_of_a_ratio_covers_the_truth_about_as_often_as_it_says() -> None:
    draw, covered = np.random.default_rng(0), 0
    for _ in range(400):
        long, short = draw.gamma(2, 15, 200), draw.gamma(2, 10, 300)
        found = compute_bias(moments(long.tolist()), moments(short.tolist()))
        assert found is not None
        assert found.ratio == pytest.approx(long.mean() / short.mean())
        covered += found.low <= 1.5 <= found.high
    assert 0.92 <= covered / 400 <= 0.98


def test_no_ratio_is_told_where_none_follows() -> None:
    assert compute_bias(moments([5.0]), moments([5.0, 6.0])) is None
    assert compute_bias(moments([0.0, 0.0]), moments([5.0, 6.0])) is None


def shown(found: PolicyDiscards) -> str:
    return drawn(discards_page(Discards("r", "x", {"solver": found})), 120)


def test_the_page_names_the_bias() -> None:
    ledger = GroupFates()
    for number in range(200):
        ledger.outcome(outcome(number, 10 + number % 5))
    ledger.batch(batch(1, *range(200)))
    assert "Nothing was discarded." in shown(summarize_fates(ledger))
    for number in range(200):
        ledger.outcome(outcome(200 + number, 30 + number % 7, reason="stale", head=3))
    page = shown(summarize_fates(ledger))
    assert "Discarded groups are 2.75 times as long as trained ones" in page
    assert "training sees too few long answers" in page


def test_a_bias_is_named_where_all_of_its_interval_matters() -> None:
    for ratio, low, high, sentence in (
        (1.08, 1.06, 1.1, "1.08 times as long as trained ones (95 %: 1.06 to 1.10): training sees too few long"),
        (0.9, 0.86, 0.94, "training sees too few short answers."),
        (0.979, 0.977, 0.981, "(95 %: 0.977 to 0.981): within 5 %, no relevant bias"),
        (1.04, 1.02, 1.06, "no bias of more than 5 % can be seen."),
        (1.5, 0.8, 2.8, "no bias of more than 5 % can be seen."),
        (0.75, 0.75, 0.75, "(95 %: 0.75 to 0.75): training sees too few short"),
    ):
        assert sentence in describe_bias(Bias(ratio, low, high), 7)


def test_the_picture_is_drawn_and_a_bad_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    found = Discards("r", "x", {"solver": summarize_fates(a_ledger()), "verifier": summarize_fates(GroupFates())})
    assert plot(found, tmp_path / "picture.png") == [tmp_path / "picture.png"]
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(UsageError, match=r"--plot .*folder\.png: "):
        plot(found, tmp_path / "folder.png")
