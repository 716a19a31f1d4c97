"""The map of the system is true: each component is built, or handed records, without a server."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from made_recipes import sums_recipe

from headrace.consumers.curate import curator, issued_numbers
from headrace.consumers.curate.issued_numbers import IssuedNumbers
from headrace.consumers.curate.published_versions import PublishedVersions
from headrace.consumers.evaluate import evaluator
from headrace.infra.kafka.clients import Connection, RunAddress
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import StoreAddress
from headrace.ops.record_flow import TAKES, WRITES
from headrace.producers.feed import feeder
from headrace.producers.rollout.run_follower import RunFollower
from headrace.producers.rollout.worker import Options, RolloutWorker
from headrace.schemas.records import (
    RecipeRevision,
)
from headrace.trainers.trainer import Trainer, build_handlers

ROOT = Path(__file__).parents[2]
RECIPE = sums_recipe(policies={"solver": {"path": "/models/any", "warm_start": {"examples": 1}}})
RUN = Run(RunAddress(Connection("127.0.0.1:1"), "t"), "run-1", (RECIPE,), StoreAddress("127.0.0.1:1", "bin", "k", "s"))


def kind_of(topic: str) -> str:
    return topic.removeprefix("t.").partition(".")[0]


def without_wrapping(function: Callable[..., Any]) -> Callable[..., Any]:
    return getattr(function, "__func__", function)


# ------------------------------------------------------------------------------------------------------- what is taken


@pytest.fixture
def roles(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect what is subscribed to instead of a server."""
    found: list[Any] = []

    def noted(role: Any, *_: Any) -> Any:
        found.append(role)
        return SimpleNamespace(restored=None)

    monkeypatch.setattr(feeder, "OwnPositions", noted)
    monkeypatch.setattr(evaluator, "OwnPositions", noted)
    monkeypatch.setattr(curator, "GroupConsumer", noted)
    monkeypatch.setattr(curator, "require_partition_count", lambda *_: None)
    monkeypatch.setattr(feeder, "send_examples", lambda *_: None)
    monkeypatch.setattr(feeder, "read_revisions", lambda _: [RecipeRevision()])
    return found


def taken(component: str) -> set[str]:
    return {flow.topic for flow in TAKES[component]}


def test_the_feeder_takes_what_the_map_says(roles: list[Any]) -> None:
    made = feeder.open_feeder(RUN, cast("Any", None))
    [role] = roles
    assert {kind_of(topic) for topic in role.topics} == taken("feed")

    dispatch = {(kind_of(topic), kind, take.__func__) for topic, (kind, take) in made._take.items()}
    assert dispatch == {tuple(flow) for flow in TAKES["feed"] if flow.topic != "recipe"}


def test_a_trainer_takes_what_the_map_says() -> None:
    trainer = object.__new__(Trainer)
    trainer.run, trainer.policy_variant = RUN, "solver"
    dispatch = {(kind_of(topic), without_wrapping(take)) for topic, take in build_handlers(trainer).items()}
    assert dispatch == {(flow.topic, flow.by) for flow in TAKES["train"]}


