"""The transactional writer of a command, which ends after its last commit and is not started again by anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager

from headrace.infra.kafka.clients import Connection
from headrace.infra.kafka.transaction_ends import EndlessCommit
from headrace.infra.kafka.transactions import TransactionalWriter


@contextmanager
def open_writer(connection: Connection, transactional_id: str, topics: Iterable[str]) -> Iterator[TransactionalWriter]:
    """Yield the writer of a command, which waits after each commit until readers get past it.

    If Kafka never ended a commit, it is ended as aborted. Raises EndlessCommit then, KafkaAway if that is not known,
    and the errors of the writer.
    """
    wanted = list(topics)
    try:
        with closing(TransactionalWriter(connection, transactional_id, wanted, waits_for_readers=True)) as writer:
            yield writer
            writer.ends.wait_until_read()
    except EndlessCommit as error:
        if error.is_whole:
            TransactionalWriter(connection, transactional_id, wanted).close()  # its start ends what hangs
        raise
