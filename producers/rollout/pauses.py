"""What the worker waits for, logged once when a wait begins and once when it is over."""

from __future__ import annotations

import structlog

log = structlog.get_logger()


ENVIRONMENT = "environment"
"""The environment, or a judge, that episodes call."""
DELIVERY = "delivery"
"""A topic that takes no record as it is set now."""
ENGINE = "engine"
"""A server that is to hold the version of an evaluation."""
HOLD_TASKS = {"Kafka", "object store", ENVIRONMENT, DELIVERY, ENGINE}
"""What a running task may wait for: its delivery, the weights of an evaluation, or its environment. No other wait holds
it up."""


class Pauses:
    """Waits that are going on, by what is unreachable. Safe to use from several threads."""

    def __init__(self) -> None:
        self._why: dict[str, str] = {}

    def begin(self, what: str, why: object) -> None:
        """Log that something is unreachable, unless that was logged."""
        if what not in self._why:
            log.warning("worker.waiting", what=what, why=str(why))
        self._why[what] = str(why)

    def end(self, what: str) -> None:
        """Report that it is back, if it was unreachable."""
        if self._why.pop(what, None) is not None:
            log.info("worker.resumed", what=what)

    @property
    def has_to_hold_tasks(self) -> bool:
        """Whether something that running tasks may wait for is unreachable."""
        return not HOLD_TASKS.isdisjoint(self._why.copy())

    @property
    def detail(self) -> str:
        """All waits in one line; empty when there are none."""
        return "; ".join(f"{what}: {why}" for what, why in sorted(self._why.copy().items()))
