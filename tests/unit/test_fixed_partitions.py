"""The number of partitions is fixed for a run: a topic whose number was raised is refused, and a snapshot of it."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from made_groups import group as small_group
from made_recipes import sums_recipe

from headrace.consumers.curate import curator
from headrace.consumers.curate.context import CuratorContext
from headrace.consumers.curate.curator import CuratorPartition, open_curator
from headrace.infra.kafka import topic_admin
from headrace.infra.kafka.clients import Connection, Message, RunAddress
from headrace.infra.kafka.topic_admin import TopicDiffers, ensure_topics
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import StoreAddress
from headrace.ops.lineage import lineage
from headrace.producers.feed.overdue import NumbersSource, Passed
from headrace.producers.feed.task_commits import TaskCommits
from headrace.producers.rollout.worker import fetch_group_partitions
from headrace.schemas import codec
from headrace.schemas.headers import Stamp
from headrace.schemas.ids import GroupId
from headrace.schemas.topics import Topics, TopicSpec

TOPIC = "t.trajectories.solver"
RAISED = f"{TOPIC} has 9 partitions, the run needs 8"
TO_DO = "Kafka cannot lower it: begin a new run with --set name=NAME"
BRANCH = "`headrace up RECIPE --set name=t-2 --branch kafka://k:1/t@best`"


def recipe_of(partitions: int, task_partitions: int = 0) -> Recipe:
    return sums_recipe(kafka={"partitions": partitions, "task_partitions": task_partitions})


def run_of(*recipes: Recipe) -> Run:
    return Run(RunAddress(Connection("k:1"), "t"), "run-1", recipes, StoreAddress("127.0.0.1:1", "bin", "k", "s"))


def having(monkeypatch: pytest.MonkeyPatch, partitions: int) -> None:
    monkeypatch.setattr("headrace.infra.kafka.topic_offsets.get_admin", lambda _: Listing(partitions))


class Listing:
    """Stands for a cluster whose topics all have one number of partitions."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions

    def list_topics(self, topic: str, timeout: float) -> Any:
        found = SimpleNamespace(error=None, partitions=dict.fromkeys(range(self._partitions)))
        return SimpleNamespace(topics={topic: found})


def is_told_what_to_do(error: BaseException) -> bool:
    return all(words in str(error) for words in (RAISED, TO_DO, BRANCH))


@pytest.mark.parametrize("recipes", [(recipe_of(8),), (recipe_of(8), recipe_of(9))], ids=["one", "with a later one"])
def test_a_curator_refuses_a_topic_whose_partitions_were_raised_whatever_a_later_recipe_says(
    monkeypatch: pytest.MonkeyPatch, recipes: tuple[Recipe, ...]
) -> None:
    having(monkeypatch, 9)
    monkeypatch.setattr(curator, "GroupConsumer", lambda *_: None)
    with pytest.raises(TopicDiffers) as raised:
        open_curator(run_of(*recipes), "solver", cast("Any", SimpleNamespace()), cast("Any", SimpleNamespace()))
    assert is_told_what_to_do(raised.value)


def test_a_worker_refuses_a_topic_whose_partitions_were_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    having(monkeypatch, 9)
    with pytest.raises(TopicDiffers) as raised:
        fetch_group_partitions(run_of(recipe_of(8)), ("solver",))
    assert is_told_what_to_do(raised.value)


def test_a_worker_takes_the_number_that_the_run_began_with_however_many_its_tasks_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    having(monkeypatch, 8)
    found = fetch_group_partitions(run_of(recipe_of(8, task_partitions=5)), ("solver",))
    assert found == {TOPIC: 8, "t.eval-groups.solver": 8}


def test_groups_of_a_lost_number_are_looked_for_by_the_partitions_of_trajectories_and_not_of_tasks() -> None:
    commits = TaskCommits(run_of(recipe_of(8, task_partitions=5)))
    lost = [Passed(GroupId("sums", 7), 0, ("solver",))]
    for overdue in (commits._overdue, commits._evaluations_overdue):
        assert overdue.find_sources(lost) == {NumbersSource("solver", 7)}


def test_a_count_that_differs_is_not_to_be_corrected_and_a_setting_is(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = {TOPIC: SimpleNamespace(partitions=dict.fromkeys(range(9)))}
    monkeypatch.setattr(topic_admin, "fetch_topics", lambda *_: SimpleNamespace(topics=topics))
    monkeypatch.setattr(topic_admin, "get_admin", lambda _: None)
    wrong: list[str] = []
    monkeypatch.setattr(topic_admin, "_find_config_differences", lambda *_: wrong)
    with pytest.raises(TopicDiffers) as raised:
        ensure_topics(Connection("k:1"), [TopicSpec(TOPIC, 8)])
    assert is_told_what_to_do(raised.value)
    assert "Correct the topics" not in str(raised.value)
    wrong.append("retention.ms")
    with pytest.raises(TopicDiffers, match=r"retention\.ms\. Correct the topics' settings with Kafka's tools"):
        ensure_topics(Connection("k:1"), [TopicSpec(TOPIC, 9)])


def test_the_records_of_a_group_are_looked_for_where_its_number_of_partitions_put_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    having(monkeypatch, 9)
    looked_at: list[tuple[str, int]] = []

    def read_nothing(_: Connection, partition_id: tuple[str, int], key: bytes) -> list[Message]:
        looked_at.append(partition_id)
        return []

    monkeypatch.setattr(lineage, "read_key", read_nothing)
    assert list(lineage.search_number(run_of(recipe_of(8)), TOPIC, "sums", 17)) == []
    assert looked_at == [(TOPIC, 1)], "a number has the partition 17 % 8, also when there are 9 today"


def partition_of(partitions: int) -> CuratorPartition:
    context = CuratorContext("run-1", "solver", Topics("t"), lambda _: recipe_of(8), pytest.fail)
    return CuratorPartition(context, (TOPIC, 0), partitions)


def test_a_snapshot_of_another_number_of_partitions_is_refused_and_one_that_says_none_is_read() -> None:
    made = replace(small_group((1.0, 0.0), [2, 2], number=8, version=0), run_id="run-1")
    stamp = Stamp("run-1", made.stream, 8, policy="solver")
    state = partition_of(8)
    assert list(state.handle(Message(TOPIC, 0, 0, stamp.key, codec.encode(made), stamp.to_headers())))
    body = json.loads(state.snapshot())
    assert body["dedupe"], "it has a number"
    with pytest.raises(ValueError, match="taken with 8 partitions of the trajectories topic, but now the topic has 9"):
        partition_of(9).restore(json.dumps(body).encode())
    del body["partitions"]
    again = partition_of(8)
    again.restore(json.dumps(body).encode())
    assert again.snapshot() == state.snapshot()
