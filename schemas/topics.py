"""Every topic of a run: its name, content and settings, in the order of the data flow."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

NAME_FORM = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
FOR_EVER = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
NEWEST_OF_KEY = {"cleanup.policy": "compact"}
SOON_COMPACTED = {"segment.bytes": str(16 << 20), "min.cleanable.dirty.ratio": "0.1"}
"""They only keep the topic small, so that it is read fast. Some clusters do not allow them."""
LARGEST = "max.message.bytes"
WITH_LARGE_MESSAGES = {LARGEST: str(8 << 20)}
FEEDER, EVALUATOR = "feed", "evaluate"
"""Components of which a run has only one, and keys of their snapshots in `state`.

The feeder's JSON has the next training number of every stream as `next`. The evaluator's JSON has rows that begin with
workflow, policy, version and number as `open`, and (workflow, policy, version) as `done`.
"""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """Required name, partitions and settings of a topic."""

    name: str
    partitions: int
    config: dict[str, str] = field(default_factory=dict)
    """Settings that the run requires."""
    made_with: dict[str, str] = field(default_factory=dict)
    """Further settings for creating the topic, which are wished: an existing topic may lack them."""


def list_unmet(wanted: Mapping[str, str], config: Mapping[str, str]) -> list[str]:
    """Return the settings that a topic has other than wanted; for a largest size, smaller than wanted."""
    return [
        key
        for key, value in wanted.items()
        if key in config and config[key] != value and not (key == LARGEST and int(config[key]) >= int(value))
    ]


@dataclass(frozen=True, slots=True)
class Topics:
    """Names of the topics of one run. Run, workflow, policy and variant names hold no dots.

    A policy variant is a policy, or a shadow of it, named `policy.variant`. Curators and trainers work for a policy
    variant. Every parameter `policy` also takes a policy variant; `trajectories` are those of its policy.
    """

    run: str

    def __post_init__(self) -> None:
        """Refuse a run name that would make topic names ambiguous."""
        check_name("run", self.run)

    @property
    def recipe(self) -> str:
        """RecipeRevision, one partition."""
        return f"{self.run}.recipe"

    def tasks(self, stream: str) -> str:
        """Task, of one stream: `tasks.<workflow>`, or `eval-tasks.…` for an evaluation's stream."""
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
    def scaling(self) -> str:
        """ScalingDecision, one partition."""
        return f"{self.run}.scaling"

    @property
    def dead_letters(self) -> str:
        """DeadLetter."""
        return f"{self.run}.dead-letters"

    @property
    def state(self) -> str:
        """Snapshot, CheckpointPointer, WarmStartExamples and ObjectsRetired, the newest by key."""
        return f"{self.run}.state"

    def rollout_group(self, stream: str) -> str:
        """Consumer group of the workers of a stream."""
        return f"{self.run}.rollout.{stream}"

    def curate_group(self, policy: str) -> str:
        """Consumer group of the curators of a policy, or of a shadow."""
        return f"{self.run}.curate.{policy}"

    @property
    def up_group(self) -> str:
        """Consumer group of the process that runs `headrace up`; it reads nothing."""
        return f"{self.run}.up"

    def _name_of_variant(self, what: str, policy: str, variant: str) -> str:
        return f"{self.run}.{what}.{policy}" + (f".{variant}" if variant else "")

    def all(  # noqa: PLR0913 - settings, each given by its name
        self,
        workflows: tuple[str, ...],
        policies: tuple[str, ...],
        partitions: int,
        shadows: tuple[str, ...] = (),
        *,
        regions: tuple[str, ...] = (),
        task_partitions: int = 0,
        state_partitions: int = 1,
    ) -> tuple[TopicSpec, ...]:
        """Return the specifications of all topics that a run with these workflows, policies and shadows needs.

        With regions, these are the topics at home; `in_region` gives those of a region's own Kafka.

        `tasks` has no time limit, because the feeder deletes finished tasks. `trajectories` and `curated` are the
        dataset, and only `gc` may shorten them.
        """
        large = {**FOR_EVER, **WITH_LARGE_MESSAGES}
        specs = [TopicSpec(self.recipe, 1, large)]
        streams = [stream for workflow in workflows for stream in (workflow, eval_stream(workflow))]
        streams += [stream_of(workflow, region) for region in regions for workflow in workflows]
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
        specs.append(TopicSpec(self.workers, 1, NEWEST_OF_KEY, SOON_COMPACTED))
        specs.append(TopicSpec(self.scaling, 1, FOR_EVER, WITH_LARGE_MESSAGES))
        specs.append(TopicSpec(self.dead_letters, 1, large))
        newest = {**NEWEST_OF_KEY, **WITH_LARGE_MESSAGES}
        specs.append(TopicSpec(self.state, state_partitions, newest, SOON_COMPACTED))
        return tuple(specs)

    def in_region(
        self, region: str, workflows: tuple[str, ...], policies: tuple[str, ...], partitions: int, task_partitions: int
    ) -> tuple[TopicSpec, ...]:
        """Return the specifications of the topics in a region's Kafka: those that its workers read and write."""
        large = {**FOR_EVER, **WITH_LARGE_MESSAGES}
        specs = [TopicSpec(self.recipe, 1, large)]
        streams = [stream_of(workflow, region) for workflow in workflows]
        specs += [TopicSpec(self.tasks(stream), task_partitions, FOR_EVER, WITH_LARGE_MESSAGES) for stream in streams]
        for policy in policies:
            specs += [
                TopicSpec(self.trajectories(policy), partitions, large),
                TopicSpec(self.eval_groups(policy), partitions, large),
                TopicSpec(self.weights(policy), 1, FOR_EVER, WITH_LARGE_MESSAGES),
            ]
        specs.append(TopicSpec(self.workers, 1, NEWEST_OF_KEY, SOON_COMPACTED))
        specs.append(TopicSpec(self.dead_letters, 1, large))
        return tuple(specs)

    def _of_variant(self, policy_variant: str, partitions: int) -> list[TopicSpec]:
        return [
            TopicSpec(self.curated(policy_variant), partitions, {**FOR_EVER, **WITH_LARGE_MESSAGES}),
            TopicSpec(self.outcomes(policy_variant), partitions, FOR_EVER, WITH_LARGE_MESSAGES),
            TopicSpec(self.batches(policy_variant), 1, FOR_EVER, WITH_LARGE_MESSAGES),
            TopicSpec(self.weights(policy_variant), 1, FOR_EVER, WITH_LARGE_MESSAGES),
        ]


