"""Finds redrives that did not happen: dead letters of reason `redriven` whose message was never sent back. No I/O.

`headrace redrive` writes both in one transaction, and dead letters are read before other topics, so a record that was
sent back must be there. Tasks of training are left out: the feeder deletes them once they are played. A number that
such a dead letter opens without a task is found as one that has neither a task nor a group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.dead_letters import REDRIVEN, is_sent_back
from headrace.infra.kafka.topic_reader import name_offset
from headrace.schemas.records import DeadLetter


class Redrives:
    """Takes in dead letters, oldest first, and then the records of other topics. One byte for every dead letter.

    Args:
        kept: Topics that keep all records for ever, and that the audit reads after the dead letters.
    """

    def __init__(self, kept: Collection[str]) -> None:
        self._kept = kept
        self.expected: dict[tuple[str, int, int], tuple[str, int]] = {}
        """(topic, partition, offset) to which a message was sent back, to the dead letter that says so, and the offset
        of the dead letter whose message it is."""
        self._is_letter = bytearray()
        self._unfounded: list[tuple[str, int]] = []

    def fold_dead_letter(self, message: Message, dead_letter: DeadLetter | None) -> None:
        """Take in a record on the topic of dead letters.

        It is None if it cannot be read: a newer release may have written it, and sent its message back.
        """
        self._is_letter.extend(bytes(max(message.offset + 1 - len(self._is_letter), 0)))
        if dead_letter is None or dead_letter.reason != REDRIVEN:
            self._is_letter[message.offset] = True
            return
        where, sent_back = name_offset(message), dead_letter.redrives
        if not (0 <= sent_back < message.offset and self._is_letter[sent_back]):
            self._unfounded.append((where, sent_back))
        elif dead_letter.topic in self._kept:
            # All dead letters about one record name the same copy of it; the copy's header names only the first.
            self.expected[dead_letter.topic, dead_letter.partition, dead_letter.offset] = where, sent_back

    def fold_message(self, message: Message) -> None:
        """Take in a record that may be one that was sent back."""
        record_id = (message.topic, message.partition, message.offset)
        if record_id in self.expected and is_sent_back(message):
            del self.expected[record_id]

    def problems(self) -> Iterator[str]:
        """Yield what is wrong, after all topics that keep their records were read."""
        for where, sent_back in self._unfounded:
            yield (
                f"the dead letter {where} says that the message of dead letter {sent_back} was sent back, but before "
                "it there is no dead letter at that offset"
            )
        for (topic, partition, offset), (where, sent_back) in self.expected.items():
            yield (
                f"the dead letter {where} says that the message of dead letter {sent_back} was sent back to "
                f"{topic}[{partition}]@{offset}, but no record that was sent back is there"
            )
