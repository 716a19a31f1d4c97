"""How long starts take: `python -m benchmarks.start [--rounds N] [--json FILE]`.

The first part measures the wall time of `headrace up arithmetic` in a new folder, until its version 1: the best round,
and all rounds. On the side `forked`, all components are forked from one process that has imported what they need. On
the side `spawned`, each component is started as a process of its own. The sides take turns. The first round of each is
not counted, because it fills the caches: the warm start's weights and the page cache.

The second part measures the CPU seconds of commands: `headrace --help`, and `headrace status` while a run goes on. They
are compared with a Python that does nothing (`python`).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

ROUNDS = 3
SIDES = {"forked": (), "spawned": ("--set", "launch.fork=false")}
HEADRACE = (sys.executable, "-P", "-m", "headrace")
WITHIN_S = 180.0
LOOK_EVERY_S = 0.05


class NoVersion(Exception):
    """A run trained no version in time."""


@contextmanager
def up(data: Path, words: Sequence[str]) -> Iterator[float]:
    """Yield how many seconds a run took to its version 1; it goes on until the block is left."""
    begin = time.perf_counter()
    command = [*HEADRACE, "up", "arithmetic", "--plain", "--data", str(data), *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        try:
            yield _version_one(data / "logs" / "train-solver.log", run, begin)
        finally:
            run.send_signal(signal.SIGINT)


def _version_one(log: Path, run: subprocess.Popen[bytes], begin: float) -> float:
    while (seconds := time.perf_counter() - begin) < WITHIN_S and run.poll() is None:
        if log.exists() and '"version.trained"' in log.read_text():
            return seconds
        time.sleep(LOOK_EVERY_S)
    raise NoVersion(f"no version 1 after {seconds:.0f} s: run `headrace up arithmetic` by hand to see why")


def cpu_of(*command: str) -> float:
    """Return the CPU seconds of a command, its children's included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    starts: dict[str, list[float]] = {side: [] for side in SIDES}
    commands: dict[str, list[float]] = {"python": [], "help": [], "status": []}
    for number in range(rounds + 1):
        for side, words in SIDES.items():
            data = folder / f"{side}-{number}"
            with up(data, words) as seconds:
                starts[side].append(seconds)
                if side == "forked":
                    commands["python"].append(cpu_of(sys.executable, "-c", "pass"))
                    commands["help"].append(cpu_of(*HEADRACE, "--help"))
                    commands["status"].append(cpu_of(*HEADRACE, "status", "--data", str(data)))
    warm = {side: some[1:] or some for side, some in starts.items()}
    best = {side: round(min(some), 1) for side, some in warm.items()}
    return {
        "s_to_version_1": best,
        "all_s": {side: [round(one, 1) for one in some] for side, some in starts.items()},
        "forked_of_spawned": round(best["forked"] / best["spawned"], 2),
        "cpu_s": {command: round(min(some), 2) for command, some in commands.items()},
        "cores": os.cpu_count(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds that count, after one that fills the caches")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-start-") as folder:
        figures = measure(Path(folder), arguments.rounds)
    Console().print_json(data=figures)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
