"""The small parts of a rollout worker: slots, holds, pauses, the watchdog, the choice of a workflow."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from made_recipes import sums_recipe
from patience import PATIENCE_S
from structlog.testing import capture_logs

from headrace.infra.errors import UsageError
from headrace.infra.recipe.settings import Rollout
from headrace.producers.engines.contract import EngineStats, VersionGone
from headrace.producers.engines.owned_folder import OwnedFolder
from headrace.producers.engines.registry import open_engine
from headrace.producers.rollout import watchdog, worker
from headrace.producers.rollout.intake.slots import Slots
from headrace.producers.rollout.open_tasks import OpenTasks
from headrace.producers.rollout.pauses import Pauses
from headrace.producers.rollout.run_end import RunEnd
from headrace.producers.rollout.runtime import WorkerRuntime
from headrace.producers.rollout.threads import WorkerThreads
from headrace.producers.rollout.version_holds import VersionHolds
from headrace.producers.rollout.watchdog import LONGEST_STEP_S, Stalled, StallWatch, Watchdog
from headrace.producers.rollout.worker import choose_workflow
from headrace.producers.rollout.worker_status import WorkCounts


def test_a_large_task_waits_for_half_of_the_slots_and_keeps_those_that_its_episodes_need() -> None:
    slots = Slots(4)
    small = slots.reserve(3)
    assert small is not None
    assert slots.reserve(9) is None
    small.note_ended()
    large = slots.reserve(9)
    assert large is not None
    assert (large.size, slots.taken) == (2, 4)
    small.close()
    for left in range(8, 1, -1):
        large.note_ended()
        assert slots.taken == 2, left
    large.note_ended()
    assert slots.taken == 1
    large.note_ended()
    assert slots.taken == 0


def roll(monkeypatch: pytest.MonkeyPatch, read_clock: Callable[[], float], pauses: Pauses) -> None:
    """Let a worker of an ended run roll, without a task, until it leaves."""
    monkeypatch.setattr(worker, "WORKER_TURN_S", 0.0)
    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=read_clock))
    run_end, stop = RunEnd(), threading.Event()
    assert not run_end.is_over(44.0, has_ended=True, is_busy=False), "it loads"
    runtime = SimpleNamespace(
        follower=SimpleNamespace(ended="steps"), run_end=run_end, tasks=OpenTasks(), flush=idle, call_apart=idle,
        pauses=pauses,
    )  # fmt: skip
    intake = SimpleNamespace(start=lambda: None, drain=lambda: None, stop=lambda: None)
    rolling = worker.RolloutWorker._play_tasks(
        cast("Any", SimpleNamespace(runtime=runtime)), cast("Any", intake), 8.0, stop
    )
    asyncio.run(rolling)


def test_a_worker_removes_the_files_of_policies_that_a_killed_worker_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "temporary_folder", lambda: tmp_path)
    monkeypatch.setattr(worker, "fetch_session_timeout_s", lambda _: 8.0)
    died = OwnedFolder(tmp_path, worker.FILES_PREFIX)
    died.close(keeps_folder=True)
    seen: list[str] = []

    def list_names() -> list[str]:
        return [path.name for path in tmp_path.iterdir()]

    async def prepare(folder: Path, stop: threading.Event) -> None:
        seen.extend(list_names())
        assert seen == [folder.name]

    startup = SimpleNamespace(prepare=prepare)
    starting = SimpleNamespace(
        runtime=SimpleNamespace(), run=SimpleNamespace(connection=None), _build_startup=lambda: startup
    )
    asyncio.run(worker.RolloutWorker.serve_tasks(cast("Any", starting), threading.Event()))
    assert seen
    assert list_names() == []


def test_a_worker_that_loads_its_model_after_the_end_of_the_run_still_waits_for_the_last_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = [45.0, 45.1, 65.1]
    roll(monkeypatch, lambda: turns.pop(0), Pauses())
    assert turns == [], "20 s without a task"


def test_a_worker_of_an_ended_run_counts_no_time_without_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses, turns = Pauses(), [45.0, 45.1, 66.0, 80.0, 99.0, 100.1]
    pauses.begin("Kafka", "it is away")

    def read_clock() -> float:
        if turns[0] == 80.0:
            pauses.end("Kafka")
        return turns.pop(0)

    roll(monkeypatch, read_clock, pauses)
    assert turns == [], "20 s without a task, and with Kafka"


def test_a_worker_of_an_ended_run_leaves_although_its_environment_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses, turns = Pauses(), [45.0, 45.1, 65.1]
    pauses.begin("environment", "its episodes were cancelled, and no other one tries it")
    roll(monkeypatch, lambda: turns.pop(0), pauses)
    assert turns == [], "20 s without a task"


async def idle(*_: object) -> None:
    pass


@pytest.mark.parametrize(("session_s", "over_after_s"), [(8.0, 20.0), (45.0, 57.0)])
def test_a_worker_leaves_an_ended_run_once_the_tasks_of_a_killed_one_would_have_come(
    session_s: float, over_after_s: float
) -> None:
    run_end = RunEnd()
    run_end.begin(100.0, session_s)
    assert not run_end.is_over(100.0 + over_after_s, has_ended=True, is_busy=False)
    assert not run_end.is_over(150.0, has_ended=True, is_busy=True)
    assert not run_end.is_over(150.0 + over_after_s, has_ended=True, is_busy=False)
    assert run_end.is_over(150.1 + over_after_s, has_ended=True, is_busy=False)


class Held:
    """Remembers what is held, and the most versions of a policy at once."""

    def __init__(self) -> None:
        self.now: list[tuple[str, int]] = []
        self.most = 0
        self.lock = threading.Lock()

    def hold(self, policy: str, version: int) -> None:
        if version < 0:
            raise VersionGone("gone")
        with self.lock:
            self.now.append((policy, version))
            self.most = max(self.most, len({v for p, v in self.now if p == policy}))

    def release(self, policy: str, version: int) -> None:
        with self.lock:
            self.now.remove((policy, version))


def test_few_versions_are_held_at_once_and_all_are_released() -> None:
    held, done, threads = Held(), [], WorkerThreads().holds

    async def run() -> None:
        holds = VersionHolds(held.hold, held.release, threads, most=2)

        async def evaluate(versions: Mapping[str, int]) -> None:
            async with holds.hold(versions):
                assert set(versions.items()) <= set(held.now)
                await asyncio.sleep(0.002)
            done.append(versions)

        wanted = [{"a": n % 5, "b": n % 3} if n % 2 else {"b": n % 3, "a": n % 5} for n in range(40)]
        await asyncio.wait_for(asyncio.gather(*map(evaluate, wanted)), PATIENCE_S)

    asyncio.run(run())
    assert len(done) == 40
    assert held.most == 2
    assert held.now == []


def test_a_version_that_is_gone_frees_its_slot() -> None:
    held, threads = Held(), WorkerThreads().holds

    async def run() -> None:
        holds = VersionHolds(held.hold, held.release, threads, most=1)
        with pytest.raises(VersionGone):
            async with holds.hold({"a": 1, "b": -1}):
                pass
        assert held.now == []
        async with holds.hold({"b": 2}):
            assert held.now == [("b", 2)]

    asyncio.run(run())


def test_a_hold_that_is_cancelled_while_it_is_made_is_released_in_the_end() -> None:
    held, may_go_on, threads = Held(), threading.Event(), WorkerThreads().holds

    def slow_hold(policy: str, version: int) -> None:
        may_go_on.wait(PATIENCE_S)
        held.hold(policy, version)

    def release(policy: str, version: int) -> None:
        held.release(policy, version)
        released.set()

    async def run() -> None:
        holds = VersionHolds(slow_hold, release, threads)

        async def evaluate() -> None:
            async with holds.hold({"a": 1}):
                pass

        task = asyncio.create_task(evaluate())
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        may_go_on.set()
        assert await asyncio.to_thread(released.wait, PATIENCE_S)

    released = threading.Event()
    asyncio.run(run())
    assert held.now == []


def test_all_tasks_of_a_version_wait_for_one_hold_and_keep_no_other_call_waiting() -> None:
    held, threads, begun, may_go_on = Held(), WorkerThreads(), threading.Event(), threading.Event()
    asked: list[int] = []

    def slow_hold(policy: str, version: int) -> None:
        asked.append(version)
        begun.set()
        may_go_on.wait(PATIENCE_S)
        held.hold(policy, version)

    async def run() -> None:
        asyncio.get_running_loop().set_default_executor(threads.episodes)
        holds = VersionHolds(slow_hold, held.release, threads.holds, most=1)

        async def evaluate(version: int) -> None:
            async with holds.hold({"a": version}):
                assert held.now == [("a", version)], "each version is held once, and only while it is used"

        tasks = [asyncio.create_task(evaluate(version)) for version in [1] * 80 + [2] * 80]
        assert await asyncio.to_thread(begun.wait, PATIENCE_S), "a call of an episode"
        assert asked == [1]
        tasks[0].cancel()
        may_go_on.set()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(end) for end in ends] == [asyncio.CancelledError] + [type(None)] * 159

    asyncio.run(run())
    assert (asked, held.now) == ([1, 2], [])


def test_a_version_that_is_being_released_is_held_anew() -> None:
    held, threads, begun, may_go_on = Held(), WorkerThreads().holds, threading.Event(), threading.Event()

    def slow_release(policy: str, version: int) -> None:
        begun.set()
        may_go_on.wait(PATIENCE_S)
        held.release(policy, version)

    async def run() -> None:
        holds = VersionHolds(held.hold, slow_release, threads)

        async def evaluate() -> None:
            async with holds.hold({"a": 1}):
                assert held.now == [("a", 1)]
                await asyncio.sleep(0)
                assert held.now == [("a", 1)]

        first = asyncio.create_task(evaluate())
        assert await asyncio.to_thread(begun.wait, PATIENCE_S)
        second = asyncio.create_task(evaluate())
        await asyncio.sleep(0)
        may_go_on.set()
        await asyncio.gather(first, second)

    asyncio.run(run())
    assert held.now == []


def test_a_started_task_that_lends_its_slots_gets_some_back_before_any_other_task() -> None:
    slots = Slots(4)

    async def run() -> None:
        lent = slots.reserve(3)
        assert lent is not None
        lent.lend()
        other = slots.reserve(3)
        assert (other is not None, slots.taken) == (True, 3)
        taking = asyncio.create_task(lent.take_back())
        await asyncio.sleep(0)
        assert slots.reserve(1) is None, "one is free, but not for a task that has not started"
        assert other is not None
        other.close()
        await taking
        assert (lent.size, slots.taken) == (3, 3)
        assert slots.reserve(1) is not None
        lent.close()
        assert slots.taken == 1

    asyncio.run(run())


def test_a_pause_is_said_once_when_it_begins_and_once_when_it_ends() -> None:
    pauses = Pauses()
    with capture_logs() as logs:
        for _ in range(3):
            pauses.begin("Kafka", "no answer")
        pauses.begin("object store", "no answer either")
        assert pauses.detail == "Kafka: no answer; object store: no answer either"
        for _ in range(2):
            pauses.end("Kafka")
    assert [(line["event"], line["what"]) for line in logs] == [
        ("worker.waiting", "Kafka"),
        ("worker.waiting", "object store"),
        ("worker.resumed", "Kafka"),
    ]
    assert pauses.detail == "object store: no answer either"


def test_the_watchdog_ends_a_process_whose_loop_stands_still_and_no_other() -> None:
    ended, why = threading.Event(), [""]

    def end(reason: str) -> None:
        why[0] = reason
        ended.set()

    Watchdog(limit_s=0.05, turn_s=0.01, end=end).start()
    assert ended.wait(PATIENCE_S)
    assert re.match(
        r"blocked for 0 s at \S*test_rollout_parts\.py:\d+ in test_the_watchdog_ends_a_process_whose", why[0]
    )

    spared = threading.Event()
    beaten = Watchdog(limit_s=PATIENCE_S, turn_s=0.01, end=lambda _: spared.set())
    beaten.start()
    for _ in range(10):
        beaten.beat()
    beaten.stop()
    beaten.join(PATIENCE_S)
    assert not spared.is_set()


def test_a_blocked_loop_is_told_by_the_line_that_blocks_before_the_process_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watchdog, "TOLD_S", 0.02)
    told, waits = list[str](), threading.Event()
    events = ["told"]

    def tell(_silent_s: float, at: str) -> None:
        told.append(at)
        waits.set()
        raise OSError("Kafka is away")

    async def till() -> None:
        assert waits.wait(PATIENCE_S)

    with Watchdog(tell, limit_s=PATIENCE_S, turn_s=0.01, end=events.append):
        asyncio.run(till())
    assert re.fullmatch(r"\S*test_rollout_parts\.py:\d+ in till", told[0])
    assert events == ["told"], "the process goes on"


def test_a_stall_is_counted_while_tasks_are_open_and_nothing_is_waited_for() -> None:
    watch = StallWatch()
    looks = [  # (seconds, what was made, whether it may wait), and what is counted
        ((100.0, 5, False), 0.0),  # the first look
        ((101.0, 5, False), 1.0),
        ((102.0, 5, False), 2.0),
        ((103.0, 6, False), 0.0),  # a token
        ((104.0, 6, False), 1.0),
        ((105.0, 6, True), 0.0),  # Kafka is away, or no task is open
        ((106.0, 6, False), 1.0),
        ((9000.0, 6, False), 1.0 + LONGEST_STEP_S),  # the process was suspended
    ]
    assert [watch.count_silent_s(now, made, may_wait=may) for (now, made, may), _ in looks] == [
        counted for _, counted in looks
    ]


def test_a_worker_that_makes_nothing_stalls_also_while_new_weights_cannot_be_had_but_not_while_a_server_is_away() -> (
    None
):
    pauses = Pauses()
    worker: Any = SimpleNamespace(
        pauses=pauses,
        tally=WorkCounts(),
        follower=SimpleNamespace(recipe=SimpleNamespace(rollout=SimpleNamespace(episode_limit_s=30.0))),
        tasks={"a task": ("t", 0)},
        engine=SimpleNamespace(stats=lambda: EngineStats(7, 0, 0, 0, 0, 0.0)),
        _stall_watch=StallWatch(),
    )
    pauses.begin("weights of solver", "version 3: its object is not there")
    pauses.begin("object store", "away")
    for now in range(200):
        WorkerRuntime._check_stall(worker, now)
    pauses.end("object store")
    for now in range(200, 259):
        WorkerRuntime._check_stall(worker, now)
    worker.tally.episodes_done += 1  # it only waited for its score
    for now in range(259, 319):
        worker.tally.episodes_failed += 1  # by their time limit
        WorkerRuntime._check_stall(worker, now)
    with pytest.raises(Stalled, match="no token for 60 s"):
        WorkerRuntime._check_stall(worker, 319)


def test_the_only_workflow_is_taken_and_of_several_one_must_be_named() -> None:
    one = sums_recipe()
    two = sums_recipe(workflows=dict.fromkeys(("sums", "times"), one.workflows["sums"]))
    assert (choose_workflow(one, None), choose_workflow(two, "times")) == ("sums", "times")
    for recipe, name, said in ((two, None, "sums, times"), (one, "sum", "no workflow 'sum'; it has sums")):
        with pytest.raises(UsageError, match=said):
            choose_workflow(recipe, name)
    for engine, said in (
        ("torhc", "take one of torch"),
        ("no_such_module:Engine", "there is no module no_such_module"),
    ):
        with pytest.raises(UsageError, match=said):
            open_engine({}, Rollout(engine=engine), 1)
