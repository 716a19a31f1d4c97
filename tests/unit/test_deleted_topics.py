"""A topic that was deleted, a broker that restarts, and a topic that is yet to come."""

from __future__ import annotations

from headrace.infra.kafka.deleted_topics import MissingTopics

TOPICS = ("r.tasks.sums", "r.weights.solver")


def test_a_topic_that_was_there_and_stays_away_while_kafka_answers_is_gone() -> None:
    missing = MissingTopics(TOPICS, 20)
    assert missing.note_existing(TOPICS, 0) == ""
    assert missing.note_existing(TOPICS[:1], 10) == ""
    assert missing.note_existing(TOPICS[:1], 29.9) == ""
    assert missing.since == {"r.weights.solver": 10}
    assert missing.note_existing(TOPICS[:1], 30) == "r.weights.solver"


def test_a_broker_that_does_not_answer_or_does_not_know_its_topics_yet_has_deleted_none() -> None:
    missing = MissingTopics(TOPICS, 20)
    missing.note_existing(TOPICS, 0)
    assert missing.note_existing((), 10) == ""
    assert missing.note_existing(None, 25) == ""
    assert missing.note_existing((), 31) == "", "since 31, as nobody answered between"
    assert missing.note_existing(TOPICS, 45) == ""
    assert missing.note_existing((), 60) == ""
    assert missing.note_existing((), 79) == ""


def test_a_topic_that_was_never_there_is_waited_for() -> None:
    missing = MissingTopics(TOPICS, 20)
    assert missing.note_existing(TOPICS[:1], 0) == missing.note_existing(TOPICS[:1], 1000) == ""
    missing.note_existing(TOPICS, 1001)
    assert missing.note_existing(TOPICS[:1], 1002) == ""
    assert missing.note_existing(TOPICS[:1], 1022) == "r.weights.solver"
