"""How the newest answers were, in words: their length, their turns, and the parts of their rewards."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.ops.lineage.own_metrics import select_answer_metrics
from headrace.schemas.version_records import LENGTH_MEAN, REWARD_PART, TURNS_MEAN

LABELS = {LENGTH_MEAN: "answer tokens", TURNS_MEAN: "turns"}


def list_answer_metrics(metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return names and values of the metrics of a version about its trajectories, as pages show them."""
    found = select_answer_metrics(metrics)
    shown = {LABELS.get(name) or name.removeprefix(REWARD_PART): f"{value:.4g}" for name, value in found.items()}
    return list(shown.items())  # a workflow may count the turns, too


def describe_answers(metrics: Mapping[str, float]) -> str:
    """Return these metrics in one line; empty for a version of an older build, and before the first version."""
    return " · ".join(f"{name} {value}" for name, value in list_answer_metrics(metrics))
