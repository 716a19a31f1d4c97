"""Supervised steps on worked examples until *measured* exact match with held-out examples lies in a band.

Exact match is the share of sampled completions that equal the worked example's completion word by word. It is not the
environment's reward, which may accept other forms of a right answer or give partial reward.

A fixed number of steps gives unpredictable results (150 steps gave 0.31 once and 0.79 another time). So the model is
measured as it learns; a step that jumps over the band is undone and repeated with fewer steps.
"""

from __future__ import annotations

import copy
import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import structlog
import torch
import transformers

from headrace.infra.errors import UsageError
from headrace.trainers.batches.batch import TrainingSequence, cut_micro_batches, pad
from headrace.trainers.learner.logprobs import compute_token_logprobs
from headrace.trainers.learner.model import deterministic, encode, encode_completion

log = structlog.get_logger()

PROGRESS_EVERY_S = 2.0
"""Most times that progress is saved between two measurements."""
SAVE_SHARE = 10.0
"""The pause between two saves is at least so many times as long as a save."""


class BandNotReached(UsageError):
    """Exact match did not reach the band with this model and these settings."""


@dataclass(frozen=True, slots=True)
class PromptAndCompletion:
    """A prompt and the completion that solves it, without its end-of-sequence token."""

    prompt: str | Sequence[Mapping[str, Any]]
    """A text (one user turn) or messages."""
    completion: str
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the chat template."""
    tools: Sequence[Mapping[str, Any]] = ()
    """JSON schemas of tools that the chat template shows."""

    def encode_prompt(self, tokenizer: transformers.PreTrainedTokenizerBase) -> list[int]:
        """Return the token ids of the prompt. Raises ModelError for text that the tokenizer cannot encode."""
        return encode(tokenizer, self.prompt, self.template_arguments, self.tools)

    @property
    def content(self) -> str:
        """Content as text, to find duplicates."""
        return json.dumps([self.prompt, self.completion])


@dataclass(frozen=True, slots=True)
class WarmStartSettings:
    """Settings of a warm start. Raises UsageError for a band outside 0..1."""

    low: float = 0.30
    high: float = 0.40
    learning_rate: float = 1e-3
    batch_size: int = 64
    max_steps: int = 2_000
    """Most supervised steps in all, undone steps included."""
    measure_every: int = 16
    """Initial number of steps between two measurements; halved whenever they jump over the band."""
    samples: int = 512
    """Completions per measurement, at temperature 1, spread evenly over the held-out examples."""
    max_new_tokens: int = 16
    """Token limit of the later rollouts: a completion that does not end within it gets no reward."""
    tokens_per_micro_batch: int = 16_384
    seed: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high <= 1:
            raise UsageError(
                f"a warm start needs 0 < reward_low < reward_high <= 1; got reward_low = {self.low} and reward_high = "
                f"{self.high}"
            )


@dataclass(frozen=True, slots=True)
class WarmStartResult:
    """Result: steps of the kept model, its exact match as `reward`, and all measurements as (step, match)."""

    steps: int
    reward: float
    curve: tuple[tuple[int, float], ...]


@dataclass(slots=True)
class ModelState:
    """State of a model and its optimizer."""

    weights: dict[str, torch.Tensor]
    """Weights by the parameter's name."""
    moments: dict[str, torch.Tensor]
    """Moments by the parameter's number and kind, as `0.exp_avg`."""


@dataclass(slots=True)
class SearchProgress:
    """The complete state of a search: a search resumed from it ends with the same bits."""

    kept: ModelState
    """Model state at the last measurement that was not above the band."""
    stride: int
    """Steps from that measurement to the next."""
    rate: float
    reward: float
    """Exact match at the last measurement."""
    curve: list[tuple[int, float]]
    """All measurements as (step, reward)."""
    steps: int = 0
    """Steps that led to `kept`."""
    taken: int = 0
    """All steps up to the last measurement, undone steps included."""
    done: int = 0
    """Steps since the last measurement."""
    now: ModelState | None = None
    """Model state after these steps; None if there are none."""


