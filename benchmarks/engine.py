"""The in-process engine against `transformers.generate`: `OMP_NUM_THREADS=1 python -m benchmarks.engine [--json FILE]`.

Both sides have the same model, prompts, lengths and sampling, and compute a log-probability for every token. They take
turns in one process, and the best round of each counts. A second part checks that a request that joins a running batch
gets the same tokens as it would alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import transformers
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedConfig, Qwen3Config

from headrace.producers.engines.contract import Generation, Sampling
from headrace.producers.engines.torch.sampler import draw_uniforms, start_stream
from headrace.producers.engines.torch.torch_engine import TorchEngine

BATCHES = (1, 32, 128)
ROUNDS = 3
PROMPT_TOKENS = 16
NEW_TOKENS = 96
JOINERS = 48


@dataclass(frozen=True, slots=True)
class Size:
    """How much is generated."""

    batches: Sequence[int] = BATCHES
    """Prompts at once, one table row each."""
    new_tokens: int = NEW_TOKENS
    """Of each prompt."""
    rounds: int = ROUNDS


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second, best of the rounds."""

    batch: int
    engine: float
    generate: float

    @property
    def ratio(self) -> float:
        """How many times as fast as `generate`."""
        return self.engine / self.generate


@dataclass(frozen=True, slots=True)
class Joiners:
    """Requests that joined while others ran, against the same requests alone."""

    requests: int
    sequences_that_differ: int
    max_distance_to_boundary: float
    """Of the first draws that differ; a uniform within rounding of a boundary may fall on either side of it."""
    max_logprob_difference: float


def model_config() -> PreTrainedConfig:
    return Qwen3Config(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,
        initializer_range=0.1,
        tie_word_embeddings=True,
    )


def prompts(count: int, config: PreTrainedConfig) -> list[list[int]]:
    drawn = np.random.default_rng(0).integers(0, config.vocab_size, (count, PROMPT_TOKENS))
    return [[int(token) for token in row] for row in drawn]


def generate_with_transformers(model: torch.nn.Module, batch: list[list[int]], new_tokens: int) -> torch.Tensor:
    """float32[b, T] log-probabilities of what `generate` sampled."""
    ids = torch.tensor(batch)
    settings = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_new_tokens=new_tokens,
        max_new_tokens=new_tokens,
        output_logits=True,
        return_dict_in_generate=True,
        pad_token_id=0,
    )
    with torch.inference_mode():
        output = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)  # type: ignore[operator]
        logprobs = torch.stack(output.logits, 1).float().log_softmax(-1)
        return logprobs.gather(-1, output.sequences[:, ids.shape[1] :, None])[..., 0]


async def generate_with_engine(engine: TorchEngine, batch: list[list[int]], new_tokens: int) -> list[Generation]:
    sampling = Sampling(max_tokens=new_tokens)
    calls = (engine.generate("p", ids, sampling, seed=seed) for seed, ids in enumerate(batch))
    return await asyncio.gather(*calls)


def run_engine(engine: TorchEngine, batch: list[list[int]], new_tokens: int) -> list[Generation]:
    return asyncio.run(generate_with_engine(engine, batch, new_tokens))


async def generate_staggered(engine: TorchEngine, batch: list[list[int]], new_tokens: int) -> list[Generation]:
    """Each request starts two tokens after the one before."""
    sampling = Sampling(max_tokens=new_tokens)
    tasks: list[asyncio.Task[Generation]] = []
    for seed, ids in enumerate(batch):
        target = engine.stats().generated_tokens + 2 * len(tasks)
        tasks.append(asyncio.create_task(engine.generate("p", ids, sampling, seed=seed)))
        running = tasks[-1]
        while engine.stats().generated_tokens < target and not running.done():  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0.0005)
    return await asyncio.gather(*tasks)


