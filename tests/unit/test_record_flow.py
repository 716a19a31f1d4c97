"""The map of the system is true: each component is built, or handed records, without a server."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from made_recipes import sums_recipe

from headrace.consumers.curate import curator, issued_numbers
from headrace.consumers.curate.issued_numbers import IssuedNumbers
from headrace.consumers.curate.published_versions import PublishedVersions
from headrace.consumers.evaluate import evaluator
from headrace.infra.kafka.clients import Connection, Message, Outgoing, RunAddress
from headrace.infra.run.group_consumer import GroupConsumer
from headrace.infra.run.own_positions import OwnPositions, Role
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import StoreAddress
from headrace.ops.compaction import compactor
from headrace.ops.compaction.compactor import Compactor
from headrace.ops.record_flow import TAKES, WRITES
from headrace.producers.feed import feeder, worked_examples
from headrace.producers.feed.feed_state import FeedState
from headrace.producers.feed.feeder import Feeder
from headrace.producers.feed.open_tasks import OpenTask
from headrace.producers.feed.planned import Planned
from headrace.producers.rollout.conclusions import Concluder
from headrace.producers.rollout.follower import WeightFollower
from headrace.producers.rollout.group_records import encode_group, outgoing
from headrace.producers.rollout.pauses import Pauses
from headrace.producers.rollout.started_task import StartedTask
from headrace.producers.rollout.worker import Options, RolloutWorker
from headrace.producers.rollout.worker_status import Reporter, State, StatusPosts, WorkCounts
from headrace.schemas import codec
from headrace.schemas.headers import Stamp
from headrace.schemas.ids import UseId
from headrace.schemas.records import (
    ClaimCheck,
    CuratedGroup,
    RecipeRevision,
    Sampling,
    Sequence,
    Span,
    Task,
    Trajectory,
    TrajectoryGroup,
    WeightsPublished,
)
from headrace.trainers.batches.groups import WholeGroup
from headrace.trainers.batches.window import Eviction, Waiting
from headrace.trainers.component import Trainer, handlers
from headrace.trainers.messages import Messages
from headrace.trainers.versions import heartbeat
from headrace.trainers.versions.batch_offsets import BatchOffsets
from headrace.trainers.versions.pipeline import Made, PlannedStep, Published
from headrace.trainers.versions.publisher import Publisher

ROOT = Path(__file__).parents[2]
RECIPE = sums_recipe(policies={"solver": {"path": "/models/any", "warm_start": {"examples": 1}}})
RUN = Run(RunAddress(Connection("127.0.0.1:1"), "t"), "run-1", (RECIPE,), StoreAddress("127.0.0.1:1", "b", "k", "s"))
CLAIM = ClaimCheck("main", "weights/a", "a", 1)
UNREADABLE = Message("t.any", 0, 0, b"", b"no record")


def kind_of(topic: str) -> str:
    return topic.removeprefix("t.").partition(".")[0]


def without_wrapping(function: Callable[..., Any]) -> Callable[..., Any]:
    return getattr(function, "__func__", function)


# ------------------------------------------------------------------------------------------------------- what is taken


@pytest.fixture
def roles(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect what is subscribed to in place of a server."""
    found: list[Any] = []

    def noted(role: Any, *_: Any) -> Any:
        found.append(role)
        return SimpleNamespace(restored=None)

    monkeypatch.setattr(feeder, "OwnPositions", noted)
    monkeypatch.setattr(evaluator, "OwnPositions", noted)
    monkeypatch.setattr(curator, "GroupConsumer", noted)
    monkeypatch.setattr(curator, "whole_topics", lambda *_: [0, 1])
    monkeypatch.setattr(feeder, "send_examples", lambda *_: None)
    monkeypatch.setattr(feeder, "read_revisions", lambda _: [RecipeRevision()])
    monkeypatch.setattr(compactor, "open_producer", lambda *_: None)
    monkeypatch.setattr(compactor, "whole_topics", lambda _, topics: dict.fromkeys(topics, 0))
    monkeypatch.setattr(compactor, "TopicReader", lambda _, positions, *__: noted(SimpleNamespace(topics=positions)))
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
    dispatch = {(kind_of(topic), without_wrapping(take)) for topic, take in handlers(trainer).items()}
    assert dispatch == {(flow.topic, flow.by) for flow in TAKES["train"]}


