"""Concluding a task without a broker: an engine that died is nobody's failure."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from patience import PATIENCE_S

from headrace.envs import registry
from headrace.envs.registry import load_environment
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import KafkaRefused, Message
from headrace.infra.kafka.decoding import Refusal
from headrace.infra.recipe.settings import Curate, Recipe, Rollout
from headrace.infra.stopwatch import Stopwatch
from headrace.infra.store.object_store import StoreUnavailable
from headrace.producers.engines.contract import EngineError, Generation
from headrace.producers.rollout import conclusions
from headrace.producers.rollout.admission import MOST_UNDELIVERED, MOST_WAITING, Admission
from headrace.producers.rollout.conclusions import Concluder, build_workflow_spec
from headrace.producers.rollout.failure_brake import LENIENT, LONGEST_S, FailureBrake
from headrace.producers.rollout.intake.slots import Reservation, Slots
from headrace.producers.rollout.intake.started_task import StartedTask
from headrace.producers.rollout.pauses import Pauses
from headrace.producers.rollout.play.episodes import RolloutContext, WorkflowSpec
from headrace.producers.rollout.threads import WorkerThreads
from headrace.producers.rollout.version_holds import VersionHolds
from headrace.producers.rollout.worker_status import WorkCounts
from headrace.schemas import codec
from headrace.schemas.headers import task_stamp
from headrace.schemas.records import DeadLetter, Task, TrajectoryGroup
from headrace.schemas.topics import Topics

PAYLOAD = '{"task_id": "t", "prompt": "1+1"}'


def recipe(**env: Any) -> Recipe:
    workflow = {"env": {"use": "arithmetic", **env}, "policies": {"solver": "p"}}
    return Recipe.model_validate({"name": "r", "policies": {"p": {"path": "x"}}, "workflows": {"w": workflow}})


class Engine:
    """Refuses long prompts; when dead, all."""

    logprob_convention, kv_on_swap = "tempered", "recompute"

    def __init__(self, *, dead: bool) -> None:
        self.dead = dead

    async def generate(self, _policy: str, ids: list[int], *_: Any, **__: Any) -> Generation:
        if self.dead or len(ids) > 1:
            raise EngineError("the engine thread crashed" if self.dead else "too long")
        return cast("Generation", None)


def concluder(*, dead: bool) -> tuple[Concluder, list[Any]]:
    """One whose records end up in the list."""
    sent: list[Any] = []

    async def send(records: list[Any]) -> list[Any]:
        sent.extend(records)
        return []

    tokenizer = SimpleNamespace(hash="h", stop_ids=(), encode=lambda text: [1] * len(text))
    made = Concluder(
        run=cast("Any", SimpleNamespace(run_id="one", topics=Topics("r"))),
        workflow="w",
        context=RolloutContext(
            cast("Any", Engine(dead=dead)), "fake", "", {"p": cast("Any", tokenizer)}, "w1", "", lambda _: 0
        ),
        follower=cast("Any", SimpleNamespace(recipes={0: recipe()}, recipe=recipe())),
        producer=cast("Any", SimpleNamespace(send=send)),
        partitions={"r.trajectories.p": 4},
        specs={},
        holds=VersionHolds(lambda *_: None, lambda *_: None, WorkerThreads().holds),
        tally=WorkCounts(),
        watch=Stopwatch(),
        pauses=Pauses(),
    )
    return made, sent


def started(slots: Slots) -> StartedTask:
    task = Task(run_id="one", stream="w", number=6, n_asked=2, payload=PAYLOAD)
    message = Message("r.tasks.w", 0, 0, b"", b"")
    return StartedTask(("r.tasks.w", 0), message, task, "play", reservation=slots.reserve(2))


def test_a_request_that_the_engine_refuses_is_a_failed_group() -> None:
    slots = Slots(8)
    works, sent = concluder(dead=False)
    asyncio.run(works.play_and_deliver(started(slots), asyncio.Event(), lambda _: None))
    [record] = sent
    group = codec.decode(record.value, TrajectoryGroup)
    assert (group.reason, group.failures[0].detail, record.partition) == ("failed", "EngineError: too long", 2)
    assert (group.failures[0].traceback == "", group.failures[1].traceback) == (False, "")
    assert (works.tally.episodes_failed, works.tally.groups_done, slots.taken) == (2, 1, 0)


def test_whatever_goes_wrong_with_a_task_fails_its_group_and_not_the_worker_while_the_engine_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(conclusions, "play_group", fail)
    for error, reason in ((TypeError("NoneType"), "error"), (ConnectionError("NoneType"), "unreachable")):
        slots = Slots(8)
        works, sent = concluder(dead=False)
        asyncio.run(works.play_and_deliver(started(slots), asyncio.Event(), lambda _: None))
        group = codec.decode(sent[0].value, TrajectoryGroup)
        assert (group.reason, [failure.reason for failure in group.failures]) == ("failed", [reason] * 2)
        assert group.failures[0].detail == f"{type(error).__name__}: NoneType"
        assert (group.failures[0].at.endswith(" in fail"), slots.taken) == (True, 0)
    works, sent = concluder(dead=True)
    with pytest.raises(EngineError, match="crashed"):
        asyncio.run(works.play_and_deliver(started(Slots(8)), asyncio.Event(), lambda _: None))
    assert sent == []


def admission_to(works: Concluder) -> Admission:
    """Return a gate that has room for eight episodes, and weights and recipe for every task."""
    return Admission(
        cast("Any", None),
        cast("Any", SimpleNamespace(versions=dict)),
        cast("Any", SimpleNamespace(ended="", recipes={0: recipe()}, find_stale=lambda _: [])),
        works,
        Slots(8),
    )


def test_groups_that_all_fail_slow_what_is_trained_on_and_no_evaluation() -> None:
    works, _ = concluder(dead=False)
    now_s = 0.0
    works.brake = FailureBrake(lambda: now_s)
    gate = admission_to(works)

    async def fail() -> None:
        for _ in range(LENIENT + 1):
            await works.play_and_deliver(started(Slots(8)), asyncio.Event(), lambda _: None)

    task = started(Slots(8)).task
    assert task is not None
    assert gate.try_admit(task) is not None
    asyncio.run(fail())
    assert gate.try_admit(task) is None
    assert gate.try_admit(replace(task, purpose="eval")) is not None
    now_s = LONGEST_S
    assert gate.try_admit(task) is not None
    assert gate.try_admit(task) is None, "one at a time"


def test_an_evaluation_has_slots_only_while_the_engine_has_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    async def note_slots(*_: object) -> None:
        seen.append(slots.taken)
        raise TypeError("played")

    def hold(*_: object) -> None:
        seen.append(slots.taken)
        begun.set()
        may_go_on.wait(PATIENCE_S)

    async def run() -> None:
        playing = asyncio.create_task(works.play_and_deliver(evaluation, asyncio.Event(), lambda _: None))
        assert await asyncio.to_thread(begun.wait, PATIENCE_S)
        training = gate.try_admit(task)
        assert isinstance(training, Reservation), "training may have all slots"
        works.waiting += MOST_WAITING - 1
        assert gate.try_admit(replace(task, purpose="eval")) is None, "enough evaluations wait"
        may_go_on.set()
        training.close()
        await playing

    seen: list[int] = []
    slots, begun, may_go_on = Slots(2), threading.Event(), threading.Event()
    plain = started(slots)
    assert plain.task is not None
    evaluation = replace(plain, task=replace(plain.task, purpose="eval", versions={"p": 3}))
    works, _ = concluder(dead=False)
    works.holds = VersionHolds(hold, lambda *_: None, WorkerThreads().holds)
    works.partitions = {"r.eval-groups.p": 4}
    gate, task = replace(admission_to(works), slots=slots), plain.task
    monkeypatch.setattr(conclusions, "play_group", note_slots)
    asyncio.run(run())
    assert (seen, slots.taken, works.waiting) == ([0, 2], 0, MOST_WAITING - 1)


def test_a_task_that_only_lacks_slots_is_told_from_one_that_must_not_start() -> None:
    works, _ = concluder(dead=False)
    gate, task = admission_to(works), started(Slots(8)).task
    assert task is not None
    assert gate.slots.reserve(7) is not None
    assert gate.try_admit(task) == "no_slots"
    assert gate.try_admit(replace(task, purpose="eval")) == "no_slots"
    gate.follower.ended = "steps"
    assert gate.try_admit(replace(task, purpose="eval")) is None, "what is for training is concluded without slots"
    gate.follower.ended = ""
    works.delivering = MOST_UNDELIVERED
    assert gate.try_admit(task) is None


def test_while_many_groups_are_not_delivered_no_task_is_started() -> None:
    works, _ = concluder(dead=False)
    gate, task = admission_to(works), started(Slots(8)).task
    assert task is not None
    works.delivering = MOST_UNDELIVERED
    assert gate.try_admit(task) is None
    assert gate.try_admit(replace(task, purpose="eval")) is None
    works.delivering -= 1
    assert gate.try_admit(task) is not None


def test_a_dead_engine_ends_the_worker_and_concludes_nothing() -> None:
    slots = Slots(8)
    works, sent = concluder(dead=True)
    with pytest.raises(EngineError, match="crashed"):
        asyncio.run(works.play_and_deliver(started(slots), asyncio.Event(), lambda _: None))
    assert sent == []
    assert slots.taken == 0


def test_a_poisoned_task_concludes_and_leaves_a_letter_that_concludes_nothing() -> None:
    slots = Slots(8)
    works, sent = concluder(dead=True)  # it is not played
    plain = started(slots)
    assert plain.task is not None
    stamped = replace(plain.message, offset=7, value=b"the task", headers=task_stamp(plain.task).to_headers())
    refusal = Refusal("poison", "w:6 was started 3 times, and its worker died every time")
    asyncio.run(
        works.play_and_deliver(
            replace(plain, message=stamped, verdict="poison", refusal=refusal), asyncio.Event(), lambda _: None
        )
    )
    letter, group = codec.decode(sent[0].value, DeadLetter), codec.decode(sent[1].value, TrajectoryGroup)
    assert (group.number, group.reason, group.failures[0].detail) == (6, "poison", refusal.detail)
    assert (letter.reason, letter.detail, letter.component) == (*refusal, "rollout")
    assert (letter.stream, letter.number, letter.policy, letter.headers) == ("", -1, "", {})
    assert (letter.topic, letter.partition, letter.offset, letter.value) == ("r.tasks.w", 0, 7, b"the task")


def test_a_record_that_kafka_refuses_is_sent_again_and_its_task_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conclusions, "FIRST_PAUSE_S", 0.0)
    works, sent = concluder(dead=False)
    waits, why = [], KafkaRefused("Kafka answers MSG_SIZE_TOO_LARGE")

    async def send(records: list[Any]) -> list[Any]:
        waits.append(works.pauses.detail)
        sent.extend(records)
        return [(record, why) for record in records] if len(waits) < 3 else []

    works.producer = cast("Any", SimpleNamespace(send=send))
    asyncio.run(works.play_and_deliver(started(Slots(8)), asyncio.Event(), lambda _: None))
    assert len({record.value for record in sent}) == 1
    assert (len(sent), waits[0], works.pauses.detail) == (3, "", "")
    assert waits[1] == waits[2]
    assert waits[1].startswith(f"delivery: Kafka refuses a record of {len(sent[0].value)} bytes ({why}). The worker ")
    assert "correct the settings of topic r.trajectories.p, or the worker's permissions" in waits[1]


def test_a_revision_that_cannot_be_played_here_fails_its_tasks_and_says_why() -> None:
    works, sent = concluder(dead=False)
    other = works.follower.recipes[0] = recipe(tiers=["no such tier"])
    asyncio.run(works.play_and_deliver(started(Slots(8)), asyncio.Event(), lambda _: None))
    group = codec.decode(sent[0].value, TrajectoryGroup)
    assert (group.reason, "no such tier" in group.failures[1].detail) == ("failed", True)
    with pytest.raises(UsageError, match="no such tier"):
        build_workflow_spec(other, "w")


def test_a_task_is_done_when_its_records_are_acknowledged_and_not_before() -> None:
    works, _ = concluder(dead=False)
    order, sending, acknowledged = list[str](), asyncio.Event(), asyncio.Event()

    async def send(_: object) -> None:
        sending.set()
        await acknowledged.wait()
        order.append("acknowledged")

    works.producer = cast("Any", SimpleNamespace(send=send))

    async def play() -> None:
        done = order.append
        task = asyncio.create_task(works.play_and_deliver(started(Slots(8)), asyncio.Event(), lambda _: done("done")))
        await sending.wait()
        assert (works.delivering, order) == (1, [])
        acknowledged.set()
        await task

    asyncio.run(play())
    assert order == ["acknowledged", "done"]


def test_revisions_that_have_the_same_environment_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []

    def load(name: str, seed: int, settings: Any) -> Any:
        built.append(seed)
        return load_environment(name, seed, settings)

    monkeypatch.setattr(registry, "load_environment", load)
    works, _ = concluder(dead=False)
    works.follower.recipes = {
        0: recipe(),
        1: recipe().model_copy(update={"curate": Curate(chain=("validate", "drop_zero_variance"))}),
        2: recipe().model_copy(update={"rollout": Rollout(temperature=0.5)}),
        3: recipe().model_copy(update={"seed": 7}),
        4: recipe().model_copy(update={"rollout": Rollout(score_threads=1)}),
    }

    async def build_all() -> list[WorkflowSpec]:
        return [await works._spec_of(Task(run_id="one", stream="w", revision=number)) for number in range(5)]

    specs = asyncio.run(build_all())
    assert built == [1, 7, 1]
    assert specs[0].environment is specs[1].environment is specs[2].environment
    assert [spec.training.temperature for spec in specs[:3]] == [1.0, 1.0, 0.5]


def test_a_group_that_is_too_large_for_a_record_is_announced_once_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conclusions, "FIRST_PAUSE_S", 0.0)
    works, sent = concluder(dead=False)
    rollout = recipe().rollout.model_copy(update={"inline_limit_bytes": 1})
    works.follower.recipes[0] = recipe().model_copy(update={"rollout": rollout})
    stored: list[bytes] = []
    tries = iter((StoreUnavailable("away"), StoreUnavailable("still away"), None))

    def put(data: bytes, kind: str) -> Any:
        assert (kind, sent) == ("groups", [])
        if (error := next(tries)) is not None:
            raise error
        stored.append(data)
        return SimpleNamespace(key="groups/one", sha256="a" * 64, size_bytes=len(data))

    works.run.store = cast("Any", SimpleNamespace(put=put))
    asyncio.run(works.play_and_deliver(started(Slots(8)), asyncio.Event(), lambda _: None))
    [whole], [record] = stored, sent
    group = codec.decode(record.value, TrajectoryGroup)
    assert group.claim is not None
    assert (group.claim.key, group.claim.size_bytes, group.trajectories) == ("groups/one", len(whole), ())
    assert codec.decode(whole, TrajectoryGroup).reason == "failed"
    assert works.pauses.detail == ""
