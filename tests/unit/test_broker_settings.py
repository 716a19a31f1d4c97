"""What an embedded broker is set to."""

from __future__ import annotations

from headrace.infra.embedded.kafka_server import broker_settings


def test_a_broker_ends_no_overdue_transaction_before_it_leads_its_partitions_again() -> None:
    """It takes some seconds to start; what happens otherwise is in tests/integration/test_hanging_transactions.py."""
    every_ms = int(broker_settings()["transaction.abort.timed.out.transaction.cleanup.interval.ms"])

    assert every_ms >= 10_000