def round_of(batch: int, new_tokens: int, sides: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Tokens per second of each side, which take turns so that both meet the same load on the machine."""
    turns = 8 if batch == 1 else 2
    seconds = dict.fromkeys(sides, 0.0)
    for _ in range(turns):
        for side, action in sides.items():
            started = time.perf_counter()
            action()
            seconds[side] += time.perf_counter() - started
    return {side: turns * batch * new_tokens / total for side, total in seconds.items()}


def measure_speeds(engine: TorchEngine, model: torch.nn.Module, config: PreTrainedConfig, size: Size) -> list[Speed]:
    best: dict[tuple[int, str], float] = {}
    for number in range(-1, size.rounds):  # round -1 warms up
        for batch in size.batches:
            rows = prompts(batch, config)
            speeds = round_of(
                batch,
                size.new_tokens,
                {
                    "engine": partial(run_engine, engine, rows, size.new_tokens),
                    "generate": partial(generate_with_transformers, model, rows, size.new_tokens),
                },
            )
            for side, speed in speeds.items():
                best[batch, side] = max(speed if number >= 0 else 0.0, best.get((batch, side), 0.0))
    return [Speed(batch, best[batch, "engine"], best[batch, "generate"]) for batch in size.batches]


def distance_to_boundary(model: torch.nn.Module, ids: list[int], seed: int, number: int) -> float:
    """How far draw `number` of a request lay from the nearest step of the cumulative distribution after `ids`."""
    with torch.inference_mode():
        steps = model(torch.tensor([ids]), use_cache=False).logits[0, -1].double().softmax(-1).cumsum(-1)
    uniform = draw_uniforms(start_stream(seed), np.array([number], np.uint64))
    return float((steps - torch.from_numpy(uniform)).abs().min())


def check_joiners(engine: TorchEngine, model: torch.nn.Module, config: PreTrainedConfig, new_tokens: int) -> Joiners:
    rows = [ids[: 1 + index % PROMPT_TOKENS] for index, ids in enumerate(prompts(JOINERS, config))]
    sampling = Sampling(max_tokens=new_tokens)
    alone = [asyncio.run(engine.generate("p", ids, sampling, seed=seed)) for seed, ids in enumerate(rows)]
    joined = asyncio.run(generate_staggered(engine, rows, new_tokens))
    distances: list[float] = []
    gap = 0.0
    for seed, (one, other) in enumerate(zip(alone, joined, strict=True)):
        differs = np.flatnonzero(one.ids != other.ids)
        common = int(differs[0]) if differs.size else new_tokens
        gap = max(gap, float(np.abs(one.logprobs[:common] - other.logprobs[:common]).max(initial=0.0)))
        if differs.size:
            distances.append(distance_to_boundary(model, [*rows[seed], *one.ids[:common].tolist()], seed, common))
    return Joiners(len(rows), len(distances), max(distances, default=0.0), gap)


def show(console: Console, speeds: list[Speed], joiners: Joiners, subtitle: str) -> None:
    table = Table(title="Generation, tokens/s, best of the rounds", caption=subtitle)
    for name in ("batch", "Headrace engine", "transformers.generate", "ratio"):
        table.add_column(name, justify="right")
    for speed in speeds:
        table.add_row(str(speed.batch), f"{speed.engine:,.0f}", f"{speed.generate:,.0f}", f"{speed.ratio:.2f}")
    console.print(table)
    console.print(
        f"{joiners.requests - joiners.sequences_that_differ} of {joiners.requests} requests that joined a running "
        f"batch have the same tokens as alone; largest difference of log-probabilities "
        f"{joiners.max_logprob_difference:.1e}"
    )
    if joiners.sequences_that_differ:
        console.print(
            "the others: the random number of the first different token was at most "
            f"{joiners.max_distance_to_boundary:.1e} away from the boundary between two tokens"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES, help="prompts at once")
    parser.add_argument("--new-tokens", type=int, default=NEW_TOKENS, help="tokens generated for each prompt")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds, of which the best counts")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    size = Size(arguments.batches, arguments.new_tokens, arguments.rounds)
    config = model_config()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.eval()
    engine = TorchEngine({"p": config})
    try:
        engine.load("p", 0, dict(model.named_parameters()))
        speeds = measure_speeds(engine, model, config, size)
        joiners = check_joiners(engine, model, config, size.new_tokens)
    finally:
        engine.close()
    parameters = sum(tensor.numel() for tensor in model.parameters())
    setting = {
        "parameters": parameters,
        "prompt_tokens": PROMPT_TOKENS,
        "new_tokens": size.new_tokens,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "machine": platform.machine(),
    }
    show(Console(), speeds, joiners, ", ".join(f"{name} {value}" for name, value in setting.items()))
    if arguments.json:
        figures = {
            **setting,
            "speeds": [{**asdict(speed), "ratio": speed.ratio} for speed in speeds],
            "joiners": asdict(joiners),
        }
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