def test_a_curator_takes_what_the_map_says(roles: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[RunAddress] = []
    monkeypatch.setattr(curator, "RecipeNews", lambda address, _: looked.append(address))
    published = PublishedVersions(RUN, "solver")
    curator.open_curator(RUN, "solver", published, IssuedNumbers(RUN))
    [membership] = roles
    topics = {*membership.topics, published._topic, *asked_of_issued(monkeypatch)}
    assert {kind_of(topic) for topic in topics} | {"recipe" for _ in looked} == taken("curate")


def asked_of_issued(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Topics that a curator reads to see whether a number was issued."""
    asked: set[str] = set()
    reader = SimpleNamespace(close=lambda: None, read_until=lambda _: (), catch_up=lambda: (), positions={})
    monkeypatch.setattr(issued_numbers, "find_start_positions", lambda _, topics: asked.update(topics))
    monkeypatch.setattr(issued_numbers, "fetch_stable_ends", lambda *_: {})
    monkeypatch.setattr(issued_numbers, "TopicReader", lambda _, __, name="": reader if name else nullcontext(reader))
    monkeypatch.setattr(issued_numbers, "read_newest_snapshot", lambda *_: None)
    assert not IssuedNumbers(RUN).has_number(next(iter(RUN.recipe.workflows)), 0)
    return asked


def test_an_evaluator_takes_what_the_map_says(roles: list[Any]) -> None:
    evaluator.open_evaluator(RUN)
    [role] = roles
    assert {kind_of(topic) for topic in role.topics} == taken("evaluate")


def test_a_rollout_worker_takes_what_the_map_says(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = object.__new__(RolloutWorker)
    worker.run, worker.options = RUN, Options("sums", "w", "eu", "sums", 1, 8)
    monkeypatch.setattr(
        "headrace.producers.rollout.run_follower.fetch_end_offsets",
        lambda _, partition_ids: dict.fromkeys(partition_ids, 0),
    )
    follower = RunFollower(RUN, ("solver",), "w")
    tasks = worker._subscribe(is_evaluating=True).topics
    assert tasks == (RUN.topics.tasks("sums"), RUN.topics.tasks("eval.sums")), "workers of all regions share the tasks"
    topics = [*tasks, *(topic for topic, _ in follower._find_positions())]
    assert {kind_of(topic) for topic in topics} == taken("rollout")


# ------------------------------------------------------------------------------------------------------ what is written


def test_a_component_writes_what_the_map_says() -> None:
    """By the files of the functions that the map names: they make its records, and name no topics but its own."""
    made_by = {"DeadLetter": "dead_letter", "Snapshot": "snapshot", "CheckpointPointer": "checkpoint"}
    kinds = {flow.topic for flows in (*TAKES.values(), *WRITES.values()) for flow in flows}
    assert TAKES.keys() == WRITES.keys()
    for component, flows in WRITES.items():
        assert len({(flow.topic, flow.record) for flow in flows}) == len(flows), "each row is there once"
        named = set()
        for flow in flows:
            source = Path(inspect.getfile(inspect.unwrap(flow.by))).read_text()
            named |= {topic.replace("_", "-") for topic in re.findall(r"topics\.(\w+)", source)}
            record = flow.record.__name__
            assert re.search(rf"\b{record}\b|{made_by.get(record, record)}", source), flow
        assert named & kinds <= {flow.topic for flow in (*flows, *TAKES[component])}, component


# ------------------------------------------------------------------------------------------------- the table of topics

COMPONENTS = {
    "feeder": "feed",
    "rollout workers": "rollout",
    "curators": "curate",
    "evaluator": "evaluate",
    "trainer": "train",
    "relay": "relay",
    "autoscaler": "autoscale",
}
BESIDE = {"launcher", "swap", "gc", "page", "audit", "people", "all at their start", "its writers at their start"}
"""Commands and people: they are no components, so the map has none of them."""


def rows_of_topics() -> list[list[str]]:
    """Return topics, records, writers, readers and key of each row of the table of topics."""
    section = (ROOT / "docs" / "design.md").read_text().partition("\n## Topics\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row] for row in rows]


def named(cell: str) -> set[str]:
    """Return the components that a cell names; whoever else it names must be known."""
    words = set(re.split(r"[,;] ", cell))
    assert words <= COMPONENTS.keys() | BESIDE, cell
    return {COMPONENTS[word] for word in words - BESIDE}


def test_the_rows_of_topics_say_what_the_map_says() -> None:
    known = set()
    for row in rows_of_topics():
        topics = set(re.findall(r"`([a-z-]+)", row[0]))
        written = {
            (name, flow.record.__name__) for name, flows in WRITES.items() for flow in flows if flow.topic in topics
        }
        records = set(row[1].split(", "))
        assert named(row[2]) == {name for name, _ in written}, row
        assert named(row[3]) == {name for name, flows in TAKES.items() if topics & {flow.topic for flow in flows}}, row
        assert "…" in records or records == {record for _, record in written}, row
        known |= topics
    assert known == {flow.topic for flows in (*TAKES.values(), *WRITES.values()) for flow in flows}


def test_no_other_file_of_a_component_writes_anything() -> None:
    """Each file that makes a message, or has a producer, is on the map, or is shared; `revisions` starts a run."""
    known = {Path(inspect.getfile(inspect.unwrap(flow.by))).resolve() for flows in WRITES.values() for flow in flows}
    shared = {
        ROOT / "infra/kafka/dead_letters.py",
        ROOT / "infra/kafka/transactions.py",
        ROOT / "infra/run/own_positions.py",
        ROOT / "infra/run/revisions.py",
        ROOT / "producers/rollout/record_producer.py",
    }
    rooms = ("infra/kafka", "infra/run", "producers", "consumers", "trainers")
    writing = {path for room in rooms for path in (ROOT / room).rglob("*.py") if writes(path)}
    assert not writing - known - shared


def writes(path: Path) -> bool:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(func=ast.Name(id="Outgoing" | "dead_letter")):
                return True
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name) | ast.Attribute(attr=name), attr="produce")):
                if name.endswith("producer"):
                    return True
    return False
