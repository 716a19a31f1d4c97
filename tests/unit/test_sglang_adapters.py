"""Adapters by name: which one a request is of, and what becomes of requests and adapters when a newer one comes."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import httpx2
import numpy as np
import pytest
from patience import PATIENCE_S
from tiny_models import SMALLEST
from told_lock import ToldLock

from headrace.infra.weights.lora import build_adapter_config
from headrace.infra.weights.tensors import Tensor
from headrace.producers.engines.contract import EngineError, Sampling, VersionGone
from headrace.producers.engines.served.adapter_policy import AdapterPolicy
from headrace.producers.engines.served.generation_server import (
    EngineProcess,
    GenerationServer,
    ServedWeights,
    ServerLaunch,
)
from headrace.producers.engines.served.model_shapes import ModelShapes
from headrace.producers.engines.served.server_api import Answer, HttpConnections, ServerAway, WeightsRefused
from headrace.producers.engines.served.sglang import build_words
from headrace.producers.engines.served.sglang_adapters import SGLangAdapters
from headrace.producers.engines.served.weight_folders import WeightFolders

FOLDER = Path("weights")
SAMPLING = Sampling(max_tokens=9)


class Server:
    """A server in memory: a request is open until it is ended, or all are told to be ready."""

    def __init__(self) -> None:
        self.url, self.base = "http://sglang", "0"
        self.adapters: dict[str, str] = {}
        self.asked: list[str] = []
        self.ended: set[int] = set()
        """Which of the requests, by number, in order."""
        self.is_queueing = False
        """Whether a request that is ended was in the queue."""
        self.is_ready = False
        self.refuses = False
        self.dies_with = ""
        """The version that takes it down."""
        self.deaths = 0
        self.is_away = False

    def call(self, _method: str, path: str, body: Any = None, _limit_s: float = 0.0, **_: Any) -> httpx2.Response:
        if self.is_away:
            raise ServerAway("it does not answer")
        if path == "/load_lora_adapter":
            if body["lora_name"].partition("-")[0] == self.dies_with:
                self.deaths += 1
                raise ServerAway("it went away")
            if self.refuses:
                return httpx2.Response(400, json={"success": False, "error_message": "no room"})
            self.adapters[body["lora_name"]] = body["lora_path"]
        elif path == "/unload_lora_adapter":
            del self.adapters[body["lora_name"]]
        elif path == "/abort_request":
            self.ended |= set(range(len(self.asked)))
        return httpx2.Response(200, json={"success": True, "weight_version": self.base})

    async def post_async(self, _path: str, body: dict[str, Any]) -> httpx2.Response:
        assert body["lora_path"] in self.adapters
        number = len(self.asked)
        self.asked.append(body["lora_path"].partition("-")[0])
        while number not in self.ended and not self.is_ready:  # noqa: ASYNC110 - a thread changes it
            await asyncio.sleep(0.001)
        why = "Abort in waiting queue" if self.is_queueing else "Aborted"
        reason = {"type": "abort", "message": why} if number in self.ended else {"type": "length"}
        logprobs = [[-0.5, 7, None], [-1.0, 8, None]]
        spans = [{"version": self.base, "start": 0, "end": 2}]
        meta = {"finish_reason": reason, "output_token_logprobs": logprobs, "weight_versions": spans}
        return httpx2.Response(200, json={"output_ids": [7, 8], "meta_info": meta})


def open_api(server: Server) -> SGLangAdapters:
    api = SGLangAdapters(cast(HttpConnections, server))
    api._base = 0  # as after its start
    return api


def connect(server: Server) -> SGLangAdapters:
    api = open_api(server)
    api.note_started(FOLDER, 3)
    return api


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - a thread changes it
        await asyncio.sleep(0.001)


def test_a_newer_adapter_ends_requests_which_go_on_as_of_their_own_version_or_the_newest() -> None:
    server = Server()
    api = connect(server)

    async def play() -> tuple[Answer, Answer, Answer]:
        follows = asyncio.create_task(api.generate("a", [1], SAMPLING))
        exact = asyncio.create_task(api.generate("b", [1], SAMPLING, 3))
        await until(lambda: len(server.asked) == 2)
        await asyncio.to_thread(api.load, FOLDER, 4)
        server.is_ready = True
        return await follows, await exact, await api.generate("c", [1], SAMPLING)

    follows, exact, newer = asyncio.run(play())
    assert [(one.version_runs, one.ended) for one in (follows, exact, newer)] == [
        (((3, 2),), "aborted"),
        (((3, 2),), "aborted"),
        (((4, 2),), "length"),
    ]
    assert server.asked == ["3", "3", "4"]


def test_a_version_that_is_not_there_gives_nothing_and_the_newest_is_always_kept() -> None:
    server = Server()
    api = connect(server)
    api.add(FOLDER, 4)
    api.load(FOLDER, 5)
    api.unload_others({4})
    assert [name.partition("-")[0] for name in server.adapters] == ["4", "5"]
    assert [api.has(version) for version in (3, 4, 5)] == [False, True, True]
    answer = asyncio.run(api.generate("a", [1], SAMPLING, 3))
    assert (len(answer.ids), answer.ended, server.asked) == (0, "aborted", [])


def test_an_adapter_that_sglang_counts_requests_of_for_ever_is_not_removed_as_that_would_never_end() -> None:
    server = Server()
    server.is_queueing = True
    api = connect(server)

    async def play() -> Answer:
        waits = asyncio.create_task(api.generate("a", [1], SAMPLING))
        await until(lambda: len(server.asked) == 1)
        await asyncio.to_thread(api.load, FOLDER, 4)
        return await waits

    assert asyncio.run(play()).ended == "aborted"
    api.load(FOLDER, 5)
    api.unload_others(())
    assert ([name.partition("-")[0] for name in server.adapters], api.left_over) == (["3", "5"], 1)
    assert not api.has(3)


def test_a_base_that_somebody_else_changed_and_an_adapter_that_is_not_taken_are_told() -> None:
    server = Server()
    api = connect(server)
    server.refuses = True
    with pytest.raises(WeightsRefused, match="/load_lora_adapter refuses the adapter of version 4: HTTP 400"):
        api.load(FOLDER, 4)
    assert api.read_weight_version() == "3"
    server.base, server.is_ready = "8", True
    with pytest.raises(EngineError, match="has another base model than before"):
        asyncio.run(api.generate("a", [1], SAMPLING))
    assert api.read_weight_version() == "8"


def test_a_server_starts_with_the_base_and_room_for_adapters(tmp_path: Path) -> None:
    config = build_adapter_config(8, 16, ["layers.0.q_proj", "layers.1.q_proj", "v_proj"])
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    words = build_words(ServedWeights(3, tmp_path, Path("base")), 1, 64)
    assert words[words.index("--model-path") + 1] == "base"
    assert words[words.index("--max-lora-rank") + 1] == "8"
    assert words[words.index("--lora-target-modules") + 1 :] == ["q_proj", "v_proj"]


Scene = tuple[AdapterPolicy, dict[str, Server], dict[str, Tensor]]
"""A policy, its servers by URL, and weights that it can load."""


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    files = tmp_path / "files"
    SMALLEST.save_pretrained(files)
    (files / "adapter_config.json").write_text(json.dumps(build_adapter_config(2, 4, ["q_proj"])))
    servers = {"a": Server(), "b": Server()}
    launch = ServerLaunch("server", lambda _weights, _port: [], lambda url: open_api(servers[url]), 1.0)
    opened = [GenerationServer(url, launch, None, url) for url in servers]
    policy = AdapterPolicy("solver", ModelShapes(files), opened, (), WeightFolders(tmp_path, {"solver": files}))
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    values = memoryview(np.zeros(16, np.float32).tobytes())
    shapes = {"A": (2, 8), "B": (8, 2)}
    return policy, servers, {name.format(key): Tensor("F32", shape, values) for key, shape in shapes.items()}


def load_beside_held(policy: AdapterPolicy, weights: dict[str, Tensor], pool: ThreadPoolExecutor) -> None:
    """Load version 4 while 3 is held."""
    policy.load(3, weights, pool)
    policy.hold(3, None)
    policy.load(4, weights, pool)


def list_versions(server: Server) -> list[str]:
    return [name.partition("-")[0] for name in server.adapters]


def test_held_versions_are_beside_the_newest_in_every_server_until_they_are_not_needed(scene: Scene) -> None:
    policy, servers, weights = scene
    with ThreadPoolExecutor(2) as pool:
        load_beside_held(policy, weights, pool)
        assert [list_versions(server) for server in servers.values()] == [["3", "4"]] * 2
        assert policy.find_held(3) is not None
        assert [policy.is_serving(policy.servers[0], version) for version in (None, 3)] == [True, True]
        read = [sorted(file.name for file in Path(folder).iterdir()) for folder in servers["a"].adapters.values()]
        assert read == [["adapter_config.json", "adapter_model.safetensors"]] * 2
        policy.release(3)
        policy.load(5, weights, pool)
    assert [list_versions(server) for server in servers.values()] == [["5"]] * 2
    with pytest.raises(VersionGone):
        policy.find_held(3)
    with pytest.raises(VersionGone):
        policy.is_serving(policy.servers[0], 3)


def test_a_version_that_is_held_while_servers_unload_it_is_in_them_afterwards(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, servers, weights = scene
    came, unload_others = threading.Event(), policy._unload_others
    monkeypatch.setattr(policy, "_turn", cast(threading.Lock, ToldLock(came)))
    with ThreadPoolExecutor(1) as pool, ThreadPoolExecutor(1) as other:
        policy.load(3, weights, pool)
        holdings = list[Future[None]]()

        def keep_slowly(server: GenerationServer, versions: set[int]) -> None:
            if not holdings:
                holdings.append(other.submit(policy.hold, 3, weights))
                holdings[0].add_done_callback(lambda _: came.set())
                assert came.wait(PATIENCE_S)
            unload_others(server, versions)

        monkeypatch.setattr(policy, "_unload_others", keep_slowly)
        policy.load(4, weights, pool)
        holdings[0].result(PATIENCE_S)
    assert [sorted(list_versions(server)) for server in servers.values()] == [["3", "4"]] * 2


def test_a_server_that_was_started_again_gets_the_held_versions(scene: Scene) -> None:
    policy, servers, weights = scene
    with ThreadPoolExecutor(2) as pool:
        load_beside_held(policy, weights, pool)
    first, second = policy.servers
    second.version = None
    first._attached = open_api(servers["a"])  # it has forgotten all
    assert policy.find_held(3) is None
    assert [policy.is_serving(one, version) for one, version in ((first, 3), (second, None))] == [False, False]
    policy.load_missing(first)
    assert policy.find_held(3) is first


def test_a_held_adapter_that_takes_servers_down_is_loaded_no_more(scene: Scene) -> None:
    policy, servers, weights = scene
    with ThreadPoolExecutor(2) as pool:
        policy.load(4, weights, pool)
    for server in servers.values():
        server.dies_with = "3"
    policy.hold(3, weights)
    for opened in policy.servers:
        opened.look(policy.find_weights_of(opened))
        policy.load_missing(opened)
    assert [(server.deaths, list_versions(server)) for server in servers.values()] == [(1, ["4"])] * 2
    assert [opened.version for opened in policy.servers] == [4, 4]
    with pytest.raises(EngineError, match="version 3 of solver is not loaded again, because servers failed 2 times"):
        policy.find_held(3)
    policy.release(3)
    with pytest.raises(EngineError, match="version 3 of solver is not loaded again, because servers failed 2 times"):
        policy.hold(3, weights)


class Process:
    """The process of a server in memory."""

    def __init__(self, server: Server) -> None:
        self.api, self.weights, self.folder = open_api(server), None, FOLDER
        self.is_up, self.starts = False, 0

    def is_alive(self) -> bool:
        return self.is_up

    def stop(self, timeout_s: float) -> None:
        self.is_up = False

    def start(self, _limit_s: float) -> None:
        self.is_up, self.starts = True, self.starts + 1


def test_a_server_that_failed_as_it_got_an_adapter_is_started_again_before_it_gets_it_again(scene: Scene) -> None:
    policy, servers, weights = scene
    process = Process(servers["a"])
    launch = policy.servers[0]._launch
    policy.servers = [GenerationServer("a", launch, cast(EngineProcess, process))]
    with ThreadPoolExecutor(1) as pool:
        policy.load(4, weights, pool)
    servers["a"].dies_with = "3"
    policy.hold(3, weights)
    [opened] = policy.servers
    opened.look(policy.find_weights_of(opened))
    assert (opened.version, process.starts, servers["a"].deaths) == (4, 2, 1)


def test_what_is_not_the_adapter_of_this_base_is_refused_before_a_server_reads_it(scene: Scene) -> None:
    policy, _, weights = scene
    with ThreadPoolExecutor(2) as pool, pytest.raises(EngineError, match=r"missing: .*lora_A"):
        policy.load(3, dict(list(weights.items())[1:]), pool)
    assert policy.newest is None
