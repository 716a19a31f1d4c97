"""A rollout worker: its follower, its intake and, instead of an engine, groups that are made up."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from headrace.infra.kafka.clients import Outgoing
from headrace.infra.kafka.dead_letters import build_dead_letter
from headrace.infra.kafka.topic_reader import PartitionId, TopicReader
from headrace.producers.rollout.admission import Admission
from headrace.producers.rollout.group_records import build_outgoing, encode_group
from headrace.producers.rollout.intake.slots import Slots
from headrace.producers.rollout.intake.started_task import StartedTask
from headrace.producers.rollout.intake.task_intake import Subscription, TaskIntake
from headrace.producers.rollout.pauses import Pauses
from headrace.producers.rollout.run_follower import RunFollower
from headrace.producers.rollout.weight_loader import WeightLoader
from headrace.schemas.records import Failure, TrajectoryGroup
from protocol.broker import STAGE
from protocol.processes import Key, Process, positions_of
from protocol.run import GROUP, POLICY, RUN_ID, STREAM, TOPICS, join, played


class Engine:
    """Serves a version."""

    def __init__(self) -> None:
        self.served: dict[str, int] = {}

    def versions(self) -> dict[str, int]:
        return dict(self.served)

    def load(self, policy: str, version: int, weights: object) -> None:
        self.served[policy] = version

    def stats(self) -> Any:
        return SimpleNamespace(swap_s=0.0)


class WorkerProcess(Process):
    """Follows the run, starts tasks, plays one at a time, and says so when its group is on the log."""

    intake: Any = None
    follower: Any = None
    loader: Any = None
    hangs = False
    """Whether the follower's thread does not go on, and the process dies when its next record is on the log."""

    def start(self) -> None:
        run = join()
        self.follower = RunFollower(run, (POLICY,), self.name)
        self.reader = TopicReader(run.connection, self.follower._find_positions(), self.name)
        self.engine = Engine()
        objects = run.weights_cache
        self.loader = WeightLoader(self.engine, self.follower.published, objects, Pauses())  # type: ignore[arg-type]
        self.playing: list[tuple[StartedTask, TrajectoryGroup | None]] = []
        brake = SimpleNamespace(is_released=lambda: True, note_started=lambda: None)
        concluder = SimpleNamespace(delivering=0, waiting=0, brake=brake)
        group, topics = TOPICS.rollout_group(STREAM), (TOPICS.tasks(STREAM),)
        gate = Admission(run, self.engine, self.follower, concluder, Slots(4))  # type: ignore[arg-type]  # what it looks at of one
        member = Subscription(run.connection, self.name, group, topics, RUN_ID)
        self.intake = TaskIntake(member, gate, self.play, self.drop, Pauses())
        callbacks = {name: getattr(self.intake, f"_{name}") for name in ("on_assign", "on_revoke", "on_lost")}
        self.intake._consumer.subscribe(list(topics), **callbacks)
        self.is_up = True

    def turns(self) -> tuple[str, ...]:
        ready = ("turn",) if POLICY in self.engine.served else ()
        follow = () if self.hangs else ("follow",)
        return (*follow, *ready, *(("deliver",) if self.playing else ()))

    def follow(self) -> None:
        """A turn of the follower's thread."""
        for message in self.reader.poll(256, 0):
            self.follower.fold_message(message)
        self.loader.load_newest()

    def turn(self) -> None:
        """A turn of the intake's thread."""
        self.intake.turn()

    def play(self, started: StartedTask) -> None:
        """Play a task whose start is committed, with the version that is served now."""
        task = started.task
        if task is None:
            self.playing.append((started, None))
            return
        head = self.follower.published[POLICY].head
        named = {"task_id": task.task_id, "tier": task.tier, "attempt": task.attempt}
        group = played(task.number, self.engine.served[POLICY], head, revision=task.revision, **named)
        if started.verdict != "play":
            failures = tuple(Failure(sample, started.refusal.reason) for sample in range(GROUP))
            group = replace(group, trajectories=(), failures=failures, reason=started.refusal.reason)
        self.playing.append((started, group))

    def drop(self, partition_ids: frozenset[PartitionId]) -> None:
        """Cancel what is played of partitions that are ours no more."""
        self.playing = [one for one in self.playing if one[0].partition_id not in partition_ids]

    def deliver(self) -> None:
        """Put the oldest group on the log; it is acknowledged, and the task is done."""
        started, group = self.playing.pop(0)
        STAGE.broker.append(self._record(started, group))
        if self.hangs:
            self.end()
            return
        started.release_slots()
        self.intake.report_done(started)

    def _record(self, started: StartedTask, group: TrajectoryGroup | None) -> Outgoing:
        if group is None:
            return build_dead_letter(TOPICS, RUN_ID, "rollout", started.message, started.refusal)
        return build_outgoing(TOPICS, *encode_group(group), STAGE.broker.partitions)

    def wake(self) -> None:
        self.hangs = False

    def expel(self) -> None:
        STAGE.broker.leave(self.intake._consumer.member)

    def forget(self) -> None:
        if self.intake is not None:
            self.expel()
        self.intake = self.follower = self.loader = None
        self.hangs = False
        self.playing = []

    def key(self) -> Key:
        if self.intake is None:
            return (self.name, False)
        intake, follower = self.intake, self.follower
        ledgers = tuple(
            (partition_id, one.ledger._next, one.ledger._base, tuple(sorted(one.ledger._open)), one.dirty,
             tuple(sorted(one.ledger._done)), tuple(sorted(one.ledger._starts.items())),
             tuple(sorted(one.ledger._inherited.items())), tuple(sorted(one.ledger._mine)))
            for partition_id, one in sorted(intake.owned._owned.items())
        )  # fmt: skip
        queue = tuple(
            (task.partition_id, task.message.offset, task.message.value, task.since_s) for task in intake.queue._waiting
        )
        playing = tuple((one.partition_id, one.message.offset, group) for one, group in _playing(self.playing))
        done = tuple((one.partition_id, one.message.offset) for one in intake._done)
        served = tuple(self.engine.served.items()), follower.published[POLICY].head, follower.ended
        recipes = tuple(repr(recipe.curate.chain) for recipe in follower.recipes.values())
        weights = self.loader._weights[POLICY]._held
        consumer = intake._consumer
        return (
            self.name, ledgers, queue, playing, done, served, positions_of(self.reader), recipes,
            weights.weights_hash if weights is not None else "", tuple(sorted(self.loader._retry_at.items())),
            tuple(sorted(consumer._positions.items())), consumer.epoch, intake.owned.alone,
            self.hangs, tuple(sorted(intake.queue._gate.written)),
        )  # fmt: skip


def _playing(playing: list[tuple[StartedTask, TrajectoryGroup | None]]) -> list[tuple[StartedTask, Key]]:
    return [(one, (group and (group.number, group.attempt, group.revision, group.head_version, group.reason,
                              _version(group)))) for one, group in playing]  # fmt: skip


def _version(group: TrajectoryGroup) -> int:
    return int(group.trajectories[0].sequences[0].version_runs[-2]) if group.trajectories else -1
