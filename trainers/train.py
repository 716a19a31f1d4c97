"""The trainer process: `headrace train --run kafka://host:port/run --policy NAME [--variant NAME]`.

From here to `backward()`: `main`, whose run loop calls `Trainer.tick` (trainer.py) every turn; `Pipeline.begin`
(versions/pipeline.py), whose thread calls `Learner.step` (learner/learner.py), and that `Learner._optimize`. It calls
the loss, `Objective.compute_loss_share` (losses/objective.py).
"""

from __future__ import annotations

from contextlib import closing

from headrace.infra.kafka.run_address import parse_run
from headrace.infra.kafka.run_loop import run_loop
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.log import bind_to_log, configure_logging
from headrace.infra.process.signals import JOIN_PATIENCE_S, begin_attempts, stop_on_signals
from headrace.infra.run.revisions import join_and_write_schemas
from headrace.infra.stopwatch import Stopwatch
from headrace.schemas.topics import policy_of


def main(run: str, policy: str | None = None, variant: str | None = None) -> None:
    """Train one policy of a run until a signal stops it or, with `variant`, one of its shadows.

    After the signal, begun work is committed if this takes no longer than FINISH_S.
    """
    configure_logging("train", **{name: given for name, given in (("policy", policy), ("variant", variant)) if given})
    address, stop = parse_run(run), stop_on_signals()
    # torch takes seconds to import; meanwhile broker and recipe become available
    from headrace.trainers.learner.backends.group import lead_group
    from headrace.trainers.start import begin_or_resume
    from headrace.trainers.trainer import Trainer
    from headrace.trainers.versions.step_note import open_step_note

    def train() -> None:
        joined, watch = join_and_write_schemas(address, JOIN_PATIENCE_S, stop), Stopwatch()
        name = joined.resolve(policy, variant)
        bind_to_log(policy=policy_of(name))
        note = open_step_note(joined, name)
        writer = TransactionalWriter(joined.connection, f"{address.run}.train.{name}", joined.topic_names)
        with closing(writer):
            resumed = begin_or_resume(joined, name, writer, stop)
            with closing(Trainer(joined, name, resumed, watch, note)) as trainer:
                if run_loop(trainer, writer, stop, watch):
                    run_loop(trainer, writer, trainer.stop_new_steps(), watch)
                    note.clear()  # a long step may be killed now, through no fault of its batch

    with lead_group():
        for attempt in begin_attempts(stop):
            with attempt:
                train()  # a function, so that its learner is freed before the next one needs the memory
