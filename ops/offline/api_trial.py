"""`headrace try --api`: a model behind an endpoint plays the first tasks of a recipe; nothing is trained."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from headrace.envs.tools.solutions import SolutionPlayed
from headrace.infra.errors import UsageError
from headrace.ops.offline.api_policy import Api, ApiEngine, MessageText, read_messages
from headrace.ops.offline.trial import (
    EpisodeFailed,
    TrialRequest,
    choose_workflows,
    draw_tasks,
    list_failures,
    play_solutions,
    report_own_code,
)
from headrace.ops.offline.watched_play import play_watched
from headrace.ops.preflight.contract import refuse
from headrace.ops.preflight.table import examine_for_trial
from headrace.producers.rollout.conclusions import build_workflow_spec
from headrace.producers.rollout.play.engine_room import EngineRoom
from headrace.producers.rollout.play.episodes import RolloutContext
from headrace.producers.rollout.play.reachability import Reachability
from headrace.schemas.records import Sequence


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation of an episode."""

    agent_id: str
    messages: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class EpisodePlayed:
    """One role in an episode."""

    episode: str
    """`stream:number:sample`."""
    task_id: str
    role: str
    reward: float
    parts: dict[str, float]
    conversations: tuple[Conversation, ...]


@dataclass(frozen=True, slots=True)
class ApiTried:
    """The result."""

    recipe: str
    model: str
    seconds: float
    played: tuple[EpisodePlayed, ...]
    failures: tuple[EpisodeFailed, ...]
    tool_errors: tuple[EpisodeFailed, ...]
    solutions: tuple[SolutionPlayed, ...]

    @property
    def is_sound(self) -> bool:
        """Whether no episode failed and no worked solution is wrong."""
        return not self.failures and not any(solution.fault for solution in self.solutions)


def try_with_api(request: TrialRequest, api: Api, say: Callable[[str], None] = lambda _: None) -> ApiTried:
    """Play one episode of each of a recipe's first tasks. Raises UsageError and OwnCodeFailed as `try_recipe` does."""
    if request.answers:
        raise UsageError("--api and --answer exclude each other: either the model answers, or you do")
    recipe, began = request.recipe, time.monotonic()
    with report_own_code():
        refuse(examine_for_trial(recipe, has_answers=True))
        workflows = choose_workflows(request)
        specs = {workflow: build_workflow_spec(recipe, workflow) for workflow in workflows}
        solutions = tuple(one for workflow, spec in specs.items() for one in play_solutions(recipe, workflow, spec))
        asked = [
            (replace(task, n_asked=1), spec)
            for workflow in workflows
            for task, spec in draw_tasks(recipe, workflow, specs[workflow], request.tasks)
        ]
        policies = dict.fromkeys(policy for workflow in workflows for policy in recipe.policies_of(workflow))
        context = RolloutContext(
            engine=ApiEngine(api),
            engine_name="api",
            engine_build="",
            tokenizers={policy: MessageText() for policy in policies},
            worker="trial",
            region="",
            head=lambda _policy: 0,
            reachability=Reachability(longest_wait_s=0),
            room=EngineRoom(recipe.rollout.concurrency),
        )
        groups = play_watched(asked, context, say)
    played = [
        EpisodePlayed(
            episode=trajectory.id,
            task_id=group.task_id,
            role=trajectory.sequences[0].role,
            reward=trajectory.reward,
            parts=dict(trajectory.reward_parts),
            conversations=tuple(map(_read_conversation, trajectory.sequences)),
        )
        for group in groups
        for trajectory in group.trajectories
    ]
    return ApiTried(
        recipe.name,
        api.model,
        round(time.monotonic() - began, 1),
        tuple(played),
        list_failures((group, failure) for group in groups for failure in group.failures),
        list_failures((group, failure) for group in groups for failure in group.tool_errors),
        solutions,
    )


def _read_conversation(sequence: Sequence) -> Conversation:
    messages, _ = read_messages("".join(map(chr, map(int, sequence.ids))))
    return Conversation(sequence.agent_id, tuple(messages))
