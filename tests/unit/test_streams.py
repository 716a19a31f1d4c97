"""A command's standard output: what cannot be encoded, and a reader that goes away."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.app.cli import main as cli
from headrace.app.cli.options import NoVerdict, exit_without_verdict_on_error, open_console
from headrace.infra import log
from headrace.ops import opened_run
from headrace.ops.opened_run import OpenedRun

LONG_WORK = """
import sys
from headrace.app.cli.options import open_console

console = open_console(outlives_reader=True)
for turn in range(200):
    console.print(f"turn {turn} " + "x" * 200)
print("done", file=sys.stderr)
"""


COMMANDS = {
    "up": ("headrace.app.launcher.launcher", "up", "arithmetic"),
    "servers": ("headrace.app.launcher.standing_servers", "run_servers_until_signal", ""),
    "compare": ("headrace.ops.compare.sweep", "play", "efficient-data"),
}
STAND_IN = """
import importlib, sys
from headrace.app.cli.main import main

def work(*given):
    for write in given:
        write = getattr(write, "print", write)
        if callable(write):
            for _ in range(200):
                write("\\u2212 " + "x" * 200)
    raise SystemExit(7)

where, name, *words = sys.argv[1:]
setattr(importlib.import_module(where), name, work)
main([word for word in words if word])
"""


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("streams", [">/dev/full 2>/dev/full", ">&- 2>&-", "2>&1 | head -n 1"])
def test_no_end_of_a_reader_ends_what_runs_for_days(command: str, streams: str, tmp_path: Path) -> None:
    where, name, word = COMMANDS[command]
    (tmp_path / "work.py").write_text(STAND_IN)
    words = f"set -o pipefail; {sys.executable} work.py {where} {name} {command} {word} {streams}"
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(["bash", "-c", words], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stdout


WATCHING = """
import sys, time
from contextlib import nullcontext
from types import SimpleNamespace
from headrace.app.cli.main import main
from headrace.app.launcher import watch
from headrace.ops import opened_run

def follow(_run, console, _say, **_):
    for turn in range(int(sys.argv[1])):
        console.print(f"turn {turn}")
        time.sleep(0.01)
    time.sleep(0.3)  # by now head has gone
    return "steps"

run = SimpleNamespace(address="kafka://k:1/demo")
opened_run.open_run = lambda *_: nullcontext(SimpleNamespace(rests=False, run=run, began_ms=0, ledger=None))
watch.watch = follow
main(["watch"])
"""


@pytest.mark.parametrize("turns", [1, 50])
def test_who_watches_through_head_is_told_of_no_loss_and_the_end_of_a_run_names_its_address(
    turns: int, tmp_path: Path
) -> None:
    (tmp_path / "work.py").write_text(WATCHING)
    for reader in ("(head -n 1; exec <&-; sleep 1)", "cat"):
        words = f"set -o pipefail; {sys.executable} work.py {turns} | {reader}"
        done = subprocess.run(["bash", "-c", words], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    ended = (
        "headrace: the run has ended (steps): see `headrace status --run kafka://k:1/demo` and `headrace audit --run "
    )
    assert ended + "kafka://k:1/demo`" in done.stdout


@dataclass(frozen=True)
class Verdict:
    """What an audit found, as far as the command looks at it."""

    ok: bool
    problems: tuple[str, ...] = ()


@contextmanager
def output_that_nobody_reads() -> Iterator[None]:
    here, there = os.pipe()
    os.close(here)
    with open(there, "w", encoding="utf-8") as stream, redirect_stdout(stream):  # noqa: PTH123 - of a descriptor
        yield


@pytest.mark.parametrize("words", [(), ("--json",)])
@pytest.mark.parametrize(
    ("found", "code"), [(Verdict(ok=True), 0), (Verdict(ok=False, problems=("1 lost",)), 1), (Verdict(ok=False), 3)]
)
def test_a_verdict_keeps_its_exit_code_when_nobody_reads_its_page(
    found: Verdict, code: int, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = cast("Any", SimpleNamespace())
    monkeypatch.setattr(log, "warn_in_sentences", lambda: None)
    monkeypatch.setattr(opened_run, "open_run", lambda *_, **__: nullcontext(OpenedRun(run, rests=True)))
    monkeypatch.setattr("headrace.ops.audit.report.report", lambda *_, **__: found)
    monkeypatch.setattr("headrace.app.views.tables.audit_table", lambda _: "page\n" * 200)
    with output_that_nobody_reads(), pytest.raises(SystemExit) as ended:
        cli.main(["audit", "--run", "kafka://k:1/demo", *words])
    assert ended.value.code == code


def test_every_line_after_the_reader_has_gone_is_dropped() -> None:
    console = open_console()
    with output_that_nobody_reads():
        for turn in range(3):
            console.print(f"line {turn}")


def test_a_connection_that_breaks_while_a_run_is_read_is_no_verdict() -> None:
    with pytest.raises(NoVerdict), exit_without_verdict_on_error():
        raise BrokenPipeError(32, "Broken pipe")


@pytest.mark.parametrize("streams", [">/dev/full", "2>/dev/full"])
def test_an_error_that_cannot_be_printed_keeps_its_exit_code(streams: str, tmp_path: Path) -> None:
    words = f"{sys.executable} -P -m headrace status --json --data nothing {streams}"
    done = subprocess.run(["bash", "-c", words], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)


@pytest.mark.parametrize("reader", ["head -n 1", "cat >/dev/full"])
def test_long_work_outlives_its_reader_and_ends_well(reader: str, tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(LONG_WORK)
    if "full" in reader:
        words = f"{sys.executable} work.py >/dev/full"
    else:
        words = f"set -o pipefail; {sys.executable} work.py | {reader}"
    done = subprocess.run(["bash", "-c", words], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.rstrip().endswith("done")
    assert "Traceback" not in done.stderr


def test_what_an_encoding_lacks_is_replaced() -> None:
    code = (
        "from headrace.app.cli.options import open_console; from headrace.app.cli.streams import *; "
        "replace_what_cannot_be_encoded(); open_console().print('a \\u2212 b')"
    )
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "a ? b\n", "")
