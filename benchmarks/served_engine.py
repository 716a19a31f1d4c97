"""The engine over a server against the bare server: `python -m benchmarks.served_engine --use vllm --python PYTHON`.

PYTHON is the Python of an environment with SGLang or vLLM. Both sides use the same server, prompts, lengths and
sampling; the bare side asks for the same fields by a plain HTTP client. They take turns, and the best round of each
counts. A second part swaps weights while 1, 8 and 64 requests run.

`--only admission` measures something else: Headrace finds by itself how many requests a server gets at once. How close
does its speed come to that of the best of five fixed numbers? This is measured with short answers, and with long ones
in a KV cache that is too small for all. The numbers take turns, and the tokens of all rounds count. `--seconds` says
for how long each number is measured in a round. Before the first round, Headrace has twice as many seconds to find its
number. The default of 3 s is too short for this: it only shows that the benchmark runs.

Without a GPU: `make test-sglang` and `make test-vllm` install the servers, and the default arguments are for them. They
also need the environment variables of `tests/engines/cpu_servers.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
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
from headrace.producers.engines.served.admission import Admission
from headrace.producers.engines.served.served_engine import ServedEngine
from headrace.producers.engines.served.sglang_api import build_parameters
from headrace.producers.engines.served.vllm_api import build_request
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
FIXED = (4, 8, 16, 32, 64)
OPEN = 96
"""Requests that want an answer at any time, which is more than any of the fixed numbers."""
WARM_UP_S = 3.0
SMALL_CACHE = {
    "sglang": ("--max-total-tokens", "2048"),
    "vllm": ("--block-size", "32", "--num-gpu-blocks-override", "64"),
}
"""Later arguments count: 2,048 tokens."""
LONGEST = 400
"""Tokens that an answer may have. The server is told no more of its length."""
STOPS = {"short": 6, "long": 1}
"""Workload to the tokens out of about fifty that end an answer: the more, the shorter."""
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


@dataclass(slots=True)
class Admitted:
    """What a server did in all rounds with a number of requests at once: a fixed one, or 0 for the found one."""

    workload: str
    fixed: int
    took_s: float = 0.0
    tokens: int = 0
    answers: int = 0
    retractions: int = 0
    limits: list[int] = field(default_factory=list)
    """Number at the end of each round."""

    @property
    def tokens_s(self) -> float:
        """Tokens of complete answers per second."""
        return self.tokens / self.took_s


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


def measure_admission(engine: ServedEngine, seconds: float, rounds: int) -> list[Admitted]:
    return [row for workload in STOPS for row in asyncio.run(_measure_one_workload(engine, workload, seconds, rounds))]


async def _measure_one_workload(engine: ServedEngine, workload: str, seconds: float, rounds: int) -> list[Admitted]:
    """Measure each number once in every round; before the first round, a number is looked for."""
    [server, *_] = engine.list_servers()
    sampling = Sampling(max_tokens=LONGEST, stop_ids=tuple(range(4, 4 + STOPS[workload])))
    made: list[int] = []

    async def play(ids: list[int]) -> None:
        while True:
            made.append(len((await engine.generate("p", ids, sampling, seed=0)).ids))

    playing = [asyncio.create_task(play(ids)) for ids in draw_prompts(OPEN)]
    found = Admission()
    server.gate.admission = found
    await asyncio.sleep(2 * seconds)
    rows = [Admitted(workload, fixed) for fixed in (*FIXED, 0)]
    for _ in range(rounds):
        for row in rows:
            server.gate.admission = Admission(row.fixed) if row.fixed else found
            found._retractions = math.inf  # noqa: SLF001 - those of the fixed numbers are not its own
            await asyncio.sleep(min(WARM_UP_S, seconds))
            answers, retractions, began = len(made), server.load.retractions, time.perf_counter()
            await asyncio.sleep(seconds)
            row.took_s += time.perf_counter() - began
            row.answers += len(made) - answers
            row.tokens += sum(made[answers:])
            row.retractions += server.load.retractions - retractions
            row.limits.append(server.gate.admission.limit)
    for one in playing:
        one.cancel()
    ends = await asyncio.gather(*playing, return_exceptions=True)
    for end in ends:
        if isinstance(end, Exception):
            raise end
    return rows


def show_admission(console: Console, rows: Sequence[Admitted]) -> None:
    table = Table(title="Tokens/s of complete answers, by the number of requests at once")
    for name in (
        "answers",
        "requests at once",
        "tokens/s",
        "share of the best fixed number",
        "complete answers",
        "retractions",
    ):
        table.add_column(name, justify="right")
    for one in rows:
        best = max(other.tokens_s for other in rows if other.workload == one.workload and other.fixed)
        number = str(one.fixed) if one.fixed else f"found: {', '.join(map(str, one.limits))}"
        share = f"{one.tokens_s / best:.2f}" if best else ""
        table.add_row(one.workload, number, f"{one.tokens_s:,.0f}", share, str(one.answers), str(one.retractions))
    console.print(table)


def show(console: Console, speeds: Sequence[Speed], pauses: Sequence[Pauses]) -> None:
    table = Table(title="Tokens/s, best of the rounds")
    for name in ("requests at once", "engine", "bare server", "ratio"):
        table.add_column(name, justify="right")
    for one in speeds:
        table.add_row(str(one.concurrent), f"{one.engine:,.0f}", f"{one.server:,.0f}", f"{one.engine / one.server:.2f}")
    console.print(table)
    table = Table(title="A swap of weights, ms")
    for name in ("requests under way", "pause p50", "pause p95", "until it is served p50"):
        table.add_column(name, justify="right")
    for pause in pauses:
        times = (pause.p50_s, pause.p95_s, pause.until_served_p50_s)
        table.add_row(str(pause.concurrent), *(f"{1000 * seconds:,.0f}" for seconds in times))
    console.print(table)


@contextmanager
def open_server(
    use: str, python: str, arguments: Sequence[str]
) -> Iterator[tuple[ServedEngine, list[dict[str, Tensor]]]]:
    """Start a server with the first of two versions; yield its engine and both."""
    with TemporaryDirectory() as folder:
        weights = save_model(Path(folder) / "p")
        settings: dict[str, Any] = {"use": use, "python": python, "arguments": arguments}
        rollout = Rollout.model_validate({"engine": settings})
        engine = cast("ServedEngine", open_engine({"p": Path(folder) / "p"}, rollout, max(CONCURRENT))[0])
        try:
            engine.load("p", 0, weights[0])
            yield engine, weights
        finally:
            engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--use", choices=list(ASK_SERVER), default="sglang", help="kind of server")
    parser.add_argument("--python", required=True, help="Python of an environment with SGLang or vLLM")
    parser.add_argument("--arguments", nargs="*", help="further arguments of the command that starts a server")
    parser.add_argument("--only", choices=("engine", "admission"), default="engine", help="what to measure")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="number of rounds")
    parser.add_argument("--swaps", type=int, default=SWAPS, help="number of swaps of weights")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds for each number of requests at once")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    arguments = tuple(options.arguments or WITHOUT_GPU[options.use])
    figures: list[dict[str, Any]]
    if options.only == "admission":
        with open_server(options.use, options.python, arguments + SMALL_CACHE[options.use]) as (engine, _):
            rows = measure_admission(engine, options.seconds, options.rounds)
        show_admission(Console(), rows)
        figures = [asdict(row) for row in rows]
    else:
        with open_server(options.use, options.python, arguments) as (engine, weights):
            speeds = measure_speeds(engine, options.use, options.rounds)
            pauses = measure_pauses(engine, weights, options.swaps)
        show(Console(), speeds, pauses)
        figures = [*map(asdict, speeds), *map(asdict, pauses)]
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
