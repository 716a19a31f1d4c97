"""What scaling by the trainers' wait saves: `python -m benchmarks.autoscale [--minutes 15] [--folder DIR] [--json F]`.

One run, with one curve of load, is made several times: with fixed pools of 2, 4 and 8 workers, and with `headrace
autoscale` between 1 and 8. Episodes are light, then heavy, then light again, a third of the versions each. They are
played by the engine without a model, eight requests at a time, and a version keeps the trainer busy for 2 s, so that
two cores carry it all. With enough workers the run takes `--minutes`.

The figure is worker-seconds per version: seconds for which worker processes were there, from the first version to the
last. It is compared with the cheapest fixed pool whose wall time is within 3 % of the fastest one's. With `--folder`, a
side that was measured before is not measured again.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.commands import started
from headrace.schemas import codec
from headrace.schemas.records import ScalingDecision

AUTO = "auto"
SIDES = (AUTO, "2", "4", "8")
GOAL, WALL_WITHIN = 0.87, 0.03
STEP_S, BATCH, GROUP = 2.0, 8, 8
CALLS = 2
"""Of a loss in a step: for the totals of the minibatch, and for the gradient."""
MOST, FIRST = 8, 2
"""Most workers, and those that the autoscaler finds."""
PHASES = ("light", "heavy", "light")
TOKENS = {"light": 12, "heavy": 56}
"""Of an answer, each of which takes 25 ms: a heavy load needs about seven workers, a light one about two."""
LOOK_EVERY_S = 0.5
RECIPE = """
extends = "efficient-data/scripted"
name = "autoscale"
policies.solver.model.max_position_embeddings = 128
workflows.sums.env = {{ use = "scripted", levels = {levels}, tasks = 1 }}
rollout.engine = {{ use = "scripted", rate = 0, difficulties = [0, 0], tokens = {tokens}, seconds_per_token = 0.025 }}
rollout.concurrency = {group}
rollout.group_size = {group}
rollout.max_tokens = 64
curate.chain = ["validate"]
feed.solved_share = 1
trainer = {{ steps = {versions}, groups_per_batch = {batch}, max_staleness = 2, loss = "slow_loss:slow" }}
evaluate.every = 0
kafka.partitions = {most}
launch.workers = {workers}
"""
SLOW_LOSS = '''
"""A loss that takes as long as that of a large model."""

import time

import torch

from headrace.trainers.losses import TokenLoss, TrainedTokens


def slow(tokens: TrainedTokens) -> TokenLoss:
    time.sleep({seconds} * len(torch.unique(tokens.sequences)))
    return TokenLoss(-tokens.advantages * torch.exp(tokens.logprobs - tokens.behaviour_logprobs), {{}})
'''


class RunFailed(Exception):
    """A run of the benchmark did not end well."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One side."""

    side: str
    versions: int
    wall_s: float
    """From the first version to the last."""
    worker_s: float
    decisions: tuple[tuple[int, int, int], ...] = ()
    """Version, workers before and after."""
    reversals: tuple[int, ...] = ()
    """Changes of direction in each phase of the load."""

    @property
    def per_version(self) -> float:
        """Worker-seconds per version."""
        return self.worker_s / self.versions


# ------------------------------------------------------------------------------------------------------------- one side


def count_versions(minutes: float) -> int:
    """Return how many versions a run has, a multiple of the phases."""
    return max(2, round(minutes * 60 / STEP_S / len(PHASES))) * len(PHASES)


