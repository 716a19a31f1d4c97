"""Pools: sets of equal components of `headrace up`, whose numbers `headrace scale` may change. No I/O.

The name of a pool is the beginning of the names of its components: `rollout-sums-0` is in the pool `rollout-sums`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from headrace.infra.errors import UsageError
from headrace.infra.inflection import inflect
from headrace.infra.recipe.settings import Recipe
from headrace.infra.recipe.table import MOST_PROCESSES

ROLLOUT, CURATE = "rollout-", "curate-"


def count_pools(recipe: Recipe) -> dict[str, int]:
    """Return each pool's number of processes in the recipe."""
    curators = {f"{CURATE}{policy}": recipe.launch.curators for policy in recipe.policies}
    return curators | {f"{ROLLOUT}{workflow}": recipe.launch.workers for workflow in recipe.workflows}


def parse_numbers(recipe: Recipe, words: Sequence[str], workflow: str | None = None) -> dict[str, int]:
    """Read `rollout=N` and `curate=N`; return the pools that are meant, with the number of each. Raises UsageError.

    Workers are meant of every workflow or of the given one, curators of every policy.
    """
    workflows = choose_workflows(recipe, workflow)
    counts: dict[str, int] = {}
    for word in words:
        found = re.fullmatch(r"(rollout|curate)=([0-9]+)", word)
        if found is None or int(found[2]) > MOST_PROCESSES:
            most = f"with N up to {MOST_PROCESSES}"
            raise UsageError(f"cannot read {word!r}: give rollout=N, curate=N or both, {most}, as in rollout=4")
        part, count = f"{found[1]}-", int(found[2])
        if part == CURATE and not count:
            raise UsageError(f"{word}: without a curator nothing is trained on. To pause the run, give rollout=0")
        counts |= {f"{part}{name}": count for name in (workflows if part == ROLLOUT else recipe.policies)}
    return counts


def choose_workflows(recipe: Recipe, workflow: str | None) -> tuple[str, ...]:
    """Return the given workflow, or every one of the recipe. Raises UsageError if the recipe has it not."""
    if workflow is not None and workflow not in recipe.workflows:
        raise UsageError(f"the recipe has no workflow {workflow!r}; it has {', '.join(recipe.workflows)}")
    return tuple(recipe.workflows) if workflow is None else (workflow,)


def describe_change(recipe: Recipe, pool: str, before: int, count: int) -> str:
    """Return a sentence about a pool's new number, with a warning if it has too many processes, or none."""
    is_rollout, kafka = pool.startswith(ROLLOUT), recipe.kafka
    words = f"{pool}: {before} -> {count} {inflect(count, 'worker' if is_rollout else 'curator')}"
    partitions = recipe.task_partitions if is_rollout else kafka.partitions
    if not count:
        pause = "Without workers the run pauses: give `headrace scale rollout=N`, or start some by `headrace rollout`"
        return f"{words}. {pause}"
    if count <= partitions:
        return words
    key = "task_partitions" if is_rollout and kafka.task_partitions else "partitions"
    idle = f"{count - partitions} {inflect(count - partitions, 'stays', 'stay')} idle"
    return f"{words}. Each needs a partition, and there are {partitions} (kafka.{key}, fixed for a run): {idle}"
