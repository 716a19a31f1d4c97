"""The other sides: a synchronous loop with a version barrier, and the same one step off.

The synchronous loop plays a batch with the newest weights of all policies, trains every policy on it, and only then
plays the next one. One step off, it plays the next batch while it trains, with weights that are one version old, and
changes weights only between batches.

Is it a fair opponent? It calls the product's own functions for all that counts: episodes, places in the engine, engine,
scores, groups, advantages, losses, steps and warm start, with the same recipe, problems, seeds and so latencies. The
same loop within Headrace's processes (`max_staleness = 0`) would wait for Kafka, for the store and for snapshots
between any two phases, and so flatter the asynchronous side. Here a phase follows the other at once: there is no
broker, no store, no checkpoint and no upload, groups and weights cross a pipe, and only Headrace pays for a log.

What may overlap does: all episodes of a batch run at once, answers are scored and groups are decoded while others are
played, and the policies train at the same time, each in a process of its own. What may not, does not: a batch is
trained when it is whole, as batch statistics and the order of minibatches need it. The figures have the seconds of
both phases, so that one can see what a loop would reach whose training takes no time. No episode is cut, dropped or
played in vain.

`python -m benchmarks.asynchrony.barrier_loop RECIPE FILE [--off]` writes the figures of a run to FILE.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.asynchrony.trainer_process import TrainerProcess
from headrace.consumers.evaluate.evaluation import count_answers, mean_score
from headrace.infra.log import configure_logging
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.recipe.settings import Recipe
from headrace.infra.weights.policy_files import Tokenizer
from headrace.infra.weights.tensors import Tensor
from headrace.producers.engines.registry import open_engine
from headrace.producers.feed.evaluation_schedule import Evaluation
from headrace.producers.feed.planned import build_common_task, build_evaluation_task, build_training_task
from headrace.producers.rollout.conclusions import build_workflow_spec
from headrace.producers.rollout.play.engine_room import EngineRoom
from headrace.producers.rollout.play.episodes import RolloutContext, play_group
from headrace.schemas.ids import GroupId
from headrace.schemas.records import Task, TrajectoryGroup
from headrace.schemas.topics import eval_stream

RUN_ID = "barrier"


@dataclass(frozen=True, slots=True)
class Made:
    """A version of all policies."""

    version: int
    at_s: float
    """Since the loop began to play."""
    play_s: float
    """From the begin of its batch to the last of its groups; one step off this overlaps with training."""
    train_s: float
    """Until all policies had trained it."""


@dataclass(slots=True)
class Figures:
    """What came of a run."""

    made: list[Made] = field(default_factory=list)
    samples: int = 0
    """Episodes that were trained on, of all policies."""
    failed: int = 0
    """Episodes that failed."""
    held_out: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """Policy to (version, held-out reward)."""


class BarrierLoop:
    """The loop over one recipe with one workflow.

    Args:
        recipe: The recipe.
        trainers: Policy to its trainer.
        context: As in a rollout worker.
        is_off: Whether it is one step off.
    """

    def __init__(
        self, recipe: Recipe, trainers: dict[str, TrainerProcess], context: RolloutContext, *, is_off: bool
    ) -> None:
        [self._workflow] = recipe.workflows
        self._recipe, self._trainers, self._context, self._is_off = recipe, trainers, context, is_off
        self._spec = build_workflow_spec(recipe, self._workflow)
        self._weights: dict[str, dict[str, Tensor]] = {}
        self._version = self._evaluated = 0
        self.figures = Figures()

    async def run(self, weights: dict[str, dict[str, Tensor]]) -> None:
        """Train all versions from these weights of version 0."""
        self._take(0, weights)
        self._load()
        await self._evaluate()
        began = time.monotonic()
        playing = self._begin_batch(1)
        for version in range(1, self._recipe.trainer.steps + 1):
            play_s, train_at_s = await playing, time.monotonic()
            training = asyncio.create_task(self._train(version))
            if self._is_off:
                self._load()
                playing = self._begin_batch(version + 1)
            await training
            now_s = time.monotonic()
            self.figures.made.append(Made(version, now_s - began, play_s, now_s - train_at_s))
            if not self._is_off:
                self._load()
                playing = self._begin_batch(version + 1)
            if self._is_due(version):
                await self._evaluate()

    def _begin_batch(self, version: int) -> asyncio.Task[float]:
        """Begin to play a version's batch, or nothing after the last version; return a task that returns its time."""
        count = self._recipe.trainer.groups_per_batch if version <= self._recipe.trainer.steps else 0
        return asyncio.create_task(self._play_batch(range((version - 1) * count, version * count)))

    async def _play_batch(self, numbers: Iterable[int]) -> float:
        """Play tasks at once, and hand over each group when it is complete; return how long the last one took."""
        began = time.monotonic()
        await asyncio.gather(*map(self._play_and_hand_over, numbers))
        return time.monotonic() - began

    async def _play_and_hand_over(self, number: int) -> None:
        problem = self._spec.environment.problem("train", number)
        bare = build_common_task(self._recipe, RUN_ID, 0, GroupId(self._workflow, number), problem)
        for policy, group in (await self._play(build_training_task(self._recipe, bare, 0))).items():
            self.figures.failed += len(group.failures)
            self.figures.samples += len(group.trajectories)
            if group.trajectories:
                self._trainers[policy].add(group)

    async def _play(self, task: Task) -> dict[str, TrajectoryGroup]:
        return await play_group(task, self._spec, self._context, asyncio.Event(), lambda *_: None, task.n_asked)

    async def _train(self, version: int) -> None:
        """Train every policy at the same time, each on the groups that were handed over."""
        made = await asyncio.gather(*(trainer.step(version) for trainer in self._trainers.values()))
        self._take(version, dict(zip(self._trainers, made, strict=True)))

    def _take(self, version: int, weights: dict[str, dict[str, Tensor]]) -> None:
        self._version, self._weights = version, weights

    def _load(self) -> None:
        """Change the weights of all policies, between two batches."""
        for policy, weights in self._weights.items():
            self._context.engine.load(policy, self._version, weights)

    # ------------------------------------------------------------------------------------------------------ evaluation

    def _is_due(self, version: int) -> bool:
        every = self._recipe.evaluate.every
        return every > 0 and (version % every == 0 or version == self._recipe.trainer.steps)

    async def _evaluate(self) -> None:
        """Measure the newest version of all policies on the held-out problems, as the evaluator does."""
        if not self._recipe.evaluate.every:
            return
        engine, problems = self._context.engine, self._recipe.evaluate.problems
        versions, stream = dict.fromkeys(self._weights, self._version), eval_stream(self._workflow)
        for policy, weights in self._weights.items():
            engine.hold(policy, self._version, weights)
        tasks = []
        for index in range(problems):
            problem, number = self._spec.environment.problem("held_out", index), self._evaluated + index
            bare = build_common_task(self._recipe, RUN_ID, 0, GroupId(stream, number), problem)
            evaluation = Evaluation(self._workflow, "", versions)
            tasks.append(build_evaluation_task(self._recipe, bare, 0, evaluation))
        self._evaluated += problems
        groups = await asyncio.gather(*map(self._play, tasks))
        for policy in self._weights:
            answers = [count_answers(by_policy[policy]) for by_policy in groups]
            reward = mean_score([one for one in answers if one.trajectories])
            self.figures.held_out.setdefault(policy, []).append((self._version, reward))
            engine.release(policy, self._version)


