"""Writes the rows of an owner that reads messages itself, many in one transaction."""

from __future__ import annotations

from headrace.infra.kafka.clients import Message
from headrace.ledger.ledger import Ledger
from headrace.ledger.rows import Rows

MOST_ROWS = 4_000
"""Rows of one transaction, without those of its last message: a batch has a row for each of its groups."""


class RowWriter:
    """Collects rows for a ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self.rows = ledger, ledger.make_rows()

    def begin(self, message: Message) -> tuple[Rows, int]:
        """Return where to add the rows of a message, and the id of its partition. Raises LedgerRemade."""
        if sum(map(len, self.rows.of.values())) >= MOST_ROWS:
            self.flush()
        return self.rows, self._ledger.find_partition(message.topic, message.partition)

    def flush(self) -> None:
        """Write the rows that wait. Raises LedgerRemade."""
        self._ledger.write(self.rows)
        self.rows = self._ledger.make_rows()
