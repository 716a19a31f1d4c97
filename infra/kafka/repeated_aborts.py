"""Errors that abort every transaction: a component does not try again without an end, and says what to do."""

from __future__ import annotations

from confluent_kafka import KafkaError

from headrace.infra.kafka.clients import AWAY_ERRORS, PURGED, REFUSED

MOST_ABORTS = 30
"""Transactions in a row that one error may abort: about a minute of pauses between them."""
REMEDIES = {
    KafkaError.MSG_SIZE_TOO_LARGE: "raise the topic's max.message.bytes",
    KafkaError.RECORD_LIST_TOO_LARGE: "raise the topic's max.message.bytes",
    KafkaError.INVALID_TIMESTAMP: (
        "raise the topic's message.timestamp.before.max.ms and message.timestamp.after.max.ms"
    ),
}
"""Remedies for errors of REFUSED; for other errors see OTHERWISE."""
OTHERWISE = "correct the topic's limits or the rights of this client"


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


def describe_end(cause: KafkaError) -> str:
    """Return why a transaction is not tried again after an error, and what to do."""
    if cause.code() in REFUSED:
        remedy = REMEDIES.get(cause.code(), OTHERWISE)
        return (
            f"the transaction was aborted, and trying again does not help: {remedy}, then give the same command again"
        )
    return (
        f"this error has aborted {MOST_ABORTS} transactions in a row: look in the logs of the brokers for its cause, "
        "remove it, then give the same command again"
    )
