"""An evaluation in words: its reward, and how many of its episodes failed."""

from __future__ import annotations

from headrace.schemas.records import EvalResult


def describe_evaluation(result: EvalResult) -> str:
    """Return `0.42 at version 20`, and beside it the rewards by tier and the episodes that failed, if any."""
    reward = f"{result.avg_at_k:.2f}" if result.has_reward else "no reward"
    tiers = ", ".join(f"{one.tier} {one.avg_at_k:.2f}" if one.played else f"{one.tier} -" for one in result.tiers)
    return f"{reward} at version {result.version}{f' ({tiers})' if tiers else ''}{describe_failed(result)}"


def describe_failed(result: EvalResult) -> str:
    """Return how many episodes failed, in parentheses; empty for none."""
    return f" ({result.failures} of {result.problems * result.samples} failed)" if result.failures else ""
