"""The end of a log, as the message on a death quotes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.infra.own_frames import find_own_location
from headrace.infra.process.log_lines import find_last_error, read_last_lines, read_lines

LEAKS = """nanobind: leaked 12 functions!
 - leaked function "add"
 - leaked function "sub"
 - ... skipped remainder
nanobind: leaked 3 types!
 - leaked type "headrace.Thing"
nanobind: this is likely caused by a reference counting issue in the binding code.
See https://nanobind.readthedocs.io/en/latest/refleaks.html
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


LOGGED = '{{"component": "rollout", "event": "{}", "level": "{}", {}}}\n'
STUCK = LOGGED.format("worker.stuck", "error", '"silent_s": 60.0, "remedy": "the event loop was blocked"')
EVENT = LOGGED.format("weights.loaded", "info", '"version": 3')
TRACE = r"Traceback (most recent call last):\n  File \"/my/shop.py\", line 7, in till\n    x\nValueError: no till"
RAISED = LOGGED.format("engine.crashed", "error", f'"exception": "{TRACE}"')
STACKS = """Thread 0x00007f (most recent call first):
  File "/my/tools.py", line 9 in idle

Thread 0x00007f (most recent call first):
  File "/my/shop.py", line 50 in till
  File "/my/shop.py", line 70 in play
  File "<string>", line 1 in <module>
"""
GROUP = """  + Exception Group Traceback (most recent call last):
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/my/shop.py", line 7, in till
    | ValueError: no till
    +------------------------------------
"""


@pytest.mark.parametrize(
    ("said", "sentence", "at"),
    [
        (EVENT, "", ""),
        ("Killed by the system\n" + EVENT, "Killed by the system", ""),
        (EVENT + RAISED + EVENT, "ValueError: no till", "/my/shop.py:7 in till"),
        (EVENT + STUCK + STACKS, "the event loop was blocked", "/my/shop.py:50 in till"),
        (EVENT + GROUP, "ValueError: no till", "/my/shop.py:7 in till"),
        (STUCK[:60], "", ""),
        ("error: recipe x is not valid:\n  trainer.steps is 0\n", "recipe x is not valid: trainer.steps is 0", ""),
        (
            "  what():  CUDA error: assert\nException raised from f at b.cpp:1 (most recent call first):\n",
            "what():",
            "",
        ),
        ("Fatal Python error: Segmentation fault\n\n" + STACKS, "Fatal Python error: Segmentation fault", "shop.py:50"),
    ],
)
def test_the_last_error_is_a_sentence_with_the_line_of_the_users_code(
    said: str, sentence: str, at: str, tmp_path: Path
) -> None:
    (tmp_path / "rollout.log").write_text(said + LEAKS)
    lines = read_lines(tmp_path / "rollout.log", 0)
    assert find_last_error(lines).startswith(sentence)
    assert bool(find_last_error(lines)) is bool(sentence)
    assert at in (found := find_own_location(lines))
    assert bool(found) is bool(at)
