"""A run over two regions, 300 ms apart, on one machine: deaths on the way, a long cut, a region lost for good."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from benchmarks.far_machine import FarMachine
from benchmarks.shaped_link import ShapedLink
from command import headrace, words_of
from test_faults import children, started, until

RECIPE = Path(__file__).parents[2] / "examples" / "two-regions.toml"
STEPS = 115
CUT_S = 120.0

pytestmark = pytest.mark.regions


@dataclass(frozen=True)
class Watched:
    """A run with a region, while it goes on."""

    data: Path
    output: Path
    up: subprocess.Popen[bytes]
    link: ShapedLink

    @property
    def version(self) -> int:
        return self._find_newest(r"version (\d+)/", self.output)

    @property
    def relayed(self) -> int:
        """The newest version in the region."""
        return self._find_newest(r'"version": (\d+), "copied_bytes"', self.data / "logs" / "relay-west.log")

    @property
    def from_region(self) -> int:
        """How many groups of the region were trained; `status` brings the ledger up to date."""
        assert headrace("status", "--data", self.data, "--json").returncode == 0
        with closing(sqlite3.connect(f"file:{self.data / 'ledger.sqlite'}?mode=ro", uri=True)) as ledger:
            [(count,)] = ledger.execute("SELECT count(*) FROM trained WHERE stream = 'sums.west'")
        return int(count)

    @staticmethod
    def _find_newest(pattern: str, log: Path) -> int:
        return max((int(found) for found in re.findall(pattern, log.read_text())), default=-1)

    def kill(self, part: str) -> None:
        """Kill the processes of a part of the run; `up` starts it again."""
        found = [child for child in children(self.up.pid) if part in words_of(child)]
        assert found, part
        for child in found:
            os.kill(child.pid, signal.SIGKILL)

    def end(self) -> dict[str, Any]:
        """Await the end of the run; return what the audit says."""
        assert self.up.wait(600) == 0, self.output.read_text()
        audit = headrace("audit", "--data", self.data, "--json")
        assert audit.returncode == 0, audit.stdout + audit.stderr
        found: dict[str, Any] = json.loads(audit.stdout)
        assert (found["lost"], found["doubled"], found["groups"]["in_flight"]) == (0, 0, 0)
        return found


@contextmanager
def run_with_region(folder: Path, monkeypatch: pytest.MonkeyPatch, *settings: str) -> Iterator[Watched]:
    """Start a run with a worker at home and one in the region; groups of both are trained on when this returns."""
    data, output = folder / "data", folder / "up.txt"
    with ExitStack() as stack:
        link = stack.enter_context(ShapedLink())
        west = stack.enter_context(FarMachine(folder / "west", link))
        for name, key in west.keys.items():
            monkeypatch.setenv(name, key)
        sets = [word for one in (*settings, *west.list_settings("west")) for word in ("--set", one)]
        up = stack.enter_context(started(output, "up", RECIPE, "--plain", "--data", data, *sets))
        run = Watched(data, output, up, link)
        until(lambda: run.version >= 1, "versions are made")
        west.start_worker("two-regions", "west", "sums", "west-0")
        until(lambda: run.from_region > 0, "the region's groups are trained on")
        yield run


def test_a_region_whose_mirror_and_relay_die_and_which_is_cut_off_catches_up_and_the_audit_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = (f"trainer.steps={STEPS}", "trainer.max_staleness=2", "feed.solved_share=1")
    with run_with_region(tmp_path, monkeypatch, *settings) as run:
        home = f"kafka://{json.loads((run.data / 'run.json').read_text())['bootstrap']}/two-regions"
        words = ("mirror", "--run", home, "--region", "west", "--folder", tmp_path / "second")
        with started(tmp_path / "second.txt", *words):
            run.kill("relay")
            run.kill("mirror")
            before, newest = run.from_region, run.version
            until(lambda: run.relayed > newest, "the relay goes on")
            until(lambda: run.from_region > before, "the mirror goes on, beside a second one")
        with run.link.cut_off():
            cut_at = run.version
            time.sleep(CUT_S)
            assert run.version > cut_at + 5, "the home goes on alone"
            newest, before = run.version, run.from_region
        until(lambda: run.relayed > newest, "the region has newer weights than before the end of the cut")
        until(lambda: run.from_region > before, "and its groups are trained on again")
        run.end()


def test_the_open_tasks_of_a_region_that_is_lost_for_good_are_played_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("trainer.steps=60", "regions.west.lost_after_s=10")
    with run_with_region(tmp_path, monkeypatch, *settings) as run, run.link.cut_off():
        run.end()
