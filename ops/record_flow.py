"""Which component takes which record, and what it writes: the map of the system, on one screen.

A row names the kind of topic, the record on it, and the function that takes the record or makes it for writing.
`tests/unit/test_record_flow.py` compares both tables with what the components really read and write. At its start each
component also reads its own snapshots or batches, and a trainer also checkpoints and worked examples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from headrace.consumers.curate.curator import CuratorPartition
from headrace.consumers.curate.issued_numbers import IssuedNumbers
from headrace.consumers.curate.messages import CuratorMessages
from headrace.consumers.curate.published_versions import PublishedVersions
from headrace.consumers.evaluate.evaluator import Evaluator
from headrace.consumers.relay.relay import PolicyRelay
from headrace.infra.run.group_consumer import GroupConsumer
from headrace.infra.run.run import RecipeNews
from headrace.ops.autoscale.autoscaler import build_decision, follow
from headrace.ops.autoscale.evidence import compute_busy_share, list_moves, list_steps
from headrace.producers.feed.feed_state import FeedState
from headrace.producers.feed.feeder import Feeder
from headrace.producers.feed.worked_examples import send_examples
from headrace.producers.rollout.conclusions import Concluder
from headrace.producers.rollout.group_records import build_outgoing
from headrace.producers.rollout.run_follower import RunFollower
from headrace.producers.rollout.worker_status import StatusPosts
from headrace.schemas.records import (
    BatchTrained,
    CheckpointPointer,
    CuratedGroup,
    DeadLetter,
    EvalResult,
    Outcome,
    RecipeRevision,
    ScalingDecision,
    Snapshot,
    Task,
    TrajectoryGroup,
    WarmStartExamples,
    WeightsPublished,
    WorkerStatus,
)
from headrace.trainers.messages import TrainerMessages
from headrace.trainers.trainer import Trainer
from headrace.trainers.versions.heartbeat import open_heartbeat
from headrace.trainers.versions.publisher import VersionAnnouncer


class Flow(NamedTuple):
    """Records of one class on one kind of topic, and the function that takes or makes them."""

    topic: str
    """Topic name after the run's name, without stream, policy or variant."""
    record: type
    by: Callable[..., Any]


TAKES: Mapping[str, tuple[Flow, ...]] = {
    "feed": (
        Flow("recipe", RecipeRevision, Feeder.handle),
        Flow("outcomes", Outcome, FeedState.fold_outcome),
        Flow("batches", BatchTrained, FeedState.fold_batch),
        Flow("weights", WeightsPublished, FeedState.fold_weights),
        Flow("evals", EvalResult, FeedState.fold_result),
        Flow("dead-letters", DeadLetter, FeedState.fold_dead_letter),
    ),
    "rollout": (
        Flow("tasks", Task, Concluder.play_and_deliver),
        Flow("eval-tasks", Task, Concluder.play_and_deliver),
        Flow("recipe", RecipeRevision, RunFollower.run),
        Flow("weights", WeightsPublished, RunFollower.run),
    ),
    "curate": (
        Flow("trajectories", TrajectoryGroup, CuratorPartition.handle),
        Flow("recipe", RecipeRevision, RecipeNews.look),
        Flow("weights", WeightsPublished, PublishedVersions.has_version),
        Flow("tasks", Task, IssuedNumbers.has_number),
    ),
    "evaluate": (Flow("eval-groups", TrajectoryGroup, Evaluator.handle),),
    "relay": (Flow("weights", WeightsPublished, PolicyRelay.fold_message),),
    "train": (
        Flow("curated", CuratedGroup, Trainer.take_group),
        Flow("recipe", RecipeRevision, Trainer.follow_recipe),
    ),
    "autoscale": (
        Flow("recipe", RecipeRevision, follow),
        Flow("batches", BatchTrained, list_steps),
        Flow("outcomes", Outcome, list_steps),
        Flow("workers", WorkerStatus, compute_busy_share),
        Flow("scaling", ScalingDecision, list_moves),
    ),
}
"""Component to the records that it reads; `autoscale` reads them from the ledger."""

WRITES: Mapping[str, tuple[Flow, ...]] = {
    "feed": (
        Flow("tasks", Task, Feeder.tick),
        Flow("eval-tasks", Task, Feeder.tick),
        Flow("recipe", RecipeRevision, Feeder.tick),
        Flow("state", Snapshot, Feeder.before_commit),
        Flow("state", WarmStartExamples, send_examples),
        Flow("dead-letters", DeadLetter, Feeder.handle),
    ),
    "rollout": (
        Flow("trajectories", TrajectoryGroup, build_outgoing),
        Flow("eval-groups", TrajectoryGroup, build_outgoing),
        Flow("workers", WorkerStatus, StatusPosts.post),
        Flow("dead-letters", DeadLetter, Concluder.play_and_deliver),
    ),
    "curate": (
        Flow("curated", CuratedGroup, CuratorMessages.build_kept),
        Flow("outcomes", Outcome, CuratorMessages.build_kept),
        Flow("dead-letters", DeadLetter, CuratorMessages.build_dead_letter),
        Flow("state", Snapshot, GroupConsumer.before_commit),
    ),
    "evaluate": (
        Flow("evals", EvalResult, Evaluator.handle),
        Flow("dead-letters", DeadLetter, Evaluator.handle),
        Flow("state", Snapshot, Evaluator.before_commit),
    ),
    "relay": (Flow("weights", WeightsPublished, PolicyRelay.relay_pending),),
    "train": (
        Flow("batches", BatchTrained, TrainerMessages.build_version),
        Flow("outcomes", Outcome, TrainerMessages.build_version),
        Flow("state", CheckpointPointer, TrainerMessages.build_version),
        Flow("weights", WeightsPublished, VersionAnnouncer.build_message),
        Flow("workers", WorkerStatus, open_heartbeat),
        Flow("dead-letters", DeadLetter, TrainerMessages.build_dead_letter),
    ),
    "autoscale": (Flow("scaling", ScalingDecision, build_decision),),
}
"""Component to the records that it writes. A dead letter about a shadow's record is an Outcome instead."""
