"""`headrace status`: a run's figures, and which of its workers are gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.infra.run.run import Run
from headrace.ledger.follow import ask_ledger
from headrace.ledger.ledger import Ledger
from headrace.ledger.liveness import is_alive
from headrace.ops.figures.figures import Figures, measure_lags
from headrace.ops.figures.run_figures import RunFigures
from headrace.ops.figures.standstill import Standstill, Surroundings
from headrace.ops.plain_json import plain
from headrace.schemas.ids import now_ms

STORE_SILENT_S = 3.0
"""Seconds after which a silent store counts as frozen or unreachable."""


@dataclass(frozen=True, slots=True)
class Status:
    """A run at one moment, as `headrace status` reports it."""

    figures: RunFigures
    """The figures; `wasted_tokens` counts all wasted tokens if `wasted_is_all`, else only the known ones."""
    gone: tuple[bool, ...]
    """For each worker of the figures, whether it is silent without having stopped."""
    wasted_is_all: bool

    def to_json(self) -> Mapping[str, object]:
        """Return the figures with `wasted_is_all`, and for every worker whether it is `gone`."""
        found = plain(self.figures)
        found["workers"] = [{**worker, "gone": gone} for worker, gone in zip(found["workers"], self.gone, strict=True)]
        for counts in (*found["policies"].values(), *(shadow["groups"] for shadow in found["shadows"].values())):
            del counts["duplicates"]  # only the audit counts repeated deliveries
        return {**found, "wasted_is_all": self.wasted_is_all}


def status(run: Run, *, rests: bool, began_ms: int = 0, ledger: Path | None = None) -> Status:
    """Return the figures of a run, and for every worker whether it is gone. Raises KafkaAway or KafkaRefused.

    Args:
        run: The run.
        rests: Whether it is known to be stopped; its topics alone show that only after some seconds.
        began_ms: When it was started last, in ms since the epoch; 0 if unknown.
        ledger: File of its ledger; None to read all its topics into memory.
    """
    return ask_ledger(run, ledger, lambda one: _build_status(run, one, rests=rests, began_ms=began_ms))


def _build_status(run: Run, ledger: Ledger, *, rests: bool, began_ms: int) -> Status:
    fold = Figures(ledger)
    found = fold.compute_figures(measure_lags(run, fold.trainer_positions), now_ms())
    found = replace(found, parent=run.parent, environments=run.environments_at(run.revision))
    now = now_ms()
    if not rests:
        found = replace(found, standstill=_find_standstill(run, fold, found, Surroundings(began_ms), now))
    elif found.state == "running":
        found = replace(found, state="stopped")
    gone = [(rests or not is_alive(worker, now)) and worker.state != "stopped" for worker in found.workers]
    at_work = not rests and any(is_alive(worker, now) for worker in found.workers)
    wasted_is_all = found.is_drained and not at_work  # before that an evaluation may still run
    if wasted_is_all:
        found = replace(found, wasted_tokens=found.count_wasted_tokens())
    return Status(found, tuple(gone), wasted_is_all)


def _find_standstill(run: Run, fold: Figures, found: RunFigures, around: Surroundings, now: int) -> Standstill | None:
    """Return what keeps a run from its next version. The store is asked only if something does."""
    standstill = fold.standstill(found, around, now)
    if standstill is None:
        return None
    from headrace.infra.embedded.server_probe import Silence, is_store_answering  # not needed while versions come

    if is_store_answering(run.store_address, STORE_SILENT_S):
        return standstill
    server = f"the object store at {run.store_address.endpoint}"
    silence = Silence(
        server, standstill.since_ms, "check that this store runs, is not frozen, and can be reached from this machine"
    )
    return fold.standstill(found, replace(around, silent=(silence,)), now)
