"""Runs a recipe on one of the sides, in processes of its own, and returns what came of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.commands import end
from headrace.infra.process.child_process import build_child_environment
from headrace.infra.process.log_lines import read_last_lines
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.ops.compare.run_result import AuditResult, read_result
from headrace.ops.discards import RUN_END
from headrace.ops.figures.summary import AUDIT_OPEN, NO_VERDICT

HEADRACE, BARRIER, ONE_OFF = "headrace", "barrier", "one-step-off"
ROOT = Path(__file__).parents[2]
LAST_LINES = 8
NO_LOG = "no log"
"""In place of the audit's verdict on a side without one."""
CLOSES = "closes"


class RunFailed(Exception):
    """A run did not end well, or in time; the message ends with its last words."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a run."""

    versions_per_s: float
    """Mean over policies, in the steady state."""
    samples_per_s: float
    """Trained episodes of all policies."""
    held_out: Mapping[str, Sequence[tuple[float, float]]]
    """Policy to (version, held-out reward)."""
    audit: str
    """`closes`, `no log`, or what the audit found."""
    discarded: float = 0.0
    """Share of the groups that were not trained on; those that the end of the run left over do not count."""
    play_s: float = 0.0
    """Mean seconds of a batch's play, with a barrier."""
    train_s: float = 0.0
    """Mean seconds of a version's training, with a barrier."""


def run_side(side: str, recipe: Path, folder: Path, limit_s: float) -> Result:
    """Run a recipe on a side. Raises RunFailed."""
    found, out = folder / "figures.json", folder / "output.txt"
    if side == HEADRACE:
        words = ("-m", "headrace", "up", str(recipe), "--plain", "--data", str(folder / "data"), "--summary")
        command = [sys.executable, "-P", *words, str(found)]
    else:
        command = [sys.executable, "-m", "benchmarks.asynchrony.barrier_loop", str(recipe), str(found)]
        command += ["--off"] if side == ONE_OFF else []
    _run(command, out, limit_s)
    if not found.exists():
        raise RunFailed(f"side {side} wrote no figures: {_end_of(out)}")
    return read_headrace(found, recipe) if side == HEADRACE else read_barrier(found)


def read_headrace(file: Path, recipe_file: Path) -> Result:
    """Return the figures of a run of `headrace up` from its summary. Raises RunFailed if an episode failed."""
    found, recipe = read_result(file.read_bytes()), load_recipe(str(recipe_file))
    if errors := found.summary.get("errors"):
        raise RunFailed(f"episodes of the run failed, so its groups were not whole: {errors[0]}")
    made = {name: [(version, at_s) for version, _, at_s in one.progress] for name, one in found.policies.items()}
    skipped = recipe.trainer.max_staleness + 2  # until then the windows fill
    trained = sum(one.groups.trained for one in found.policies.values())
    lost = sum(
        count for one in found.policies.values() for reason, count in one.groups.discarded.items() if reason != RUN_END
    )
    rates = [find_rate(some, skipped) for some in made.values()]
    return Result(
        versions_per_s=fmean(rates),
        samples_per_s=sum(rates) * recipe.trainer.groups_per_batch * recipe.rollout.group_size,
        held_out={name: one.eval_curve for name, one in found.policies.items()},
        audit=_describe_audit(found.audit, found.summary),
        discarded=lost / max(1, trained + lost),
    )


def read_barrier(file: Path) -> Result:
    """Return the figures of a barrier loop. Raises RunFailed if an episode failed."""
    found = json.loads(file.read_bytes())
    if found["failed"]:
        raise RunFailed(f"{found['failed']} episodes of the barrier loop failed, so its batches were not whole")
    rate = find_rate([(one["version"], one["at_s"]) for one in found["made"]], 1)
    return Result(
        versions_per_s=rate,
        samples_per_s=rate * found["samples"] / len(found["made"]),
        held_out={policy: [tuple(point) for point in curve] for policy, curve in found["held_out"].items()},
        audit=NO_LOG,
        play_s=fmean(one["play_s"] for one in found["made"]),
        train_s=fmean(one["train_s"] for one in found["made"]),
    )


def find_rate(made: Sequence[tuple[float, float]], skipped: int) -> float:
    """Return versions per second in the steady state, without the first `skipped` versions, or half of all.

    Args:
        made: (version, seconds) of each version, in order.
        skipped: Versions until the steady state.

    Raises RunFailed for fewer than two versions.
    """
    trained = [point for point in made if point[0] > 0]
    if len(trained) < 2:
        raise RunFailed(f"the run made {len(trained)} versions, too few for a rate: give it more minutes")
    first, last = trained[min(skipped, len(trained) // 2 - 1)], trained[-1]
    return (last[0] - first[0]) / (last[1] - first[1])


def _describe_audit(audit: AuditResult | None, summary: Mapping[str, Any]) -> str:
    if audit is None:
        return "no verdict"
    problems = summary["audit"].get("problems") or [f"{audit.lost} groups lost, {audit.doubled} doubled"]
    return CLOSES if audit.ok else f"does not close: {problems[0]}"


def _run(command: Sequence[str], out: Path, limit_s: float) -> None:
    """Run a command to its end. Raises RunFailed."""
    environment = build_child_environment(os.environ, torch_processes=os.cpu_count() or 1)
    with (
        out.open("wb") as file,
        subprocess.Popen(command, stdout=file, stderr=file, cwd=ROOT, env=environment) as process,
    ):
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise RunFailed(f"the run took longer than {limit_s:g} s: {_end_of(out)}") from None
        finally:
            end(process)
    if code not in (0, AUDIT_OPEN, NO_VERDICT):
        raise RunFailed(f"the run ended with exit code {code}: {_end_of(out)}")


def _end_of(out: Path) -> str:
    return "\n".join(read_last_lines(out, LAST_LINES))
