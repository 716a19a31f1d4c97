"""A process goes on when its log cannot be written; what commands that answer warn of is for people."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.infra.log import BestEffortStream, render_sentence

FULL = Path("/dev/full")
TALKS = """
import structlog
from headrace.infra.log import configure_logging
configure_logging("test")
for n in range(10_000):
    structlog.get_logger().info("something.happened", n=n)
print("went on")
"""


BINDS = """
import structlog, threading
from headrace.infra.log import bind_to_log, configure_logging
configure_logging("curate")
log = structlog.get_logger()
log.info("process.stopping")
bind_to_log(policy="solver")
thread = threading.Thread(target=lambda: log.info("run.over"))
thread.start()
thread.join()
"""


def test_what_is_known_later_is_on_every_further_line_and_on_none_before() -> None:
    done = subprocess.run([sys.executable, "-c", BINDS], capture_output=True, check=True, text=True)

    before, after = map(json.loads, done.stderr.splitlines())
    assert (before["component"], after["component"]) == ("curate", "curate")
    assert "policy" not in before, "an empty name is none"
    assert after["policy"] == "solver"


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
def test_a_full_disk_costs_the_log_and_not_the_process() -> None:
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", TALKS], stdout=subprocess.PIPE, stderr=full, check=False, text=True
        )

    assert (done.returncode, done.stdout) == (0, "went on\n")


def test_a_stream_that_was_closed_costs_the_log_and_not_the_process() -> None:
    closed = io.StringIO()
    closed.close()

    BestEffortStream(closed).write("nobody reads this")
    BestEffortStream(closed).flush()


def test_a_warning_of_a_command_that_answers_is_a_sentence() -> None:
    killed = {
        "event": "server.killed",
        "level": "warning",
        "server": "broker",
        "why": "the broker did not stop within 30 s",
    }

    assert (
        render_sentence(None, "", killed)
        == "warning: server killed: the broker did not stop within 30 s (server=broker)"
    )
    assert render_sentence(None, "", {"event": "run.over"}) == "warning: run over"
