"""Which server a request goes to, and what becomes of it when servers go away or somebody else uses them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from patience import PATIENCE_S
from told_lock import ToldLock

from headrace.infra.embedded.server_process import ServerError
from headrace.infra.weights.tensors import Tensor
from headrace.producers.engines.contract import EngineAway, EngineError, Generation, Sampling, VersionGone
from headrace.producers.engines.owned_folder import OwnedFolder
from headrace.producers.engines.served import generation_server, request_gate, served_engine
from headrace.producers.engines.served.admission import Admission
from headrace.producers.engines.served.generation_server import (
    EngineProcess,
    GenerationServer,
    ServedWeights,
    ServerLaunch,
)
from headrace.producers.engines.served.model_shapes import ModelShapes
from headrace.producers.engines.served.served_engine import ServedEngine
from headrace.producers.engines.served.served_policy import ServedPolicy
from headrace.producers.engines.served.server_api import Answer, ServerAway, ServerLoad, WeightsRefused
from headrace.producers.engines.served.weight_folders import WeightFolders

SAMPLING = Sampling(max_tokens=6)


class Server:
    """A server in memory: a token is the length of what came before it."""

    def __init__(self) -> None:
        self.label = "default"
        self.asked: list[list[int]] = []
        self.dies_in: list[str] = []
        """Calls during which it goes away, in order."""
        self.first = 0
        """Added to every token."""
        self.gives_up_after = 0
        """Tokens after which it gives a request up by itself, once."""
        self.is_slow = False
        """Whether it answers nothing, unless a request is to end."""
        self.given_up: set[str] = set()
        self.fault_of_start: Exception | None = None

    async def generate(
        self, request_id: str, ids: Sequence[int], sampling: Sampling, version: int | None = None
    ) -> Answer:
        self.asked.append(list(ids))
        await asyncio.sleep(0)
        while self.is_slow and request_id not in self.given_up:  # noqa: ASYNC110 - a test changes it
            await asyncio.sleep(0.001)
        self._go_away("generate")
        count, ended = sampling.max_tokens, "length"
        if self.gives_up_after:
            count, ended, self.gives_up_after = self.gives_up_after, "aborted", 0
        made = np.arange(len(ids), len(ids) + count, dtype=np.int32) + self.first
        return Answer(made, np.zeros(count, np.float32), ((int(self.label), count),), ended)  # type: ignore[arg-type]

    async def abort(self, request_id: str) -> None:
        self.given_up.add(request_id)

    def load(self, folder: Path, version: int) -> float:
        self._go_away("load")
        if not folder.is_dir():
            raise WeightsRefused(f"no folder {folder}")
        self.label = str(version)
        return 0.25

    def note_started(self, folder: Path, version: int) -> None:
        self.label = str(version)
        if self.fault_of_start is not None:
            raise self.fault_of_start

    def read_weight_version(self) -> str:
        self._go_away("read_weight_version")
        return self.label

    def read_load(self) -> ServerLoad:
        self._go_away("read_load")
        return ServerLoad(0, 0, 0)

    def is_ready(self) -> bool:
        return True

    def close(self) -> None:
        """It has no connections."""

    def _go_away(self, call: str) -> None:
        if self.dies_in[:1] == [call]:
            self.dies_in.pop(0)
            raise ServerAway("it went away")


class Shapes:
    """A model that any weights fit."""

    vocabulary, context = 1000, 100

    def check(self, weights: object) -> None:
        """All fit."""


class Scene:
    def __init__(self, root: Path) -> None:
        (root / "files").mkdir()
        self.servers = {"http://a": Server(), "http://b": Server()}
        launch = ServerLaunch("server", lambda _weights, _port: [], lambda url: self.servers[url], 1.0)
        opened = [GenerationServer(url, launch, None, url) for url in self.servers]
        folders = WeightFolders(root, {"solver": root / "files"})
        policy = ServedPolicy("solver", cast(ModelShapes, Shapes()), opened, (), folders)
        self.logs = OwnedFolder(root, "logs-")
        self.engine = ServedEngine([policy], folders, logs=self.logs)

    def load(self, version: int) -> None:
        self.engine.load("solver", version, {"w": Tensor("F32", (1,), memoryview(bytes(4)))})

    def generate(self, *sessions: int | None) -> list[tuple[list[int], tuple[tuple[int, int], ...]]]:
        async def gather() -> list[tuple[list[int], tuple[tuple[int, int], ...]]]:
            calls = (self.engine.generate("solver", [5, 6], SAMPLING, seed=0, session=one) for one in sessions)
            return [(made.ids.tolist(), made.version_runs) for made in await asyncio.gather(*calls)]

        return asyncio.run(gather())


WHOLE = [2, 3, 4, 5, 6, 7]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(served_engine, "WAIT_FOR_SERVER_S", 0.0)
    monkeypatch.setattr(served_engine, "LOOK_AT_SERVER_S", 0.005)
    opened = Scene(tmp_path)
    yield opened
    opened.engine.close()


def test_the_requests_of_a_session_go_to_one_server_and_sessions_to_both(scene: Scene) -> None:
    scene.load(1)
    for _ in range(3):
        scene.generate(*range(10))
    asked = [len(server.asked) for server in scene.servers.values()]
    assert sum(asked) == 30
    assert all(count and count % 3 == 0 for count in asked), "how many each gets depends on the looks at its load"
    assert scene.engine.stats().swap_s == 0.25


def test_a_request_whose_server_goes_away_goes_on_at_another_with_what_it_has(scene: Scene) -> None:
    scene.load(1)
    first, second = scene.servers.values()
    first.dies_in, second.dies_in = ["generate"], []
    [(ids, runs)] = scene.generate(None)
    assert (ids, runs) == (WHOLE, ((1, 6),))
    assert (first.asked, second.asked) == ([[5, 6]], [[5, 6]])


def test_a_request_that_a_server_gives_up_goes_on_from_its_tokens(scene: Scene) -> None:
    scene.load(1)
    first, second = scene.servers.values()
    first.gives_up_after = second.gives_up_after = 2
    [(ids, runs)] = scene.generate(7)
    assert (ids, runs) == (WHOLE, ((1, 6),))
    assert [5, 6, 2, 3] in first.asked + second.asked


def test_a_request_that_takes_servers_down_fails_alone(scene: Scene) -> None:
    scene.load(1)
    for server in scene.servers.values():
        server.dies_in = ["generate"] * 3
    with pytest.raises(EngineError, match=r"servers failed 3 times while .* the last time: it went away\."):
        scene.generate(None)


def test_a_version_that_takes_servers_down_is_loaded_no_more(scene: Scene) -> None:
    scene.load(1)
    for server in scene.servers.values():
        server.dies_in = ["load"]
    with pytest.raises(EngineAway, match="failed while it loaded version 2"):
        scene.load(2)
    with pytest.raises(EngineError, match=NOT_AGAIN):
        scene.load(2)
    scene.load(3)
    assert scene.engine.versions() == {"solver": 3}


def test_a_version_is_loaded_when_servers_come_that_were_not_there(scene: Scene) -> None:
    for server in scene.servers.values():
        server.dies_in = ["read_weight_version"] * 3
    for _ in range(3):
        with pytest.raises(EngineAway, match=r"server http://[ab] is not used until it works again: it went away"):
            scene.load(0)
    scene.load(0)
    assert scene.engine.versions() == {"solver": 0}


def test_weights_that_somebody_else_loads_are_noticed_and_never_get_our_versions(scene: Scene) -> None:
    scene.load(1)
    for server in scene.servers.values():
        server.label = "9"
    with pytest.raises(EngineError, match="answered with weights of version 9, but this worker did not"):
        scene.generate(None)
    with pytest.raises(EngineError, match="give each worker a server of its own"):
        scene.load(2)


def test_a_server_that_its_user_started_again_while_it_was_idle_gets_weights_again(scene: Scene) -> None:
    scene.load(1)
    for server in scene.servers.values():
        server.label = "default"
    scene.load(2)
    assert [server.label for server in scene.servers.values()] == ["2", "2"]


def test_tokens_of_another_vocabulary_are_refused(scene: Scene) -> None:
    scene.load(1)
    for server in scene.servers.values():
        server.first = 996
    with pytest.raises(EngineError, match="answered with token id 1003, but the policy's vocabulary has 1000 tokens"):
        scene.generate(None)


def test_a_server_that_answers_nothing_for_long_gets_its_weights_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.load(1)
    monkeypatch.setattr(generation_server, "FROZEN_S", 0.0)
    server = scene.servers["http://a"]
    server.label, server.dies_in = "started again", ["read_load"]
    while server.label != "1":
        time.sleep(0.001)
    assert [ids for ids, _ in scene.generate(1, 2)] == [WHOLE, WHOLE]


class Process:
    """A process in memory, which always lives."""

    def __init__(self) -> None:
        self.api = Server()
        self.weights: ServedWeights | None = None
        self.starts, self.folder = 0, Path()

    def is_alive(self) -> bool:
        return True

    def stop(self, timeout_s: float) -> None:
        """It is started next."""

    def start(self, _limit_s: float) -> None:
        self.starts += 1


class SlowProcess(Process):
    """A process in memory that dies when told to, and starts when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.is_up, self.is_ending = False, False
        self.begun, self.may_start = threading.Event(), threading.Event()
        self.may_start.set()
        self.may_stop = threading.Event()
        self.may_stop.set()
        self.fails = False
        self.refused = -1

    def is_alive(self) -> bool:
        return self.is_up

    def stop(self, timeout_s: float = 0) -> None:
        self.may_stop.wait(PATIENCE_S)
        self.is_up = False

    def start(self, _limit_s: float) -> None:
        if self.is_up:
            return
        self.starts += 1
        self.begun.set()
        self.may_start.wait(PATIENCE_S)
        if self.fails or (self.weights is not None and self.weights.version == self.refused):
            raise ServerError("it exited")
        self.is_up = True


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ServedEngine, list[SlowProcess]]]:
    """An engine that starts two servers of a policy, with version 1."""
    monkeypatch.setattr(served_engine, "LOOK_AT_SERVER_S", 0.005)
    monkeypatch.setattr(generation_server, "FIRST_PAUSE_S", 0.01)
    (tmp_path / "files").mkdir()
    processes = [SlowProcess(), SlowProcess()]
    folders = WeightFolders(tmp_path, {"solver": tmp_path / "files"})
    policy = ServedPolicy(
        "solver",
        cast(ModelShapes, Shapes()),
        [serve_in(*one) for one in zip(processes, "ab", strict=True)],
        (),
        folders,
    )
    engine = ServedEngine([policy], folders)
    load(engine, 1)
    yield engine, processes
    for process in processes:
        process.may_start.set()
    engine.close()


