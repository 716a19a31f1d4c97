"""A run's topics by their kind, for an audit."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.infra.run.run import Run
from headrace.schemas.topics import eval_stream


@dataclass(frozen=True, slots=True)
class Parts:
    """A run's topics by kind, in the order of reading."""

    batches: list[str]
    outcomes: list[str]
    """Outcomes, and dead letters."""
    curated: list[str]
    trajectories: list[str]
    tasks: list[str]
    weights: list[str]
    state: list[str]
    eval_groups: list[str]
    eval_tasks: list[str]
    evals: list[str]

    @classmethod
    def of(cls, run: Run) -> Parts:
        """Return the topics of a run."""
        topics, policy_variants = run.topics, run.recipe.policy_variants
        return cls(
            batches=[topics.batches(policy_variant) for policy_variant in policy_variants],
            outcomes=[*(topics.outcomes(policy_variant) for policy_variant in policy_variants), topics.dead_letters],
            curated=[topics.curated(policy_variant) for policy_variant in policy_variants],
            trajectories=[topics.trajectories(policy) for policy in run.recipe.policies],
            tasks=[topics.tasks(stream) for stream in run.recipe.streams],
            weights=[topics.weights(policy_variant) for policy_variant in policy_variants],
            state=[topics.state],
            eval_groups=[topics.eval_groups(policy) for policy in run.recipe.policies],
            eval_tasks=[topics.tasks(eval_stream(workflow)) for workflow in run.recipe.workflows],
            evals=[topics.evals(policy) for policy in run.recipe.policies],
        )

    @property
    def groups(self) -> list[str]:
        """Topics of groups: trajectories and curated groups."""
        return [*self.curated, *self.trajectories]

    @property
    def kept(self) -> list[str]:
        """Topics that keep all records for ever."""
        return [*self.batches, *self.outcomes, *self.groups, *self.weights]

    @property
    def evaluations(self) -> list[str]:
        """Topics of evaluations."""
        return [*self.eval_groups, *self.eval_tasks, *self.evals]
