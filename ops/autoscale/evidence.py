"""What the autoscaler asks the ledger."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise

from headrace.infra.recipe.kinds import find_playable
from headrace.infra.recipe.pools import ROLLOUT
from headrace.infra.recipe.settings import EPISODES_PER_REQUEST, Recipe
from headrace.ledger.ledger import Ledger
from headrace.ledger.liveness import is_alive
from headrace.ops.autoscale.pool import Seen
from headrace.ops.autoscale.rule import LOOK_BACK, Move, Step
from headrace.ops.figures.workers import list_workers
from headrace.schemas import codec
from headrace.schemas.records import ScalingDecision, WorkerStatus

PLAYS = frozenset({"rolling", "behind"})
"""States of a worker that takes tasks."""


def look_at_pool(ledger: Ledger, workflow: str, count: int, now_ms: int, now_s: float) -> Seen:
    """Return the pool of a workflow's workers at home: those that play its training tasks.

    Args:
        ledger: The run's ledger.
        workflow: Name of the workflow.
        count: Number of workers that the pool should have.
        now_ms: Wall time in ms since the epoch, to tell which workers are alive.
        now_s: Monotonic time in seconds.
    """
    recipe = ledger.streams.recipe
    playing = [
        worker
        for worker in list_workers(ledger)
        if (worker.workflow, worker.region) == (workflow, "")
        and worker.state in PLAYS
        and is_alive(worker, now_ms)
        and find_playable(recipe, workflow, worker.kind).training
    ]
    shares = [compute_busy_share(recipe, worker) for worker in playing]
    newest = {policy: find_newest_version(ledger, policy) for policy in recipe.policies_of(workflow)}
    newest = {policy: at for policy, at in newest.items() if at < recipe.trainer_of(policy).steps}
    return Seen(
        count=count,
        playing=len(playing),
        newest=newest,
        steps={policy: list_steps(ledger, policy) for policy in newest},
        busy_share=sum(shares) / len(shares) if shares else None,
        now_s=now_s,
    )


def compute_busy_share(recipe: Recipe, worker: WorkerStatus) -> float:
    """Return how much of a worker's room is in use: of the engine's, or of its episodes'."""
    requests = recipe.rollout_of(worker.kind).concurrency
    episodes = worker.slots or EPISODES_PER_REQUEST * requests
    return min(1.0, max(worker.requests_running / requests, worker.episodes_running / episodes))


def find_newest_version(ledger: Ledger, policy: str) -> int:
    """Return the newest version that a policy's trainer has made; 0 before its first."""
    [(newest,)] = ledger.query("SELECT max(version) FROM batch WHERE variant = ?", policy)
    return max(0, newest or 0)


def list_steps(ledger: Ledger, policy: str) -> list[Step]:
    """Return a policy's newest versions, oldest first: one more than is looked at, as the first after a change is not.

    The wait is that for groups alone: without the time for which the trainer could not begin because earlier versions
    were not yet published.
    """
    rows = ledger.query(
        "SELECT version, at_ms, metrics, (SELECT count(*) FROM trained WHERE batch_id = batch.id AND use = 0)"
        " FROM batch WHERE variant = ? AND version >= 0 ORDER BY id DESC LIMIT ?",
        policy,
        LOOK_BACK + 1,
    )[::-1]
    if not rows:
        return []
    kept_ms = _list_kept_ms(ledger, policy, rows[0][1])
    steps = []
    for (_, before_ms, _, _), (version, at_ms, metrics, consumed) in pairwise(rows):
        named = json.loads(metrics)
        wait_s = max(0.0, _read_seconds(named, "wait_s") - _read_seconds(named, "held_up_s"))
        whole_s = _read_seconds(named, "wait_s") + _read_seconds(named, "step_s") + _read_seconds(named, "blocked_s")
        entered = bisect_right(kept_ms, at_ms) - bisect_right(kept_ms, before_ms)
        steps.append(Step(version, wait_s, whole_s, consumed, entered))
    return steps


def list_moves(ledger: Ledger, workflow: str) -> list[Move]:
    """Return the decisions on the pool of a workflow, oldest first."""
    rows = ledger.query("SELECT value FROM scaling WHERE pool = ? ORDER BY id", f"{ROLLOUT}{workflow}")
    decisions = (codec.decode(value, ScalingDecision) for (value,) in rows)
    return [Move(one.policy, one.version, one.before, one.after) for one in decisions]


def _list_kept_ms(ledger: Ledger, policy: str, from_ms: int) -> Sequence[int]:
    """Return when curators kept a group of a policy, in ms since the epoch, ascending."""
    streams = ledger.streams.recipe.streams
    return sorted(
        at_ms
        for stream in streams
        for (at_ms,) in ledger.query(
            "SELECT at_ms FROM outcome WHERE variant = ? AND stream = ? AND at_ms > ? AND decides AND verdict = 'kept'",
            policy,
            stream,
            from_ms,
        )
    )


def _read_seconds(metrics: Mapping[str, object], name: str) -> float:
    found = metrics.get(name, 0.0)
    return found if isinstance(found, float) and math.isfinite(found) and found > 0 else 0.0
