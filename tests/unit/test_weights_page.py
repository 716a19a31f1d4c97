"""What `headrace weights` shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from drawn_page import drawn

from headrace.app.views.weights_page import describe_weights, weights_page
from headrace.ops.figures.weights_figures import WeightsFigures
from headrace.ops.figures.weights_history import Join, VersionWeights, WeightsHistory


def version(number: int, kind: str, base: int, size: int, **more: Any) -> VersionWeights:
    usual: dict[str, Any] = {
        "epoch": 0, "full_bytes": 0, "density": None, "encode_s": None, "upload_s": None, "workers": 0,
        "fetch_s": None, "verify_s": None, "apply_s": None, "pause_s": None, "weights_hash": "", "created_ms": 0,
        "retired": number == 1, "ratio": None,
    }  # fmt: skip
    return VersionWeights(version=number, kind=kind, base_version=base, bytes=size, **usual | more)


HISTORY = WeightsHistory(
    run="r",
    policy="p",
    versions=(
        version(0, "anchor", -1, 2_000_000, ratio=1.0, density=1.0, encode_s=0.01, upload_s=0.5),
        version(
            1, "delta", 0, 14_000, ratio=142.9, density=0.0104, encode_s=0.02, upload_s=0.1,
            workers=2, fetch_s=1.25, verify_s=0.012, apply_s=0.0034, pause_s=0.0,
        ),
        version(3, "delta", 1, 900, full_bytes=2_000_000),
    ),
    left_out=(2,),
    bytes={"anchor": 2_000_000, "delta": 14_900, "whole": 0},
    join=Join(3, 2_014_900),
    served={"a": 3, "b": 1},
)  # fmt: skip


def shown(**changes: Any) -> str:
    return drawn(weights_page(replace(HISTORY, **changes)))


def test_every_version_has_a_line_that_fits_eighty_columns() -> None:
    lines = shown().splitlines()
    assert max(map(len, lines)) <= 80
    (first,) = [line.split() for line in lines if line.split()[:2] == ["1", "delta"]]
    assert first == ["1", "delta", "on", "0", "14.0", "kB", "142.9", "1.04%", "0.02", "s", "0.10", "s"]
    assert "whole" in shown()


def test_what_workers_told_of_a_version_has_a_line() -> None:
    (line,) = [line.split() for line in shown().splitlines() if line.split()[:2] == ["1", "2"]]
    assert line == ["1", "2", "1.2", "s", "12", "ms", "3.4", "ms", "0.0", "ms"]
    assert "median times of the workers" not in shown(versions=())


def test_a_policys_figures_are_one_line() -> None:
    figures = WeightsFigures(published=3, ratio=142.4, density=0.0104, encode_s=0.02, fetch_s=1.5, behind=2, skew=1)
    assert describe_weights(figures) == (
        "3 published, deltas 1/142 of the whole, 1.04% changed, encode 20 ms, fetch 1.5 s, "
        "the slowest worker is 2 versions behind, workers 1 version apart (at most 0 so far)"
    )


def test_what_was_left_out_and_who_is_behind_is_said() -> None:
    said = shown()
    assert "1 version, made while the previous version was being published" in said
    assert "b version 1, 2 behind" in said
    assert "2.0 MB whole, 14.9 kB as deltas" in said
    assert "1 version by `headrace gc`, which deleted their objects" in said
    assert "left out" not in shown(left_out=())


def test_what_a_joiner_fetches_is_said() -> None:
    assert "to join   2.0 MB in 3 objects, 1.01 times the whole weights" in shown()
    assert "2.0 MB in 1 object, 1.00 times the whole weights" in shown(join=Join(1, 2_000_000))
    assert "the published objects do not lead to the" in shown(join=Join(0, 0))