def test_a_curator_takes_what_the_map_says(roles: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[RunAddress] = []
    monkeypatch.setattr(curator, "RecipeNews", lambda address, _: looked.append(address))
    published = PublishedVersions(RUN, "solver")
    curator.curator(RUN, "solver", published, IssuedNumbers(RUN))
    [membership] = roles
    topics = {*membership.topics, published._topic, *asked_of_issued(monkeypatch)}
    assert {kind_of(topic) for topic in topics} | {"recipe" for _ in looked} == taken("curate")


def asked_of_issued(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Topics that a curator reads to see whether a number was issued."""
    asked: set[str] = set()
    reader = SimpleNamespace(close=lambda: None, until=lambda _: (), catch_up=lambda: (), positions={})
    monkeypatch.setattr(issued_numbers, "whole_topics", lambda _, topics: asked.update(topics))
    monkeypatch.setattr(issued_numbers, "stable_ends", lambda *_: {})
    monkeypatch.setattr(issued_numbers, "TopicReader", lambda _, __, name="": reader if name else nullcontext(reader))
    monkeypatch.setattr(issued_numbers, "newest_snapshot", lambda *_: None)
    assert not IssuedNumbers(RUN).has(next(iter(RUN.recipe.workflows)), 0)
    return asked


def test_an_evaluator_takes_what_the_map_says(roles: list[Any]) -> None:
    evaluator.open_evaluator(RUN)
    [role] = roles
    assert {kind_of(topic) for topic in role.topics} == taken("evaluate")


def test_a_compactor_takes_what_the_map_says(roles: list[Any]) -> None:
    Compactor(RUN, ["solver"], 8, cast("Any", None))
    [role] = roles
    assert {kind_of(topic) for topic in role.topics} == taken("compact")


def test_a_rollout_worker_takes_what_the_map_says(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = object.__new__(RolloutWorker)
    worker.run, worker.options = RUN, Options("sums", "w", "", 1)
    monkeypatch.setattr("headrace.producers.rollout.follower.end_offsets", lambda _, places: dict.fromkeys(places, 0))
    follower = WeightFollower(RUN, ("solver",), "w", Pauses())
    topics = [*worker._member().topics, *(topic for topic, _ in follower._positions())]
    assert {kind_of(topic) for topic in topics} == taken("rollout")


# ------------------------------------------------------------------------------------------------------ what is written


def group(**more: Any) -> TrajectoryGroup:
    sequence = Sequence(
        ids=np.array([5, 6, 7, 1], np.int32),
        logprobs=np.array([0, 0, -0.5, -0.25], np.float32),
        version_runs=np.array([-1, 2, 0, 2], np.int32),
        spans=(Span("prompt", 2), Span("generated", 2, finish_reason="stop", sampling=Sampling())),
    )
    trajectories = tuple(Trajectory(f"sums:0:{index}", float(index), {}, (sequence,)) for index in range(2))
    return TrajectoryGroup(
        "run-1", stream="sums", policy="solver", n_asked=2, trajectories=trajectories, head_version=0, **more
    )


def of_group(made: TrajectoryGroup, topic: str = "t.trajectories.solver") -> Message:
    stamp = Stamp(made.run_id, made.stream, made.number, policy=made.policy, head_version=made.head_version)
    return Message(topic, 0, 0, stamp.key, codec.encode(made), stamp.to_headers())


def own_positions(component: str) -> OwnPositions:
    own = object.__new__(OwnPositions)
    own.role = Role(RUN.connection, component, "run-1", (RUN.topics.state, 0), ())
    own.reader, own.restored = cast("Any", SimpleNamespace(positions={})), None
    return own


@contextmanager
def raw_producer(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> Iterator[list[Outgoing]]:
    """Collect what a module writes with librdkafka's producer itself."""
    written: list[Outgoing] = []

    def produce(topic: str, value: bytes, key: bytes, partition: int, **_: Any) -> None:
        written.append(Outgoing(topic, value, key, partition=partition))

    made = SimpleNamespace(produce=produce, flush=lambda _: 0, poll=lambda _: 0)
    with monkeypatch.context() as patched:
        patched.setattr(module, "open_producer", lambda *_: made)
        yield written


def by_the_feeder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Outgoing]:
    tasks = [Task("run-1", stream=stream, workflow="sums") for stream in ("sums", "eval.sums")]
    state = SimpleNamespace(
        plan=lambda: [Planned(task, OpenTask(0, "", 0)) for task in tasks],
        give_up=lambda _: [Planned(task, OpenTask(0, "", 0)) for task in tasks[:1]],
        again=lambda _: [],
        end=lambda: "steps",
        ended="steps",
        revision=RecipeRevision("run-1"),
        snapshot=dict,
        changes=dict,
        **dict.fromkeys(("take_dead_letter", "take_outcome", "take_batch", "take_weights", "take_result")),
    )
    made = Feeder(RUN, own_positions("feed"), cast("FeedState", state))
    made._commits = cast("Any", SimpleNamespace(overdue=lambda _: []))
    yield from made.handle(Message(RUN.topics.outcomes("solver"), 0, 0, b"", b"no record"))
    ticked = list(made.tick())
    yield from ticked
    yield from made.before_commit(cast("Any", [SimpleNamespace(offset=n) for n in range(len(ticked))]))
    monkeypatch.setattr(worked_examples, "read_place", lambda *_: ())
    environment = SimpleNamespace(worked_examples=lambda *_: [], worked_example=lambda *_: ("a", "b"))
    written: list[Outgoing] = []
    writer = SimpleNamespace(begin=lambda: None, produce=written.extend, commit=lambda: None)
    monkeypatch.setattr(worked_examples, "_first_environment", lambda *_: environment)
    monkeypatch.setattr(worked_examples, "_lines", lambda *_: [])
    run = SimpleNamespace(
        recipe=RECIPE,
        connection=None,
        topics=RUN.topics,
        run_id="run-1",
        put=lambda *_: CLAIM,
        state_place=RUN.state_place,
    )
    worked_examples.send_examples(cast("Run", run), cast("Any", writer), {})
    yield from written


def by_a_rollout_worker(_: pytest.MonkeyPatch) -> Iterator[Outgoing]:
    partitions = {RUN.topics.trajectories("solver"): 1, RUN.topics.eval_groups("solver"): 1}
    for made in (group(purpose="train"), group(purpose="eval")):
        yield outgoing(RUN.topics, encode_group(made), partitions)
    written: list[Outgoing] = []

    async def send(records: Iterable[Outgoing]) -> None:
        written.extend(records)

    producer = cast("Any", SimpleNamespace(post=written.append))
    posts = StatusPosts(Reporter("run-1", "w", "sums", ""), producer, RUN.topics.workers, Pauses())
    posts.post(State("rolling", "", 0, 0, {}, ()), WorkCounts(), None)
    concluder = SimpleNamespace(run=RUN, producer=SimpleNamespace(send=send))
    concluder._reject = lambda started: Concluder._reject(cast("Concluder", concluder), started)
    started = StartedTask(("t.tasks.sums", 0), UNREADABLE, None, "play", why=("undecodable", "no task"))
    asyncio.run(Concluder.conclude(cast("Concluder", concluder), started, cast("Any", None), lambda _: None))
    yield from written


def by_a_curator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Outgoing]:
    made: list[Any] = []
    monkeypatch.setattr(curator, "whole_topics", lambda *_: [0])
    monkeypatch.setattr(curator, "RecipeNews", lambda *_: None)
    monkeypatch.setattr(curator, "GroupConsumer", lambda *given: made.append(given))
    curator.curator(RUN, "solver", PublishedVersions(RUN, "solver"), IssuedNumbers(RUN))
    [(membership, make_state, _)] = made
    state = make_state(("t.trajectories.solver", 0))
    yield from state.handle(of_group(group()))
    yield from state.handle(UNREADABLE)
    consumer = object.__new__(GroupConsumer)
    consumer.membership = membership
    held = SimpleNamespace(state=state, position=1, handled=True, snapshot_due=0.0)
    consumer._held = {("t.trajectories.solver", 0): cast("Any", held)}
    yield from consumer.before_commit(())


