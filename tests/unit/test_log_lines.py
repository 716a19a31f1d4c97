"""The end of a log, as the message on a death quotes it."""

from __future__ import annotations

from pathlib import Path

from headrace.infra.process.log_lines import find_last_error, read_last_lines, read_lines

LEAKS = """nanobind: leaked 12 functions!
 - leaked function "add"
 - leaked function "sub"
 - ... skipped remainder
nanobind: leaked 3 types!
 - leaked type "headrace.Thing"
nanobind: this is likely caused by a reference counting issue in the binding code.
"""


def test_what_extensions_leak_at_the_exit_does_not_bury_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("starting\n\nerror: the disk is full\n" + LEAKS)
    assert read_last_lines(path, 2) == read_lines(path, 0) == ["starting", "error: the disk is full"]
    assert find_last_error(read_lines(path, 0)) == "the disk is full"

    path.write_text("starting\n" + LEAKS * 500)
    assert find_last_error(read_lines(path, 0)) == "starting"


def test_of_a_long_log_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rollout.log"
    path.write_text("of an earlier life\n" + "error: a judge is busy\n" * 100 + "error: the answer is missing\n")
    begin = len("of an earlier life\n")
    assert len(read_lines(path, begin)) == 101
    assert find_last_error(read_lines(path, begin, most_bytes=60)) == "the answer is missing"
