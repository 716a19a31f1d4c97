"""Ways to break a promise about evaluations and redrives, across topics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tampering_hand import Hand
from tamperings import LIVE, Catalogue

from headrace.infra.kafka.clients import Message
from headrace.schemas import codec
from headrace.schemas.records import DeadLetter, Task

tampering = Catalogue()
OF_EVALUATIONS = tampering.all


# ---------------------------------------------------------------------------------------------------------------- tasks


@tampering("eval.sums:.* of solver was issued and is not answered, but its task is not on the eval-tasks topic", LIVE)
def v40_newest_evaluation_tasks_gone_before_they_were_played(hand: Hand) -> None:
    newest = max(int(dict(message.headers)["number"]) for message in hand.all(hand.eval_tasks))
    for number in (newest, newest - 1):
        hand.remove(*hand.about(hand.eval_tasks, number), *hand.about(hand.eval_groups, number))


@tampering("eval.sums:.* of solver was issued and is not answered, but its task is not on the eval-tasks topic", LIVE)
def v41_next_evaluation_raised(hand: Hand) -> None:
    hand.change_body(b"feed", lambda body: body["next_evaluation"].update(sums=body["next_evaluation"]["sums"] + 1))


def evaluation_task(hand: Hand) -> tuple[Message, Any]:
    return hand.decoded(hand.eval_tasks, Task)[0]


@tampering("eval-tasks.sums.* its number is .* by its headers, but .* by its value")
def v45_values_of_two_evaluation_tasks_exchanged(hand: Hand) -> None:
    one, other, *_ = hand.all(hand.eval_tasks)
    hand.exchange(one, other, values=True)


@tampering("eval-tasks.sums.* cannot be used, but has no dead letter")
def v46_evaluation_task_that_is_none(hand: Hand) -> None:
    hand.put(evaluation_task(hand)[0], value=bytes(40))


# ------------------------------------------------------------------------------------------------------------- redrives


def forge_redrive(hand: Hand, redrives: int, offset: int) -> None:
    """Let a dropped group be a dead letter, and claim that a dead letter was sent back to an offset of its topic."""
    message = hand.bury(hand.dropped)
    letter = codec.decode(message.value, DeadLetter)
    hand.append(message, replace(letter, component="redrive", reason="redriven", offset=offset, redrives=redrives))


@tampering("dead letter 0 was sent back to .*trajectories.solver.*, but no record that was sent back is there")
def d40_redrive_of_a_message_that_was_not_sent_back(hand: Hand) -> None:
    forge_redrive(hand, redrives=0, offset=10**6)


@tampering("dead letter 0 was sent back to .*trajectories.solver.*, but no record that was sent back is there")
def d41_redrive_that_names_another_record_as_sent_back(hand: Hand) -> None:
    forge_redrive(hand, redrives=0, offset=hand.delivery().offset)


@tampering("the message of dead letter 1 was sent back, but before it there is no dead letter at that offset")
def d42_redrive_of_itself(hand: Hand) -> None:
    forge_redrive(hand, redrives=1, offset=10**6)


# ------------------------------------------------------------------------------------------------ the evaluator's state
