"""GRPO in one file: from settings to `backward()`, with Headrace's own parts and without a server.

    .venv/bin/python examples/grpo.py

A model of 100,000 parameters learns one-digit sums in about half a minute of one CPU core: the mean reward of a step
rises from 0.37 to about 0.65. A run does the same with topics between the parts: `play` is a rollout worker,
`drop_zero_variance` a curator, `train` a trainer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import structlog
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headrace.envs.arithmetic import ALPHABET, Arithmetic
from headrace.infra.recipe.settings import TrainerSettings
from headrace.producers.engines.contract import Generation, Sampling
from headrace.producers.engines.torch.torch_engine import TorchEngine
from headrace.trainers.advantages import grpo
from headrace.trainers.learner.masters import Masters
from headrace.trainers.learner.model import build_model, character_tokenizer, encode, round_to_bf16
from headrace.trainers.learner.warm_start import PromptAndCompletion, WarmStartSettings, warm_start
from headrace.trainers.losses import TrainedTokens, policy_loss


@dataclass(frozen=True)
class Settings:
    """Everything that can be set."""

    steps: int = 50
    problems: int = 32  # per step
    group_size: int = 8  # answers per problem
    minibatches: int = 8  # optimizer steps per step
    max_tokens: int = 12
    learning_rate: float = 1e-3
    warmup: int = 5  # steps over which the learning rate rises
    loss: str = "ppo"  # or cispo, gspo, m2po, ...: docs/losses.md
    hidden: int = 64
    examples: int = 4096  # for the supervised start: RL needs some right answers; 0 for none
    seed: int = 1


@dataclass(frozen=True)
class Answer:
    """One generated answer to a problem."""

    prompt: list[int]
    generated: Generation  # token ids, each with the log-probability that it was sampled with
    reward: float
    advantage: float


def build(settings: Settings, environment: Arithmetic) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Build a small Qwen3, and teach it from worked examples until two of five answers are right."""
    tokenizer = character_tokenizer(ALPHABET)
    architecture = {
        "architecture": "qwen3",
        "hidden_size": settings.hidden,
        "intermediate_size": 2 * settings.hidden,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": settings.hidden // 2,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
        "initializer_range": 0.2,
    }
    model = build_model(architecture, tokenizer, seed=settings.seed)
    if settings.examples:
        worked = [environment.example(index) for index in range(settings.examples + 256)]
        examples = [PromptAndCompletion(one.prompt, one.completion) for one in worked]
        until = WarmStartSettings(
            low=0.35, high=0.45, learning_rate=2e-3, samples=128, max_new_tokens=settings.max_tokens
        )
        warm_start(model, tokenizer, examples[256:], examples[:256], until)
    return model, tokenizer


async def play(
    engine: TorchEngine, tokenizer: PreTrainedTokenizerBase, environment: Arithmetic, step: int, settings: Settings
) -> list[list[Answer]]:
    """Ask new problems, generate all answers at once, and score them: one group of answers per problem."""
    first, size = step * settings.problems, settings.group_size
    problems = [environment.problem("train", first + number) for number in range(settings.problems)]
    prompts = [encode(tokenizer, problem.text) for problem in problems]
    sampling = Sampling(max_tokens=settings.max_tokens, stop_ids=(tokenizer.eos_token_id,))
    asked = enumerate((prompt for prompt in prompts for _ in range(size)), first * size)
    answers = await asyncio.gather(*(engine.generate("solver", prompt, sampling, seed=seed) for seed, prompt in asked))
    groups: list[list[Answer]] = []
    for index, (problem, prompt) in enumerate(zip(problems, prompts, strict=True)):
        group = answers[index * size : (index + 1) * size]
        texts = [tokenizer.decode(answer.ids, skip_special_tokens=True) for answer in group]
        rewards = [environment.score(problem, text).reward for text in texts]
        advantages = grpo(rewards).tolist()  # (reward - mean) / (deviation + eps)
        groups.append([Answer(prompt, *one) for one in zip(group, rewards, advantages, strict=True)])
    return groups


def drop_zero_variance(groups: Sequence[list[Answer]]) -> list[list[Answer]]:
    """Keep the groups that teach something: their rewards differ."""
    return [group for group in groups if len({answer.reward for answer in group}) > 1]


def tokens_of(model: PreTrainedModel, answers: Sequence[Answer]) -> TrainedTokens:
    """Compute the log-probability of every generated token under the weights in training; it carries the gradient."""
    rows = [torch.tensor([*answer.prompt, *answer.generated.ids.tolist()]) for answer in answers]
    ids = pad_sequence(rows, batch_first=True)  # padding is on the right and attention is causal: no mask is needed
    logprobs = model(input_ids=ids).logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    spans = [(row, len(one.prompt) - 1, len(rows[row]) - 1) for row, one in enumerate(answers)]
    lengths = torch.tensor([end - begin for _, begin, end in spans])
    return TrainedTokens(
        logprobs=torch.cat([logprobs[row, begin:end] for row, begin, end in spans]),
        behaviour_logprobs=torch.cat([torch.from_numpy(answer.generated.logprobs) for answer in answers]),
        advantages=torch.tensor([answer.advantage for answer in answers]).repeat_interleave(lengths),
        sequences=torch.arange(len(answers)).repeat_interleave(lengths),
    )


def train(
    model: PreTrainedModel, masters: Masters, groups: Sequence[list[Answer]], step: int, settings: Settings
) -> list[float]:
    """Take up to `minibatches` optimizer steps; return their losses."""
    losses, rate = [], settings.learning_rate * min(1.0, (step + 1) / settings.warmup)
    for first in range(min(settings.minibatches, len(groups))):
        answers = [answer for group in groups[first :: settings.minibatches] for answer in group]
        masters.clear()
        loss, _ = policy_loss(tokens_of(model, answers), settings.loss)
        loss.backward()
        masters.take_gradients()  # from the model to the fp32 masters
        masters.clip(masters.gradient_norm(lambda norm: norm), 1.0)
        masters.step(rate)  # AdamW; then the model gets the masters, rounded to bf16
        losses.append(loss.item())
    return losses


def run(settings: Settings) -> Iterator[tuple[float, list[float]]]:
    """Yield mean reward and losses of every step."""
    environment = Arithmetic(seed=settings.seed)
    model, tokenizer = build(settings, environment)
    values = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    # The model computes with the bf16 values that the engine serves, so both agree on every log-probability.
    masters = Masters(dict(model.named_parameters()), values, TrainerSettings(betas=(0.9, 0.95)))
    engine = TorchEngine({"solver": model.config})
    try:
        for step in range(settings.steps):
            engine.load("solver", step, round_to_bf16(masters.values))
            groups = asyncio.run(play(engine, tokenizer, environment, step, settings))
            rewards = [answer.reward for group in groups for answer in group]
            yield sum(rewards) / len(rewards), train(model, masters, drop_zero_variance(groups), step, settings)
    finally:
        engine.close()


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    begin = time.monotonic()
    for number, (reward, found) in enumerate(run(Settings())):
        mean = sum(found) / max(1, len(found))
        print(f"step {number:3}  reward {reward:.3f}  loss {mean:+.4f}  {time.monotonic() - begin:5.1f} s", flush=True)
