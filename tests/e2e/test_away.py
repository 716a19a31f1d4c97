"""A whole run whose servers go away, and one whose disk is full: it waits, says so, and ends with a closed audit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command import UNLEARNED, command
from tcp_proxy import TcpProxy

from headrace.infra.embedded.kafka_server import EmbeddedKafka
from headrace.infra.embedded.store_server import EmbeddedStore

STEPS = 6
PATIENCE_S = 500.0
DISK = "320m"
QUICK = (f"trainer.steps={STEPS}", "trainer.checkpoint_every=2", "trainer.groups_per_batch=8", "evaluate.every=0")


class Launched:
    """`headrace up` on a folder, as a process."""

    def __init__(self, folder: Path, *sets: str, **variables: str) -> None:
        self.data, self.summary, self.output = folder / "data", folder.parent / "summary.json", folder.parent / "up.txt"
        words = [word for change in (*QUICK, *sets) for word in ("--set", change)]
        up = command("up", "arithmetic", *UNLEARNED, *words, "--plain", "--data", self.data, "--summary", self.summary)
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                up, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **variables}
            )

    @property
    def version(self) -> int:
        """Newest version that the trainer's log names."""
        log = self.data / "logs" / "train-solver.log"
        trained = re.findall(r'"version": (\d+), "reward"', log.read_text()) if log.exists() else []
        return max(map(int, trained), default=0)

    @property
    def said(self) -> str:
        return self.output.read_text()

    def until(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.process.poll() is None, f"up ended before {what}: {self.said[-2000:]}"
            assert time.monotonic() < end, f"not in time: {what}: {self.said[-2000:]}"
            time.sleep(0.1)

    def ends_well(self) -> None:
        assert self.process.wait(PATIENCE_S) == 0, self.said[-2000:]
        told = json.loads(self.summary.read_text())
        assert told["versions"] == STEPS
        assert told["audit"]["ok"]
        assert told["groups"]["in_flight"] == 0


@contextmanager
def launched(folder: Path, *sets: str, **variables: str) -> Iterator[Launched]:
    run = Launched(folder, *sets, **variables)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.process.terminate()
            try:
                run.process.wait(120)
            except subprocess.TimeoutExpired:
                run.process.kill()
                run.process.wait()


def deaths(run: Launched) -> list[str]:
    """Return the lines of the launcher's log about children that died of something else than a server away."""
    log = (run.data / "logs" / "up.log").read_text()
    return [line for line in log.splitlines() if "child.died" in line and f'"exit_code": {os.EX_TEMPFAIL}' not in line]


@pytest.mark.faults
@pytest.mark.parametrize("away_s", [20, 60])
def test_a_run_goes_on_where_it_was_when_kafka_and_the_store_were_away(away_s: float, tmp_path: Path) -> None:
    with TcpProxy() as to_kafka, TcpProxy() as to_store:
        kafka = EmbeddedKafka(tmp_path / "kafka", config={"advertised.listeners": f"PLAINTEXT://{to_kafka.address}"})
        with kafka, EmbeddedStore(tmp_path / "store") as store:
            to_kafka.target, to_store.target = kafka.bootstrap, store.endpoint
            keys = store.address("headrace")
            with launched(
                tmp_path / "run",
                f'kafka.bootstrap="{to_kafka.address}"',
                f'store.endpoint="{to_store.address}"',
                HEADRACE_S3_ACCESS_KEY=keys.access_key,
                HEADRACE_S3_SECRET_KEY=keys.secret_key,
            ) as run:
                run.until(lambda: run.version >= 1, "the first version")
                with to_kafka.failing("cut"), to_store.failing("503"):
                    time.sleep(away_s)
                run.ends_well()
            assert not deaths(run), "a server that is away ends nobody"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)],
        check=False,
        capture_output=True,
        text=True,
    )
    if mounted.returncode != 0:
        why = f"no small disk can be mounted here, which needs root: {mounted.stderr.strip()}"
        pytest.fail(why) if os.environ.get("CI") == "true" else pytest.skip(why)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Leave not one byte; return the file to delete."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue
    return filler


@pytest.mark.faults
def test_a_run_on_a_full_disk_waits_and_goes_on_when_there_is_room(small_disk: Path) -> None:
    with launched(small_disk / "run") as run:
        run.until(lambda: run.version >= 1, "the first version")
        filler = fill(small_disk)
        run.until(lambda: "its disk is full" in run.said, "the full disk is told")
        at = run.version
        told = run.said.count("its disk is full")
        time.sleep(5)
        assert run.said.count("its disk is full") == told, "it is said once"
        filler.unlink()
        run.until(lambda: run.version > at, "the next version")
        run.ends_well()
