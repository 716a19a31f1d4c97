"""The newest status of every worker, the newest decisions on their number, and which kinds of workers there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from headrace.infra.recipe.settings import Recipe
from headrace.ledger.ledger import Ledger
from headrace.ledger.liveness import is_alive
from headrace.schemas import codec
from headrace.schemas.records import ScalingDecision, WorkerStatus
from headrace.schemas.topics import eval_stream


def list_workers(ledger: Ledger) -> tuple[WorkerStatus, ...]:
    """Return the newest status of every worker, by name."""
    rows = ledger.query("SELECT value, seen_ms FROM worker ORDER BY name, key")
    return tuple(replace(codec.decode(value, WorkerStatus), updated_ms=seen_ms) for value, seen_ms in rows)


def describe_kinds(workers: Iterable[WorkerStatus]) -> dict[str, str]:
    """Return the kind of each rollout worker in words, by its name; none if all are of one kind."""
    words = {one.worker: _describe_kind(one) for one in workers if one.engine}
    return words if len(set(words.values())) > 1 else {}


def _describe_kind(worker: WorkerStatus) -> str:
    engine = " ".join(filter(None, (worker.engine, worker.dtype, f"on {worker.device}" if worker.device else "")))
    return ", ".join(filter(None, (worker.kind, engine)))


def list_missing_kinds(recipe: Recipe, workers: Sequence[WorkerStatus], now_ms: int) -> Iterator[tuple[str, str]]:
    """Yield the stream of what waits for a worker of the kind that it is pinned to, and a sentence for users."""
    alive = {(one.workflow, one.kind) for one in workers if is_alive(one, now_ms)}
    for workflow in recipe.workflows:
        training, evaluations = recipe.kind_of(workflow), recipe.kind_of(workflow, evaluation=True)
        waiting = {training: (workflow, f"Workflow {workflow} waits")}
        if recipe.evaluate.every:
            waiting.setdefault(evaluations, (eval_stream(workflow), f"The evaluations of workflow {workflow} wait"))
        for kind, (stream, waits) in waiting.items():
            if kind and (workflow, kind) not in alive:
                start = f"`headrace rollout --workflow {workflow} --kind {kind} --run ADDRESS`"
                yield stream, f"{waits} for a worker of kind {kind}, and none is alive: start one by {start}."


def list_scaling(ledger: Ledger) -> tuple[ScalingDecision, ...]:
    """Return the autoscaler's newest decision on each pool of workers, by its name."""
    rows = ledger.query(
        "SELECT value FROM scaling WHERE id IN (SELECT max(id) FROM scaling GROUP BY pool) ORDER BY pool"
    )
    return tuple(codec.decode(value, ScalingDecision) for (value,) in rows)
