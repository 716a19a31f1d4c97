"""An evaluation in words: its reward and how sure that is, and how many of its episodes failed."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.schemas.records import EvalResult

NORMAL_95 = 1.96
"""Standard errors on each side of a mean, of its 95 % interval."""


def group_by_workflow(results: Iterable[EvalResult]) -> dict[str, list[EvalResult]]:
    """Return results of one policy by workflow, in the order of versions; by "" if they are all of one workflow."""
    found: dict[str, list[EvalResult]] = {}
    for one in sorted(results, key=lambda one: (one.workflow, one.version)):
        found.setdefault(one.workflow, []).append(one)
    return found if len(found) > 1 else dict(zip([""], found.values(), strict=False))


def describe_evaluation(result: EvalResult, *, has_interval: bool = True) -> str:
    """Return `0.42 ± 0.08 at version 20`, and beside it the rewards by tier and the episodes that failed, if any."""
    interval = describe_interval(result.standard_error) if has_interval else ""
    reward = f"{result.avg_at_k:.2f}{interval}" if result.has_reward else "no reward"
    tiers = ", ".join(f"{one.tier} {one.avg_at_k:.2f}" if one.played else f"{one.tier} -" for one in result.tiers)
    return f"{reward} at version {result.version}{f' ({tiers})' if tiers else ''}{describe_failed(result)}"


def describe_interval(standard_error: float | None, digits: int = 2) -> str:
    """Return half of the 95 % interval of a mean, as ` ± 0.08`; empty where the error is not known (None or -1)."""
    if standard_error is None or standard_error < 0:
        return ""
    return f" ± {NORMAL_95 * standard_error:.{digits}f}"


def describe_failed(result: EvalResult) -> str:
    """Return how many episodes failed, in parentheses; empty for none."""
    return f" ({result.failures} of {result.problems * result.samples} episodes failed)" if result.failures else ""
