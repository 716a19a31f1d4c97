"""The experts of every token from a real server, beside those that a plain forward pass chooses."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers
from cpu_servers import ARGUMENTS, ENVIRONMENT
from install_servers import find_python
from made_models import PROMPT, SAME_IN_PARTS, SHAPE, TOKENIZER, find_gap

from headrace.envs.contract import Generation
from headrace.infra.recipe.settings import Rollout
from headrace.infra.weights.experts import routers_of, split_by_files
from headrace.infra.weights.tensors import Tensor
from headrace.producers.engines.contract import Sampling
from headrace.producers.engines.registry import open_engine

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]
PER_TOKEN = 2
MIXTURE = transformers.Qwen3MoeConfig(
    **SHAPE, moe_intermediate_size=32, num_experts=8, num_experts_per_tok=PER_TOKEN, norm_topk_prob=True
)
ANSWERS = 8


def make_mixture(version: int) -> Any:
    torch.manual_seed(version)
    return transformers.Qwen3MoeForCausalLM(MIXTURE).to(torch.float32).eval()


def read_weights(model: Any) -> dict[str, Tensor]:
    """Return the weights as a worker gets them: a matrix per expert."""
    named = split_by_files({name: value.detach() for name, value in model.named_parameters()})
    return {
        name: Tensor("F32", tuple(value.shape), memoryview(value.contiguous().numpy().tobytes()))
        for name, value in named.items()
    }


def choose_experts(model: Any, ids: list[int]) -> npt.NDArray[np.int64]:
    """Return int64 [tokens, layers, experts per token]: what the model's own routers choose, in the order of ids."""
    chosen: list[torch.Tensor] = []
    hooks = [router.register_forward_hook(lambda *call: chosen.append(call[-1][-1])) for router in routers_of(model)]
    with torch.no_grad():
        model(torch.tensor([ids]))
    for hook in hooks:
        hook.remove()
    found: npt.NDArray[np.int64] = torch.stack(chosen, 1).sort(-1).values.numpy()
    return found


def test_every_token_has_the_experts_of_the_version_that_made_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    folder = tmp_path / "solver"
    MIXTURE.architectures = ["Qwen3MoeForCausalLM"]
    MIXTURE.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    settings = {"use": "sglang", "python": str(find_python("sglang")), "arguments": ARGUMENTS["sglang"]}
    rollout = Rollout.model_validate({"engine": {**settings, "folder": str(tmp_path)}, "record_routing": True})
    engine, _ = open_engine({"solver": folder}, rollout, ANSWERS)
    models = {version: make_mixture(version) for version in (0, 1)}
    engine.load("solver", 0, read_weights(models[0]))

    async def play() -> list[Generation]:
        call = partial(engine.generate, "solver", PROMPT, Sampling(max_tokens=900))
        calls = [asyncio.create_task(call(seed=seed)) for seed in range(ANSWERS)]
        while engine.stats().progress < 50 * ANSWERS:  # noqa: ASYNC110 - an engine has no event for it
            await asyncio.sleep(0.01)
        await asyncio.to_thread(engine.load, "solver", 1, read_weights(models[1]))
        return list(await asyncio.gather(*calls))

    made = asyncio.run(play())
    engine.close()
    assert find_gap({0: models[1], 1: models[0]}, PROMPT, made[0]) > 0.1
    same = 0.0
    for one in made:
        assert [version for version, _ in one.version_runs] == [0, 1]
        ids = [*PROMPT, *one.ids.tolist()][:-1]
        swap = len(PROMPT) + one.version_runs[0][1] - 1
        chosen = np.concatenate([choose_experts(models[0], ids)[:swap], choose_experts(models[1], ids)[swap:]])
        assert one.routing is not None
        alike = np.sort(one.routing, -1) == chosen
        assert find_gap(models, PROMPT, one) < SAME_IN_PARTS or not alike.all()
        same += float(alike.mean()) / ANSWERS
    assert same > 0.999, "two of eight experts are alike to the last bit hardly ever"