def serve_in(process: Process, name: str = "solver-0") -> GenerationServer:
    launch = ServerLaunch("server", lambda _weights, _port: [], lambda _url: process.api, 1.0)
    return GenerationServer(name, launch, cast(EngineProcess, process))


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait for what the supervisor does."""
    for _ in range(int(1000 * PATIENCE_S)):
        if holds():
            return
        time.sleep(0.001)
    pytest.fail("it never came")


def load(engine: ServedEngine, version: int) -> None:
    engine.load("solver", version, {"w": Tensor("F32", (1,), memoryview(bytes(4)))})


def test_a_server_that_is_started_again_holds_no_version_up_and_gets_the_newest_in_the_end(
    started: tuple[ServedEngine, list[SlowProcess]],
) -> None:
    engine, [_, dead] = started
    first, second = engine.list_servers()
    dead.begun.clear()
    dead.may_start.clear()
    dead.is_up = False
    assert dead.begun.wait(PATIENCE_S), "its supervisor starts it"
    load(engine, 2)
    load(engine, 3)
    assert (first.version, second.version, engine.versions()) == (3, None, {"solver": 3})
    assert dead.weights is not None
    assert dead.weights.folder.is_dir(), "it is still read"
    dead.may_start.set()
    wait_until(lambda: second.version == 3)
    assert dead.starts == 2


def test_a_version_that_comes_while_no_server_is_up_waits_for_none(
    started: tuple[ServedEngine, list[SlowProcess]],
) -> None:
    engine, processes = started
    for process in processes:
        process.may_start.clear()
        process.is_up = False
    with pytest.raises(EngineAway, match=r"\ba .*; .*\bb "):
        load(engine, 2)
    assert engine.versions() == {"solver": 1}
    for process in processes:
        process.may_start.set()
    wait_until(lambda: all(one.starts == 2 for one in processes))
    wait_until(lambda: all(one.version == 1 for one in engine.list_servers()))
    load(engine, 2)
    assert [server.version for server in engine.list_servers()] == [2, 2]


def test_servers_that_no_longer_start_with_their_version_start_with_a_newer_one(
    started: tuple[ServedEngine, list[SlowProcess]],
) -> None:
    engine, processes = started
    for process in processes:
        process.refused = 1
        process.is_up = False
    wait_until(lambda: all(server.unstarted == 1 for server in engine.list_servers()))
    with pytest.raises(EngineAway, match=r"\ba .*; .*\bb "):
        load(engine, 2)
    wait_until(lambda: all(server.version == 2 for server in engine.list_servers()))
    wait_until(lambda: engine.versions() == {"solver": 2})
    load(engine, 3)
    assert engine.versions() == {"solver": 3}


def test_a_server_that_does_not_start_is_started_again_only_after_a_pause(tmp_path: Path) -> None:
    process = SlowProcess()
    process.fails = True
    server = serve_in(process)
    for _ in range(3):
        with pytest.raises(EngineAway, match="solver-0 does not start: it exited"):
            server.serve(ServedWeights(0, tmp_path))
    assert process.starts == 1


def test_a_server_whose_connection_broke_is_not_started_again_unless_it_was_lost_while_it_loaded(
    tmp_path: Path,
) -> None:
    process, weights = Process(), ServedWeights(1, tmp_path)
    launch = ServerLaunch("server", lambda _weights, _port: [], lambda _url: process.api, 1.0)
    server = GenerationServer("solver-0", launch, cast(EngineProcess, process))
    server.serve(weights)
    server.note_gone(ServerAway("reset by peer"))
    server.look(weights)
    assert (server.version, server.trouble, process.starts) == (1, "", 0)
    process.api.dies_in = ["load"]
    with pytest.raises(EngineAway, match="failed while it loaded version 2"):
        server.serve(ServedWeights(2, tmp_path))
    server.look(weights)
    assert (server.version, process.starts) == (1, 1)


@pytest.mark.parametrize("fault", [ServerAway("too slow"), WeightsRefused("of another convention")])
def test_a_server_whose_start_failed_although_it_answers_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    monkeypatch.setattr(generation_server, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(generation_server, "LONGEST_PAUSE_S", 0.0)
    process, weights = SlowProcess(), ServedWeights(1, tmp_path)
    server = serve_in(process)
    server.serve(weights)
    process.is_up, process.api.fault_of_start = False, fault
    server.look(weights)
    assert (server.version, process.starts) == (None, 2)
    process.api.fault_of_start = None
    server.look(weights)
    assert (server.version, process.starts) == (1, 3)


def test_a_server_that_refuses_the_weights_of_its_start_is_stopped_and_says_why(tmp_path: Path) -> None:
    process = SlowProcess()
    server = serve_in(process)
    process.api.fault_of_start = WeightsRefused("of another convention")
    with pytest.raises(WeightsRefused, match="of another convention"):
        server.serve(ServedWeights(0, tmp_path))
    assert (process.is_up, server.trouble, server.unstarted) == (False, "of another convention", 0)


def test_a_closed_engine_ends_what_waits_for_a_server(scene: Scene) -> None:
    scene.load(1)
    for server in scene.servers.values():
        server.dies_in = ["generate", *["load"] * 1000]

    async def wait() -> None:
        waiting = asyncio.ensure_future(scene.engine.generate("solver", [5], SAMPLING, seed=0))
        await asyncio.sleep(0.02)  # until it waits; if it does not yet, it is refused by the same words
        await asyncio.to_thread(scene.engine.close)
        await waiting

    with pytest.raises(EngineError, match="the engine is closed"):
        asyncio.run(wait())


class HeldBack:
    """Two requests of one session, of which its server takes one, and the other one waits."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.tasks = scene, list[asyncio.Task[Generation]]()
        for opened in scene.engine.list_servers():
            opened.gate.admission = Admission(1)

    def ask(self, prompt: list[int], deadline_s: float | None = None) -> asyncio.Task[Generation]:
        call = self.scene.engine.generate("solver", prompt, SAMPLING, seed=0, session=7, deadline_s=deadline_s)
        self.tasks.append(asyncio.create_task(call))
        return self.tasks[-1]

    async def begin(self, deadline_s: float | None = None) -> tuple[Server, asyncio.Task[Generation]]:
        """Return the server, and the request that waits."""
        for one in self.scene.servers.values():
            one.is_slow = True
        self.ask([5, 6])
        while not (asked := [one for one in self.scene.servers.values() if one.asked]):  # noqa: ASYNC110
            await asyncio.sleep(0)
        held = self.ask([9], deadline_s)
        while not self.scene.engine.stats().waiting:  # noqa: ASYNC110
            await asyncio.sleep(0)
        return asked[0], held


