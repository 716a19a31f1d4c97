"""`headrace status`: a run's figures, and which of its workers are gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from headrace.infra.run.run import Run
from headrace.ops.figures.figures import RunFigures, figures
from headrace.ops.figures.weights_figures import FRESH_MS, is_there
from headrace.ops.plain_json import plain
from headrace.schemas.ids import now_ms


@dataclass(frozen=True, slots=True)
class Status:
    """A run at one moment, for who asks once."""

    figures: RunFigures
    """`wasted_tokens` are all that were for nothing where `wasted_is_all` says so, else those that are known."""
    gone: tuple[bool, ...]
    """Of each worker of the figures, whether it is silent without having stopped."""
    wasted_is_all: bool

    def to_json(self) -> Mapping[str, object]:
        """Return the figures, of every worker also whether it is `gone`, and `wasted_is_all`."""
        found = plain(self.figures)
        found["workers"] = [{**worker, "gone": gone} for worker, gone in zip(found["workers"], self.gone, strict=True)]
        for counts in (*found["policies"].values(), *(shadow["groups"] for shadow in found["shadows"].values())):
            del counts["duplicates"]  # only the audit reads what was delivered twice
        return {**found, "wasted_is_all": self.wasted_is_all}


def status(run: Run, *, rests: bool) -> Status:
    """Return the figures of a run, and of every worker whether it is gone. Raises KafkaAway or KafkaRefused.

    Args:
        run: The run.
        rests: Whether it is known that nobody runs it; its topics alone show that only after some seconds.
    """
    found = figures(run)
    if rests and found.state == "running":
        found = replace(found, state="stopped")
    now = now_ms()
    gone = [(rests or now - worker.updated_ms > FRESH_MS) and worker.state != "stopped" for worker in found.workers]
    at_work = not rests and any(is_there(worker, now) for worker in found.workers)
    wasted_is_all = found.drained and not at_work  # until then an evaluation may be under way
    if wasted_is_all:
        found = replace(found, wasted_tokens=found.wasted())
    return Status(found, tuple(gone), wasted_is_all)
