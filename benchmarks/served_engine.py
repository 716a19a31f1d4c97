"""The engine over a server against the bare server: `python -m benchmarks.served_engine --use vllm --python PYTHON`.

PYTHON is that of an environment with SGLang or vLLM. Same server, prompts, lengths and sampling on both sides, which
take turns; the best of three counts. The bare side asks for the same fields by a plain HTTP client. A second part swaps
weights under 1, 8 and 64 requests.

Without a GPU: `make test-sglang` and `make test-vllm` install them, and the arguments are those of `WITHOUT_GPU`. vLLM
also wants VLLM_CPU_KVCACHE_SPACE=1 there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast
from uuid import uuid4

import httpx2
import numpy as np
import transformers
from rich.console import Console
from rich.table import Table

from headrace.infra.recipe.settings import Rollout
from headrace.infra.weights.tensors import Tensor
from headrace.producers.engines.contract import Sampling
from headrace.producers.engines.registry import open_engine
from headrace.producers.engines.served_engine import ServedEngine
from headrace.producers.engines.sglang_api import build_parameters
from headrace.producers.engines.vllm_api import build_request
from headrace.trainers.learner.model import character_tokenizer

CONCURRENT = (1, 8, 64)
ROUNDS = 3
PROMPT_TOKENS, NEW_TOKENS = 16, 96
SWAPS = 10
FLOAT32 = ("--dtype", "float32")
WITHOUT_GPU = {
    "sglang": (*FLOAT32, "--device", "cpu", "--max-total-tokens", "65536", "--max-running-requests", "64"),
    "vllm": (*FLOAT32, "--enforce-eager", "--max-num-seqs", "64"),
}
TOKENIZER = character_tokenizer("0123456789abcdefghijklmnopqrstuvwxyz+-*/=() ")


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second, best of the rounds."""

    concurrent: int
    engine: float
    server: float


@dataclass(frozen=True, slots=True)
class Pauses:
    """Seconds for which generation stood still by a swap, and from the call until tokens of the new weights."""

    concurrent: int
    p50_s: float
    p95_s: float
    until_served_p50_s: float


def save_model(folder: Path) -> list[dict[str, Tensor]]:
    """Write config and tokenizer; return two versions of the weights."""
    config = transformers.Qwen3Config(
        vocab_size=len(TOKENIZER),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        initializer_range=0.1,
        tie_word_embeddings=True,
        architectures=["Qwen3ForCausalLM"],
        eos_token_id=TOKENIZER.eos_token_id,
        pad_token_id=TOKENIZER.pad_token_id,
        bos_token_id=None,
    )
    config.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    models = [transformers.Qwen3ForCausalLM(config) for _ in range(2)]
    return [
        {
            name: Tensor("F32", tuple(value.shape), memoryview(value.detach().numpy().tobytes()))
            for name, value in model.named_parameters()
        }
        for model in models
    ]


def draw_prompts(count: int) -> list[list[int]]:
    rows = np.random.default_rng(0).integers(0, len(TOKENIZER) - 4, (count, PROMPT_TOKENS))
    return [[int(token) for token in row] for row in rows]


async def ask_engine(engine: ServedEngine, prompts: Sequence[list[int]], sampling: Sampling) -> int:
    calls = (engine.generate("p", ids, sampling, seed=0, session=number) for number, ids in enumerate(prompts))
    return sum(len(made.ids) for made in await asyncio.gather(*calls))


async def ask_sglang(url: str, prompts: Sequence[list[int]], sampling: Sampling) -> int:
    body = {"sampling_params": build_parameters(sampling), "return_logprob": True}
    async with httpx2.AsyncClient(timeout=None, limits=httpx2.Limits(max_connections=None)) as client:
        calls = (client.post(f"{url}/generate", json={**body, "input_ids": ids}) for ids in prompts)
        return sum(len(answer.json()["output_ids"]) for answer in await asyncio.gather(*calls))


async def ask_vllm(url: str, prompts: Sequence[list[int]], sampling: Sampling) -> int:
    async with httpx2.AsyncClient(timeout=None, limits=httpx2.Limits(max_connections=None)) as client:
        bodies = (build_request(uuid4().hex, ids, sampling) for ids in prompts)
        answers = await asyncio.gather(*(client.post(f"{url}/v1/completions", json=body) for body in bodies))
        return sum(len(answer.json()["choices"][0]["token_ids"]) for answer in answers)


ASK_SERVER = {"sglang": ask_sglang, "vllm": ask_vllm}