def test_a_request_that_is_held_back_can_be_cancelled_and_its_time_ends(scene: Scene) -> None:
    scene.load(1)

    async def play() -> tuple[Generation, int, list[list[int]]]:
        both = HeldBack(scene)
        server, held = await both.begin()
        held.cancel()
        late = await both.ask([8], deadline_s=0.005)
        waiting = scene.engine.stats().waiting
        server.is_slow = False
        await both.tasks[0]
        await both.ask([7])
        return late, waiting, server.asked

    late, waiting, asked = asyncio.run(play())
    assert (late.ids.tolist(), late.finish_reason, waiting) == ([], "cancelled", 0)
    assert asked == [[5, 6], [7]]


def test_a_request_that_is_held_back_at_a_server_that_goes_away_goes_to_another(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_gate, "TURN_S", 0.005)
    scene.load(1)

    async def play() -> tuple[list[int], list[list[int]]]:
        server, held = await HeldBack(scene).begin()
        [other] = [one for one in scene.servers.values() if one is not server]
        server.dies_in = ["load"] * 1000
        other.is_slow = False
        [opened] = [one for one in scene.engine.list_servers() if one.api is server]
        opened.note_gone(ServerAway("it is gone"))
        async with asyncio.timeout(PATIENCE_S):
            return (await held).ids.tolist(), other.asked

    assert asyncio.run(play()) == ([1, 2, 3, 4, 5, 6], [[9]])


