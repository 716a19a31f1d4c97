"""Playing one task: n episodes at once, and what they become, one group per policy, whatever happens.

A failing episode is data. Only the end of the worker's right to the task (a revoked partition) leaves no group.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.envs.contract import Environment, Episode, Problem, RoleTrajectory, Workflow
from headrace.envs.payload import problem_from_json
from headrace.infra.unreachable import OutOfTime
from headrace.producers.engines.contract import Engine, TextCodec
from headrace.producers.rollout.actor import EngineActor
from headrace.producers.rollout.failures import build_failure, make_exception
from headrace.producers.rollout.outcome import EpisodeOutcome
from headrace.producers.rollout.reachability import Reachability
from headrace.schemas.ids import derive_seed, now_ms
from headrace.schemas.records import Failure, Sampling, Sequence, Task, Trajectory, TrajectoryGroup


@dataclass(frozen=True, slots=True)
class RolloutContext:
    """Who plays: the same for the life of a worker."""

    engine: Engine
    engine_name: str
    engine_build: str
    tokenizers: Mapping[str, TextCodec]
    """Tokenizers by policy."""
    worker: str
    region: str
    head: Callable[[str], int]
    """Newest known version of a policy."""
    reachability: Reachability = field(default_factory=Reachability)
    """Whether the environment can be reached."""


@dataclass(frozen=True, slots=True)
class WorkflowSpec:
    """What is played: it follows from one revision of the recipe."""

    workflow: Workflow
    environment: Environment
    roles: Mapping[str, str]
    """Role to policy."""
    training: Sampling
    evaluation: Sampling
    episode_limit_s: float
    inline_limit_bytes: int

    @property
    def policies(self) -> tuple[str, ...]:
        """Every policy once, in the order of its roles."""
        return tuple(dict.fromkeys(self.roles.values()))


async def play_group(
    task: Task,
    spec: WorkflowSpec,
    context: RolloutContext,
    ending: asyncio.Event,
    on_end: Callable[[EpisodeOutcome], None],
) -> dict[str, TrajectoryGroup]:
    """Play a task; return one group per policy of the workflow.

    Args:
        task: The task.
        spec: How the task's revision has it played.
        context: Who plays.
        ending: Ends the episodes that still run, as `run_end`.
        on_end: Called once per episode when its slot is free.

    Raises PayloadError before any episode begins.
    """
    problem = problem_from_json(task.payload)
    started_ms = now_ms()

    async def run_sample(sample: int) -> EpisodeOutcome:
        actors: list[EngineActor] = []

        async def attempt_episode() -> EpisodeOutcome:
            cast = _build_actors(task, sample, spec, context)
            actors.extend(cast.values())
            return await play_episode(sample, problem, spec, cast)

        outcome = EpisodeOutcome(sample)
        try:
            outcome = await context.reachability.play_when_reachable(attempt_episode)
        except asyncio.CancelledError:
            if not ending.is_set():
                raise
            outcome = EpisodeOutcome(sample, failure=Failure(sample, "run_end", "the run is over"))
        finally:
            outcome = replace(outcome, tokens=sum(actor.tokens for actor in actors))
            on_end(outcome)
        return outcome

    episodes = [asyncio.create_task(run_sample(sample)) for sample in range(task.n_asked)]
    watcher = asyncio.create_task(_cancel_at_end(ending, episodes))
    try:
        outcomes = await asyncio.gather(*episodes)
    finally:
        for each in (watcher, *episodes):
            each.cancel()
    return build_groups(task, spec, context, outcomes, started_ms)


async def play_episode(
    sample: int, problem: Problem, spec: WorkflowSpec, actors: Mapping[str, EngineActor]
) -> EpisodeOutcome:
    """Run the workflow once; return how it ended. Each of its calls of a policy is an `EngineActor.generate`.

    An episode that ignores its cancellation is left behind, and has ended all the same.
    """

    async def run_workflow() -> Episode:
        try:
            return await spec.workflow(problem, spec.environment, actors)
        except (Exception, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # sys.exit() would end the event loop
            if isinstance(error, asyncio.CancelledError) and played.cancelling():
                raise
            raise make_exception("the workflow", error) from error

    played = asyncio.create_task(run_workflow())
    try:
        await asyncio.wait({played}, timeout=spec.episode_limit_s)
        if not played.done():
            return EpisodeOutcome(sample, failure=build_failure(sample, OutOfTime(), spec.episode_limit_s, actors))
        return EpisodeOutcome(sample, _check_episode(played.result(), spec.roles))
    except Exception as error:  # noqa: BLE001 - whatever an episode raises is data
        return EpisodeOutcome(sample, failure=build_failure(sample, error, spec.episode_limit_s, actors))
    finally:
        played.cancel()
        played.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody else looks at it


async def _cancel_at_end(ending: asyncio.Event, episodes: Iterable[asyncio.Task[EpisodeOutcome]]) -> None:
    await ending.wait()
    for episode in episodes:
        episode.cancel()


def _build_actors(task: Task, sample: int, spec: WorkflowSpec, context: RolloutContext) -> dict[str, EngineActor]:
    deadline = asyncio.get_running_loop().time() + spec.episode_limit_s
    sampling = spec.evaluation if task.purpose == "eval" else spec.training
    return {
        role: EngineActor(
            context.engine,
            policy,
            context.tokenizers[policy],
            replace(sampling, stop_ids=context.tokenizers[policy].stop_ids),
            derive_seed(task.seed, sample, role, policy),
            task.versions.get(policy),
            deadline,
        )
        for role, policy in spec.roles.items()
    }


def _check_episode(episode: Any, roles: Mapping[str, str]) -> Episode:
    """Return what a workflow returned. Raises TypeError or ValueError, naming role and value."""
    if not isinstance(episode, Mapping):
        raise TypeError(f"a workflow returns a RoleTrajectory by role, got {type(episode).__name__} {episode!r:.60}")
    for role, played in episode.items():
        if not isinstance(played, RoleTrajectory):
            raise TypeError(f"what the workflow returns for {role} is a RoleTrajectory, got {type(played).__name__}")
    if unknown := set(episode) - set(roles):
        raise ValueError(f"the workflow returned roles {sorted(unknown)}; the recipe gives it {sorted(roles)}")
    for role, played in episode.items():
        rewards = [played.reward, *(s.reward for s in played.sequences if s.reward is not None)]
        if not all(map(math.isfinite, rewards)):
            raise ValueError(f"the rewards of {role} must be finite, got {rewards}: fix the environment's scorer")
        if wrong := {name: part for name, part in played.parts.items() if not math.isfinite(part)}:
            raise ValueError(f"the parts of the reward of {role} must be finite, got {wrong}: fix the scorer")
    return episode


# ------------------------------------------------------------------------------------------------- episodes to groups


def build_groups(
    task: Task, spec: WorkflowSpec, context: RolloutContext, outcomes: Iterable[EpisodeOutcome], started_ms: int
) -> dict[str, TrajectoryGroup]:
    """Return one group per policy, in the order of samples; one without trajectories has the reason."""
    ordered = sorted(outcomes, key=lambda outcome: outcome.sample)
    failures = tuple(outcome.failure for outcome in ordered if outcome.failure is not None)
    groups = {}
    for policy in spec.policies:
        roles = [role for role, played_by in spec.roles.items() if played_by == policy]
        trajectories = tuple(
            _build_trajectory(
                task, outcome.sample, [outcome.episode[role] for role in roles if role in outcome.episode]
            )
            for outcome in ordered
            if outcome.episode is not None and any(role in outcome.episode for role in roles)
        )
        empty = build_empty_group(task, policy, spec.environment.name, context)
        groups[policy] = replace(
            empty,
            episode_ids=tuple(trajectory.id for trajectory in trajectories),
            trajectories=trajectories,
            failures=failures,
            reason="" if trajectories else _choose_reason(failures, len(ordered)),
            started_ms=started_ms,
        )
    return groups


def conclude_unplayed(
    task: Task, policies: Iterable[str], environment: str, context: RolloutContext, failure: Failure
) -> dict[str, TrajectoryGroup]:
    """Return the groups of a task that was not played; `failure` is the reason of every sample."""
    failures = tuple(replace(failure, sample=sample) for sample in range(task.n_asked))
    reason = "failed" if failure.reason == "error" else failure.reason
    return {
        policy: replace(build_empty_group(task, policy, environment, context), failures=failures, reason=reason)
        for policy in policies
    }


def build_empty_group(task: Task, policy: str, environment: str, context: RolloutContext) -> TrajectoryGroup:
    """Return all that a group records of a task, a worker and this moment."""
    now = now_ms()
    return TrajectoryGroup(
        run_id=task.run_id,
        stream=task.stream,
        number=task.number,
        attempt=task.attempt,
        purpose=task.purpose,
        revision=task.revision,
        policy=policy,
        task_id=task.task_id,
        tier=task.tier,
        n_asked=task.n_asked,
        head_version=context.head(policy),
        asked_version=task.versions.get(policy, -1),
        env=environment,
        tokenizer_hash=context.tokenizers[policy].hash,
        engine=context.engine_name,
        engine_build=context.engine_build,
        logprob_convention=context.engine.logprob_convention,
        kv_on_swap=context.engine.kv_on_swap,
        worker=context.worker,
        region=context.region,
        started_ms=now,
        finished_ms=now,
    )


def _choose_reason(failures: tuple[Failure, ...], n_played: int) -> str:
    """Why a policy has no trajectory at all."""
    if len(failures) < n_played or not failures:
        return "not_acted"
    for reason in ("run_end", "version_gone"):
        if all(failure.reason == reason for failure in failures):
            return reason
    return "failed"


def _build_trajectory(task: Task, sample: int, parts: list[RoleTrajectory]) -> Trajectory:
    """Return what one policy did. Its first role's reward is the whole's; those of others are on their sequences."""
    first, sequences = parts[0], list(parts[0].sequences)
    for part in parts[1:]:
        begin = len(sequences)
        sequences += [_shift_reward(sequence, begin, part.reward) for sequence in part.sequences]
    return Trajectory(
        id=f"{task.stream}:{task.number}:{sample}",
        reward=first.reward,
        reward_parts=dict(first.parts),
        sequences=tuple(sequences),
    )


def _shift_reward(sequence: Sequence, begin: int, reward: float) -> Sequence:
    return replace(
        sequence,
        parent=sequence.parent + begin if sequence.parent >= 0 else -1,
        reward=reward if sequence.reward is None else sequence.reward,
    )
