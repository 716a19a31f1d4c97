"""A trainer of the barrier loop: the product's start, groups, batches and steps, in a process of its own.

A pipe leads to it in place of topics and a store, so handing over a group or a version costs next to nothing.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from math import inf

from headrace.envs.registry import load_environment
from headrace.infra.log import configure_logging
from headrace.infra.recipe.settings import Recipe
from headrace.infra.weights.tensors import Tensor
from headrace.producers.feed.worked_examples import find_first_environment
from headrace.schemas import codec
from headrace.schemas.records import CuratedGroup, TrajectoryGroup
from headrace.trainers.batches.groups import DecodedGroup, PreparedGroup, build_batch_sequences
from headrace.trainers.checked_groups import prepare_checked_group
from headrace.trainers.kept_warm_starts import KeptWarmStart
from headrace.trainers.learner.backends.group import build_learner
from headrace.trainers.learner.learner import Learner
from headrace.trainers.learner.model import encode_model_files, pin_threads
from headrace.trainers.learner.warm_start import PromptAndCompletion, warm_start
from headrace.trainers.start import build_first_model, plan_warm_start

Packed = Mapping[str, tuple[str, tuple[int, ...], bytes]]
"""Weights that can cross a pipe: dtype, shape and bytes by name."""


class TrainerProcess:
    """One policy's trainer. It carries out what it is told in order."""

    def __init__(self, recipe: Recipe, policy: str) -> None:
        self._pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
        self._recipe, self._policy = recipe.to_json(), policy
        self._taken: list[Future[None]] = []

    async def begin(self) -> tuple[Mapping[str, bytes], dict[str, Tensor]]:
        """Make version 0; return the model's files without its weights, and the weights."""
        files, weights = await asyncio.wrap_future(self._pool.submit(_begin, self._recipe, self._policy))
        return files, unpack(weights)

    def add(self, group: TrajectoryGroup) -> None:
        """Hand over a group of the next batch, which is decoded while others are still played."""
        self._taken.append(self._pool.submit(_add, codec.encode(group)))

    async def step(self, version: int) -> dict[str, Tensor]:
        """Train a version on the groups that were handed over; return its weights."""
        taken, self._taken = self._taken, []
        stepped = self._pool.submit(_step, version)
        for one in taken:
            await asyncio.wrap_future(one)  # raises what was wrong with the group
        return unpack(await asyncio.wrap_future(stepped))

    def close(self) -> None:
        """End the process."""
        self._pool.shutdown(cancel_futures=True)


def unpack(weights: Packed) -> dict[str, Tensor]:
    """Return weights as an engine takes them."""
    return {name: Tensor(dtype, shape, memoryview(data)) for name, (dtype, shape, data) in weights.items()}


# ------------------------------------------------------------------------------------------------------ in the process

_learners: list[Learner] = []
"""The only one, once it has begun."""
_batch: list[PreparedGroup] = []


def _begin(recipe_text: str, policy: str) -> tuple[dict[str, bytes], Packed]:
    configure_logging("train", policy=policy)
    pin_threads()
    recipe = Recipe.from_json(recipe_text)
    settings = recipe.policies[policy]
    model, tokenizer = build_first_model(settings, recipe.seed)
    if settings.warm_start is not None:
        warm, examples = plan_warm_start(recipe, policy, _list_examples(recipe, policy, settings.warm_start.examples))
        kept = KeptWarmStart(model, tokenizer, examples, warm)
        if kept.load_into_model() is None:
            kept.keep(warm_start(model, tokenizer, *examples, warm, kept))
    files = encode_model_files(model, tokenizer)
    _learners.append(build_learner(model, recipe.trainer_of(policy), recipe.seed))
    return files, _pack()


def _list_examples(recipe: Recipe, policy: str, count: int) -> list[PromptAndCompletion]:
    """Return the worked examples that the feeder would send."""
    workflows = recipe.workflows.items()
    environments = {name: load_environment(one.env.use, recipe.seed, one.env.settings) for name, one in workflows}
    source = find_first_environment(recipe, policy, environments)
    drawn = (source.example(index) for index in range(count))
    return [PromptAndCompletion(one.prompt, one.completion) for one in drawn]


def _add(encoded: bytes) -> None:
    group, [learner] = codec.decode(encoded, TrajectoryGroup), _learners
    rewards = tuple(member.reward for member in group.trajectories)
    curated = CuratedGroup(group.run_id, group.stream, group.number, kept=tuple(range(len(rewards))), rewards=rewards)
    decoded = DecodedGroup(curated, group)
    _batch.append(prepare_checked_group(decoded, learner.limits, learner.settings, lambda: group.tokenizer_hash, inf))


def _step(version: int) -> Packed:
    [learner] = _learners
    learner.step(build_batch_sequences(_batch, learner.settings), version)
    _batch.clear()
    return _pack()


def _pack() -> Packed:
    [learner] = _learners
    weights = learner.snapshot_weights()
    return {name: (one.dtype, one.shape, bytes(one.data)) for name, one in weights.items()}