class Follower:
    """Observes the progress of a warm start, and may store it."""

    def after_step(self, step: int, reward: float | None) -> None:
        """Take in a step, with the reward if it was measured; an exception ends the search."""

    def resume(self) -> SearchProgress | None:
        """Return the stored progress of the same search; None to begin."""
        return None

    def save(self, progress: SearchProgress) -> None:
        """Store the progress: after every measurement, and sometimes between two."""


def describe_measurement(step: int, reward: float, settings: WarmStartSettings) -> str:
    """Return a measurement as a sentence."""
    wanted = f"{settings.low:.2f}-{settings.high:.2f}"
    return f"exact match {reward:.2f} with held-out worked examples after {step} supervised steps, wanted {wanted}"


def warm_start(
    model: transformers.PreTrainedModel,
    tokenizer: transformers.PreTrainedTokenizerBase,
    examples: Sequence[PromptAndCompletion],
    held_out: Sequence[PromptAndCompletion],
    settings: WarmStartSettings,
    follower: Follower | None = None,
) -> WarmStartResult:
    """Train `model` (fp32, in place) until exact match is in [low, high]; deterministic for a seed.

    Exact match is the share of sampled completions that equal the gold completion, except for blanks around it, with
    the bf16-rounded weights that version 0 will publish. Raises BandNotReached after `max_steps`, or if the model is
    above the band before any step; the model keeps the state where the search stopped.
    """
    follower = follower or Follower()
    student = _Student(model, tokenizer, examples, settings)
    meter = _Meter(model, tokenizer, held_out, settings)
    progress = follower.resume()
    if progress is None:
        progress = _build_first_progress(student, meter.measure(), settings)
        follower.save(progress)
    else:
        student.restore(progress.now or progress.kept, progress.rate)
        # `reward` is the exact match so far.
        log.info("warm_start.resumed", step=progress.steps + progress.done, reward=round(progress.reward, 4))
    while not settings.low <= progress.reward <= settings.high:
        progress.stride = min(progress.stride, settings.max_steps - progress.taken)
        if progress.stride <= 0:
            raise BandNotReached(_describe_failure(progress.curve, settings))
        _learn(student, progress, follower)
        _apply_measurement(student, progress, meter.measure(), settings.high)
        step, reward = progress.curve[-1]
        log.info("warm_start.measured", step=step, reward=round(reward, 4), stride=progress.stride)
        follower.save(progress)
        follower.after_step(step, reward)
    return WarmStartResult(progress.steps, progress.reward, tuple(progress.curve))


def _describe_failure(curve: Sequence[tuple[int, float]], settings: WarmStartSettings) -> str:
    step, highest = max(curve, key=lambda point: point[1])
    remedy = "raise max_steps or learning_rate, or use easier tasks"
    if highest > settings.high:
        remedy = "widen the range from reward_low to reward_high, or raise max_steps"
    return (
        f"in {settings.max_steps} supervised steps (max_steps), exact match with worked examples was never from "
        f"{settings.low} (reward_low) to {settings.high} (reward_high); the highest was {highest:.3f} after step "
        f"{step}. In the policy's warm_start, {remedy}"
    )


def _build_first_progress(student: _Student, reward: float, settings: WarmStartSettings) -> SearchProgress:
    if reward > settings.high:
        raise BandNotReached(
            f"exact match is {reward:.3f} before the first step of the warm start, already above {settings.high} "
            "(reward_high): leave the policy's warm_start out of the recipe"
        )
    return SearchProgress(student.snapshot(), settings.measure_every, settings.learning_rate, reward, [(0, reward)])


def _learn(student: _Student, progress: SearchProgress, follower: Follower) -> None:
    """Take the remaining steps up to the next measurement."""
    pause_s, saved_at = PROGRESS_EVERY_S, time.monotonic()
    while progress.done < progress.stride:
        student.learn(progress.steps + progress.done)
        progress.done += 1
        begin = time.monotonic()
        if begin - saved_at > pause_s:
            progress.now = student.snapshot()
            follower.save(progress)
            saved_at = time.monotonic()
            pause_s = max(PROGRESS_EVERY_S, SAVE_SHARE * (saved_at - begin))
        follower.after_step(progress.steps + progress.done, None)


