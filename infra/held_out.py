"""`headrace evaluate --weights`: what weights in folders are worth on a recipe's held-out problems, with no run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headrace.infra import workers
from headrace.infra.errors import UsageError
from headrace.infra.progress import progress
from headrace.infra.settings import Recipe

MEASURED = ("problems", "samples", "avg_at_k", "pass_at_k", "mean_length", "failures")


def evaluate(recipe: Recipe, folders: Mapping[str, Path]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return, by workflow and policy, what an evaluation of a run would tell. Raises UsageError."""
    fold = workers.find(workers.EVALUATION)("", recipe.evaluate.problems)
    with progress("problems played") as tell:
        groups = workers.find(workers.PLAY_HELD_OUT)(recipe, folders, tell)
    found: dict[str, dict[str, dict[str, Any]]] = {workflow: {} for workflow in recipe.workflows}
    for group in groups:
        if (result := fold.take(group)) is not None:
            told = asdict(result)
            found[result.workflow][result.policy] = {name: told[name] for name in MEASURED}
    return found


def named_folders(recipe: Recipe, words: Sequence[str]) -> dict[str, Path]:
    """Return policy to folder of `FOLDER` or `POLICY=FOLDER` words. Raises UsageError."""
    policies, found = tuple(recipe.policies), {}
    for word in words:
        name, equals, folder = word.partition("=")
        if not equals and len(policies) == 1:
            name, folder = policies[0], word
        if name not in policies or not folder:
            raise UsageError(f"--weights {word}: write POLICY=FOLDER; the recipe's policies are {', '.join(policies)}")
        found[name] = Path(folder)
    return found
