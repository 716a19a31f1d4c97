"""Every topic of a run: its name, what it holds and how it is kept, in the order of the flow."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field

NAME_FORM = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
FOR_EVER = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
NEWEST_OF_KEY = {"cleanup.policy": "compact", "segment.bytes": str(16 << 20), "min.cleanable.dirty.ratio": "0.1"}
WITH_LARGE_MESSAGES = {"max.message.bytes": str(8 << 20)}
FEEDER, EVALUATOR = "feed", "evaluate"
"""Components that run alone, and keys of their snapshots in `state`.

The JSON of the feeder's holds, as `next`, the next training number of every stream. That of the evaluator's holds, as
`open`, rows that begin with workflow, policy, version and number, and, as `done`, (workflow, policy, version).
"""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic as it should be."""

    name: str
    partitions: int
    config: dict[str, str] = field(default_factory=dict)
    """Settings without which the run cannot live."""
    made_with: dict[str, str] = field(default_factory=dict)
    """Further settings of a topic that is made; one that is there may lack them."""


@dataclass(frozen=True, slots=True)
class Topics:
    """Names of the topics of one run. Run, region, workflow, policy and variant names hold no dots.

    What curates and trains is a policy variant: a policy, or a shadow of it, named `policy.variant` as its topics are.
    Where a policy is asked for, a policy variant will do; `trajectories` are those of its policy.
    """

    run: str

    def __post_init__(self) -> None:
        """Refuse a run name that could not be distinguished from the rest of a topic's name."""
        check_name("run", self.run)

    @property
    def recipe(self) -> str:
        """RecipeRevision, one partition."""
        return f"{self.run}.recipe"

    def tasks(self, stream: str) -> str:
        """Task, of one stream: `tasks.<workflow>[.<region>]`, or `eval-tasks.…` for an evaluation's stream."""
        if is_eval(stream):
            return f"{self.run}.eval-tasks.{stream.removeprefix('eval.')}"
        return f"{self.run}.tasks.{stream}"

    def trajectories(self, policy: str) -> str:
        """TrajectoryGroup for training."""
        return f"{self.run}.trajectories.{policy_of(policy)}"

    def eval_groups(self, policy: str) -> str:
        """TrajectoryGroup of an evaluation."""
        return f"{self.run}.eval-groups.{policy}"

    def curated(self, policy: str, variant: str = "") -> str:
        """CuratedGroup."""
        return self._name_of_variant("curated", policy, variant)

    def outcomes(self, policy: str, variant: str = "") -> str:
        """Outcome."""
        return self._name_of_variant("outcomes", policy, variant)

    def batches(self, policy: str, variant: str = "") -> str:
        """BatchTrained, one partition."""
        return self._name_of_variant("batches", policy, variant)

    def weights(self, policy: str, variant: str = "") -> str:
        """WeightsPublished, one partition."""
        return self._name_of_variant("weights", policy, variant)

    def evals(self, policy: str, variant: str = "") -> str:
        """EvalResult, one partition."""
        return self._name_of_variant("evals", policy, variant)

    @property
    def workers(self) -> str:
        """WorkerStatus, the newest by worker."""
        return f"{self.run}.workers"

    @property
    def dead_letters(self) -> str:
        """DeadLetter."""
        return f"{self.run}.dead-letters"

    @property
    def state(self) -> str:
        """Snapshot, CheckpointPointer, WarmStartExamples, StepBegun and ObjectsRetired, the newest by key."""
        return f"{self.run}.state"

    def rollout_group(self, stream: str) -> str:
        """Consumer group of the workers of a stream."""
        return f"{self.run}.rollout.{stream}"

    def curate_group(self, policy: str) -> str:
        """Consumer group of the curators of a policy, or of a shadow."""
        return f"{self.run}.curate.{policy}"

    @property
    def up_group(self) -> str:
        """Consumer group of whoever runs `headrace up`; it reads nothing."""
        return f"{self.run}.up"

    def _name_of_variant(self, what: str, policy: str, variant: str) -> str:
        return f"{self.run}.{what}.{policy}" + (f".{variant}" if variant else "")

    def all(
        self,
        workflows: tuple[str, ...],
        policies: tuple[str, ...],
        partitions: int,
        shadows: tuple[str, ...] = (),
        *,
        task_partitions: int = 0,
        state_partitions: int = 1,
    ) -> tuple[TopicSpec, ...]:
        """Return every topic that a run of these workflows, policies and shadows needs, as it should be.

        `tasks` has no time limit because the feeder deletes what the workers are done with; `trajectories` and
        `curated` are the dataset, and only `gc` may shorten them.
        """
        large = {**FOR_EVER, **WITH_LARGE_MESSAGES}
        specs = [TopicSpec(self.recipe, 1, large)]
        streams = [stream for workflow in workflows for stream in (workflow, eval_stream(workflow))]
        asked = task_partitions or partitions
        specs += [TopicSpec(self.tasks(stream), asked, FOR_EVER, WITH_LARGE_MESSAGES) for stream in streams]
        for policy in policies:
            specs += [
                TopicSpec(self.trajectories(policy), partitions, large),
                TopicSpec(self.eval_groups(policy), partitions, large),
                *self._of_variant(policy, partitions),
                TopicSpec(self.evals(policy), 1, FOR_EVER, WITH_LARGE_MESSAGES),
            ]
        for shadow in shadows:
            specs += self._of_variant(shadow, partitions)
        specs.append(TopicSpec(self.workers, 1, NEWEST_OF_KEY))
        specs.append(TopicSpec(self.dead_letters, 1, large))
        specs.append(TopicSpec(self.state, state_partitions, {**NEWEST_OF_KEY, **WITH_LARGE_MESSAGES}))
        return tuple(specs)

    def _of_variant(self, policy_variant: str, partitions: int) -> list[TopicSpec]:
        return [
            TopicSpec(self.curated(policy_variant), partitions, {**FOR_EVER, **WITH_LARGE_MESSAGES}),
            TopicSpec(self.outcomes(policy_variant), partitions, FOR_EVER, WITH_LARGE_MESSAGES),
            TopicSpec(self.batches(policy_variant), 1, FOR_EVER, WITH_LARGE_MESSAGES),
            TopicSpec(self.weights(policy_variant), 1, FOR_EVER, WITH_LARGE_MESSAGES),
        ]


