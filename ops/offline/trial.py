"""`headrace try`: a few episodes of a recipe and one step of its trainers, with no server, no run and no warm start.

It uses the code of a run: the feeder's task source, the workers' episodes, the curators' partition with its chain, the
trainer's advantages and learner. Only Kafka and the store between them are left out.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from headrace.envs.terminal.commands import read_limits as read_command_limits
from headrace.envs.terminal.contract import GivesCommands
from headrace.envs.terminal.solutions import play_commands
from headrace.envs.tools.solutions import SolutionPlayed, can_solve, open_solved_calls, play_solution
from headrace.envs.worlds.solutions import WorldSolutions
from headrace.infra.errors import HeadraceError, UsageError
from headrace.infra.own_frames import cut_traceback, cut_traceback_text, read_error_text
from headrace.infra.recipe.settings import Recipe
from headrace.ops.offline.archived_start import Start, start_from_model
from headrace.ops.offline.given_answers import GivenAnswers, parse_answers
from headrace.ops.offline.left_out import NotingTokenizer, look_at_solutions
from headrace.ops.offline.tried_policy import RUN_ID, PolicyTried, try_policy
from headrace.ops.offline.watched_play import play_watched
from headrace.ops.preflight.contract import list_doubts, refuse
from headrace.ops.preflight.table import examine_for_trial
from headrace.producers.engines.contract import Engine
from headrace.producers.engines.registry import open_engine
from headrace.producers.feed.feeder import build_task_source
from headrace.producers.feed.planned import build_common_task, build_training_task
from headrace.producers.rollout.conclusions import build_workflow_spec
from headrace.producers.rollout.group_records import encode_group
from headrace.producers.rollout.play.engine_room import EngineRoom
from headrace.producers.rollout.play.episodes import RolloutContext, WorkflowSpec
from headrace.producers.rollout.play.reachability import Reachability
from headrace.schemas.episode_errors import MALFORMED, error_key_of
from headrace.schemas.ids import GroupId
from headrace.schemas.records import Failure, Task, TrajectoryGroup
from headrace.schemas.topics import variant_of

SOLUTIONS = 16
"""Worked solutions that a trial plays."""
WITH_CALLS, TERMINAL, WORLD = ("tools", "spawn"), "terminal", "world"


class OwnCodeFailed(HeadraceError):
    """The user's code raised; the message ends with the traceback from the first line of that code on."""


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """The options of `headrace try`."""

    recipe: Recipe
    tasks: int = 2
    """Number of tasks of each workflow."""
    workflow: str | None = None
    """The only workflow to play; None for all."""
    answers: Sequence[str] = ()
    """`TEXT` or `POLICY=TEXT`: the answers that a policy gives, call by call, instead of generating."""


@dataclass(frozen=True, slots=True)
class EpisodeFailed:
    """One episode that gave no trajectory, or in which a tool failed."""

    episode: str
    """`stream:number:sample`."""
    task_id: str
    failure: Failure
    """The failure as a worker records it. Its traceback begins at the user's first line; empty without user code."""


@dataclass(frozen=True, slots=True)
class Tried:
    """The result of a trial."""

    recipe: str
    seconds: float
    episodes: int
    failures: tuple[EpisodeFailed, ...]
    policies: dict[str, PolicyTried]
    solutions: tuple[SolutionPlayed, ...] = ()
    """Worked solutions of environments that solve their problems."""
    tool_errors: tuple[EpisodeFailed, ...] = ()
    """Errors of tools that did not end their episodes."""
    shadows: tuple[str, ...] = ()
    """Shadows of the recipe; a trial does not try them."""
    doubts: tuple[str, ...] = ()
    """Sentences on what may be wrong with the recipe."""

    @property
    def is_sound(self) -> bool:
        """Whether no episode, solution and data algorithm failed, and no group was malformed."""
        groups = [group for policy in self.policies.values() for group in policy.groups]
        if any(solution.fault for solution in self.solutions):
            return False
        return not (self.failures or any(one.verdict == "dead" or one.reason == MALFORMED for one in groups))


def try_recipe(request: TrialRequest, say: Callable[[str], None] = lambda _: None) -> Tried:
    """Play a recipe's first tasks, put them through its chain, and take one optimizer step of each trainer.

    Args:
        request: The options.
        say: Reports where episodes wait if none ends for long.

    Raises UsageError for a recipe that cannot be played here, and OwnCodeFailed if the user's code raises outside of an
    episode. Errors inside an episode are in the result.
    """
    recipe, began = request.recipe, time.monotonic()
    with report_own_code(), tempfile.TemporaryDirectory() as folder:
        faults = examine_for_trial(recipe, has_answers=bool(request.answers))
        refuse(faults)
        workflows = choose_workflows(request)
        policies = tuple(dict.fromkeys(policy for workflow in workflows for policy in recipe.policies_of(workflow)))
        answers = parse_answers(policies, request.answers)
        specs = {workflow: build_workflow_spec(recipe, workflow) for workflow in workflows}
        solved = {workflow: tuple(play_solutions(recipe, workflow, spec)) for workflow, spec in specs.items()}
        doubts = list_doubts(faults)
        doubts += [said for each in solved.items() for said in look_at_solutions(recipe, *each)]
        asked = [one for workflow, spec in specs.items() for one in draw_tasks(recipe, workflow, spec, request.tasks)]
        starts = {policy: _make_start(recipe, policy) for policy in policies}
        played, left_out = _play(recipe, starts, asked, answers, Path(folder), say)
        tried = {
            policy: try_policy(
                recipe, start, [one for one in played if one[0].policy == policy], policy in answers, left_out[policy]
            )
            for policy, start in starts.items()
        }
    failures = list_failures((group, failure) for group, _ in played for failure in group.failures)
    tool_errors = list_failures((group, failure) for group, _ in played for failure in group.tool_errors)
    episodes = sum(task.n_asked for task, _ in asked)
    shadows = tuple(one for one in recipe.policy_variants if variant_of(one))
    seconds = round(time.monotonic() - began, 1)
    solutions = tuple(chain.from_iterable(solved.values()))
    return Tried(recipe.name, seconds, episodes, failures, tried, solutions, tool_errors, shadows, tuple(doubts))


