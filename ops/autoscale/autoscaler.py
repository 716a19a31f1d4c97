"""`headrace autoscale`: follows a run's ledger, decides how many workers a pool should have, and asks for them.

A decision is a record on the topic `scaling`, written before anything acts on it. A transactional id for each workflow
lets a second autoscaler replace the first. A number that a person asks for meanwhile counts as the present number.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import structlog

from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Outgoing
from headrace.infra.kafka.run_address import parse_run
from headrace.infra.kafka.topic_admin import ensure_topics
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.log import configure_logging
from headrace.infra.process.signals import JOIN_PATIENCE_S, MustRestart, begin_attempts, stop_on_signals
from headrace.infra.recipe.pools import ROLLOUT, choose_workflows
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.revisions import join_and_write_schemas
from headrace.infra.run.run import Run
from headrace.ledger.follow import Follower, find_ledger_file, open_ledger
from headrace.ledger.ledger import Ledger, LedgerRemade
from headrace.ops.autoscale.evidence import list_moves, look_at_pool
from headrace.ops.autoscale.pool import PoolWatch
from headrace.ops.autoscale.rule import Choice, Move
from headrace.ops.autoscale.scalers import Scaler, ScalerAway
from headrace.ops.figures.revision_figures import find_span
from headrace.schemas import codec
from headrace.schemas.ids import now_ms
from headrace.schemas.records import ScalingDecision

log = structlog.get_logger()

AUTOSCALER = "autoscale"
MOST_MESSAGES = 2_000
POLL_S = 0.25


@dataclass(frozen=True, slots=True)
class AutoscaleRequest:
    """The options of `headrace autoscale`."""

    least: int = 1
    most: int | None = None
    """None: as many as the tasks topic has partitions, as each worker needs one."""
    workflow: str | None = None
    """Whose workers are meant; None: of every workflow."""
    every_s: float = 2.0
    """Seconds between two looks."""


class Autoscaler:
    """Decides on the workers of one workflow.

    Args:
        run: The run.
        workflow: Name of the workflow.
        scaler: Knows and changes their number.
        writer: Writes to the run.
        watch: Decides.
    """

    def __init__(self, run: Run, workflow: str, scaler: Scaler, writer: TransactionalWriter, watch: PoolWatch) -> None:
        self._run, self._workflow, self._scaler, self._writer, self._watch = run, workflow, scaler, writer, watch
        self._pool, self._said = f"{ROLLOUT}{workflow}", ""

    def turn(self, ledger: Ledger, now_s: float) -> None:
        """Look once; decide, write and act if it is time. Raises ScalerRefused, and what writer and ledger raise."""
        try:
            count = self._scaler.read_count(self._pool)
            found = self._watch.look(look_at_pool(ledger, self._workflow, count, now_ms(), now_s))
            if isinstance(found, Choice):
                self._decide(count, found)
        except ScalerAway as error:
            found = str(error)
        if isinstance(found, str) and found != self._said:
            self._said = found
            if found:
                # No decision can be made now.
                log.info("scaling.waiting", workflow=self._workflow, why=found)

    def _decide(self, count: int, choice: Choice) -> None:
        decision = build_decision(self._run.run_id, self._pool, count, choice, self._scaler.name)
        self._writer.begin()
        topic, key = self._run.topics.scaling, self._pool.encode()
        self._writer.produce([Outgoing(topic, codec.encode(decision), key, partition=0)])
        self._writer.commit()
        self._watch.note_decision(Move(decision.policy, decision.version, count, choice.count))
        # The number of a workflow's workers is changed.
        log.info("scaling.decided", workflow=self._workflow, before=count, after=choice.count, why=choice.reason)
        self._scaler.set_count(self._pool, choice.count)


def build_decision(run_id: str, pool: str, count: int, choice: Choice, scaler: str) -> ScalingDecision:
    """Return the record of a decision."""
    demand = choice.demand
    return ScalingDecision(
        run_id=run_id,
        pool=pool,
        before=count,
        after=choice.count,
        reason=choice.reason,
        policy=demand.policy,
        version=demand.version,
        versions=demand.versions,
        wait_share=round(demand.wait_share, 4),
        busy_share=round(demand.busy_share, 4),
        consumed=demand.consumed,
        entered=demand.entered,
        scaler=scaler,
        created_ms=now_ms(),
    )


def find_limits(recipe: Recipe, request: AutoscaleRequest) -> Mapping[str, tuple[int, int]]:
    """Return workflow to the least and most workers. Raises UsageError for a request that cannot be met."""
    workflows = choose_workflows(recipe, request.workflow)
    most = recipe.task_partitions if request.most is None else request.most
    if most < request.least:
        raise UsageError(f"at least {request.least} and at most {most} workers cannot be: raise --max or lower --min")
    if most > recipe.task_partitions:
        raise UsageError(
            f"--max {most}: each worker needs a partition, and there are {recipe.task_partitions} (kafka.partitions or "
            "kafka.task_partitions, fixed for a run)"
        )
    return dict.fromkeys(workflows, (request.least, most))


def follow(run: Run, follower: Follower, pools: Iterable[Autoscaler], every_s: float, stop: threading.Event) -> str:
    """Look every `every_s` seconds until `stop` or the run's end; return why it has ended. Raises MustRestart."""
    autoscalers, due_s = list(pools), 0.0
    while not stop.is_set():
        try:
            follower.poll(MOST_MESSAGES, min(POLL_S, every_s), lambda _: now_ms())
            if (now_s := time.monotonic()) < due_s:
                continue
            due_s = now_s + every_s
            if ended := find_span(follower.ledger).ended:
                return ended
            [(revision,)] = follower.ledger.query("SELECT max(revision) FROM revision")
            if (revision or 0) > run.revision:
                raise MustRestart(f"recipe revision {revision} is read; the autoscaler goes on with it")
            for autoscaler in autoscalers:
                autoscaler.turn(follower.ledger, now_s)
        except LedgerRemade:
            follower.begin_again()
            follower.catch_up()
    return ""