def measure_speeds(engine: ServedEngine, use: str, rounds: int) -> list[Speed]:
    sampling, url, ask_server = Sampling(max_tokens=NEW_TOKENS), engine.list_servers()[0].url, ASK_SERVER[use]
    best: dict[tuple[int, str], float] = {}
    for number in range(-1, rounds):  # round -1 warms up
        for concurrent in CONCURRENT:
            prompts = draw_prompts(concurrent)
            sides: dict[str, Callable[[], int]] = {
                "engine": lambda prompts=prompts: asyncio.run(ask_engine(engine, prompts, sampling)),  # type: ignore[misc]
                "server": lambda prompts=prompts: asyncio.run(ask_server(url, prompts, sampling)),  # type: ignore[misc]
            }
            tokens, seconds = dict.fromkeys(sides, 0), dict.fromkeys(sides, 0.0)
            for _ in range(8 if concurrent == 1 else 4):
                for side, ask in sides.items():
                    began = time.perf_counter()
                    tokens[side] += ask()
                    seconds[side] += time.perf_counter() - began
            for side in sides:
                speed = tokens[side] / seconds[side]
                best[concurrent, side] = max(speed if number >= 0 else 0.0, best.get((concurrent, side), 0.0))
    return [Speed(one, best[one, "engine"], best[one, "server"]) for one in CONCURRENT]


def measure_pauses(engine: ServedEngine, weights: Sequence[dict[str, Tensor]], swaps: int) -> list[Pauses]:
    found = []
    for concurrent in CONCURRENT:
        paused, served = asyncio.run(_swap_under(engine, weights, concurrent, swaps))
        middle, high = (float(part) for part in np.percentile(paused, (50, 95)))
        found.append(Pauses(concurrent, middle, high, float(np.median(served))))
    return found


async def _swap_under(
    engine: ServedEngine, weights: Sequence[dict[str, Tensor]], concurrent: int, swaps: int
) -> tuple[list[float], list[float]]:
    """Return the pause of each swap, and how long it took from the call until an answer began with its version."""
    sampling, over = Sampling(max_tokens=2 * NEW_TOKENS), asyncio.Event()

    async def play(ids: list[int]) -> None:
        while not over.is_set():
            await engine.generate("p", ids, sampling, seed=0)

    playing = [asyncio.create_task(play(ids)) for ids in draw_prompts(concurrent)]
    paused, served = [], []
    for _ in range(swaps):
        await asyncio.sleep(0.3)
        version, before, began = engine.versions()["p"] + 1, engine.stats().swap_s, time.perf_counter()
        await asyncio.to_thread(engine.load, "p", version, weights[version % 2])
        paused.append(engine.stats().swap_s - before)
        await engine.generate("p", [1], Sampling(max_tokens=1), seed=0)
        served.append(time.perf_counter() - began)
    over.set()
    await asyncio.gather(*playing)
    return paused, served


def show(console: Console, speeds: Sequence[Speed], pauses: Sequence[Pauses]) -> None:
    table = Table(title="Tokens/s, best of the rounds, sides in turn")
    for name in ("requests at once", "engine", "bare server", "ratio"):
        table.add_column(name, justify="right")
    for one in speeds:
        table.add_row(str(one.concurrent), f"{one.engine:,.0f}", f"{one.server:,.0f}", f"{one.engine / one.server:.2f}")
    console.print(table)
    table = Table(title="A swap of weights, ms")
    for name in ("requests under way", "pause p50", "pause p95", "until it serves p50"):
        table.add_column(name, justify="right")
    for pause in pauses:
        times = (pause.p50_s, pause.p95_s, pause.until_served_p50_s)
        table.add_row(str(pause.concurrent), *(f"{1000 * seconds:,.0f}" for seconds in times))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--use", choices=list(ASK_SERVER), default="sglang", help="kind of server")
    parser.add_argument("--python", required=True, help="Python of an environment with it")
    parser.add_argument("--arguments", nargs="*", help="of the command that starts a server")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--swaps", type=int, default=SWAPS)
    parser.add_argument("--json", type=Path, help="write the figures there too")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        weights = save_model(Path(folder) / "p")
        arguments = options.arguments or WITHOUT_GPU[options.use]
        settings: dict[str, Any] = {"use": options.use, "python": options.python, "arguments": arguments}
        rollout = Rollout.model_validate({"engine": settings})
        engine = cast("ServedEngine", open_engine({"p": Path(folder) / "p"}, rollout, max(CONCURRENT))[0])
        try:
            engine.load("p", 0, weights[0])
            speeds = measure_speeds(engine, options.use, options.rounds)
            pauses = measure_pauses(engine, weights, options.swaps)
        finally:
            engine.close()
    show(Console(), speeds, pauses)
    if options.json:
        options.json.write_text(json.dumps([*map(asdict, speeds), *map(asdict, pauses)], indent=1))


if __name__ == "__main__":
    main()
