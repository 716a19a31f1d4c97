"""The trainer process: `headrace train --run kafka://host:port/run --policy NAME [--variant NAME]`.

From here to the optimizer's step: `main`, whose run loop calls `Trainer.tick` (component.py) every turn;
`Pipeline.begin`, whose thread runs `Pipeline._step` (versions/pipeline.py); `Learner.step` (learner/learner.py).
"""

from __future__ import annotations

import threading
from contextlib import closing

from headrace.infra.kafka.clients import parse_run
from headrace.infra.kafka.run_loop import run_loop
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.log import configure_logging
from headrace.infra.process.signals import JOIN_PATIENCE_S, keep_running, stop_on_signals
from headrace.infra.run.revisions import join_to_write
from headrace.infra.stopwatch import Stopwatch


def main(run: str, policy: str | None = None, variant: str | None = None) -> None:
    """Train one policy of a run until told to stop, or a shadow, by the name of its variant.

    What was begun then is committed, if that takes no longer than FINISH_S.
    """
    configure_logging("train", policy=policy or "", **({"variant": variant} if variant else {}))
    address, stop = parse_run(run), stop_on_signals()
    # torch takes seconds to import: broker and recipe come up meanwhile
    from headrace.trainers.component import Trainer
    from headrace.trainers.learner.backends.group import leading
    from headrace.trainers.start import begin_or_resume

    def train(stop: threading.Event) -> None:
        joined, watch = join_to_write(address, JOIN_PATIENCE_S, stop), Stopwatch()
        name = joined.policy(joined.line(policy, variant))
        with closing(
            TransactionalWriter(joined.connection, f"{address.run}.train.{name}", joined.topic_names)
        ) as writer:
            incarnation = begin_or_resume(joined, name, writer, stop)
            with closing(Trainer(joined, name, incarnation, watch)) as trainer:
                if run_loop(trainer, writer, stop, watch):
                    run_loop(trainer, writer, trainer.finish(), watch)

    with leading():
        keep_running(train, stop)