def check_name(what: str, name: str) -> str:
    """Return the name. Raises ValueError if it cannot be part of a topic's name."""
    if not NAME_FORM.fullmatch(name):
        raise ValueError(
            f"{what} name {name[:80]!r} must have at most 63 letters, digits, '-' and '_', and begin with a letter or "
            "digit, because it becomes part of topic names",
        )
    return name


def policy_variant_of(policy: str, variant: str = "") -> str:
    """Return the name of a policy variant: the policy's name, or `policy.variant` for a shadow."""
    return f"{policy}.{variant}" if variant else policy


def policy_of(policy_variant: str) -> str:
    """Return the policy whose trajectories a policy variant is trained on."""
    return policy_variant.partition(".")[0]


def variant_of(policy_variant: str) -> str:
    """Return a shadow's name without its policy's; empty for a policy."""
    return policy_variant.partition(".")[2]


def state_partition(component: str, partitions: int) -> int:
    """Return the partition of `state` for a component's records; the same in every build and language."""
    return zlib.crc32(component.encode()) % partitions


def trainer_component(policy_variant: str) -> str:
    """Return a trainer's component name in `state`; all records about its policy variant use it."""
    return f"train.{policy_variant}"


def checkpoint_key(policy: str, version: int) -> bytes:
    """Return the key in `state` of a checkpoint's pointer; one key per checkpoint, so that compaction keeps all."""
    return f"{checkpoint_prefix(policy).decode()}{version}".encode()


def checkpoint_prefix(policy: str) -> bytes:
    """Return the common prefix of the keys of a trainer's checkpoint pointers."""
    return f"checkpoint|{policy}|".encode()


def examples_key(policy: str) -> bytes:
    """Return the key, in `state`, of a policy's worked examples."""
    return f"examples|{policy}".encode()


def key_of_retired(policy: str, what: str) -> bytes:
    """Return the key in `state` of a policy's retired objects; `what` is as in ObjectsRetired."""
    return f"{prefix_of_retired(policy).decode()}{what}".encode()


def prefix_of_retired(policy: str) -> bytes:
    """Return the common prefix of the keys of a policy's retired objects."""
    return f"retired|{policy}|".encode()


def stream_of(workflow: str, region: str = "") -> str:
    """Return the stream of a workflow's training tasks at home, or in a region."""
    return f"{workflow}.{region}" if region else workflow


def workflow_of(stream: str) -> str:
    """Return the workflow of a stream, `[eval.]workflow[.region]`."""
    return stream.removeprefix("eval.").partition(".")[0]


def region_of(stream: str) -> str:
    """Return the region of a stream; empty at home."""
    return stream.removeprefix("eval.").partition(".")[2]


def eval_stream(stream: str) -> str:
    """Return the evaluation stream that belongs to a training stream; no workflow may be named `eval`."""
    return f"eval.{stream}"


def is_eval(stream: str) -> bool:
    """Return whether a stream's tasks are evaluations."""
    return stream.startswith("eval.")
