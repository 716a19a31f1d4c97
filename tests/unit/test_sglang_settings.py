"""What a recipe may say of SGLang servers, and how one is started."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from headrace.infra.errors import UsageError
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.weights.experts import ExpertLayers
from headrace.producers.engines.registry import check_engine
from headrace.producers.engines.served.generation_server import ServedWeights
from headrace.producers.engines.served.server_settings import ServerFactory, find_folder, find_python, read_settings
from headrace.producers.engines.served.sglang import SGLANG
from headrace.producers.engines.served.sglang_experts import SGLangExperts
from headrace.producers.engines.served.vllm import VLLM

HERE = f'python="{sys.executable}"'


def refusal(engine: str, *words: str) -> str:
    recipe = load_recipe("arithmetic", [f'rollout.engine={{use="sglang",{engine}}}', *words])
    with pytest.raises(UsageError) as caught:
        check_engine(recipe)
    return str(caught.value)


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        (
            "serves=2",
            "rollout.engine, sglang: no option 'serves'; the options are servers, devices, evaluation_servers",
        ),
        ('servers="two"', "servers must be a whole number, got 'two'"),
        ('arguments="--tp 2"', 'arguments must be a list of strings, as in ["--tp", "2"]; got'),
        ('urls=["host:30000"]', "must be http://HOST:PORT or https://HOST:PORT; got 'host:30000'"),
        ('evaluation_urls=["http://h:1"]', "evaluation_urls has no effect without urls"),
        ("evaluation_servers=0", "go on to newer versions: set evaluation_servers = 1, or set evaluate.every = 0"),
        ('urls=["http://h:1"]', "go on to newer versions: list one in evaluation_urls, or set evaluate.every = 0"),
        ('python="/no/python"', "there is no program '/no/python'"),
        (HERE, "SGLang is not installed in the environment of"),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(engine: str, why: str) -> None:
    assert why in refusal(engine)


def test_what_sglang_cannot_do_is_refused_before_anything_starts() -> None:
    servers = 'urls=["http://h:1"],evaluation_urls=["http://h:2"]'
    experts, lora = "rollout.record_routing=true", "policies.solver.lora.rank=2"
    assert "cannot record experts for adapters, as policy solver has" in refusal(servers, experts, lora)
    recipe = load_recipe("arithmetic", ['rollout.engine={use="vllm",urls=["http://h:1"]}', experts])
    with pytest.raises(UsageError, match="engine vllm does not record which experts"):
        check_engine(recipe)
    assert 'can only serve whole models: set publish = "merged"' in refusal(servers, lora)
    assert "a server given by URL serves only one worker, but `up` would start 2: launch.workers is 2" in refusal(
        servers, "launch.workers=2"
    )
    recipe = load_recipe("arithmetic", [f'rollout.engine={{use="sglang",{servers}}}'])
    two = recipe.model_copy(update={"workflows": {**recipe.workflows, "more": recipe.workflows["sums"]}})
    with pytest.raises(UsageError, match=r"`up` would start 2: launch.workers is 1 for each workflow .workflows: 2"):
        check_engine(two)


def test_a_python_is_looked_for_only_where_workers_are_started() -> None:
    words = ["policies.solver.lora.publish=merged", "launch.workers=0"]
    check_engine(load_recipe("arithmetic", ['rollout.engine={use="sglang",python="/no/python"}', *words]))


def test_a_python_is_found_from_where_the_worker_runs() -> None:
    assert find_python(read_settings(SGLANG, {"python": "env/bin/python"})) == str(Path.cwd() / "env/bin/python")
    assert find_python(read_settings(SGLANG, {"python": "python3"})) == "python3"


def test_a_server_returns_experts_only_where_they_are_recorded() -> None:
    factory = ServerFactory(SGLANG, read_settings(SGLANG, {}))
    weights = ServedWeights(7, Path("weights"))
    for experts, has in ((None, False), (ExpertLayers((0,), 1, 8, 2), True)):
        [server], _ = factory.build_servers("solver", 32, experts=experts)
        assert server._process
        launch = server._process._launch
        assert ("--enable-return-routed-experts" in launch.build_command(weights, 30000)) == has
        api = launch.open_api("http://h:1")
        api.close()
        assert isinstance(api, SGLangExperts) == has


def test_servers_share_the_devices_in_turn_and_start_with_their_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    words: dict[str, Any] = {"python": "~/sglang/bin/python", "servers": 2, "devices": ["0", "1"], "arguments": ["--x"]}
    factory = ServerFactory(SGLANG, read_settings(SGLANG, words))
    training, exact = factory.build_servers("solver", 32)
    environments = [one._process._environment["CUDA_VISIBLE_DEVICES"] for one in (*training, *exact) if one._process]
    assert environments == ["0", "1", "0"]
    assert training[0]._process
    command = training[0]._process._launch.build_command(ServedWeights(7, Path("/dev/shm/7")), 30000)  # noqa: S108
    assert command[:3] == ["/home/me/sglang/bin/python", "-m", "sglang.launch_server"]
    assert " ".join(command).endswith("--weight-version 7 --host 127.0.0.1 --port 30000 --context-length 38 --x")


def test_sockets_that_vllm_leaves_behind_are_in_a_folder_that_the_worker_removes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def build() -> tuple[ServerFactory, str | None]:
        factory = ServerFactory(VLLM, read_settings(VLLM, {}))
        [server], _ = factory.build_servers("solver", 32)
        assert factory.logs
        assert server._process
        return factory, server._process._environment.get("VLLM_RPC_BASE_PATH")

    monkeypatch.delenv("VLLM_RPC_BASE_PATH", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")  # noqa: S108 - a short one
    factory, folder = build()
    assert factory.logs
    assert folder == str(factory.logs.path)
    factory.logs.close()
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", "/mine")
    factory, folder = build()
    assert factory.logs
    assert folder is None, "the user's own"
    factory.logs.close()
    monkeypatch.delenv("VLLM_RPC_BASE_PATH")
    long = tmp_path / ("x" * 80)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    assert build()[1] is None, "a socket's path would be too long"


def test_no_two_servers_of_a_worker_have_one_name() -> None:
    factory = ServerFactory(SGLANG, read_settings(SGLANG, {"servers": 2, "evaluation_servers": 2}))
    policies = ("solver", "solver-evaluation", "solver-0", "solver_evaluation", "solver-evaluation-0")
    built = [one for policy in policies for servers in factory.build_servers(policy, 32) for one in servers]
    assert len({one.name for one in built}) == len(built) == 4 * len(policies)
    assert [one.name for one in built[:4]] == ["solver-0", "solver-1", "solver.evaluation-0", "solver.evaluation-1"]


def test_the_folder_of_the_weights_may_begin_with_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/one")
    assert find_folder(read_settings(SGLANG, {"folder": "~/weights"})) == Path("/home/one/weights")
