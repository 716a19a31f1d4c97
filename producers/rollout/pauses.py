"""The waits of a worker; each is logged once when it begins and once when it ends."""

from __future__ import annotations

import structlog

log = structlog.get_logger()


KAFKA = "Kafka"
"""The broker, while it acknowledges nothing: no task comes, and no group goes."""
STORE = "object store"
ENVIRONMENT = "environment"
"""The environment, or a judge, that episodes call."""
DELIVERY = "delivery"
"""A topic that refuses a record because of its settings."""
ENGINE = "engine"
"""A server that should hold the version of an evaluation."""
COMMIT = "commit of started and finished tasks"
"""The consumer group's coordinator: no task begins before its start is committed."""
HOLD_TASKS = {KAFKA, STORE, ENVIRONMENT, DELIVERY, ENGINE}
"""Waits that can block a running task: for its delivery, the weights of an evaluation, or its environment. No other
wait blocks a running task."""


class Pauses:
    """Current waits, by the thing that is unreachable. Safe to use from several threads."""

    def __init__(self) -> None:
        self._why: dict[str, str] = {}

    def begin(self, what: str, why: object) -> None:
        """Log that something is unreachable, unless this is already logged."""
        if what not in self._why:
            # `what` is missing, not reachable or refused.
            log.warning("worker.waiting", what=what, why=str(why))
        self._why[what] = str(why)

    def end(self, what: str) -> None:
        """Log that something is reachable again, if it was unreachable."""
        if self._why.pop(what, None) is not None:
            log.info("worker.resumed", what=what)

    def has(self, what: str) -> bool:
        """Whether something is unreachable."""
        return what in self._why

    @property
    def has_to_hold_tasks(self) -> bool:
        """Whether a current wait can block running tasks."""
        return not HOLD_TASKS.isdisjoint(self._why.copy())

    @property
    def detail(self) -> str:
        """All waits in one line; empty when there are none."""
        return "; ".join(f"{what}: {why}" for what, why in sorted(self._why.copy().items()))