@contextmanager
def report_own_code() -> Iterator[None]:
    """Raise OwnCodeFailed for an error of the user's own code, with its traceback."""
    try:
        yield
    except Exception as error:
        if shown := cut_traceback(error):
            raise OwnCodeFailed(f"{read_error_text(error)}\n{shown}") from error
        raise


def choose_workflows(request: TrialRequest) -> tuple[str, ...]:
    """Return the workflows to play. Raises UsageError for one that the recipe has not."""
    there = tuple(request.recipe.workflows)
    if request.workflow is None:
        return there
    if request.workflow not in there:
        raise UsageError(f"the recipe has no workflow {request.workflow!r}; it has {', '.join(there)}")
    return (request.workflow,)


def draw_tasks(recipe: Recipe, workflow: str, spec: WorkflowSpec, count: int) -> Iterator[tuple[Task, WorkflowSpec]]:
    """Yield the first tasks that a run's feeder would issue, each with the settings of its workflow."""
    source = build_task_source(recipe, workflow)
    for number in range(count):
        bare = build_common_task(recipe, RUN_ID, 0, GroupId(workflow, number), source.draw(is_strict=True).problem)
        yield build_training_task(recipe, bare, 0), spec


def play_solutions(recipe: Recipe, workflow: str, spec: WorkflowSpec) -> Iterator[SolutionPlayed]:
    """Play the first worked solutions of a workflow whose environment has some: by calls, by commands, or at once."""
    wanted, environment = recipe.workflows[workflow].workflow, spec.environment
    size = environment.size("train")
    numbers = range(SOLUTIONS if size is None else min(size, SOLUTIONS))
    if wanted.use == TERMINAL and isinstance(environment, GivesCommands):
        limits = read_command_limits(wanted.settings)
        for number in numbers:
            problem = environment.problem("train", number)
            if environment.list_commands(problem):
                yield replace(asyncio.run(play_commands(environment, problem, limits)), workflow=workflow)
    elif wanted.use == WORLD and can_solve(environment):
        in_world = WorldSolutions(environment, wanted.settings)
        for number in numbers:
            yield replace(asyncio.run(in_world.play(environment.problem("train", number))), workflow=workflow)
    elif can_solve(environment) and (wanted.use in WITH_CALLS or not hasattr(environment, "tools")):
        solved = open_solved_calls(environment, wanted.use, wanted.settings)
        for number in numbers:
            found = asyncio.run(play_solution(solved, environment.problem("train", number)))
            yield replace(found, workflow=workflow)


def _make_start(recipe: Recipe, policy: str) -> Start:
    """Return version 0 of a policy, with a learner in one process that takes one optimizer step per version."""
    alone = {"minibatches": 1, "processes": 1, "tensor_parallel": 1}
    return start_from_model(recipe, policy, recipe.trainer_of(policy).model_copy(update=alone))


def _play(
    recipe: Recipe,
    starts: Mapping[str, Start],
    asked: Sequence[tuple[Task, WorkflowSpec]],
    answers: Mapping[str, Sequence[str]],
    folder: Path,
    say: Callable[[str], None],
) -> tuple[list[tuple[TrajectoryGroup, bytes]], dict[str, str]]:
    """Return the groups of all tasks as a worker produces them, with their bytes, generated from version 0.

    The second value names the characters that were left out of the results that a policy read.
    """
    folders = {policy: folder / policy for policy in starts}
    for policy, start in starts.items():
        folders[policy].mkdir()
        for name, content in start.files.items():
            (folders[policy] / name).write_bytes(content)
    tokenizers = {policy: NotingTokenizer(path) for policy, path in folders.items()}
    room = EngineRoom(recipe.rollout.concurrency)
    inner, build = open_engine(folders, recipe.rollout, room.places)
    with closing(inner):
        for policy, start in starts.items():
            inner.load(policy, 0, start.learner.snapshot_weights())
        learners = {policy: start.learner for policy, start in starts.items()}
        engine: Engine = GivenAnswers(inner, answers, tokenizers, learners) if answers else inner
        context = RolloutContext(
            engine=engine,
            engine_name=recipe.rollout.engine.use,
            engine_build=build,
            tokenizers=tokenizers,
            worker="trial",
            region="",
            head=lambda _policy: 0,
            reachability=Reachability(longest_wait_s=0),  # a user who tries a recipe wants the error at once
            room=room,
        )
        groups = [encode_group(group) for group in play_watched(asked, context, say)]
    return groups, {policy: "".join(sorted(one.lacked)) for policy, one in tokenizers.items()}


def list_failures(recorded: Iterable[tuple[TrajectoryGroup, Failure]]) -> tuple[EpisodeFailed, ...]:
    """Return every error of an episode once, although the group of each policy records it."""
    found = {}
    for group, failure in recorded:
        episode = f"{group.stream}:{group.number}:{failure.sample}"
        seen = replace(failure, traceback=cut_traceback_text(failure.traceback))
        found[episode, error_key_of(failure)] = EpisodeFailed(episode, group.task_id, seen)
    return tuple(found.values())
