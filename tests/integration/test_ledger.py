"""The ledger follows a run on a real broker: it goes on where it ended, and heals itself where topics have changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from made_run import make_run, tiny_recipe
from said import say
from structlog.testing import capture_logs

from headrace.infra.kafka.clients import Outgoing
from headrace.infra.kafka.topic_admin import delete_topics, ensure_topics
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import ObjectStore
from headrace.ledger.follow import Follower, ask_ledger, open_ledger
from headrace.ledger.ledger import Ledger
from headrace.ops.figures.status import status
from headrace.schemas import codec
from headrace.schemas.records import Outcome


@pytest.fixture
def run(bootstrap: str, store: ObjectStore, run_name: str) -> Run:
    return make_run(bootstrap, store, tiny_recipe(run_name))


def conclude(run: Run, *numbers: int) -> None:
    outcomes = [
        Outcome("run-1", "sums", number, policy="solver", verdict="kept", component="curate", rewards=(1.0,))
        for number in numbers
    ]
    topic = run.topics.outcomes("solver")
    say(run, *(Outgoing(topic, codec.encode(one), partition=one.number % 4) for one in outcomes))


def list_numbers(ledger: Ledger) -> list[int]:
    return [number for (number,) in ledger.query("SELECT number FROM outcome ORDER BY number")]


def test_a_second_look_reads_only_what_is_new_while_the_run_goes_on(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = tmp_path / "ledger.sqlite", list[int]()
    monkeypatch.setattr(
        Ledger, "add", lambda self, some, at=0, add=Ledger.add: (read.append(len(some)), add(self, some, at))
    )
    conclude(run, *range(10))
    assert status(run, rests=False, ledger=path).figures.policies["solver"].kept == 10
    conclude(run, 10, 11)
    del read[:]
    assert ask_ledger(run, path, list_numbers) == list(range(12))
    assert sum(read) == 2
    with Follower(run.connection, ledger := open_ledger(run, path), ledger.topics, "test") as page:
        conclude(run, 12)
        while page.poll(64, 0.1, lambda _: 1) == 0:
            pass
        assert ask_ledger(run, path, list_numbers) == list_numbers(ledger) == list(range(13)), (
            "both write the same rows"
        )


def test_records_that_are_deleted_stay_in_the_ledger_and_a_new_one_begins_after_them(run: Run, tmp_path: Path) -> None:
    conclude(run, *range(8))
    assert ask_ledger(run, tmp_path / "old.sqlite", list_numbers) == list(range(8))
    admin = AdminClient({"bootstrap.servers": run.connection.bootstrap})
    [done] = admin.delete_records([TopicPartition(run.topics.outcomes("solver"), 0, 2)]).values()
    done.result()
    conclude(run, 8)
    assert ask_ledger(run, tmp_path / "old.sqlite", list_numbers) == list(range(9))
    assert ask_ledger(run, tmp_path / "new.sqlite", list_numbers) == [1, 2, 3, 5, 6, 7, 8]


def test_a_topic_that_was_made_again_is_read_again(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.infra.kafka.topic_reader.SETTLING_S", 0.5)
    path, topic = tmp_path / "ledger.sqlite", run.topics.outcomes("solver")
    conclude(run, *range(8))
    assert ask_ledger(run, path, list_numbers) == list(range(8))
    delete_topics(run.connection, [topic])
    ensure_topics(run.connection, [spec for spec in run.recipe.build_topic_specs(1) if spec.name == topic])
    conclude(run, 20)
    with capture_logs() as lines:
        assert ask_ledger(run, path, list_numbers) == [20]
    assert [line["event"] for line in lines if line["event"].startswith("ledger")] == ["ledger.made_anew"]
