"""`headrace compare`: means and intervals of the variants of a sweep, over seeds. No I/O.

An interval is the 95 % interval of a mean over seeds, by Student's t. It is wide for few seeds, and missing for one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

from headrace.ops.compare.run_result import PolicyResult, RunResult

Point = tuple[float, float]

GRID = 61
"""Number of points of a curve against trajectories or time."""
DIGITS = 5
CURVE_AXES = ("version", "trajectories", "seconds")
"""Axes of curves, which are fields of `progress` in a summary."""
CURVES: Mapping[str, Callable[[PolicyResult], Sequence[Point]]] = {
    "reward": lambda block: block.reward_curve,
    "held_out": lambda block: block.eval_curve,
}
"""Name of each curve, and the function that takes it, by version, from a policy's result."""
AT_THE_END: Mapping[str, Callable[[PolicyResult], float | None]] = {
    "reward": lambda block: block.reward_last,
    "held_out": lambda block: block.eval_last,
}
"""Name of each value at a run's end, and the function that takes it from a policy's result."""
TRAILING = {"reward": 5}
"""Number of versions that are averaged for a point, its own and earlier ones: one version plays only few groups."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over seeds and its 95 % interval. No interval for fewer than two values, no mean for none."""

    mean: float | None
    low: float | None
    high: float | None
    n: int
    """Number of known values."""


@dataclass(frozen=True, slots=True)
class MeanCurve:
    """The mean of curves and its interval, at points that all curves have; empty if they have none in common."""

    x: list[float | None]
    mean: list[float | None]
    low: list[float | None]
    high: list[float | None]


@dataclass(frozen=True, slots=True)
class ComparedPolicy:
    """A policy of a variant, over its finished runs."""

    versions: Interval
    reward: Interval
    held_out_first: Interval
    """Held-out reward of the first evaluation; `held_out` is that of the last one."""
    held_out: Interval
    trajectories: Interval
    trained_share: Interval
    discarded_share: Interval
    length_trained: Interval
    length_discarded: Interval
    length_bias: Interval
    replayed: Interval
    discarded: dict[str, Interval]
    """Discarded groups by reason, the most frequent first."""
    curves: dict[str, dict[str, MeanCurve]]
    """Measure to axis to the mean curve over seeds."""
    over_first: dict[str, Interval]
    """Measure to the difference from the first variant, or the one that `over` names, over seeds that both have."""


@dataclass(frozen=True, slots=True)
class ComparedVariant:
    """A variant over its seeds."""

    runs: int
    """Number of runs that finished."""
    failed: list[int]
    """Seeds of the runs that did not finish."""
    wall_s: Interval
    skipped: Interval
    policies: dict[str, ComparedPolicy]


@dataclass(frozen=True, slots=True)
class PlayedRun:
    """A run of a sweep."""

    variant: str
    seed: int
    summary: RunResult | None
    """None if the run failed."""
    failed: str
    """The last lines that a failed run printed; else empty."""
    over: str = ""
    """Variant from which differences are computed; empty for the first one."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of `headrace compare`."""

    sweep: str
    about: str
    variants: dict[str, ComparedVariant]
    runs: dict[str, PlayedRun]

    @property
    def policies(self) -> list[str]:
        """The policies of all variants."""
        return list(dict.fromkeys(policy for variant in self.variants.values() for policy in variant.policies))

    @property
    def warnings(self) -> list[str]:
        """Problems of single runs, a line each."""
        failed = [f"run {name} failed: {run.failed}" for name, run in self.runs.items() if run.summary is None]
        audits = {name: run.summary.audit for name, run in self.runs.items() if run.summary is not None}
        return failed + [
            f"the audit of run {name} does not close: groups lost: {audit.lost}, groups doubled: {audit.doubled}"
            for name, audit in audits.items()
            if audit is not None and not audit.ok
        ]