def main(
    address: str, request: AutoscaleRequest, open_scaler: Callable[[Run], Scaler], ledger: Path | None = None
) -> None:
    """Scale the workers of a run until it ends or a signal comes.

    Args:
        address: `kafka://host:port/run`.
        request: Limits and workflow.
        open_scaler: Opens what changes the number of workers.
        ledger: File of the run's ledger; None for the one in the cache.
    """
    configure_logging(AUTOSCALER)
    parsed, stop = parse_run(address), stop_on_signals()
    for attempt in begin_attempts(stop):
        with attempt, ExitStack() as stack:
            run = join_and_write_schemas(parsed, JOIN_PATIENCE_S, stop)
            limits, scaler = find_limits(run.recipe, request), open_scaler(run)
            topic = run.topics.scaling
            ensure_topics(run.connection, [spec for spec in run.topic_specs if spec.name == topic])  # for older runs
            writers = {
                workflow: stack.enter_context(
                    closing(TransactionalWriter(run.connection, f"{parsed.run}.{AUTOSCALER}.{workflow}", [topic]))
                )
                for workflow in limits
            }
            rows = stack.enter_context(closing(open_ledger(run, ledger or find_ledger_file(run.run_id))))
            follower = stack.enter_context(Follower(run.connection, rows, rows.topics, AUTOSCALER))
            follower.catch_up()
            pools = [
                Autoscaler(run, workflow, scaler, writers[workflow], PoolWatch(bounds, list_moves(rows, workflow)))
                for workflow, bounds in limits.items()
            ]
            log.info("scaling.begins", run=str(parsed), scaler=scaler.name, workers=limits)
            if ended := follow(run, follower, pools, request.every_s, stop):
                # The run is over; its workers end by themselves.
                log.info("run.over", why=ended, now="the autoscaler ends")
                stop.set()
