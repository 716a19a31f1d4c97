"""Updates as training makes them: a small policy that learns sums by the loop's own parts, without the topics.

The model first learns from worked examples until it answers a part of the sums. Then the in-process engine plays groups
with the weights of the newest version, or of one some versions older, their rewards become advantages, and the learner
makes the next version in four AdamW steps on fp32 masters. What it publishes is what a trainer would.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np
import transformers

from headrace.envs.arithmetic import ALPHABET, Arithmetic
from headrace.infra.recipe.settings import TrainerSettings
from headrace.infra.weights.tensors import Tensor
from headrace.producers.engines.contract import Generation, Sampling
from headrace.producers.engines.torch.torch_engine import TorchEngine
from headrace.schemas.records import CuratedGroup, TrajectoryGroup
from headrace.trainers.advantages import RewardedSequence
from headrace.trainers.batches.batch import TrainingSequence
from headrace.trainers.batches.groups import DecodedGroup, PreparedGroup, build_batch_sequences
from headrace.trainers.learner.learner import Learner
from headrace.trainers.learner.model import build_model, character_tokenizer, encode, to_torch
from headrace.trainers.learner.warm_start import Follower, PromptAndCompletion, WarmStartSettings, warm_start

LEARNING_RATES = (1e-6, 3e-6, 1e-5)
SAMPLES = 8
EXAMPLES, HELD_OUT = 4096, 256
MAX_TOKENS = 12


@dataclass(frozen=True, slots=True)
class Training:
    """How large the model and its batches are."""

    hidden: int = 256
    """Of a model of 3 million parameters with weights of a usual size, as `layers` and `initializer_range` are."""
    layers: int = 4
    initializer_range: float = 0.02
    groups: int = 16
    """Of a batch."""
    reward_low: float = 0.3
    reward_high: float = 0.6
    """Of the start, as in recipes."""
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Start:
    """A policy that knows a little."""

    model: transformers.PreTrainedModel
    tokenizer: transformers.PreTrainedTokenizerBase
    environment: Arithmetic
    reward: float

    @property
    def parameters(self) -> int:
        """Of the model."""
        return sum(parameter.numel() for parameter in self.model.parameters())


def make_start(training: Training, tell: Callable[[str], None]) -> Start:
    """Build the model and let it learn from worked examples until its reward lies where the recipes begin."""
    architecture = {
        "architecture": "qwen3",
        "hidden_size": training.hidden,
        "intermediate_size": 3 * training.hidden,
        "num_hidden_layers": training.layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": training.hidden // 4,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
        "initializer_range": training.initializer_range,
    }
    tokenizer, seed = character_tokenizer(ALPHABET), training.seed
    model, environment = build_model(architecture, tokenizer, seed=seed), Arithmetic(seed=seed)
    examples = [environment.example(index) for index in range(EXAMPLES + HELD_OUT)]
    worked = [PromptAndCompletion(example.prompt, example.completion) for example in examples]

    class Told(Follower):
        def after_step(self, step: int, reward: float | None) -> None:
            if reward is not None:
                tell(f"warm start, step {step}: reward {reward:.2f}")

    low, high = training.reward_low, training.reward_high
    settings = WarmStartSettings(low=low, high=high, max_new_tokens=MAX_TOKENS, seed=seed)
    reward = warm_start(model, tokenizer, worked[:EXAMPLES], worked[EXAMPLES:], settings, Told()).reward
    return Start(model, tokenizer, environment, reward)


def versions(
    start: Start, training: Training, settings: TrainerSettings, *, staleness: int = 0
) -> Iterator[tuple[dict[str, Tensor], float]]:
    """Yield the published weights of version 0, 1, 2 ... and the mean reward of the groups that made each.

    Version v is made of what version v - 1 - `staleness` played, as far as there was one.
    """
    learner = Learner(copy.deepcopy(start.model), settings, training.seed)
    published: deque[tuple[int, dict[str, Tensor]]] = deque([(0, learner.snapshot_weights())], maxlen=staleness + 1)
    yield published[0][1], start.reward
    engine = TorchEngine({"policy": start.model.config})
    try:
        for version in count(1):
            older, weights = published[0]
            engine.load("policy", older, {name: to_torch(tensor) for name, tensor in weights.items()})
            problems = range((version - 1) * training.groups, version * training.groups)
            batch, rewards = _played(engine, start, problems, settings)
            learner.step(batch, version)
            published.append((version, learner.snapshot_weights()))
            yield published[-1][1], float(np.mean(rewards))
    finally:
        engine.close()


def _played(
    engine: TorchEngine, start: Start, numbers: range, settings: TrainerSettings
) -> tuple[list[TrainingSequence], list[float]]:
    """Play each problem several times, all at once; return what is trained on, and the rewards.

    Groups that teach nothing stay in, with advantages of 0: AdamW does not mind how large a gradient is.
    """
    problems = [start.environment.problem("train", number) for number in numbers]
    prompts = [encode(start.tokenizer, problem.text) for problem in problems]
    answers = asyncio.run(_answers(engine, prompts, int(start.tokenizer.eos_token_id), numbers.start * SAMPLES))
    bare = DecodedGroup(CuratedGroup(), TrajectoryGroup())
    groups: list[PreparedGroup] = []
    rewards: list[float] = []
    for at, (problem, prompt) in enumerate(zip(problems, prompts, strict=True)):
        group = answers[at * SAMPLES : (at + 1) * SAMPLES]
        texts = [str(start.tokenizer.decode(answer.ids, skip_special_tokens=True)) for answer in group]
        scores = [start.environment.score(problem, text).reward for text in texts]
        rewarded = tuple(
            RewardedSequence(index, "solver", reward, length=len(answer.ids))
            for index, (reward, answer) in enumerate(zip(scores, group, strict=True))
        )
        groups.append(PreparedGroup(bare, rewarded, tuple(_sequence(prompt, answer) for answer in group)))
        rewards += scores
    return build_batch_sequences(groups, settings), rewards


async def _answers(engine: TorchEngine, prompts: list[list[int]], eos: int, seed: int) -> list[Generation]:
    sampling = Sampling(max_tokens=MAX_TOKENS, stop_ids=(eos,))
    asked = enumerate([prompt for prompt in prompts for _ in range(SAMPLES)], seed)
    return await asyncio.gather(*(engine.generate("policy", prompt, sampling, seed=one) for one, prompt in asked))


def _sequence(prompt: list[int], answer: Generation) -> TrainingSequence:
    before = len(prompt)
    versions = np.repeat(*np.array(answer.version_runs, np.int32).T)
    return TrainingSequence(
        ids=np.concatenate([np.array(prompt, np.int32), answer.ids]),
        mask=np.arange(before + len(answer.ids)) >= before,
        behaviour_logprobs=np.concatenate([np.zeros(before, np.float32), answer.logprobs]),
        versions=np.concatenate([np.full(before, -1, np.int32), versions]),
        advantage=0.0,
        temperature=1.0,
    )
