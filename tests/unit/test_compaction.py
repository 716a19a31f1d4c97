"""When deltas are merged, and which: the fold behind `headrace compact`."""

from __future__ import annotations

from dataclasses import replace

from headrace.infra.weights.paths import ANCHOR, DELTA, MERGED
from headrace.ops.compaction.compaction import Compaction
from headrace.schemas.records import ClaimCheck, WeightsPublished


def event(version: int, kind: str = DELTA, base: int | None = None, epoch: int = 0) -> WeightsPublished:
    base = version - 1 if base is None else base
    at, of_base = (-1, "") if kind == ANCHOR else (base, f"w{base}")
    return WeightsPublished(
        policy="p", version=version, epoch=epoch, kind=kind, base_version=at, base_hash=of_base,
        weights_hash=f"w{version}", weights=ClaimCheck("main", f"{kind}-{base}-{version}", "", 10),
    )  # fmt: skip


def told(*events: WeightsPublished, every: int = 3) -> Compaction:
    found = Compaction(every)
    for one in events:
        found.fold_event(one)
    return found


def due(compaction: Compaction) -> list[str]:
    return [part.weights.key for part in compaction.deltas_to_merge() if part.weights]


def deltas(first: int, last: int) -> list[WeightsPublished]:
    return [event(version) for version in range(first, last + 1)]


def test_nothing_is_due_until_more_deltas_than_a_joiner_may_take_one_by_one() -> None:
    compaction = told(event(0, ANCHOR), *deltas(1, 3))
    assert due(compaction) == []
    compaction.fold_event(event(4))
    assert due(compaction) == ["delta-0-1", "delta-1-2", "delta-2-3", "delta-3-4"]


def test_the_next_merged_delta_is_made_of_the_last_and_of_what_came_since() -> None:
    compaction = told(event(0, ANCHOR), *deltas(1, 4), event(4, MERGED, base=0), *deltas(5, 7))
    assert due(compaction) == []
    compaction.fold_event(event(8))
    assert due(compaction) == ["merged-0-4", "delta-4-5", "delta-5-6", "delta-6-7", "delta-7-8"]
    compaction.fold_event(event(8, MERGED, base=0))
    assert due(compaction) == []


def test_a_delta_may_span_versions_that_were_not_published() -> None:
    compaction = told(event(0, ANCHOR), event(1), event(5, base=1), event(6), event(9, base=6))
    assert due(compaction) == ["delta-0-1", "delta-1-5", "delta-5-6", "delta-6-9"]
    assert due(told(*deltas(1, 9), event(9, MERGED, base=0))) == [], "what came before any anchor is skipped"


def test_what_is_said_twice_counts_once() -> None:
    once = [event(0, ANCHOR), *deltas(1, 4), event(4, MERGED, base=0)]
    assert due(told(*once, once[-1], once[2], *deltas(5, 7))) == []
    assert len(due(told(*once, once[-1], once[2], *deltas(5, 8)))) == 5


def test_nothing_is_merged_over_an_anchor() -> None:
    assert due(told(event(0, ANCHOR), *deltas(1, 4), event(5, ANCHOR), *deltas(6, 8))) == []
    late = told(event(0, ANCHOR), *deltas(1, 4), event(5, ANCHOR), event(4, MERGED, base=0), *deltas(6, 9))
    assert due(late) == ["delta-5-6", "delta-6-7", "delta-7-8", "delta-8-9"]


def test_why_nothing_is_due_is_said_for_people() -> None:
    for events, said in (
        ([], "no version is published yet"),
        (
            [event(0, ANCHOR), *deltas(1, 2)],
            "2 deltas are newer than version 0, the last anchor (whole weights); deltas are merged when more than 3",
        ),
        (
            [event(0, ANCHOR), *deltas(1, 5), event(4, MERGED, base=0)],
            "one delta is newer than version 4, where the last merged delta ends; deltas are merged when more than 3",
        ),
        (
            [event(0, ANCHOR), event(2, base=1)],
            "merging waits for the next anchor (whole weights): the delta of version 2 is not based on version 0",
        ),
    ):
        assert told(*events).explain_no_merge().startswith(said)


def test_a_hole_in_the_chain_leaves_the_stretch_out_until_the_next_anchor() -> None:
    other = "is not based on version 2"
    for broken, why in (
        (event(3, base=1), other),
        (event(3, epoch=1), other),
        (replace(event(3), weights=None), "has no object"),
    ):
        compaction = told(event(0, ANCHOR), *deltas(1, 2), broken, *deltas(4, 9))
        assert due(compaction) == []
        assert compaction.left_out == f"the delta of version 3 {why}"
        compaction.fold_event(event(10, ANCHOR))
        assert compaction.left_out == ""
        for one in deltas(11, 14):
            compaction.fold_event(one)
        assert len(due(compaction)) == 4


def test_a_merged_delta_that_does_not_agree_with_the_deltas_is_not_built_upon() -> None:
    good = event(4, MERGED, base=0)
    for wrong in (
        replace(good, weights_hash="w9"),
        replace(good, base_hash="w1"),
        replace(good, epoch=1),
        replace(good, version=3),
        replace(good, weights=None),
    ):
        assert due(told(event(0, ANCHOR), *deltas(1, 4), wrong))[0] == "delta-0-1"


def test_a_bad_merged_delta_is_replaced_and_a_bad_delta_waits_for_an_anchor() -> None:
    merged = event(4, MERGED, base=0)
    compaction = told(event(0, ANCHOR), *deltas(1, 4), merged, *deltas(5, 8))
    compaction.mark_bad(merged, "torn")
    assert due(compaction)[0] == "delta-0-1"
    compaction.fold_event(merged)
    assert due(compaction)[0] == "delta-0-1", "said again it is as bad"
    compaction.mark_bad(event(2), "torn")
    assert due(compaction) == []
    assert compaction.left_out == "torn"