def build_comparison(name: str, about: str, runs: Mapping[str, PlayedRun]) -> Comparison:
    """Return the comparison of a sweep's variants.

    Args:
        name: Name of the sweep.
        about: One sentence that describes the sweep.
        runs: Name to run.
    """
    variants: dict[str, list[PlayedRun]] = {}
    for run in runs.values():
        variants.setdefault(run.variant, []).append(run)
    first = next(iter(variants.values()), [])
    over = {variant: variants.get(some[0].over, first) for variant, some in variants.items()}
    found = {
        variant: _compare_variant(some, [] if over[variant] is some else over[variant])
        for variant, some in variants.items()
    }
    return Comparison(name, about, found, dict(runs))


def _compare_variant(runs: Sequence[PlayedRun], first: Sequence[PlayedRun]) -> ComparedVariant:
    summaries = [run.summary for run in runs if run.summary is not None]
    policies = dict.fromkeys(policy for summary in summaries for policy in summary.policies)
    return ComparedVariant(
        runs=len(summaries),
        failed=[run.seed for run in runs if run.summary is None],
        wall_s=compute_interval([summary.wall_s for summary in summaries]),
        skipped=compute_interval([sum(one.rejected for one in summary.selection.values()) for summary in summaries]),
        policies={
            policy: _compare_policy(
                [summary.policies[policy] for summary in summaries if policy in summary.policies],
                {what: compute_interval(_compute_differences(runs, first, policy, what)) for what in AT_THE_END},
            )
            for policy in policies
        },
    )


def _compare_policy(blocks: Sequence[PolicyResult], over_first: dict[str, Interval]) -> ComparedPolicy:
    groups = [block.groups for block in blocks]
    reasons = sorted({reason for one in groups for reason in one.discarded})
    lengths = [block.lengths for block in blocks]
    discarded = {reason: compute_interval([one.discarded.get(reason, 0) for one in groups]) for reason in reasons}
    return ComparedPolicy(
        versions=compute_interval([block.versions for block in blocks]),
        reward=compute_interval([block.reward_last for block in blocks]),
        held_out_first=compute_interval([block.eval_first for block in blocks]),
        held_out=compute_interval([block.eval_last for block in blocks]),
        trajectories=compute_interval([block.trajectories for block in blocks]),
        trained_share=compute_interval([one.trained_share for one in groups]),
        discarded_share=compute_interval([one.discarded_share for one in groups]),
        length_trained=compute_interval([one.trained for one in lengths]),
        length_discarded=compute_interval([one.discarded for one in lengths]),
        length_bias=compute_interval([one.bias.ratio if one.bias else None for one in lengths]),
        replayed=compute_interval([one.replayed for one in groups]),
        discarded=dict(sorted(discarded.items(), key=lambda item: -(item[1].mean or 0))),
        curves={what: {axis: _compute_curve(blocks, what, axis) for axis in CURVE_AXES} for what in CURVES},
        over_first=over_first,
    )


def _compute_differences(
    runs: Sequence[PlayedRun], first: Sequence[PlayedRun], policy: str, what: str
) -> Sequence[float]:
    """Return the differences of runs from the first variant's runs with the same seed."""

    def ends(some: Sequence[PlayedRun]) -> dict[int, float]:
        blocks = {run.seed: run.summary.policies.get(policy) for run in some if run.summary is not None}
        values = {seed: AT_THE_END[what](block) for seed, block in blocks.items() if block is not None}
        return {seed: value for seed, value in values.items() if value is not None}

    other = ends(first)
    return [value - other[seed] for seed, value in ends(runs).items() if seed in other]


def _compute_curve(blocks: Sequence[PolicyResult], what: str, axis: str) -> MeanCurve:
    return compute_mean_curve([list_points(block, what, axis) for block in blocks], axis)


