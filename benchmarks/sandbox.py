"""What a box costs: `python -m benchmarks.sandbox [--rounds N] [--json FILE]`.

Each round runs `python3 -I -S -c 'print(42)'` as a plain child process, in a box that is there, and in a new box that
is stopped after it (`whole`), and runs `true` in the same ways. The sides take turns. The figures are medians in ms, by
each program that makes boxes here; `over` is a command in a box minus the plain child process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from headrace.envs.sandbox.grading import grade_in_fresh_box
from headrace.envs.sandbox.kinds import try_backend
from headrace.envs.sandbox.namespace_box import NamespaceBox
from headrace.envs.sandbox.namespaces import PROGRAMS, find_python
from headrace.infra.errors import HeadraceError

ROUNDS = 40
COMMANDS = {"python": [find_python(), "-I", "-S", "-c", "print(42)"], "true": ["true"]}
EPISODES = 10


async def measure(backend: str, rounds: int, folder: Path) -> dict[str, float]:
    times: dict[str, list[float]] = {}
    async with NamespaceBox(backend=backend) as box:
        for _ in range(rounds):
            for name, command in COMMANDS.items():
                begin = time.perf_counter()
                subprocess.run(command, check=True, capture_output=True, env={}, cwd="/")  # noqa: ASYNC221 - measured
                between = time.perf_counter()
                result = await box.exec(command)
                end = time.perf_counter()
                assert result.return_code == 0, result.stderr  # noqa: S101 - a benchmark of nothing
                times.setdefault(f"plain {name}", []).append(between - begin)
                times.setdefault(f"exec {name}", []).append(end - between)
                times.setdefault(f"over {name}", []).append(end - between - (between - begin))
                times.setdefault(f"whole {name}", []).append(await run_whole(backend, command))
    for _ in range(EPISODES if rounds >= EPISODES else 1):
        times.setdefault("episode", []).append(await run_episode(backend, folder))
    return {name: round(statistics.median(seconds) * 1000, 2) for name, seconds in times.items()}


async def run_whole(backend: str, command: Sequence[str]) -> float:
    """Return the seconds of a box that is made for one command."""
    begin = time.perf_counter()
    async with NamespaceBox(backend=backend) as box:
        await box.exec(command)
    return time.perf_counter() - begin


async def run_episode(backend: str, folder: Path) -> float:
    """Return the seconds of an episode: a box, two commands, and a grade in a box of its own."""
    begin = time.perf_counter()
    async with NamespaceBox(backend=backend, folders=["/app"]) as box:
        await box.exec("ls /app")
        await box.exec("echo 42 > /app/answer")
        graded = await grade_in_fresh_box(box, results=["/app"], tests=folder)
    assert graded.logs, graded  # noqa: S101 - a benchmark of nothing
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        Path(name, "test.sh").write_text("cp /app/answer /logs/reward\n")
        for backend in PROGRAMS:
            try:
                try_backend(backend)
            except HeadraceError as error:
                print(f"{backend}: {error}")
                continue
            figures[backend] = asyncio.run(measure(backend, options.rounds, Path(name)))
            print(backend, *(f"{what} {ms:.1f} ms" for what, ms in figures[backend].items()), sep="\n  ")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
