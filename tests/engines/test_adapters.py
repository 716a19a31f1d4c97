"""Adapters by name over a real server of each kind: every token is of the version that it names, also of a held one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import torch
from cpu_servers import ADAPTERS, ARGUMENTS, ENVIRONMENT
from install_servers import KINDS, find_python
from made_models import PROMPT, SAME_IN_PARTS, find_gap, make_model, save_files
from safetensors.torch import save_file

from headrace.envs.contract import Generation
from headrace.infra.recipe.settings import Rollout
from headrace.infra.weights.lora import add_adapter, build_adapter_config, map_published_names
from headrace.infra.weights.tensors import Tensor
from headrace.producers.engines.contract import EngineError, Sampling
from headrace.producers.engines.registry import open_engine
from headrace.producers.engines.served.served_engine import ServedEngine

pytestmark = pytest.mark.timeout(600)
CONFIG = build_adapter_config(8, 16, ["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"])
LONG = Sampling(max_tokens=400)
MODELS: dict[int, Any] = {}


def make_adapted(version: int) -> Any:
    """Return the base with a version's adapter."""
    model = make_model(0)
    add_adapter(model, CONFIG)
    torch.manual_seed(version)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if ".lora_" in name:
                value.normal_(0, 0.3)
    return model.eval()


@pytest.fixture(scope="module", params=KINDS)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedEngine]:
    kind = str(request.param)
    root = tmp_path_factory.mktemp("models")
    folder = save_files(root / "solver")
    base = {name: value.detach().contiguous() for name, value in make_model(0).named_parameters()}
    save_file(base, folder / "model.safetensors", {"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        arguments = [*ARGUMENTS[kind], *ADAPTERS[kind]]
        settings = {"use": kind, "python": str(find_python(kind)), "arguments": arguments, "folder": str(root)}
        opened, _ = open_engine({"solver": folder}, Rollout.model_validate({"engine": settings}), 64)
        assert isinstance(opened, ServedEngine)
        load(opened, 0)
        yield opened
        opened.close()


def load(engine: ServedEngine, version: int) -> None:
    MODELS[version] = make_adapted(version)
    state = MODELS[version].state_dict()
    weights = {
        name: Tensor("F32", tuple(state[own].shape), memoryview(state[own].contiguous().numpy().tobytes()))
        for name, own in map_published_names(state).items()
    }
    engine.load("solver", version, weights)


def test_swaps_under_requests_and_a_held_version_never_mix(engine: ServedEngine) -> None:
    begin, swaps = engine.versions()["solver"], 10
    assert engine.capabilities.held_versions == 2
    engine.hold("solver", begin)

    async def play() -> tuple[list[Generation], list[Generation]]:
        async def ask(number: int, version: int | None) -> list[Generation]:
            found = []
            while not swapping.done():
                found.append(await engine.generate("solver", PROMPT, LONG, seed=number, version=version))
            return found

        async def swap() -> None:
            for version in range(begin + 1, begin + swaps + 1):
                await asyncio.to_thread(load, engine, version)
                await engine.generate("solver", PROMPT, Sampling(max_tokens=20), seed=version)

        swapping = asyncio.create_task(swap())
        asked = await asyncio.gather(*(ask(number, begin if number % 4 == 0 else None) for number in range(16)))
        exact = [made for number, some in enumerate(asked) if number % 4 == 0 for made in some]
        return [made for number, some in enumerate(asked) if number % 4 for made in some], exact

    followed, exact = asyncio.run(play())
    assert {version for made in exact for version, _ in made.version_runs} == {begin}
    assert {version for made in followed for version, _ in made.version_runs} >= set(range(begin + 1, begin + swaps))
    assert any(len(made.version_runs) > 1 for made in followed)
    assert max(find_gap(MODELS, PROMPT, made) for made in (*followed, *exact)) < SAME_IN_PARTS
    engine.release("solver", begin)


def test_a_killed_server_gets_the_newest_adapter_and_the_held_one_again(engine: ServedEngine) -> None:
    held = engine.versions()["solver"]
    engine.hold("solver", held)
    load(engine, held + 1)
    [server] = engine.list_servers()
    assert server._process is not None
    process = psutil.Process(server._process.pid)
    for one in (process, *process.children(recursive=True)):
        os.kill(one.pid, signal.SIGKILL)

    async def ask() -> list[Generation]:
        asked = (engine.generate("solver", PROMPT, LONG, seed=0, version=version) for version in (None, held))
        return list(await asyncio.gather(*asked))

    newest, exact = asyncio.run(ask())
    assert [made.version_runs[-1][0] for made in (newest, exact)] == [held + 1, held]
    assert max(find_gap(MODELS, PROMPT, made) for made in (newest, exact)) < SAME_IN_PARTS
    engine.release("solver", held)
    with pytest.raises(EngineError, match="missing"):
        engine.load("solver", held + 2, {})