def by_an_evaluator(_: pytest.MonkeyPatch) -> Iterator[Outgoing]:
    own = own_positions("evaluate")
    recipe = RECIPE.model_copy(update={"evaluate": RECIPE.evaluate.model_copy(update={"problems": 1})})
    run = Run(RUN.address, "run-1", (recipe,), RUN.store_address)
    made = evaluator.Evaluator(run, own)
    yield from made.handle(of_group(group(purpose="eval"), RUN.topics.eval_groups("solver")))
    yield from made.handle(Message(RUN.topics.eval_groups("solver"), 0, 0, b"", b"no record"))
    yield from made.tick()


def by_a_trainer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Outgoing]:
    messages = Messages(RUN, "solver", 0, {}, "", {}, BatchOffsets())
    yield from messages.dead(UNREADABLE, ("undecodable", "no record"))
    payload = SimpleNamespace(whole=WholeGroup(CuratedGroup("run-1", stream="sums"), group()))
    evictions = [Eviction(Waiting(UseId("sums", 0, 0), 0, 0, 0, 0, 0, cast("Any", payload)), "expired")]
    stored = cast("Any", SimpleNamespace(claim=CLAIM, parts=()))
    made = Made(PlannedStep(1, 0, (), must_publish=True, checkpoint=True), {}, Published("hash", None, stored))
    yield from messages.version(made, {}, evictions, {})
    yield messages.begun(1, 1, 4)
    publisher = SimpleNamespace(_run=RUN, _policy_variant="solver")
    yield Publisher.message(cast("Publisher", publisher), WeightsPublished("run-1", "solver"))
    with raw_producer(monkeypatch, heartbeat) as written, heartbeat.heartbeat(RUN, "solver", "resuming") as beat:
        beat("version 1 of 2")
    yield written[0]


