"""`headrace compare`: what came of the variants of a sweep, means and intervals over seeds. Numbers in, numbers out.

An interval is the 95 % one of a mean by Student's t, over seeds: with few of them it is wide, with one there is none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import numpy as np

from headrace.ops.discards import RUN_END

GRID = 61
"""Places at which a curve against trajectories or time is told."""
DIGITS = 5
AXES = ("version", "trajectories", "seconds")
"""Of `progress` in a summary, and against what curves are told."""
CURVES = {"reward": "reward_curve", "held_out": "eval_curve"}
"""What is told as curves, and where a summary has it."""
AT_THE_END = {"reward": "reward_last", "held_out": "eval_last"}
"""What is told of a run's end, and where a summary has it."""
TRAILING = {"reward": 5}
"""Versions whose mean a point is, the version's own and those before it: few groups were played by a single one."""
Point = tuple[float, float]
Summary = Mapping[str, Any]


def compared(name: str, about: str, runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what `headrace compare --json` prints.

    Args:
        name: Of the sweep.
        about: One sentence for people.
        runs: Run to variant, seed, summary (None of a failed one) and, of a failed one, its last words.
    """
    variants: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs.values():
        variants.setdefault(run["variant"], []).append(run)
    first = next(iter(variants.values()), [])
    return {
        "sweep": name,
        "about": about,
        "variants": {variant: _variant(some, [] if some is first else first) for variant, some in variants.items()},
        "runs": {name: dict(run) for name, run in runs.items()},
    }


def _variant(runs: Sequence[Mapping[str, Any]], first: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    summaries: list[Summary] = [run["summary"] for run in runs if run["summary"] is not None]
    policies = dict.fromkeys(policy for summary in summaries for policy in summary["policies"])
    return {
        "runs": len(summaries),
        "failed": [run["seed"] for run in runs if run["summary"] is None],
        "wall_s": interval([summary["wall_s"] for summary in summaries]),
        "skipped": interval([sum(one["rejected"] for one in s["selection"].values()) for s in summaries]),
        "policies": {
            policy: {
                **_policy([s["policies"][policy] for s in summaries if policy in s["policies"]]),
                "over_first": {
                    what: interval(_differences(runs, first, policy, key)) for what, key in AT_THE_END.items()
                },
            }
            for policy in policies
        },
    }


def _policy(blocks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    groups = [block["groups"] for block in blocks]
    reasons = sorted({reason for one in groups for reason in one["discarded"]})
    lengths = [block["lengths"] for block in blocks]
    discarded = {reason: interval([one["discarded"].get(reason, 0) for one in groups]) for reason in reasons}
    return {
        "versions": interval([block["versions"] for block in blocks]),
        **{what: interval([block[key] for block in blocks]) for what, key in AT_THE_END.items()},
        "trajectories": interval([block["trajectories"] for block in blocks]),
        "trained_share": interval([trained_share(one) for one in groups]),
        "discarded_share": interval([discarded_share(one) for one in groups]),
        "length_trained": interval([one["trained"] for one in lengths]),
        "length_discarded": interval([one["discarded"] for one in lengths]),
        "length_bias": interval([one["bias"] and one["bias"]["ratio"] for one in lengths]),
        "replayed": interval([one["replayed"] for one in groups]),
        "discarded": dict(sorted(discarded.items(), key=lambda item: -(item[1]["mean"] or 0))),
        "curves": {what: {axis: _curve(blocks, what, axis) for axis in AXES} for what in CURVES},
    }


def _differences(
    runs: Sequence[Mapping[str, Any]], first: Sequence[Mapping[str, Any]], policy: str, key: str
) -> Sequence[float]:
    """Return by how much runs differ from those of the first variant that have the same seed."""

    def ends(some: Sequence[Mapping[str, Any]]) -> dict[int, float]:
        blocks = {run["seed"]: run["summary"]["policies"].get(policy) for run in some if run["summary"] is not None}
        return {seed: block[key] for seed, block in blocks.items() if block and block[key] is not None}

    other = ends(first)
    return [value - other[seed] for seed, value in ends(runs).items() if seed in other]


def _curve(blocks: Sequence[Mapping[str, Any]], what: str, axis: str) -> dict[str, list[float | None]]:
    return mean_curve([points_of(block, CURVES[what], axis, TRAILING.get(what, 1)) for block in blocks], axis)


def trained_share(groups: Mapping[str, Any]) -> float | None:
    """Return which share of the groups that concluded was trained on, replays not counted; None where none did."""
    concluded = groups["trained"] + sum(groups["discarded"].values()) + groups["dead"]
    return groups["trained"] / concluded if concluded else None


def discarded_share(groups: Mapping[str, Any]) -> float | None:
    """Return which share of the groups that concluded before the run's end was discarded; None where none did."""
    discarded = sum(count for reason, count in groups["discarded"].items() if reason != RUN_END)
    concluded = groups["trained"] + discarded + groups["dead"]
    return discarded / concluded if concluded else None


def points_of(block: Mapping[str, Any], key: str, axis: str, trailing: int = 1) -> list[Point]:
    """Return a curve of a policy's block of a summary against versions, trajectories or seconds.

    A point is the mean of its version and of those before it, `trailing` in all.
    """
    place = AXES.index(axis)
    at = {row[0]: row[place] for row in block["progress"]}
    values: dict[int, list[float]] = {}
    for version, value in block[key]:  # an evaluation has one for each workflow
        values.setdefault(version, []).append(value)
    versions = sorted(values.keys() & at.keys())
    means = [fmean(values[version]) for version in versions]
    return [
        (at[version], fmean(means[max(0, place + 1 - trailing) : place + 1])) for place, version in enumerate(versions)
    ]


def seed_curves(found: Mapping[str, Any], variant: str, policy: str, what: str, axis: str) -> list[list[Point]]:
    """Return the curves of which `compared` told a variant's mean, one for each seed that has any point."""
    summaries = (run["summary"] for run in found["runs"].values() if run["variant"] == variant)
    blocks = (summary["policies"].get(policy) for summary in summaries if summary is not None)
    curves = (points_of(block, CURVES[what], axis, TRAILING.get(what, 1)) for block in blocks if block)
    return [curve for curve in curves if curve]


def mean_curve(curves: Sequence[Sequence[Point]], axis: str) -> dict[str, list[float | None]]:
    """Return the mean of curves and its interval, where all of them are known: {x, mean, low, high}.

    Between its points a curve is a straight line. Empty where they have no stretch in common.
    """
    drawn = [np.array(curve, np.float64) for curve in curves if curve]
    begin = max((curve[0, 0] for curve in drawn), default=0.0)
    end = min((curve[-1, 0] for curve in drawn), default=-1.0)
    if begin > end:
        return {"x": [], "mean": [], "low": [], "high": []}
    grid = np.arange(begin, end + 1) if axis == "version" else np.unique(np.linspace(begin, end, GRID))
    values = np.array([np.interp(grid, curve[:, 0], curve[:, 1]) for curve in drawn])
    told = [interval(column) for column in values.T.tolist()]
    return {
        "x": _rounded(grid.tolist()),
        **{key: _rounded([one[key] for one in told]) for key in ("mean", "low", "high")},
    }


def interval(values: Sequence[float | None]) -> dict[str, Any]:
    """Return {mean, low, high, n} of what is known of the values; no interval for fewer than two, no mean for none."""
    known = [value for value in values if value is not None]
    if not known:
        return {"mean": None, "low": None, "high": None, "n": 0}
    mean = fmean(known)
    if len(known) < 2:
        return {"mean": mean, "low": None, "high": None, "n": 1}
    half = student_t(len(known) - 1) * stdev(known) / math.sqrt(len(known))
    return {"mean": mean, "low": mean - half, "high": mean + half, "n": len(known)}


def student_t(freedom: int, share: float = 0.95) -> float:
    """Return t such that Student's distribution has `share` of its mass in [-t, t].

    That mass is a finite sum in theta = arctan(t / sqrt(freedom)) for a whole number of degrees of freedom (Abramowitz
    and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4); it is inverted by halving. Raises ValueError for
    freedom < 1.
    """
    if freedom < 1:
        raise ValueError(f"degrees of freedom are 1 or more, got {freedom}")
    mass = _odd_mass if freedom % 2 else _even_mass
    return math.sqrt(freedom) * math.tan(_inverse(lambda theta: mass(theta, freedom), share))


def _odd_mass(theta: float, freedom: int) -> float:
    total, term = 0.0, math.cos(theta)
    for n in range(3, freedom + 1, 2):
        total += term
        term *= (n - 1) / n * math.cos(theta) ** 2
    return 2 / math.pi * (theta + math.sin(theta) * total)


def _even_mass(theta: float, freedom: int) -> float:
    total, term = 0.0, 1.0
    for n in range(2, freedom + 1, 2):
        total += term
        term *= (n - 1) / n * math.cos(theta) ** 2
    return math.sin(theta) * total


def _inverse(mass: Callable[[float], float], share: float) -> float:
    low, high = 0.0, math.pi / 2
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if mass(middle) < share else (low, middle)
    return middle


def _rounded(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else round(value, DIGITS) for value in values]
