"""Writes the rows of an owner that reads messages itself, many in one transaction."""

from __future__ import annotations

from headrace.infra.kafka.clients import Message
from headrace.ledger.ledger import Ledger
from headrace.ledger.rows import Rows

MOST_MESSAGES = 4_000
"""Messages whose rows are written in one transaction."""


class RowWriter:
    """Collects rows for a ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self.rows, self._messages = ledger, ledger.make_rows(), 0

    def begin(self, message: Message) -> tuple[Rows, int]:
        """Return where to add the rows of a message, and the id of its partition. Raises LedgerRemade."""
        self._messages += 1
        if self._messages > MOST_MESSAGES:
            self.flush()
        return self.rows, self._ledger.find_partition(message.topic, message.partition)

    def flush(self) -> None:
        """Write the rows that wait. Raises LedgerRemade."""
        self._ledger.write(self.rows)
        self.rows, self._messages = self._ledger.make_rows(), 0