def write_recipe(folder: Path, versions: int, workers: int) -> Path:
    """Write the recipe and its loss; each problem of the environment is asked once, in order."""
    levels = [list(TOKENS).index(phase) for phase in PHASES for _ in range(versions * BATCH // len(PHASES))]
    text = RECIPE.format(
        levels=levels,
        tokens=list(TOKENS.values()),
        group=GROUP,
        versions=versions,
        batch=BATCH,
        most=MOST,
        workers=workers,
    )
    (folder / "slow_loss.py").write_text(SLOW_LOSS.format(seconds=STEP_S / BATCH / GROUP / CALLS))
    recipe = folder / "autoscale.toml"
    recipe.write_text(text)
    return recipe


def measure(side: str, minutes: float, folder: Path) -> Measured:
    """Make one run. Raises RunFailed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    versions, data = count_versions(minutes), folder / "data"
    recipe = write_recipe(folder, versions, FIRST if side == AUTO else int(side))
    samples: list[tuple[float, int]] = []
    autoscale = ("autoscale", "--data", str(data), "--max", str(MOST), "--every", "1")
    with started(folder / "up.txt", "up", str(recipe), "--plain", "--data", str(data)) as up, ExitStack() as stack:
        if side == AUTO:
            stack.enter_context(beside(folder, data, up, autoscale))
        while up.poll() is None:
            samples.append((time.time(), count_workers(up.pid)))
            time.sleep(LOOK_EVERY_S)
    if up.returncode:
        raise RunFailed(f"the run of side {side} ended with exit code {up.returncode}: see {folder / 'up.txt'}")
    return evaluate(side, samples, data / "ledger.sqlite", versions)


@contextmanager
def beside(folder: Path, data: Path, up: subprocess.Popen[bytes], words: Sequence[str]) -> Iterator[None]:
    """Run the autoscaler beside the block, as soon as the run has a folder."""
    while not (data / "run.json").exists() and up.poll() is None:
        time.sleep(LOOK_EVERY_S)
    with started(folder / "autoscale.txt", *words):
        yield


def count_workers(pid: int) -> int:
    """Return how many workers a `headrace up` has; the command line of a forked component is one text."""
    found = set()
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                found |= set(re.findall(r"--name (rollout-\S+)", " ".join(child.cmdline())))
    return len(found)


def evaluate(side: str, samples: Sequence[tuple[float, int]], ledger: Path, versions: int) -> Measured:
    """Return the figures of a run, from the ledger in its folder."""
    with sqlite3.connect(ledger) as rows:
        made = [at for (at,) in rows.execute("SELECT created_ms FROM batch WHERE version > 0 ORDER BY version")]
        values = [value for (value,) in rows.execute("SELECT value FROM scaling ORDER BY id")]
    begin_s, end_s = made[0] / 1000, made[-1] / 1000
    spans = (
        (min(after, end_s) - max(at, begin_s), count) for (at, count), (after, _) in pairwise([*samples, (end_s, 0)])
    )
    decisions = [codec.decode(value, ScalingDecision) for value in values]
    moves = tuple((one.version, one.before, one.after) for one in decisions)
    worker_s = sum(max(0.0, seconds) * count for seconds, count in spans)
    return Measured(side, len(made) - 1, end_s - begin_s, worker_s, moves, count_reversals(moves, versions))


def count_reversals(moves: Sequence[tuple[int, int, int]], versions: int) -> tuple[int, ...]:
    """Return the changes of direction in each phase of the load."""
    found = []
    for phase in range(len(PHASES)):
        rises = [after > before for version, before, after in moves if version * len(PHASES) // versions == phase]
        found.append(sum(one != other for one, other in pairwise(rises)))
    return tuple(found)


# ------------------------------------------------------------------------------------------------------------ all sides


def measure_sides(sides: Sequence[str], minutes: float, folder: Path, at_once: int) -> dict[str, Measured]:
    """Measure the sides that were not measured before, so many at once."""

    def find(side: str) -> Measured:
        path = folder / f"{side}-{minutes:g}.json"
        if not path.exists():
            one = measure(side, minutes, folder / side)
            path.write_text(json.dumps(asdict(one)))
            shutil.rmtree(folder / side / "data", ignore_errors=True)
        plain = json.loads(path.read_text())
        plain |= {"decisions": tuple(map(tuple, plain["decisions"])), "reversals": tuple(plain["reversals"])}
        return Measured(**plain)

    with ThreadPoolExecutor(at_once) as pool:
        return dict(zip(sides, pool.map(find, sides), strict=True))


def find_best_pool(found: Mapping[str, Measured]) -> Measured | None:
    """Return the cheapest fixed pool that is as fast as the fastest one; None if none was measured."""
    fixed = [one for side, one in found.items() if side != AUTO]
    fastest = min((one.wall_s for one in fixed), default=0.0)
    fast = [one for one in fixed if one.wall_s <= fastest * (1 + WALL_WITHIN)]
    return min(fast, key=lambda one: one.per_version, default=None)


def show(found: Mapping[str, Measured], console: Console) -> dict[str, float]:
    """Print the table; return the ratios to the best fixed pool."""
    table = Table("side", "versions", "wall s", "worker-seconds / version", "decisions", "reversals by phase")
    for side, one in found.items():
        decided = ", ".join(f"{before}→{after} at {version}" for version, before, after in one.decisions)
        words = ("-", "-") if side != AUTO else (decided or "none", " ".join(map(str, one.reversals)))
        table.add_row(side, str(one.versions), f"{one.wall_s:.0f}", f"{one.per_version:.2f}", *words)
    console.print(table)
    best, auto = find_best_pool(found), found.get(AUTO)
    if best is None or auto is None:
        return {}
    ratios = {"worker_seconds": auto.per_version / best.per_version, "wall": auto.wall_s / best.wall_s}
    goals = {"worker_seconds": GOAL, "wall": 1 + WALL_WITHIN}
    said = ", ".join(f"{name} {ratio:.3f} (goal: at most {goals[name]})" for name, ratio in ratios.items())
    console.print(f"against the best fixed pool, {best.side} workers: {said}")
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15.0, help="of a run that never waits for workers")
    parser.add_argument("--sides", default=",".join(SIDES), help="auto, or a number of workers, separated by commas")
    parser.add_argument("--at-once", type=int, default=1, help="sides that run beside each other: 2 need 2 cores")
    parser.add_argument("--folder", type=Path, help="keeps the sides that are measured; default: a temporary one")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (given.folder or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        found = measure_sides(given.sides.split(","), given.minutes, folder, given.at_once)
    ratios = show(found, Console())
    if given.json:
        sides = {side: {**asdict(one), "per_version": one.per_version} for side, one in found.items()}
        given.json.write_text(json.dumps({"minutes": given.minutes, "sides": sides, "ratios": ratios}, indent=1))


if __name__ == "__main__":
    main()
