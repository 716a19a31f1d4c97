"""Whether every algorithm learns: `OMP_NUM_THREADS=1 python -m benchmarks.learning [--only NAME ...] [--json FILE]`.

A small policy answers a third of one-digit sums. It trains on its own answers, once for each algorithm and seed. All
algorithms of a seed have the same start, and each version gets new problems. The table shows the mean reward of the
last five versions: the mean over the seeds, and the lowest and highest seed.

Some algorithms claim to tolerate old data. These, and plain PPO, also train on groups that a version `--staleness`
older has played: once at the same learning rate, and once at a rate three times as high.

All of this takes two hours on two cores; `--only`, `--versions` and `--seeds` make it shorter.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.real_updates import Start, Training, make_start, versions
from headrace.infra.environment import LOG_LEVEL_VARIABLE
from headrace.infra.log import configure_logging
from headrace.infra.recipe.settings import TrainerSettings

LEARNING_RATE = 5e-4
STALE_RATES = (LEARNING_RATE, 3 * LEARNING_RATE)
LAST = 5
# `given` is none of them: the workflow that is played here has no baselines.
ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo, ppo": {},
    "grpo, ppo, kl k3": {"kl": {"use": "k3", "weight": 1e-2}},
    "grpo, ppo, dual clip": {"loss": {"use": "ppo", "dual_clip": 3.0}},
    "dr_grpo, constant": {"advantage": "dr_grpo", "aggregation": {"use": "constant", "length": 12}},
    "rloo": {"advantage": "rloo"},
    "maxrl": {"advantage": "maxrl"},
    "opo": {"advantage": "opo"},
    "pass_at_k": {"advantage": "pass_at_k"},
    "lite_ppo": {"advantage": "lite_ppo"},
    "reinforce_pp": {"advantage": "reinforce_pp"},
    "reinforce_pp_baseline": {"advantage": "reinforce_pp_baseline"},
    "gae, batch_norm": {"advantage": "gae", "batch_norm": True},
    "gpg": {"advantage": "gpg", "loss": "gpg"},
    "decoupled_ppo": {"loss": "decoupled_ppo"},
    "decoupled_ppo, interpolated": {"loss": {"use": "decoupled_ppo", "proximal": "interpolated"}},
    "m2po": {"loss": "m2po"},
    "m2po, mask": {"loss": {"use": "m2po", "variant": "mask"}},
    "gspo": {"loss": {"use": "gspo", "clip_low": 0.05, "clip_high": 0.07}},
    "gmpo": {"loss": "gmpo"},
    "cispo": {"loss": "cispo"},
    "sapo": {"loss": "sapo"},
    "dppo": {"loss": "dppo"},
    "ppo, tis": {"correction": ["tis"]},
    "ppo, icepop": {"correction": ["icepop"]},
    "ppo, rejection": {"correction": ["rejection"]},
    "ppo, kl k1 in the reward": {"kl": {"use": "k1", "weight": 1e-2, "place": "reward"}},
    "ppo, entropy": {"entropy": 1e-3},
    "ppo, mis, veto": {"correction": ["mis", "veto"]},
}
STALE = {name: ALGORITHMS[name] for name in ("grpo, ppo", "m2po", "decoupled_ppo", "ppo, tis", "cispo", "gspo")}


@dataclass(frozen=True, slots=True)
class Job:
    """One training."""

    name: str
    table: dict[str, Any]
    """Keys of `[trainer]`."""
    staleness: int
    rate: float
    seed: int
    versions: int


@dataclass(frozen=True, slots=True)
class Learnt:
    """What came of it."""

    job: Job
    start: float
    """Reward on held-out problems before."""
    rewards: tuple[float, ...]
    """Mean reward of each version's problems."""

    @property
    def end(self) -> float:
        """Mean reward of the last versions."""
        return sum(self.rewards[-LAST:]) / len(self.rewards[-LAST:])


@lru_cache
def start_of(seed: int) -> tuple[Start, Training]:
    """Return the start of a seed: the same bits in every process."""
    training = Training(
        hidden=64, layers=2, initializer_range=0.2, groups=32, reward_low=0.3, reward_high=0.4, seed=seed
    )
    return make_start(training, lambda _: None), training


def learn(job: Job) -> Learnt:
    """Train, in a process of its own."""
    os.environ[LOG_LEVEL_VARIABLE] = "error"
    configure_logging("learning")
    torch.set_num_threads(1)
    start, training = start_of(job.seed)
    settings = TrainerSettings.model_validate({"learning_rate": job.rate, "warmup_versions": 5} | job.table)
    made = versions(start, training, settings, staleness=job.staleness)
    return Learnt(job, start.reward, tuple(reward for _, reward in islice(made, 1, job.versions + 1)))


def show(console: Console, title: str, found: Sequence[Learnt]) -> None:
    """Print one table, the best first."""
    by_name: dict[str, list[Learnt]] = {}
    for one in found:
        by_name.setdefault(one.job.name, []).append(one)
    table = Table("algorithm", "start", "end", "lowest", "highest", "seeds", title=title)
    for name, ones in sorted(by_name.items(), key=lambda item: -_mean([one.end for one in item[1]])):
        ends = [one.end for one in ones]
        numbers = (_mean([one.start for one in ones]), _mean(ends), min(ends), max(ends))
        table.add_row(name, *(f"{number:.3f}" for number in numbers), str(len(ones)))
    console.print(table)


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


def main() -> None:
    """Train all, two at a time, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these algorithms, by their names in the table")
    parser.add_argument("--versions", type=int, default=60, help="versions of each training")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--staleness", type=int, default=4, help="age of the old data in versions; 0: no old data")
    parser.add_argument("--json", type=Path, help="also write the mean reward of each version to this file")
    asked = parser.parse_args()
    chosen = asked.only or list(ALGORITHMS)
    if unknown := [name for name in chosen if name not in ALGORITHMS]:
        parser.error(f"no algorithm {unknown[0]!r}: take one of {', '.join(map(repr, ALGORITHMS))}")
    kinds = [(name, ALGORITHMS[name], 0, LEARNING_RATE) for name in chosen]
    if asked.staleness:
        kinds += [
            (name, STALE[name], asked.staleness, rate) for rate in STALE_RATES for name in chosen if name in STALE
        ]
    jobs = [Job(*kind, seed, asked.versions) for seed in range(1, asked.seeds + 1) for kind in kinds]
    console, found = Console(), list[Learnt]()
    with ProcessPoolExecutor(max_workers=2) as pool:
        for done in as_completed([pool.submit(learn, job) for job in jobs]):
            found.append(one := done.result())
            old = f", {one.job.staleness} versions old, rate {one.job.rate:g}" if one.job.staleness else ""
            console.print(f"{one.job.name}{old}, seed {one.job.seed}: {one.start:.2f} → {one.end:.2f}", highlight=False)
    show(console, f"Reward after {asked.versions} versions", [one for one in found if not one.job.staleness])
    for rate in STALE_RATES:
        if stale_ones := [one for one in found if one.job.staleness and one.job.rate == rate]:
            show(console, f"The same on data {asked.staleness} versions old, at learning rate {rate:g}", stale_ones)
    if asked.json:
        asked.json.write_text(json.dumps([asdict(one) for one in found], indent=1))


if __name__ == "__main__":
    main()
