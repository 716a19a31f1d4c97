"""Packed against padded training, and its memory: `OMP_NUM_THREADS=1 python -m benchmarks.trainer [--json FILE]`.

One learner pads, the other packs. They train on the same batches in turn, in one process, and the best round of each
counts. Padding is done as this trainer would do it: sequences are sorted by length, so only sequences of similar length
share a micro-batch. There are two kinds of batches: sums as in the demo, and lengths with a long tail (lognormal). Both
use the recipe's default token budget, and 64 sequences for each optimizer step. Tokens are counted without padding.

The second part measures the peak memory of log-probabilities and their gradient at a vocabulary of 150,000: with all
logits at a time, and in parts. Each measurement has its own process. With `--device cuda` everything runs on a GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import platform
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import transformers
from rich.console import Console
from rich.table import Table

from headrace.envs.arithmetic import ALPHABET, Arithmetic
from headrace.infra.recipe.settings import TrainerSettings
from headrace.trainers.batches.batch import MicroBatch, TrainingSequence, cut_minibatches, pack
from headrace.trainers.learner.attention import enable_packing
from headrace.trainers.learner.learner import Learner
from headrace.trainers.learner.logprobs import LOGITS_MIB, compute_token_logprobs
from headrace.trainers.learner.model import deterministic, empty_model
from headrace.trainers.learner.numerics import compute_dtype

ROUNDS = 3
SEQUENCES = 64
MEDIAN, SIGMA, SHORTEST, LONGEST = 256, 1.0, 16, 8192
"""Of the lognormal lengths, in tokens."""
VOCABULARY = 150_000
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Size:
    """A model's, and where it computes."""

    hidden: int
    layers: int
    device: str

    def model(self, vocabulary: int) -> transformers.PreTrainedModel:
        """Build one, on the CPU."""
        config = transformers.Qwen3Config(
            vocab_size=vocabulary,
            hidden_size=self.hidden,
            intermediate_size=2 * self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=max(32, self.hidden // 4),
            max_position_embeddings=LONGEST,
            tie_word_embeddings=True,
        )
        torch.manual_seed(0)
        return empty_model(config)


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second of both, best of the rounds."""

    lengths: str
    tokens: int
    longest: int
    computed: float
    """Inputs that padding has computed, for each that packing has."""
    padded: float
    packed: float

    @property
    def ratio(self) -> float:
        """How many times as fast packing is."""
        return self.packed / self.padded


@dataclass(frozen=True, slots=True)
class Peak:
    """Memory that log-probabilities and their gradient took beyond what was there."""

    logits_mib: int
    """Most at a time."""
    peak_mib: float
    seconds: float


def demo_lengths() -> npt.NDArray[np.int64]:
    environment = Arithmetic(seed=1)
    examples = [environment.example(number) for number in range(SEQUENCES)]
    return np.array([len(example.prompt) + len(example.completion) + 1 for example in examples])


def long_tailed_lengths() -> npt.NDArray[np.int64]:
    drawn = np.random.default_rng(0).lognormal(math.log(MEDIAN), SIGMA, SEQUENCES)
    return drawn.clip(SHORTEST, LONGEST).astype(np.int64)


def batch(lengths: npt.NDArray[np.int64], vocabulary: int) -> list[TrainingSequence]:
    """Sequences whose first quarter is the prompt; what the engine would have said does not matter to the speed."""
    draw = np.random.default_rng(1)
    made = []
    for group, length in enumerate(lengths.tolist()):
        mask = np.arange(length) >= max(1, length // 4)
        versions = np.where(mask, 0, -1).astype(np.int32)
        ids = draw.integers(0, vocabulary, length).astype(np.int32)
        logprobs = np.where(mask, -math.log(vocabulary), 0).astype(np.float32)
        made.append(TrainingSequence(ids, mask, logprobs, versions, float(draw.normal()), 1.0, group // 8))
    return made


def measure_speed(name: str, lengths: npt.NDArray[np.int64], size: Size, rounds: int) -> Speed:
    sequences = batch(lengths, len(ALPHABET) + 2)
    settings = TrainerSettings(groups_per_batch=SEQUENCES // 8, minibatches=1, max_staleness=rounds, device=size.device)
    learners = {
        packing: Learner(size.model(len(ALPHABET) + 2), settings.model_copy(update={"packing": packing}))
        for packing in (False, True)
    }
    tokens = int(lengths.sum())
    best = dict.fromkeys(learners, 0.0)
    for number in range(-1, rounds):  # round -1 warms up
        for packing, learner in learners.items():
            started = time.perf_counter()
            learner.step(sequences, learner.version + 1)  # its metrics are numbers: a GPU has come to its end
            if number >= 0:
                best[packing] = max(best[packing], tokens / (time.perf_counter() - started))
    inputs = [
        sum(micro.ids.size for step in steps for micro in step.micro_batches)
        for steps in (
            cut_minibatches(sequences, 1, settings.micro_batch_tokens, seed=1, version=1, packed=packing)
            for packing in (False, True)
        )
    ]
    return Speed(name, tokens, int(lengths.max()), inputs[0] / inputs[1], best[False], best[True])


def measure_peak(size: Size, tokens: int, logits_mib: int) -> Peak:
    """In a process of its own, whose memory nothing else has touched."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(_peak, size, tokens, logits_mib).result()


def _peak(size: Size, tokens: int, logits_mib: int) -> Peak:
    device = torch.device(size.device)
    model = size.model(VOCABULARY).to(device, compute_dtype(device))  # type: ignore[arg-type]
    enable_packing(model)
    few, many = (pack(batch(np.array([4 * count // 3]), VOCABULARY)) for count in (8, tokens))
    _logprobs_and_gradient(model, few, logits_mib)  # code and libraries are loaded, the gradients allocated
    before = _memory(device, reset=True)
    started = time.perf_counter()
    _logprobs_and_gradient(model, many, logits_mib)
    peak = _memory(device)
    return Peak(logits_mib, (peak - before) / MIB, time.perf_counter() - started)


def _logprobs_and_gradient(model: transformers.PreTrainedModel, micro: MicroBatch, logits_mib: int) -> None:
    with deterministic(model.device, model.dtype):
        logprobs, _ = compute_token_logprobs(model, micro, logits_mib=logits_mib)
        torch.autograd.backward(logprobs.sum())


def _memory(device: torch.device, *, reset: bool = False) -> int:
    """Peak so far, bytes; with `reset`, what is in use, which the peak is counted from again."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        if reset:
            torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.max_memory_allocated(device)
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024


def show(console: Console, speeds: list[Speed], peaks: list[Peak], subtitle: str) -> None:
    table = Table(title="Training step, tokens/s, best of the rounds", caption=subtitle)
    for name in ("lengths", "tokens", "longest", "computed when padded", "padded", "packed", "ratio"):
        table.add_column(name, justify="left" if name == "lengths" else "right")
    for speed in speeds:
        table.add_row(
            speed.lengths,
            f"{speed.tokens:,}",
            f"{speed.longest:,}",
            f"{speed.computed:.2f} x",
            f"{speed.padded:,.0f}",
            f"{speed.packed:,.0f}",
            f"{speed.ratio:.2f}",
        )
    console.print(table)
    table = Table(title=f"Log-probabilities and their gradient at a vocabulary of {VOCABULARY:,}")
    for name in ("logits at a time, MiB", "peak, MiB", "share of all at a time", "seconds"):
        table.add_column(name, justify="right")
    for peak in peaks:
        table.add_row(
            f"{peak.logits_mib:,}",
            f"{peak.peak_mib:,.0f}",
            f"{peak.peak_mib / peaks[0].peak_mib:.2f}",
            f"{peak.seconds:.1f}",
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 ...")
    parser.add_argument("--hidden", type=int, default=64, help="the model's width; the demo's by default")
    parser.add_argument("--layers", type=int, default=2, help="the number of its layers")
    parser.add_argument("--tokens", type=int, default=2048, help="tokens whose log-probabilities are computed")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds, of which the best counts")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    size = Size(arguments.hidden, arguments.layers, arguments.device)
    speeds = [
        measure_speed("demo", demo_lengths(), size, arguments.rounds),
        measure_speed(f"lognormal({MEDIAN}, {SIGMA})", long_tailed_lengths(), size, arguments.rounds),
    ]
    whole = math.ceil(arguments.tokens * VOCABULARY * 4 / MIB)
    peaks = [measure_peak(size, arguments.tokens, logits_mib) for logits_mib in (whole, LOGITS_MIB)]
    setting = {
        "device": torch.cuda.get_device_name(size.device) if size.device.startswith("cuda") else size.device,
        "hidden": size.hidden,
        "layers": size.layers,
        "micro_batch_tokens": TrainerSettings().micro_batch_tokens,
        "sequences": SEQUENCES,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "machine": platform.machine(),
    }
    show(Console(), speeds, peaks, ", ".join(f"{name} {value}" for name, value in setting.items()))
    if arguments.json:
        figures = {
            **setting,
            "speeds": [{**asdict(speed), "ratio": speed.ratio} for speed in speeds],
            "logprob_tokens": arguments.tokens,
            "vocabulary": VOCABULARY,
            "logprob_memory": [{**asdict(peak), "share": peak.peak_mib / peaks[0].peak_mib} for peak in peaks],
        }
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
