"""Supervised steps on worked examples until the *measured* held-out reward lies in a band.

A fixed number of steps lands anywhere (150 steps were seen to give 0.31 once and 0.79 another time), so the model is
measured as it learns, and a step that jumps over the band is taken back and repeated smaller.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import structlog
import torch
import transformers

from headrace.infra.errors import UsageError
from headrace.trainers.batches.batch import TrainingSequence, micro_batch_cuts, pad
from headrace.trainers.learner.logprobs import token_logprobs
from headrace.trainers.learner.model import deterministic, encode

log = structlog.get_logger()


class BandNotReached(UsageError):
    """The held-out reward did not come to lie in the band: this model cannot learn so what the recipe asks."""


@dataclass(frozen=True, slots=True)
class WorkedExample:
    """A prompt and the completion that solves it, without its end-of-sequence token."""

    prompt: str
    completion: str


@dataclass(frozen=True, slots=True)
class WarmStartSettings:
    """Where to stop and how to get there. Raises UsageError for a band outside 0..1."""

    low: float = 0.30
    high: float = 0.40
    learning_rate: float = 1e-3
    batch_size: int = 64
    max_steps: int = 2_000
    """Supervised steps in all, those taken back included."""
    measure_every: int = 16
    """Steps between two measurements at first; halved whenever they jump over the band."""
    samples: int = 512
    """Completions per measurement, at temperature 1, spread evenly over the held-out examples."""
    max_new_tokens: int = 16
    """As in the rollouts that follow: a completion that does not end within them has no reward."""
    tokens_per_micro_batch: int = 16_384
    seed: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high <= 1:
            raise UsageError(f"the warm start's band must have 0 < low < high <= 1, got {self.low}..{self.high}")


@dataclass(frozen=True, slots=True)
class WarmStart:
    """What was done: steps in the kept model, its measured reward, and every measurement (step, reward)."""

    steps: int
    reward: float
    curve: tuple[tuple[int, float], ...]


def warm_start(
    model: transformers.PreTrainedModel,
    tokenizer: transformers.PreTrainedTokenizerBase,
    examples: Sequence[WorkedExample],
    held_out: Sequence[WorkedExample],
    settings: WarmStartSettings,
    tell: Callable[[int, float | None], None] = lambda _step, _reward: None,
) -> WarmStart:
    """Train `model` (fp32, in place) until held-out reward is in [low, high]; deterministic for a seed.

    The reward is the share of sampled completions that equal the gold one but for blanks around it, taken on the
    bf16-rounded weights that version 0 will publish. Raises BandNotReached after `max_steps`, or when the model is
    above the band before any step; the model is then wherever the search stopped. `tell` hears
    of every step, and the reward where it was measured; what it raises ends the search.
    """
    student = _Student(model, tokenizer, examples, settings)
    meter = _Meter(model, tokenizer, held_out, settings)
    stride, taken, steps = settings.measure_every, 0, 0
    reward = meter.measure()
    if reward > settings.high:
        raise BandNotReached(f"held-out reward is {reward:.3f} before any step, above {settings.high}: it needs none")
    curve = [(0, reward)]
    kept = student.snapshot()
    while not settings.low <= reward <= settings.high:
        if taken + stride > settings.max_steps:
            best = max(curve, key=lambda point: point[1])
            raise BandNotReached(
                f"held-out reward missed {settings.low}..{settings.high} in {settings.max_steps} supervised steps "
                f"(best {best[1]:.3f} at step {best[0]}): raise max_steps or the learning rate, or ask easier tasks"
            )
        for step in range(steps, steps + stride):
            student.learn(step)
            tell(step + 1, None)
        taken += stride
        reward = meter.measure()
        curve.append((steps + stride, reward))
        log.info("warm_start.measured", step=steps + stride, reward=round(reward, 4), stride=stride)
        tell(steps + stride, reward)
        if reward <= settings.high:
            steps += stride
            kept = student.snapshot()
        else:
            student.restore(kept)
            if stride == 1:
                student.halve_learning_rate()
            stride = max(1, stride // 2)
    return WarmStart(steps, reward, tuple(curve))


_Kept = tuple[dict[str, torch.Tensor], dict[str, object]]


class _Student:
    def __init__(
        self,
        model: transformers.PreTrainedModel,
        tokenizer: transformers.PreTrainedTokenizerBase,
        examples: Sequence[WorkedExample],
        settings: WarmStartSettings,
    ) -> None:
        self._model = model
        self._settings = settings
        self._sequences = [_sequence(tokenizer, example, index) for index, example in enumerate(examples)]
        self._rate = settings.learning_rate
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=self._rate, foreach=False, fused=False)

    def learn(self, step: int) -> None:
        """One step of cross-entropy on a batch drawn by (seed, step)."""
        draw = np.random.default_rng([self._settings.seed, step])
        chosen = draw.integers(len(self._sequences), size=self._settings.batch_size)
        batch = [self._sequences[index] for index in chosen.tolist()]
        tokens = int(sum(sequence.mask.sum() for sequence in batch))
        self._optimizer.zero_grad()
        with deterministic(self._model.device, torch.float32):
            for cut in micro_batch_cuts(batch, self._settings.tokens_per_micro_batch):
                logprobs, _ = token_logprobs(self._model, pad(cut))
                torch.autograd.backward(-logprobs.sum() / tokens)
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0, foreach=False)
        self._optimizer.step()

    def snapshot(self) -> _Kept:
        return copy.deepcopy((self._model.state_dict(), self._optimizer.state_dict()))

    def restore(self, kept: _Kept) -> None:
        weights, optimizer = copy.deepcopy(kept)
        self._model.load_state_dict(weights)
        self._optimizer.load_state_dict(optimizer)
        self._set_rate()

    def halve_learning_rate(self) -> None:
        self._rate /= 2
        self._set_rate()

    def _set_rate(self) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate


class _Meter:
    """Samples the same draws at every measurement, so that measurements differ by the model alone."""

    def __init__(
        self,
        model: transformers.PreTrainedModel,
        tokenizer: transformers.PreTrainedTokenizerBase,
        held_out: Sequence[WorkedExample],
        settings: WarmStartSettings,
    ) -> None:
        self._model = model
        self._published: Any = copy.deepcopy(model)  # transformers does not declare generate
        self._tokenizer = tokenizer
        self._settings = settings
        chosen = [held_out[index % len(held_out)] for index in range(settings.samples)]
        self._gold = [example.completion.strip() for example in chosen]
        prompts = [encode(tokenizer, example.prompt) for example in chosen]
        width = max(map(len, prompts))
        pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        self._ids = torch.tensor([[pad_id] * (width - len(prompt)) + prompt for prompt in prompts])
        self._attention = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        self._sampling = transformers.GenerationConfig(  # type: ignore[no-untyped-call]  # untyped there
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=settings.max_new_tokens,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=pad_id,
        )

    @torch.no_grad()
    def measure(self) -> float:
        for rounded, weight in zip(self._published.parameters(), self._model.parameters(), strict=True):
            rounded.copy_(weight.to(torch.bfloat16))
        device = self._published.device
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(self._settings.seed)
            output = self._published.generate(
                self._ids.to(device), attention_mask=self._attention.to(device), generation_config=self._sampling
            )
        completions = output[:, self._ids.shape[1] :].cpu()
        ended = (completions == self._tokenizer.eos_token_id).any(-1).tolist()
        texts = self._tokenizer.batch_decode(completions, skip_special_tokens=True)
        right = [end and text.strip() == gold for end, text, gold in zip(ended, texts, self._gold, strict=True)]
        return float(np.mean(right))


def _sequence(tokenizer: transformers.PreTrainedTokenizerBase, example: WorkedExample, index: int) -> TrainingSequence:
    prompt = encode(tokenizer, example.prompt)
    ids = np.array([*prompt, *encode(tokenizer, example.completion), tokenizer.eos_token_id], np.int32)
    mask = np.arange(ids.size) >= len(prompt)
    return TrainingSequence(
        ids, mask, np.zeros(ids.size, np.float32), np.where(mask, 0, -1).astype(np.int32), 1.0, 1.0, index
    )
