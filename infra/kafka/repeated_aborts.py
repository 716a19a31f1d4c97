"""Finds an error that aborts every transaction, so that a component does not try again without an end."""

from __future__ import annotations

from confluent_kafka import KafkaError

from headrace.infra.kafka.clients import AWAY_ERRORS, PURGED

MOST_ABORTS = 30
"""Transactions in a row that one error may abort: about a minute of pauses between them."""


class RepeatedAborts:
    """Counts the transactions in a row that the same error aborted. Errors that pass with time are not counted."""

    def __init__(self) -> None:
        self._code, self._count = 0, 0

    def note_abort(self, error: KafkaError) -> bool:
        """Note that an error aborted a transaction; return whether its error has aborted MOST_ABORTS in a row."""
        code = error.code()
        if error.retriable() or code in AWAY_ERRORS | PURGED:
            return False
        self._code, self._count = code, self._count + 1 if code == self._code else 1
        return self._count >= MOST_ABORTS

    def reset(self) -> None:
        """Begin to count again, after a commit."""
        self._count = 0
