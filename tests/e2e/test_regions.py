"""A run over two regions on one machine, with 300 ms between them, and a cut of two minutes."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from pathlib import Path

import pytest
from benchmarks.far_machine import FarMachine
from benchmarks.shaped_link import ShapedLink
from command import headrace
from test_faults import started, until

RECIPE = Path(__file__).parents[2] / "examples" / "two-regions.toml"
STEPS = 450
CUT_S = 120.0


@pytest.mark.regions
def test_a_region_that_is_cut_off_keeps_nobody_waiting_catches_up_and_the_audit_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, output = tmp_path / "data", tmp_path / "up.txt"

    def find_newest(pattern: str, log: Path) -> int:
        return max((int(found) for found in re.findall(pattern, log.read_text())), default=-1)

    def version() -> int:
        return find_newest(r"version (\d+)/", output)

    def relayed() -> int:
        return find_newest(r'"version": (\d+), "copied_bytes"', data / "logs" / "relay-west.log")

    def trained() -> dict[str, int]:
        """Stream to the number of its groups that were trained; `status` brings the ledger up to date."""
        assert headrace("status", "--data", data, "--json").returncode == 0
        with sqlite3.connect(f"file:{data / 'ledger.sqlite'}?mode=ro", uri=True) as ledger:
            return dict(ledger.execute("SELECT stream, count(*) FROM trained GROUP BY 1"))

    with ShapedLink() as link, FarMachine(tmp_path / "west", link) as west:
        for name, key in west.keys.items():
            monkeypatch.setenv(name, key)
        sets = (f"trainer.steps={STEPS}", "trainer.max_staleness=2", *west.list_settings("west"))
        words = [word for one in sets for word in ("--set", one)]
        with started(output, "up", RECIPE, "--plain", "--data", data, *words) as up:
            west.start_worker("two-regions", "west", "sums", "west-0")
            until(lambda: version() >= 1, "versions are made")
            until(lambda: trained().get("sums.west", 0) > 0, "the region's groups are trained on")
            with link.cut_off():
                cut_at = version()
                time.sleep(CUT_S)
                assert version() > cut_at + 20, "the home goes on alone"
                newest, before = version(), trained()["sums.west"]
            until(lambda: relayed() > newest, "the region has newer weights than before the end of the cut")
            until(lambda: trained()["sums.west"] > before, "and its groups are trained on again")
            assert up.wait(600) == 0, output.read_text()

    audit = headrace("audit", "--data", data, "--json")
    assert audit.returncode == 0, audit.stdout + audit.stderr
    found = json.loads(audit.stdout)
    assert (found["lost"], found["doubled"], found["groups"]["in_flight"]) == (0, 0, 0)
