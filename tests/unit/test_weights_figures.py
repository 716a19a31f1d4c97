"""What is told of a policy's versions and of the workers that take them."""

from __future__ import annotations

from dataclasses import replace

from made_ledger import MadeLedger
from made_recipes import sums_recipe

from headrace.ledger.liveness import FRESH_MS
from headrace.ops.figures.weights_figures import MEDIAN_VERSIONS, WeightsFigures, find_weights_figures
from headrace.ops.figures.weights_history import versions_by_worker
from headrace.schemas import codec
from headrace.schemas.records import ClaimCheck, TakenWeights, WeightsPublished, WorkerStatus

NOW_MS = 1_000_000
RECIPE = sums_recipe()


def figures(ledger: MadeLedger, now_ms: int = NOW_MS) -> WeightsFigures:
    workers = [codec.decode(value, WorkerStatus) for (value,) in ledger.query("SELECT value FROM worker")]
    return find_weights_figures(ledger, "solver", workers, now_ms)


def event(version: int, size: int = 10, **metrics: float) -> WeightsPublished:
    claim = ClaimCheck(size_bytes=size)
    return WeightsPublished(
        policy="solver", version=version, kind="delta" if version else "anchor", weights=claim, metrics=metrics
    )


def status(worker: str, version: int, **seconds: float) -> WorkerStatus:
    taken = (TakenWeights("solver", version, 10, **seconds),)
    return WorkerStatus(worker=worker, state="rolling", versions={"solver": version}, taken=taken, updated_ms=NOW_MS)


def test_sizes_and_times_are_medians_and_anchors_are_no_deltas() -> None:
    fold = MadeLedger(RECIPE)
    fold.say(event(0, 1000, full_bytes=1000.0, density=1.0, encode_s=9.0))
    fold.say(event(1, 10, full_bytes=1000.0, density=0.01, encode_s=1.0, upload_s=2.0))
    fold.say(event(3, 20, full_bytes=1000.0, density=0.03, encode_s=2.0))
    found = figures(fold)
    assert (found.published, found.left_out, found.anchor_bytes, found.delta_bytes) == (3, 1, 1000, 30)
    assert (found.ratio, found.density, found.encode_s, found.upload_s) == (75.0, 0.02, 2.0, 2.0)
    assert (found.fetch_s, found.skew, found.behind) == (None, 0, 0)


def test_versions_before_the_first_of_a_run_were_not_left_out() -> None:
    fold = MadeLedger(RECIPE)
    assert figures(fold).left_out == 0
    for version in (40, 41, 43, 45):
        fold.say(event(version))
    assert figures(fold).left_out == 2


def test_workers_that_are_there_tell_how_far_they_are_apart() -> None:
    fold = MadeLedger(RECIPE)
    for version in range(6):
        fold.say(event(version))
    fold.say(status("a", 5, fetch_s=1.0, pause_s=0.5))
    fold.say(status("b", 2, fetch_s=3.0))
    found = figures(fold)
    assert (found.skew, found.behind, found.greatest_skew, found.fetch_s, found.pause_s) == (3, 3, 3, 2.0, 0.25)
    fold.say(replace(status("b", 2), state="stopped"))
    fold.say(status("c", 4))
    found = figures(fold)
    assert (found.skew, found.behind, found.greatest_skew) == (1, 1, 3)
    assert figures(fold, NOW_MS + FRESH_MS).skew == 0, "nobody is there"


def test_a_worker_that_stopped_or_fell_silent_serves_nothing() -> None:
    told = [status("a", 5), status("b", 5), replace(status("b", 5), state="stopped"), status("c", 4)]
    told += [replace(status("d", 3), updated_ms=NOW_MS - FRESH_MS)]
    told += [replace(status("e", 3), updated_ms=NOW_MS + FRESH_MS)]
    assert versions_by_worker(told, "solver", NOW_MS) == {"a": 5, "c": 4}


def test_a_status_that_comes_again_counts_once_and_old_ones_are_forgotten() -> None:
    fold = MadeLedger(RECIPE)
    for version in range(2 * MEDIAN_VERSIONS):
        for _ in range(3):
            fold.say(status("a", version, fetch_s=float(version)))
    assert figures(fold).fetch_s == MEDIAN_VERSIONS + (MEDIAN_VERSIONS - 1) / 2
