"""`headrace offline evaluate`: evaluates weights in folders on a recipe's held-out problems, without a run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from headrace.consumers.evaluate.evaluation import EvaluationFold
from headrace.envs.payload import problem_to_json
from headrace.infra.errors import UsageError
from headrace.infra.inflection import inflect
from headrace.infra.progress import ReportProgress, open_progress
from headrace.infra.recipe.settings import Recipe
from headrace.infra.weights.files import FilesError
from headrace.infra.weights.folder import open_weights
from headrace.infra.weights.policy_files import Tokenizer
from headrace.infra.weights.tensors import WeightsError
from headrace.producers.engines.contract import EngineError
from headrace.producers.engines.registry import open_engine
from headrace.producers.rollout.conclusions import build_workflow_spec
from headrace.producers.rollout.play.engine_room import EngineRoom
from headrace.producers.rollout.play.episodes import RolloutContext, WorkflowSpec, play_group
from headrace.schemas.ids import derive_task_seed
from headrace.schemas.records import Task, TrajectoryGroup
from headrace.schemas.topics import eval_stream

PROBLEMS_AT_ONCE = 64
"""Number of problems that are played at once."""


@dataclass(frozen=True, slots=True)
class Measured:
    """How one policy answered the held-out problems of one workflow; the fields are those of an EvalResult."""

    problems: int
    samples: int
    """Number of answers to each problem."""
    avg_at_k: float | None
    """None if every episode failed."""
    standard_error: float | None
    """None if fewer than two problems were played."""
    pass_at_k: dict[str, float]
    mean_length: float
    """Mean generated tokens of an answer."""
    failures: int
    """Number of episodes that failed; they count neither as right nor as wrong answers."""
    tiers: dict[str, float | None]
    """Tier to its own `avg_at_k`; empty if there are no tiers to compare."""


def evaluate(recipe: Recipe, folders: Mapping[str, Path]) -> dict[str, dict[str, Measured]]:
    """Return, by workflow and policy, the result that an evaluation in a run would have. Raises UsageError."""
    fold = EvaluationFold("", recipe.evaluate.problems)
    with open_progress("problems played") as tell:
        groups = play_held_out(recipe, folders, tell)
    found: dict[str, dict[str, Measured]] = {workflow: {} for workflow in recipe.workflows}
    for group in groups:
        if (result := fold.fold_group(group)) is not None:
            found[result.workflow][result.policy] = Measured(
                problems=result.problems,
                samples=result.samples,
                avg_at_k=result.avg_at_k if result.has_reward else None,
                standard_error=result.standard_error if result.standard_error >= 0 else None,
                pass_at_k=result.pass_at_k,
                mean_length=result.mean_length,
                failures=result.failures,
                tiers={one.tier: one.avg_at_k if one.played else None for one in result.tiers},
            )
    return found


def parse_weight_folders(recipe: Recipe, words: Sequence[str]) -> dict[str, Path]:
    """Return policy to folder of `FOLDER` or `POLICY=FOLDER` words. Raises UsageError."""
    policies, found = tuple(recipe.policies), {}
    for word in words:
        name, equals, folder = word.partition("=")
        if not equals and len(policies) == 1:
            name, folder = policies[0], word
        if name not in policies or not folder:
            raise UsageError(f"--weights {word}: write POLICY=FOLDER; the recipe's policies are {', '.join(policies)}")
        found[name] = Path(folder)
    return found


def play_held_out(
    recipe: Recipe, folders: Mapping[str, Path], tell: ReportProgress = lambda _done, _total: None
) -> list[TrajectoryGroup]:
    """Play the first `evaluate.problems` held-out problems of every workflow, `evaluate.samples` times each.

    Problems, sampling and seeds are those of a run's first evaluation. The result is what its workers would have
    produced: one group per problem and policy.

    Args:
        recipe: Says what is played, and how.
        folders: Every policy to its folder in Hugging Face layout.
        tell: Receives the number of problems played, for the progress.

    Raises UsageError for a policy without a folder, a folder without a model, and a recipe that cannot be played here.
    """
    if missing := [policy for policy in recipe.policies if policy not in folders]:
        raise UsageError(f"policy {missing[0]} of the recipe has no weights: add --weights {missing[0]}=FOLDER")
    if absent := [folder for folder in folders.values() if not folder.is_dir()]:
        raise UsageError(f"the folder {absent[0]} does not exist: `headrace weights export` makes a folder of weights")
    specs = {workflow: build_workflow_spec(recipe, workflow) for workflow in recipe.workflows}
    asked = [(task, spec) for workflow, spec in specs.items() for task in _list_tasks(recipe, workflow, spec)]
    doing = (
        f"cannot load {', '.join(map(str, folders.values()))} (a folder needs config.json, tokenizer and safetensors)"
    )
    try:
        tokenizers = {policy: Tokenizer(folders[policy]) for policy in recipe.policies}
        room = EngineRoom(recipe.rollout.concurrency)
        engine, build = open_engine(folders, recipe.rollout, room.places)
        with closing(engine):
            for policy in recipe.policies:
                engine.load(policy, 0, open_weights(folders[policy]).tensors)
                engine.hold(policy, 0)
            context = RolloutContext(
                engine,
                recipe.rollout.engine.use,
                build,
                tokenizers,
                "held-out",
                "",
                head=lambda _policy: 0,
                room=room,
            )
            doing = "cannot play the held-out problems"
            return asyncio.run(play_all(asked, context, tell))
    except (FilesError, WeightsError, EngineError, OSError, ValueError) as error:
        raise UsageError(f"{doing}: {error}") from error


async def play_all(
    asked: Sequence[tuple[Task, WorkflowSpec]],
    context: RolloutContext,
    tell: ReportProgress = lambda _done, _total: None,
) -> list[TrajectoryGroup]:
    """Play tasks, several at once; return their groups, in the order of the tasks."""
    room, ending = asyncio.Semaphore(PROBLEMS_AT_ONCE), asyncio.Event()
    done = 0

    async def play(task: Task, spec: WorkflowSpec) -> list[TrajectoryGroup]:
        nonlocal done
        async with room:
            groups = await play_group(task, spec, context, ending, lambda *_: None, task.n_asked)
        done += 1
        tell(done, len(asked))
        return list(groups.values())

    played = await asyncio.gather(*(play(task, spec) for task, spec in asked))
    return [group for groups in played for group in groups]


def _list_tasks(recipe: Recipe, workflow: str, spec: WorkflowSpec) -> Iterator[Task]:
    stream, size = eval_stream(workflow), spec.environment.size("held_out")
    if size is not None and size < recipe.evaluate.problems:
        raise UsageError(
            f"evaluate.problems is {recipe.evaluate.problems}, but the environment of workflow {workflow} holds out "
            f"{size} {inflect(size, 'problem')}: "
            + (
                f"give --set evaluate.problems={size}"
                if size
                else "use a recipe in which every environment holds out problems"
            )
        )
    for number in range(recipe.evaluate.problems):
        problem = spec.environment.problem("held_out", number)
        yield Task(
            stream=stream,
            number=number,
            purpose="eval",
            workflow=workflow,
            task_id=problem.task_id,
            tier=problem.tier,
            payload=problem_to_json(problem),
            n_asked=recipe.evaluate.played_samples,
            seed=derive_task_seed(recipe.seed, stream, number),
            versions=dict.fromkeys(spec.policies, 0),
        )