def _apply_measurement(student: _Student, progress: SearchProgress, reward: float, high: float) -> None:
    """Take in a measurement: go on from here, or undo the steps and take fewer."""
    progress.taken += progress.done
    progress.reward = reward
    progress.curve.append((progress.steps + progress.done, reward))
    if reward <= high:
        progress.steps += progress.done
        progress.kept = student.snapshot()
    else:
        if progress.stride == 1:
            progress.rate /= 2
        student.restore(progress.kept, progress.rate)
        progress.stride = max(1, progress.stride // 2)
    progress.done, progress.now = 0, None


class _Student:
    def __init__(
        self,
        model: transformers.PreTrainedModel,
        tokenizer: transformers.PreTrainedTokenizerBase,
        examples: Sequence[PromptAndCompletion],
        settings: WarmStartSettings,
    ) -> None:
        self._model = model
        self._settings = settings
        self._sequences = [_sequence(tokenizer, example, index) for index, example in enumerate(examples)]
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, foreach=False, fused=False)

    def learn(self, step: int) -> None:
        """Take one cross-entropy step on a batch drawn by (seed, step)."""
        draw = np.random.default_rng([self._settings.seed, step])
        chosen = draw.integers(len(self._sequences), size=self._settings.batch_size)
        batch = [self._sequences[index] for index in chosen.tolist()]
        tokens = int(sum(sequence.mask.sum() for sequence in batch))
        self._optimizer.zero_grad()
        with deterministic(self._model.device, torch.float32):
            for cut in cut_micro_batches(batch, self._settings.tokens_per_micro_batch):
                logprobs, _ = compute_token_logprobs(self._model, pad(cut))
                torch.autograd.backward(-logprobs.sum() / tokens)
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0, foreach=False)
        self._optimizer.step()

    def snapshot(self) -> ModelState:
        """Return a copy of weights and moments."""
        weights = {name: weight.detach().clone() for name, weight in self._model.named_parameters()}
        moments = self._optimizer.state_dict()["state"].items()
        return ModelState(
            weights, {f"{at}.{name}": value.clone() for at, some in moments for name, value in some.items()}
        )

    @torch.no_grad()
    def restore(self, state: ModelState, rate: float) -> None:
        """Set the model and its optimizer to a state."""
        for name, weight in self._model.named_parameters():
            weight.copy_(state.weights[name])
        moments: defaultdict[int, dict[str, torch.Tensor]] = defaultdict(dict)
        for key, value in state.moments.items():
            at, _, name = key.partition(".")
            moments[int(at)][name] = value.clone()
        self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": dict(moments)})
        for group in self._optimizer.param_groups:
            group["lr"] = rate


class _Meter:
    """Measures exact match with the same random draws each time, so that results differ by the model alone."""

    def __init__(
        self,
        model: transformers.PreTrainedModel,
        tokenizer: transformers.PreTrainedTokenizerBase,
        held_out: Sequence[PromptAndCompletion],
        settings: WarmStartSettings,
    ) -> None:
        self._model = model
        self._published: Any = copy.deepcopy(model)  # transformers does not declare generate
        self._tokenizer = tokenizer
        self._settings = settings
        chosen = [held_out[index % len(held_out)] for index in range(settings.samples)]
        self._gold = [example.completion.strip() for example in chosen]
        prompts = [example.encode_prompt(tokenizer) for example in chosen]
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


def _sequence(
    tokenizer: transformers.PreTrainedTokenizerBase, example: PromptAndCompletion, index: int
) -> TrainingSequence:
    prompt = example.encode_prompt(tokenizer)
    ids = np.array([*prompt, *encode_completion(tokenizer, example.completion), tokenizer.eos_token_id], np.int32)
    mask = np.arange(ids.size) >= len(prompt)
    return TrainingSequence(
        ids, mask, np.zeros(ids.size, np.float32), np.where(mask, 0, -1).astype(np.int32), 1.0, 1.0, index
    )