def by_a_compactor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Outgoing]:
    monkeypatch.setattr(compactor, "whole_topics", lambda _, topics: dict.fromkeys(topics, 0))
    monkeypatch.setattr(compactor, "TopicReader", lambda *_: None)
    with raw_producer(monkeypatch, compactor) as written:
        made = Compactor(RUN, ["solver"], 8, cast("Any", None))
        parts = iter([(WeightsPublished("run-1", "solver"),), ()])
        [topic] = made._chains
        made._chains[topic] = cast("Any", SimpleNamespace(due=lambda: next(parts), take=lambda _: None))
        made._merged = lambda _, parts: parts[0]  # type: ignore[method-assign]
        made.merge_due()
    yield from written


WRITERS: dict[str, Callable[[pytest.MonkeyPatch], Iterator[Outgoing]]] = {
    "feed": by_the_feeder,
    "rollout": by_a_rollout_worker,
    "curate": by_a_curator,
    "evaluate": by_an_evaluator,
    "train": by_a_trainer,
    "compact": by_a_compactor,
}


@pytest.mark.parametrize("component", WRITES)
def test_a_component_writes_what_the_map_says(component: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = {(kind_of(one.topic), type(codec.decode_any(one.value))) for one in WRITERS[component](monkeypatch)}
    assert written == {(flow.topic, flow.record) for flow in WRITES[component]}


# ------------------------------------------------------------------------------------------------- the README's table

COMPONENTS = {
    "feeder": "feed",
    "rollout workers": "rollout",
    "curators": "curate",
    "evaluator": "evaluate",
    "trainer": "train",
    "compactor": "compact",
}
BESIDE = {"launcher", "swap", "gc", "page", "audit", "people", "all at their start", "the same at their start"}
"""Commands and people: they are no components, so the map has none of them."""


def rows_of_the_readme() -> list[list[str]]:
    """Return topics, records, writers, readers and key of each row of the table of topics."""
    section = (ROOT / "README.md").read_text().partition("\n## Topics\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row] for row in rows]


def named(cell: str) -> set[str]:
    """Return the components that a cell names; whoever else it names must be known."""
    words = set(re.split(r"[,;] ", cell))
    assert words <= COMPONENTS.keys() | BESIDE, cell
    return {COMPONENTS[word] for word in words - BESIDE}


@pytest.mark.parametrize("row", rows_of_the_readme(), ids=lambda row: row[0])
def test_a_row_of_the_readme_says_what_the_map_says(row: list[str]) -> None:
    topics = set(re.findall(r"`([a-z-]+)", row[0]))
    written = {(name, flow.record.__name__) for name, flows in WRITES.items() for flow in flows if flow.topic in topics}
    read = {name for name, flows in TAKES.items() for flow in flows if flow.topic in topics}
    records = set(row[1].split(", "))
    assert named(row[2]) == {name for name, _ in written}
    assert named(row[3]) == read
    assert "…" in records or records == {record for _, record in written}


def test_every_topic_of_the_map_is_in_the_readme() -> None:
    known = {topic for row in rows_of_the_readme() for topic in re.findall(r"`([a-z-]+)", row[0])}
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
    rooms = ("infra/kafka", "infra/run", "producers", "consumers", "trainers", "ops/compaction")
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


def test_every_component_that_writes_takes_something_and_each_row_is_there_once() -> None:
    assert TAKES.keys() == WRITES.keys()
    for flows in (*TAKES.values(), *WRITES.values()):
        assert len({(flow.topic, flow.record) for flow in flows}) == len(flows)
