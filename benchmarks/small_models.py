"""A small real model on a CPU, compared with plain transformers: `python -m benchmarks.small_models [--json FILE]`.

For each size of model, two parts of a run are measured:

* step: tokens/s of `Learner.step`, and of the least work that a policy gradient needs, written by hand: the same
  sequences, padded, in order of length and within the same token budget; log-probabilities by log-softmax; one backward
  pass for each micro-batch; clipping; torch's AdamW. Both sides compute in fp32.
* generation: tokens/s of the in-process engine, and of `transformers.generate`, as in `benchmarks.engine`.

The sides take turns in one process, and the best round of each counts. The column `Headrace` shows what to expect of a
model of this size.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import transformers
from rich.console import Console
from rich.table import Table

from benchmarks.engine import Size as GenerationSize
from benchmarks.engine import measure_speeds
from benchmarks.trainer import batch
from headrace.infra.recipe.settings import TrainerSettings
from headrace.producers.engines.torch.torch_engine import TorchEngine
from headrace.trainers.batches.batch import TrainingSequence
from headrace.trainers.learner.learner import Learner
from headrace.trainers.learner.model import empty_model

VOCABULARY = 4096
SIZES = {"1M": (128, 3), "14M": (384, 6)}
"""Name to hidden size and layers."""
SEQUENCES, LENGTH, SPREAD = 64, 128, 0.5
"""Of a batch: how many, their median length in tokens, sigma of its logarithm."""
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Compared:
    """Tokens per second of both sides, best of the rounds."""

    model: str
    parameters: int
    what: str
    """step | generation at a batch size."""
    headrace: float
    plain: float

    @property
    def ratio(self) -> float:
        """How many times as fast Headrace is."""
        return self.headrace / self.plain


def build(hidden: int, layers: int) -> transformers.PreTrainedModel:
    config = transformers.Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    return empty_model(config)


def drawn_lengths() -> list[int]:
    drawn = np.random.default_rng(0).lognormal(np.log(LENGTH), SPREAD, SEQUENCES)
    return [int(length) for length in drawn.clip(16, 1000)]


class PlainStep:
    """One optimizer step of a policy gradient, as one writes it with transformers alone."""

    def __init__(self, model: transformers.PreTrainedModel, settings: TrainerSettings) -> None:
        self._model, self._settings = model, settings
        self._optimizer = torch.optim.AdamW(model.parameters(), settings.learning_rate)

    def __call__(self, sequences: Sequence[TrainingSequence]) -> None:
        """Take the step."""
        count = sum(int(one.mask.sum()) for one in sequences)
        for rows in self._cut(sequences):
            ids, mask, advantages = self._pad(rows)
            logits = self._model(ids, attention_mask=mask >= 0).logits[:, :-1].float()
            logprobs = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
            loss = -(logprobs * (mask[:, 1:] > 0) * advantages[:, None]).sum() / count
            torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._settings.grad_clip)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def _cut(self, sequences: Sequence[TrainingSequence]) -> list[list[TrainingSequence]]:
        found: list[list[TrainingSequence]] = []
        for one in sorted(sequences, key=lambda one: -one.ids.size):
            if found and (len(found[-1]) + 1) * found[-1][0].ids.size <= self._settings.micro_batch_tokens:
                found[-1].append(one)
            else:
                found.append([one])
        return found

    @staticmethod
    def _pad(rows: Sequence[TrainingSequence]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return int64[b, T] ids, int64[b, T] mask (-1 padding, 1 trained on), float32[b] advantages."""
        longest = rows[0].ids.size
        ids, mask = np.zeros((len(rows), longest), np.int64), np.full((len(rows), longest), -1)
        for at, one in enumerate(rows):
            ids[at, : one.ids.size], mask[at, : one.ids.size] = one.ids, one.mask
        advantages = [float(np.mean(one.advantage)) for one in rows]
        return torch.from_numpy(ids), torch.from_numpy(mask), torch.tensor(advantages)


def compare_steps(name: str, hidden: int, layers: int, rounds: int) -> Compared:
    sequences = batch(np.array(drawn_lengths()), VOCABULARY)
    settings = TrainerSettings(groups_per_batch=SEQUENCES // 8, minibatches=1, max_staleness=rounds)
    learner, plain = Learner(build(hidden, layers), settings), PlainStep(build(hidden, layers), settings)
    sides: dict[str, Callable[[], object]] = {
        "headrace": lambda: learner.step(sequences, learner.version + 1),
        "plain": lambda: plain(sequences),
    }
    tokens, best = sum(one.ids.size for one in sequences), dict.fromkeys(sides, 0.0)
    for number in range(-1, rounds):  # round -1 warms up
        for side, action in sides.items():
            started = time.perf_counter()
            action()
            if number >= 0:
                best[side] = max(best[side], tokens / (time.perf_counter() - started))
    parameters = sum(value.numel() for value in learner.model.parameters())
    return Compared(name, parameters, "step", best["headrace"], best["plain"])


def compare_generation(name: str, hidden: int, layers: int, size: GenerationSize) -> list[Compared]:
    model = build(hidden, layers)
    engine = TorchEngine({"p": model.config})
    try:
        engine.load("p", 0, dict(model.named_parameters()))
        speeds = measure_speeds(engine, model, model.config, size)
    finally:
        engine.close()
    parameters = sum(value.numel() for value in model.parameters())
    return [Compared(name, parameters, f"generation, {one.batch} at once", one.engine, one.generate) for one in speeds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES), help="sizes of models")
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 64], help="prompts at once")
    parser.add_argument("--new-tokens", type=int, default=64, help="tokens generated for each prompt")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds, of which the best counts")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    asked = parser.parse_args()
    found: list[Compared] = []
    for name in asked.sizes:
        found.append(compare_steps(name, *SIZES[name], asked.rounds))
        size = GenerationSize(asked.batches, asked.new_tokens, asked.rounds)
        found += compare_generation(name, *SIZES[name], size)
    table = Table(title="tokens/s, best round", caption=f"{torch.get_num_threads()} threads, torch {torch.__version__}")
    for column in ("model", "parameters", "what", "Headrace", "plain transformers", "ratio"):
        table.add_column(column, justify="left" if column in {"model", "what"} else "right")
    for one in found:
        figures = (f"{one.headrace:,.0f}", f"{one.plain:,.0f}", f"{one.ratio:.2f}")
        table.add_row(one.model, f"{one.parameters:,}", one.what, *figures)
    Console().print(table)
    if asked.json:
        rows = [{**asdict(one), "ratio": one.ratio} for one in found]
        asked.json.write_text(json.dumps({"threads": torch.get_num_threads(), "compared": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
