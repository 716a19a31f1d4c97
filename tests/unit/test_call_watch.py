"""Calls of the Kafka client that never return."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, KafkaException
from patience import PATIENCE_S

from headrace.infra.kafka import call_watch
from headrace.infra.kafka.admin_answers import await_answer
from headrace.infra.kafka.call_watch import CallWatch


def test_only_seconds_in_which_kafka_answers_others_count_against_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, ended, is_frozen = threading.Semaphore(0), threading.Event(), True

    def may_wait() -> bool:
        asked.release()
        return is_frozen

    monkeypatch.setattr(call_watch, "CALL_STUCK_S", 0.01)
    monkeypatch.setattr(call_watch, "WATCH_EVERY_S", 0.001)
    monkeypatch.setattr(call_watch, "end_process", lambda why: ended.set() if "closing" in why else None)
    watch = CallWatch("w")
    with watch.watch("closing", may_wait):
        for _ in range(30):
            assert asked.acquire(timeout=PATIENCE_S)
        assert not ended.is_set(), "the broker is frozen, and the call waits for it"
        is_frozen = False
        assert ended.wait(PATIENCE_S)
    watch.close()


def test_a_request_that_the_admin_client_has_lost_is_one_without_an_answer() -> None:
    answered, lost = Future[int](), Future[int]()
    answered.set_result(3)
    assert await_answer(answered) == 3
    with pytest.raises(KafkaException, match=r"no answer within 0\.01 s") as caught:
        await_answer(lost, 0.01)
    assert caught.value.args[0].code() == KafkaError._TIMED_OUT
