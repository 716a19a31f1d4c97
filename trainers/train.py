"""The trainer process: `headrace train --run kafka://host:port/run --policy NAME [--variant NAME]`."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING

import structlog

from headrace.infra.kafka.clients import parse_run
from headrace.infra.kafka.run_loop import run_loop
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.log import configure_logging
from headrace.infra.process.signals import JOIN_PATIENCE_S, keep_running, stop_on_signals
from headrace.infra.run.revisions import join_to_write
from headrace.infra.stopwatch import Stopwatch

if TYPE_CHECKING:
    from headrace.trainers.component import Trainer

log = structlog.get_logger()


def drive(trainer: Trainer, writer: TransactionalWriter, stop: threading.Event, watch: Stopwatch) -> None:
    """Train until told to stop; then commit what was begun, if that takes no longer than FINISH_S."""
    if run_loop(trainer, writer, stop, watch):
        run_loop(trainer, writer, trainer.finish(), watch)


def main(run: str, policy: str | None = None, variant: str | None = None) -> None:
    """Train one policy of a run until told to stop, or a shadow, by the name of its variant."""
    configure_logging("train", policy=policy or "", **({"variant": variant} if variant else {}))
    address, stop = parse_run(run), stop_on_signals()
    from headrace.trainers.component import Trainer
    from headrace.trainers.learner.backends.group import (
        leading,  # torch takes seconds to import: broker and recipe come up meanwhile
    )
    from headrace.trainers.start import begin_or_resume

    def build_and_run(stop: threading.Event) -> None:
        joined = join_to_write(address, JOIN_PATIENCE_S, stop)
        name = joined.policy(joined.line(policy, variant))
        writer = TransactionalWriter(joined.connection, f"{address.run}.train.{name}", joined.topic_names)
        watch = Stopwatch()
        with closing(writer):
            incarnation = begin_or_resume(joined, name, writer, stop)
            with closing(Trainer(joined, name, incarnation, watch)) as trainer:
                drive(trainer, writer, stop, watch)

    with leading():
        keep_running(build_and_run, stop)