async def play(recipe: Recipe, *, is_off: bool) -> Figures:
    """Start trainers and an engine, and run the loop."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        trainers = {policy: TrainerProcess(recipe, policy) for policy in recipe.policies}
        for trainer in trainers.values():
            stack.callback(trainer.close)
        begun = await asyncio.gather(*(trainer.begin() for trainer in trainers.values()))
        weights, folders = {}, {}
        for policy, (files, first) in zip(trainers, begun, strict=True):
            weights[policy], folders[policy] = first, folder / policy
            folders[policy].mkdir()
            for name, content in files.items():
                (folders[policy] / name).write_bytes(content)
        engine, build = open_engine(folders, recipe.rollout, recipe.rollout.concurrency)
        stack.callback(engine.close)
        context = RolloutContext(
            engine=engine,
            engine_name=recipe.rollout.engine.use,
            engine_build=build,
            tokenizers={policy: Tokenizer(one) for policy, one in folders.items()},
            worker=RUN_ID,
            region="",
            head=lambda policy: engine.versions()[policy],
            room=EngineRoom(recipe.rollout.concurrency),
        )
        loop = BarrierLoop(recipe, trainers, context, is_off=is_off)
        await loop.run(weights)
        return loop.figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", help="a recipe with one workflow")
    parser.add_argument("file", type=Path, help="takes the figures, as JSON")
    parser.add_argument("--off", action="store_true", help="one step off")
    given = parser.parse_args()
    configure_logging("barrier")
    figures = asyncio.run(play(load_recipe(given.recipe), is_off=given.off))
    given.file.write_text(json.dumps(asdict(figures)))


if __name__ == "__main__":
    main()
