"""How long a new version holds others up: the learner while it is copied, the engine while it is swapped in."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config

from benchmarks.weight_costs import Tell
from benchmarks.weight_sets import made, qwen3_shapes, successor
from headrace.infra.weights.coding import find_changes
from headrace.infra.weights.delta import items_of
from headrace.infra.weights.tensors import Tensor
from headrace.producers.engines.torch.causal_lm import CausalLM
from headrace.trainers.learner.model import round_to_bf16

DENSITY = 0.01


@dataclass(frozen=True, slots=True)
class LearnerPause:
    """Seconds, best of the rounds."""

    parameters: int
    snapshot_s: float
    """Masters to bf16, into memory that an earlier version left: all that a step waits for."""
    first_snapshot_s: float
    """The same, into memory that is new."""
    copy_s: float
    """A plain copy of what is published, into memory that was written before."""
    new_copy_s: float
    """The same, into memory that is new."""


@dataclass(frozen=True, slots=True)
class EnginePause:
    """Seconds, best of the rounds."""

    parameters: int
    stage_s: float
    """Checks and a copy, while the engine plays on."""
    swap_s: float
    """What happens between two tokens."""
    scatter_s: float
    """Writing 1 % of the values where they belong, which a swap could do instead."""


def measure_learner(parameters: float, rounds: int, tell: Tell) -> LearnerPause:
    """Publish the fp32 masters of a model of this size, as a learner does after each step."""
    shapes = qwen3_shapes(parameters)
    masters = {name: torch.empty(shape).uniform_(-0.1, 0.1) for name, shape in shapes.items()}
    first, before = _best(1, lambda: round_to_bf16(masters))
    again, spare = _best(1, lambda: round_to_bf16(masters))
    again, spare = _best(rounds, lambda: round_to_bf16(masters, spare))
    copy, _ = _best(rounds, lambda: _copy(spare, before))
    new, _ = _best(rounds, lambda: {name: np.array(items_of(tensor)) for name, tensor in spare.items()})
    found = LearnerPause(sum(master.numel() for master in masters.values()), again, first, copy, new)
    tell(f"a version is copied in {again:.3f} s; a plain copy takes {copy:.3f} s, and {new:.3f} s into new memory")
    return found


def measure_engine(parameters: float, rounds: int, tell: Tell) -> EnginePause:
    """Load a model of this size with the next version, of which some values changed."""
    model = CausalLM.build(_config(parameters), "cpu", torch.bfloat16)
    base = made({name: tuple(parameter.shape) for name, parameter in model.model.named_parameters()})
    after = successor(base, DENSITY)
    old, new = base.tensors, after.tensors
    stages, swaps = [], []
    for weights in [old, new] * rounds:
        begin = time.perf_counter()
        staged = model.stage(weights)
        between = time.perf_counter()
        with torch.inference_mode():
            model.apply(staged)
        swaps.append(time.perf_counter() - between)
        stages.append(between - begin)
        del staged
    own = dict(model.model.named_parameters())
    where = [(own[name], *_values(old[name], new[name])) for name in old]
    scatter, _ = _best(rounds, lambda: _scatter(where))
    found = EnginePause(len(base.items), min(stages), max(swaps), scatter)
    tell(f"weights are staged in {found.stage_s:.3f} s and swapped in {found.swap_s * 1000:.2f} ms")
    return found


def _config(parameters: float) -> Qwen3Config:
    """Return Qwen3-1.7B's, made narrower by whole heads until there are about so many parameters."""
    heads = max(2, 2 * round(8 * min(1.0, sqrt(parameters / 1.7e9))))
    return Qwen3Config(
        vocab_size=9496 * heads,
        hidden_size=128 * heads,
        intermediate_size=384 * heads,
        num_hidden_layers=28,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=128,
        max_position_embeddings=128,
        tie_word_embeddings=True,
    )


def _copy(source: dict[str, Tensor], target: dict[str, Tensor]) -> None:
    for name, tensor in source.items():
        np.copyto(items_of(target[name]), items_of(tensor))


def _values(old: Tensor, new: Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where two tensors differ, and the new values there."""
    positions, _ = find_changes(items_of(old), items_of(new))
    values = items_of(new)[positions].view(np.int16)
    return torch.from_numpy(positions.astype(np.int64)), torch.from_numpy(values).view(torch.bfloat16)


@torch.inference_mode()
def _scatter(where: Iterable[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]) -> None:
    for parameter, positions, values in where:
        parameter.data.view(-1).index_copy_(0, positions, values)


def _best(rounds: int, action: Callable[[], Any]) -> tuple[float, Any]:
    """Return the shortest time, and what the last round returned."""
    best, result = float("inf"), None
    for _ in range(rounds):
        begin = time.perf_counter()
        result = action()
        best = min(best, time.perf_counter() - begin)
    return best, result
