"""A real run, audited in flight, at rest before its end, and finished; and again with each of many things wrong in it.

The run is made once, by the components that `up` starts. Its audits on the real broker and store are recorded, so that
a tampering costs one more audit in memory: the same code over the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from confluent_kafka import TopicPartition
from recorded_run import Runs
from tampered_command import (
    WORDS,
    done,
    interrupted,
    suspend,
    suspended_trainer,
    wait_for_version,
    wait_for_waiting_tasks,
)
from tampering_hand import Hand
from tamperings import CATALOGUE, FINISHED, LIVE, STOPPED, Tampering, check, named
from tamperings_new import NEW
from tamperings_of_evaluations import OF_EVALUATIONS
from tamperings_of_groups import OF_GROUPS
from tamperings_of_topics import OF_TOPICS
from tamperings_of_versions import OF_VERSIONS

from headrace.infra.kafka.clients import get_admin, open_producer
from headrace.infra.run.run import Run
from headrace.ops.audit.report import report
from headrace.ops.opened_run import open_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    made = Runs(tmp_path_factory.mktemp("tampered") / "data")
    words = (*WORDS, "--data", made.data)
    with interrupted(*words) as up:
        wait_for_version(made.data, up, 7)
        suspend(made.data, "rollout")  # until the run is stopped: tamperings need tasks that wait
        wait_for_waiting_tasks(made.data)
        with suspended_trainer(made.data):
            made.look(LIVE)
    made.look(STOPPED)
    done(*words)
    made.look(FINISHED)
    return made


def cases() -> list[tuple[Tampering, str]]:
    everything = (*CATALOGUE, *OF_TOPICS, *OF_GROUPS, *OF_EVALUATIONS, *OF_VERSIONS, *NEW)
    return [(one, run) for one in everything for run in one.on]


@pytest.mark.audit
@pytest.mark.parametrize("run", [LIVE, STOPPED, FINISHED])
def test_a_healthy_run_is_green_and_a_record_of_it_is_audited_as_it_is(runs: Runs, run: str) -> None:
    said, again = runs.said[run], runs.records[run].audit()
    assert said.problems == ()
    assert said.ok
    assert again.problems == ()
    assert (again.groups, again.tasks, again.evaluations) == (said.groups, said.tasks, said.evaluations)
    assert (again.policies, again.curated, again.lost, again.doubled) == (said.policies, said.curated, 0, 0)


@pytest.mark.audit
@pytest.mark.parametrize("case", cases(), ids=named)
def test_a_tampering_is_named(runs: Runs, case: tuple[Tampering, str]) -> None:
    check(runs, *case)


@pytest.fixture
def real(runs: Runs) -> Iterator[tuple[Run, Hand]]:
    with open_run(None, runs.data, store=True) as opened:
        yield opened.run, Hand(runs.records[FINISHED])


@pytest.mark.audit
def test_what_can_be_done_to_a_real_log_is_named_on_a_real_broker(real: tuple[Run, Hand]) -> None:
    run, hand = real
    repeated = hand.about(hand.curated, hand.trained[0].number)[0]
    forged = hand.forge_outcome(hand.trained[1].number, verdict="dropped", reason="zero_variance")
    producer = open_producer(run.connection, "tamperer")
    for one in (repeated, forged):
        producer.produce(one.topic, one.value, one.key, one.partition, headers=one.headers)
    assert producer.flush(120) == 0
    cut = get_admin(run.connection).delete_records([TopicPartition(hand.trajectories, 0, 5)])
    assert all(future.result() for future in cut.values())
    claim = hand.event(0)[1].weights
    assert claim is not None
    run.store._bucket.client.remove_object(bucket_name=run.store.address.bucket, object_name=claim.key)

    found = "\n".join(report(run, rests=True, deep=True).problems)

    assert re.search(f"sums:{hand.trained[0].number} of solver has more than one curated record", found)
    assert re.search(f"sums:{hand.trained[1].number} of solver was both trained and discarded", found)
    assert re.search(r"trajectories\.solver\[0\] before offset 5 are gone", found)
    assert re.search(r"version 0 of solver, announced by .* does not exist", found)