def list_points(block: PolicyResult, what: str, axis: str) -> list[Point]:
    """Return a curve of a policy's result against versions, trajectories or seconds.

    A point is the mean over TRAILING versions: its own and those before it. A version whose evaluation lacks a
    workflow is left out, because means over different workflows cannot be compared.
    """
    column, trailing = CURVE_AXES.index(axis), TRAILING.get(what, 1)
    at = {row[0]: row[column] for row in block.progress}
    values: dict[float, list[float]] = {}
    for version, value in CURVES[what](block):  # an evaluation has one value for each workflow
        values.setdefault(version, []).append(value)
    workflows = max(map(len, values.values()), default=0)  # all workflows of the recipe, which a sweep never changes
    versions = sorted(version for version in values.keys() & at.keys() if len(values[version]) == workflows)
    means = [fmean(values[version]) for version in versions]
    return [
        (at[version], fmean(means[max(0, index + 1 - trailing) : index + 1])) for index, version in enumerate(versions)
    ]


def list_seed_curves(found: Comparison, variant: str, policy: str, what: str, axis: str) -> list[list[Point]]:
    """Return the curves of a variant's seeds, without seeds that have no point."""
    summaries = (run.summary for run in found.runs.values() if run.variant == variant)
    blocks = (summary.policies.get(policy) for summary in summaries if summary is not None)
    curves = (list_points(block, what, axis) for block in blocks if block is not None)
    return [curve for curve in curves if curve]


def compute_mean_curve(curves: Sequence[Sequence[Point]], axis: str) -> MeanCurve:
    """Return the mean of curves and its interval, on the part of the axis where all curves are known.

    Between its points a curve is a straight line. The result is empty if the curves have no part in common.
    """
    drawn = [np.array(curve, np.float64) for curve in curves if curve]
    begin = max((curve[0, 0] for curve in drawn), default=0.0)
    end = min((curve[-1, 0] for curve in drawn), default=-1.0)
    if begin > end:
        return MeanCurve([], [], [], [])
    grid = np.arange(begin, end + 1) if axis == "version" else np.unique(np.linspace(begin, end, GRID))
    values = np.array([np.interp(grid, curve[:, 0], curve[:, 1]) for curve in drawn])
    means = [compute_interval(column) for column in values.T.tolist()]
    return MeanCurve(
        x=_round_values(grid.tolist()),
        mean=_round_values([one.mean for one in means]),
        low=_round_values([one.low for one in means]),
        high=_round_values([one.high for one in means]),
    )


def compute_interval(values: Sequence[float | None]) -> Interval:
    """Return the mean and interval of the known values."""
    known = [value for value in values if value is not None]
    if not known:
        return Interval(None, None, None, 0)
    mean = fmean(known)
    if len(known) < 2:
        return Interval(mean, None, None, 1)
    half = student_t(len(known) - 1) * stdev(known) / math.sqrt(len(known))
    return Interval(mean, mean - half, mean + half, len(known))


def student_t(freedom: int, share: float = 0.95) -> float:
    """Return t such that Student's distribution has `share` of its mass in [-t, t].

    That mass is a finite sum in theta = arctan(t / sqrt(freedom)) for a whole number of degrees of freedom (Abramowitz
    and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4); it is inverted by halving. Raises ValueError for
    freedom < 1.
    """
    if freedom < 1:
        raise ValueError(f"degrees of freedom must be 1 or more, got {freedom}")
    mass = _compute_t_mass_for_odd_freedom if freedom % 2 else _compute_mass_of_even
    return math.sqrt(freedom) * math.tan(_invert(lambda theta: mass(theta, freedom), share))


def _compute_t_mass_for_odd_freedom(theta: float, freedom: int) -> float:
    total, term = 0.0, math.cos(theta)
    for n in range(3, freedom + 1, 2):
        total += term
        term *= (n - 1) / n * math.cos(theta) ** 2
    return 2 / math.pi * (theta + math.sin(theta) * total)


def _compute_mass_of_even(theta: float, freedom: int) -> float:
    total, term = 0.0, 1.0
    for n in range(2, freedom + 1, 2):
        total += term
        term *= (n - 1) / n * math.cos(theta) ** 2
    return math.sin(theta) * total


def _invert(mass: Callable[[float], float], share: float) -> float:
    low, high = 0.0, math.pi / 2
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if mass(middle) < share else (low, middle)
    return middle


def _round_values(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else round(value, DIGITS) for value in values]
