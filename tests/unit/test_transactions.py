"""What a transactional writer makes of errors; a stand-in for librdkafka's producer raises them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.infra.kafka import transactions
from headrace.infra.kafka.clients import Connection, Fenced, KafkaAway, KafkaRefused, translate
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.process.signals import MustRestart


class Failing:
    """Fails the next calls with these codes, then obeys."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.calls = 0
        self.breaks = False

    def _call(self, *_given: object, **_named: object) -> int:
        self.calls += 1
        if self.codes:
            raise KafkaException(KafkaError(self.codes.pop(0)))
        return 0

    begin_transaction = commit_transaction = abort_transaction = _call

    def flush(self, _timeout_s: float) -> int:
        if self.breaks:
            raise SystemError("<method 'flush'> returned NULL without setting an exception")
        return 0

    def purge(self, **_which: bool) -> None:
        pass


@pytest.fixture
def producer() -> Failing:
    return Failing()


@pytest.fixture
def writer(producer: Failing, monkeypatch: pytest.MonkeyPatch) -> Iterator[TransactionalWriter]:
    monkeypatch.setattr(transactions, "open_transactional_producer", lambda *_: producer)
    with closing(TransactionalWriter(Connection("nowhere:1"), "run.test")) as found:
        yield found


def test_a_coordinator_that_is_away_is_waited_for(writer: TransactionalWriter, producer: Failing) -> None:
    writer.begin()
    producer.codes = [KafkaError._WAIT_COORD, KafkaError._TIMED_OUT, KafkaError.COORDINATOR_NOT_AVAILABLE]
    writer.commit()

    assert producer.calls == 1 + 4


@pytest.mark.parametrize("code", [KafkaError.INVALID_TXN_STATE, KafkaError._STATE])
def test_a_producer_that_disagrees_with_the_broker_is_built_anew(
    code: int, writer: TransactionalWriter, producer: Failing
) -> None:
    writer.begin()
    producer.codes = [code]
    with pytest.raises(MustRestart, match="another producer begins from what is committed"):
        writer.abort()


@pytest.mark.parametrize(("open_s", "exit_code"), [(0.0, 1), (11.0, 75)])
def test_a_fenced_process_ends_and_one_that_only_was_too_slow_is_no_failure(
    open_s: float, exit_code: int, writer: TransactionalWriter, producer: Failing
) -> None:
    writer.begin()
    writer._begun_at -= open_s
    producer.codes = [KafkaError.PRODUCER_FENCED]
    with pytest.raises(Fenced) as caught:
        writer.commit()

    assert caught.value.exit_code == exit_code


def test_a_client_that_breaks_off_without_a_word_ends_the_process_in_a_sentence(
    writer: TransactionalWriter, producer: Failing
) -> None:
    writer.begin()
    producer.breaks = True
    with pytest.raises(Fenced, match="this process ends"):
        writer.commit()


def test_what_time_does_not_heal_is_told(writer: TransactionalWriter, producer: Failing) -> None:
    producer.codes = [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    with pytest.raises(KafkaRefused):
        writer.begin()


@pytest.mark.parametrize(
    "code",
    [KafkaError._WAIT_COORD, KafkaError.KAFKA_STORAGE_ERROR, KafkaError._TRANSPORT, KafkaError.NETWORK_EXCEPTION],
)
def test_errors_that_time_heals_are_a_kafka_that_is_away(code: int) -> None:
    assert isinstance(translate(KafkaException(KafkaError(code)), "asking"), KafkaAway)