def test_a_request_that_a_swap_ended_goes_on_before_those_that_are_held_back_which_begin_with_the_new_version(
    scene: Scene,
) -> None:
    scene.load(1)

    async def play() -> tuple[Generation, list[list[int]]]:
        server, held = await HeldBack(scene).begin()
        await asyncio.to_thread(scene.load, 2)
        server.gives_up_after, server.is_slow = 2, False
        return await held, server.asked

    held, asked = asyncio.run(play())
    assert (held.version_runs, asked) == (((2, 6),), [[5, 6], [5, 6, 2, 3], [9]])


def test_weights_leave_memory_before_the_servers_of_a_closed_engine_have_ended(
    started: tuple[ServedEngine, list[SlowProcess]],
) -> None:
    engine, processes = started
    for process in processes:
        process.may_stop.clear()
    closing = threading.Thread(target=engine.close)
    closing.start()
    wait_until(lambda: not engine._folders.folder.exists())
    assert all(process.is_up for process in processes)
    for process in processes:
        process.may_stop.set()
    closing.join()


def test_weights_stay_until_a_server_that_goes_on_has_loaded_them(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.load(1)
    folder, seen = scene.engine._folders.folder, list[bool]()
    monkeypatch.setattr(scene.engine._pool, "shutdown", lambda: seen.append(folder.exists()))
    scene.engine.close()
    assert (seen, folder.exists()) == ([True], False)


WEIGHTS = {"w": Tensor("F32", (1,), memoryview(bytes(4)))}


class Exact:
    """A policy with a training server and servers for exact versions, whose processes are in memory."""

    def __init__(self, root: Path, n_evaluators: int = 1) -> None:
        (root / "files").mkdir()
        self.processes = [SlowProcess() for _ in range(n_evaluators)]
        self.evaluators = [serve_in(one, f"exact-{number}") for number, one in enumerate(self.processes)]
        self.folders = WeightFolders(root, {"solver": root / "files"})
        servers = [serve_in(Process())]
        self.policy = ServedPolicy("solver", cast(ModelShapes, Shapes()), servers, self.evaluators, self.folders)

    def load(self, version: int) -> None:
        with ThreadPoolExecutor(1) as pool:
            self.policy.load(version, WEIGHTS, pool)


def test_a_version_that_an_evaluation_finds_while_a_newer_one_is_loaded_keeps_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact, came = Exact(tmp_path), threading.Event()
    policy = exact.policy
    exact.load(5)
    monkeypatch.setattr(policy, "_noting", cast(threading.Lock, ToldLock(came)), raising=False)
    list_read = policy._list_read
    with ThreadPoolExecutor(1) as pool:

        def list_slowly() -> set[int]:
            holding = pool.submit(policy.hold, 5, None)
            holding.add_done_callback(lambda _: came.set())
            assert came.wait(PATIENCE_S)
            monkeypatch.setattr(policy, "_list_read", list_read)
            holdings.append(holding)
            return list_read()

        holdings = list[Future[None]]()
        monkeypatch.setattr(policy, "_list_read", list_slowly)
        exact.load(6)
    assert isinstance(holdings[0].exception(PATIENCE_S), VersionGone)
    policy.hold(5, WEIGHTS)
    exact.load(7)
    assert policy.find_weights_of(exact.evaluators[0]) == ServedWeights(5, exact.folders.folder / "solver" / "5")


def test_a_version_is_released_while_a_server_starts_with_another_one(tmp_path: Path) -> None:
    exact = Exact(tmp_path, n_evaluators=2)
    exact.policy.hold(1, WEIGHTS)
    slow = exact.processes[1]
    slow.may_start.clear()
    with ThreadPoolExecutor(2) as pool:
        try:
            holding = pool.submit(exact.policy.hold, 2, WEIGHTS)
            assert slow.begun.wait(PATIENCE_S)
            pool.submit(exact.policy.release, 1).result(PATIENCE_S)
            assert not holding.done()
        finally:
            slow.may_start.set()
        holding.result(PATIENCE_S)
    assert exact.policy.find_held(2) is exact.evaluators[1]
    with pytest.raises(VersionGone):
        exact.policy.release(1)


NOT_AGAIN = "version 2 of solver is not loaded again, because servers failed 2 times while they loaded it"


def test_a_version_that_takes_evaluation_servers_down_is_held_no_more_and_others_are(tmp_path: Path) -> None:
    exact = Exact(tmp_path)
    exact.policy.hold(1, WEIGHTS)
    exact.policy.release(1)
    exact.processes[0].api.dies_in = ["load"] * 2
    for _ in range(2):
        with pytest.raises(EngineAway, match="failed while it loaded version 2"):
            exact.policy.hold(2, WEIGHTS)
        [server] = exact.evaluators
        server.look(exact.policy.find_weights_of(server))
        assert server.version == 1, "it is started again"
    with pytest.raises(EngineError, match=NOT_AGAIN) as refused:
        exact.policy.hold(2, None)
    assert not isinstance(refused.value, EngineAway | VersionGone), "it would be tried again, or fetched"
    exact.policy.hold(3, WEIGHTS)
    assert exact.policy.find_held(3) is exact.evaluators[0]


def test_a_server_that_failed_in_a_load_gets_no_weights_before_it_is_started_again(tmp_path: Path) -> None:
    exact = Exact(tmp_path)
    exact.policy.hold(1, WEIGHTS)
    exact.policy.release(1)
    [process] = exact.processes
    process.api.dies_in = ["load"] * 2
    with pytest.raises(EngineAway, match="failed while it loaded version 2"):
        exact.policy.hold(2, WEIGHTS)
    exact.policy.hold(2, WEIGHTS)
    assert exact.policy.find_held(2) is exact.evaluators[0]
    assert process.starts == 2


def test_a_version_with_which_the_server_that_it_took_down_does_not_start_is_held_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation_server, "FIRST_PAUSE_S", 0.0)
    exact = Exact(tmp_path)
    [process] = exact.processes
    process.refused = 2
    for _ in range(3):
        with pytest.raises(EngineAway, match="exact-0 does not start"):
            exact.policy.hold(2, WEIGHTS)
    process.refused = -1
    exact.policy.hold(1, WEIGHTS)
    exact.policy.release(1)
    process.refused, process.api.dies_in = 2, ["load"]
    with pytest.raises(EngineAway, match="failed while it loaded version 2"):
        exact.policy.hold(2, WEIGHTS)
    process.is_up = False
    with pytest.raises(EngineAway, match="exact-0 does not start"):
        exact.policy.hold(2, WEIGHTS)
    with pytest.raises(EngineError, match=NOT_AGAIN):
        exact.policy.hold(2, WEIGHTS)
    exact.policy.hold(3, WEIGHTS)