def check_name(what: str, name: str) -> str:
    """Return the name, or raise ValueError when it cannot be part of a topic's name."""
    if not NAME_FORM.fullmatch(name):
        raise ValueError(
            f"{what} name {name[:80]!r} must have at most 63 letters, digits, '-' and '_', and begin with a letter or "
            "digit, because it becomes part of topic names",
        )
    return name


def policy_variant_of(policy: str, variant: str = "") -> str:
    """Return the name of a policy variant: the policy's own, or that of a shadow, `policy.variant`."""
    return f"{policy}.{variant}" if variant else policy


def policy_of(policy_variant: str) -> str:
    """Return the policy whose trajectories a policy variant is trained on."""
    return policy_variant.partition(".")[0]


def variant_of(policy_variant: str) -> str:
    """Return a shadow's own name, without its policy's; empty for a policy."""
    return policy_variant.partition(".")[2]


def state_partition(component: str, partitions: int) -> int:
    """Return on which partition of `state` a component has its records; the same in every build and language."""
    return zlib.crc32(component.encode()) % partitions


def trainer_component(policy_variant: str) -> str:
    """Return as what a trainer is known in `state`; what others say of its policy variant is there too."""
    return f"train.{policy_variant}"


def checkpoint_key(policy: str, version: int) -> bytes:
    """Return the key, in `state`, of the pointer to one of a trainer's checkpoints: compaction keeps them all."""
    return f"{checkpoint_prefix(policy).decode()}{version}".encode()


def checkpoint_prefix(policy: str) -> bytes:
    """Return how the keys of a trainer's checkpoint pointers begin."""
    return f"checkpoint|{policy}|".encode()


def examples_key(policy: str) -> bytes:
    """Return the key, in `state`, of a policy's worked examples."""
    return f"examples|{policy}".encode()


def step_key(policy_variant: str) -> bytes:
    """Return the key, in `state`, of the step that a trainer has begun last after a start."""
    return f"step|{policy_variant}".encode()


def key_of_retired(policy: str, what: str) -> bytes:
    """Return the key, in `state`, of what is retired of a policy; `what` is as in ObjectsRetired."""
    return f"{prefix_of_retired(policy).decode()}{what}".encode()


def prefix_of_retired(policy: str) -> bytes:
    """Return how the keys of what is retired of a policy begin."""
    return f"retired|{policy}|".encode()


def eval_stream(stream: str) -> str:
    """Return the stream of evaluations beside a stream of training tasks; no workflow is named `eval`."""
    return f"eval.{stream}"


def is_eval(stream: str) -> bool:
    """Return whether a stream's tasks are evaluations."""
    return stream.startswith("eval.")
