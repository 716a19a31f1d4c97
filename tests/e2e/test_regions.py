"""A run over two regions on one machine, one of which is cut off for a while."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
from pathlib import Path

import pytest
from command import headrace
from test_faults import started, until

RECIPE = Path(__file__).parents[2] / "examples" / "two-regions.toml"
STEPS = 60


@pytest.mark.regions
def test_a_region_that_is_cut_off_keeps_nobody_waiting_catches_up_and_the_audit_closes(tmp_path: Path) -> None:
    data, output = tmp_path / "data", tmp_path / "up.txt"

    def version() -> int:
        return max((int(found) for found in re.findall(r"version (\d+)/", output.read_text())), default=-1)

    def trained() -> dict[str, int]:
        """Stream to the number of its groups that were trained; `status` brings the ledger up to date."""
        assert headrace("status", "--data", data, "--json").returncode == 0
        with sqlite3.connect(f"file:{data / 'ledger.sqlite'}?mode=ro", uri=True) as ledger:
            return dict(ledger.execute("SELECT stream, count(*) FROM trained GROUP BY 1"))

    def relayed() -> int:
        log = (data / "logs" / "relay-west.log").read_text()
        return max((int(found) for found in re.findall(r'"version": (\d+), "copied_bytes"', log)), default=-1)

    with started(output, "up", RECIPE, "--plain", "--data", data, "--set", f"trainer.steps={STEPS}") as up:
        until(lambda: version() >= 1, "versions are made")
        until(lambda: trained().get("sums.west", 0) > 0, "the region's groups are trained on")
        broker = json.loads((data / "regions" / "west" / "kafka" / "server.json").read_text())["pid"]
        os.kill(broker, signal.SIGSTOP)
        cut_at = version()
        try:
            until(lambda: version() >= cut_at + 8, "the home goes on alone")
        finally:
            os.kill(broker, signal.SIGCONT)
        before = trained()["sums.west"]
        until(lambda: relayed() > cut_at + 8, "the region has newer weights than before the cut")
        until(lambda: trained()["sums.west"] > before, "and its groups are trained on again")
        assert up.wait(600) == 0, output.read_text()

    audit = headrace("audit", "--data", data, "--json")
    assert audit.returncode == 0, audit.stdout + audit.stderr
    found = json.loads(audit.stdout)
    assert (found["lost"], found["doubled"], found["groups"]["in_flight"]) == (0, 0, 0)
