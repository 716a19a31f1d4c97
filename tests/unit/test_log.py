"""A process goes on when its log cannot be written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FULL = Path("/dev/full")
TALKS = """
import structlog
from infra.log import configure_logging
configure_logging("test")
for n in range(10_000):
    structlog.get_logger().info("something.happened", n=n)
print("went on")
"""


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
def test_a_full_disk_costs_the_log_and_not_the_process() -> None:
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", TALKS], stdout=subprocess.PIPE, stderr=full, check=False, text=True
        )

    assert (done.returncode, done.stdout) == (0, "went on\n")
