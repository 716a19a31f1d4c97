"""How the throughput of rollout workers grows with their number, and what memory they take: 1, 8 and 64 on one machine.

The scripted engine answers at a fixed pace and loads no model, so a worker's cost is that of Headrace and of Kafka's
client. A trainer runs, but its batch is so large that it does not train meanwhile.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from headrace.infra.kafka.clients import Connection
from headrace.infra.kafka.topic_reader import read_all
from headrace.schemas import codec
from headrace.schemas.records import WorkerStatus

RECIPE = """
name = "many"
[policies.solver]
alphabet = 'abcdefghijklmnopqrstuvwxyz0123456789+-*/%=?(),\\{} '
[policies.solver.model]
architecture = "qwen3"
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 1
num_attention_heads = 2
num_key_value_heads = 1
head_dim = 16
max_position_embeddings = 64
[workflows.sums]
env = { use = "scripted", levels = [0], tasks = 256 }
policies = { solver = "solver" }
[rollout]
group_size = 4
max_tokens = 12
concurrency = 8
engine = { use = "scripted", tokens = [10], difficulties = [0.0], seconds_per_token = 0.4 }
[trainer]
steps = 1
groups_per_batch = 16384
[evaluate]
every = 0
[kafka]
partitions = 4
task_partitions = 64
"""
GROUPS_PER_S = 8 / (4 * 10 * 0.4)
"""Of one worker that is never idle: 8 episodes at once, 4 in a group, each of 4 s."""
PATIENCE_S = 300.0


@dataclass(frozen=True, slots=True)
class Measured:
    """One number of workers."""

    workers: int
    groups_per_s: float
    of_possible: float
    """Share of what so many workers that are never idle would do."""
    memory_mb: float
    """Of all workers: proportional set size, in which shared pages are divided among their users."""
    cpu_share: float
    """CPU seconds of one worker in a second."""


def measure(workers: int, seconds: float, folder: Path) -> Measured:
    """Run so many workers for a while."""
    recipe, data = folder / "many.toml", folder / f"data-{workers}"
    recipe.write_text(RECIPE)
    words = ["up", str(recipe), "--plain", "--data", str(data), "--set", f"launch.workers={workers}"]
    with (folder / f"up-{workers}.txt").open("wb") as output:
        up = subprocess.Popen([sys.executable, "-m", "headrace", *words], stdout=output, stderr=output)
    try:
        notes = data / "run.json"
        wait(notes.exists, up, f"the run; see {output.name}")
        connection = Connection(json.loads(notes.read_text())["bootstrap"])

        def has_all() -> bool:
            found = read_statuses(connection)
            return len(found) == workers and all(one.state == "rolling" for one in found.values())

        wait(has_all, up, f"{workers} workers that roll; see {output.name}")
        time.sleep(8)  # the first groups are done, and the workers no longer in step
        before, processes = read_statuses(connection), find_workers(up.pid)
        cpu_s = sum(sum(one.cpu_times()[:2]) for one in processes)
        time.sleep(seconds)
        cpu_s = sum(sum(one.cpu_times()[:2]) for one in processes) - cpu_s
        memory = sum(one.memory_full_info().pss for one in processes)
        after = read_statuses(connection)
        rate = sum(
            (after[name].groups_done - one.groups_done) / max(1e-3, (after[name].updated_ms - one.updated_ms) / 1000)
            for name, one in before.items()
        )
    finally:
        up.send_signal(signal.SIGINT)
        up.wait(120)
    possible = GROUPS_PER_S * workers
    return Measured(workers, rate, rate / possible, memory / 1e6, cpu_s / seconds / workers)


def read_statuses(connection: Connection) -> dict[str, WorkerStatus]:
    """Return the newest status of each rollout worker."""
    found = {}
    for message in read_all(connection, ["many.workers"]):
        if not message.is_null:
            status = codec.decode(message.value, WorkerStatus)
            if status.workflow:
                found[status.worker] = status
    return found


def find_workers(up: int) -> list[psutil.Process]:
    """Return the processes of the workers of `headrace up`."""
    return [one for one in psutil.Process(up).children(recursive=True) if "rollout" in " ".join(one.cmdline()).split()]


def wait(condition: Callable[[], bool], up: subprocess.Popen[bytes], what: str) -> None:
    """Wait for a condition."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if up.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"not within {PATIENCE_S:.0f} s: {what}")
        time.sleep(0.5)


def show(console: Console, rows: list[Measured]) -> None:
    """Print the figures."""
    table = Table()
    for name in ("workers", "groups/s", "of what is possible", "memory of all", "CPU of one"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            str(row.workers),
            f"{row.groups_per_s:.2f}",
            f"{row.of_possible:.2f}",
            f"{row.memory_mb:.0f} MB",
            f"{row.cpu_share:.1%}",
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 8, 64], help="numbers of workers")
    parser.add_argument("--seconds", type=float, default=40, help="seconds that each number is watched")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="headrace-many-"))
    rows = [measure(workers, options.seconds, folder) for workers in options.workers]
    show(Console(), rows)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
