"""The curator: `headrace curate --run kafka://host:port/run --policy NAME [--variant NAME]`.

It is a member of the consumer group of its policy or shadow. `CuratorPartition` has the logic for a partition, without
I/O. Every group gives exactly one outcome, and a kept group also a curated record; every replay gives both. Unreadable
bytes give a dead letter, or in a shadow an outcome. The state is a function of the partition's records in order, so it
can be rebuilt from them. But an unreadable record may be readable later, so a snapshot follows it at once, and the
state is never rebuilt from before it.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace

import structlog

from headrace.consumers.algorithms.chain import AlgorithmFailed, ChainError
from headrace.consumers.algorithms.contract import Candidate, Drop, Keep, Replay, Result
from headrace.consumers.curate.context import CuratorContext, UnknownRevision, find_recipe
from headrace.consumers.curate.curated_records import build_stamp
from headrace.consumers.curate.dedupe import MOST_DEAD_KEPT, MOST_RUNS, MOST_STREAMS, Dedupe
from headrace.consumers.curate.issued_numbers import IssuedNumbers
from headrace.consumers.curate.messages import CuratorMessages
from headrace.consumers.curate.published_versions import PublishedVersions
from headrace.consumers.curate.replayable_groups import ReplayableGroups
from headrace.consumers.curate.revision_chains import RevisionChains, load_policy_chain
from headrace.infra.kafka.clients import Message, Outgoing
from headrace.infra.kafka.dead_letters import NOT_ISSUED, TIME_TRAVEL, is_sent_back
from headrace.infra.kafka.decoding import (
    LARGEST_LEAP,
    MOST_EPISODES,
    MessageRefused,
    decode_own_stamp,
    decode_record,
)
from headrace.infra.kafka.run_address import parse_run
from headrace.infra.kafka.run_loop import run_loop
from headrace.infra.kafka.topic_admin import require_partition_count
from headrace.infra.kafka.topic_reader import PartitionId
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.log import bind_to_log, configure_logging
from headrace.infra.process.signals import JOIN_PATIENCE_S, begin_attempts, stop_on_signals
from headrace.infra.recipe.plug_in_sources import check_sources, curator_plug_ins
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.claimed_groups import fetch_trajectories
from headrace.infra.run.end_watch import EndWatch
from headrace.infra.run.group_consumer import GroupConsumer
from headrace.infra.run.group_restore import Membership
from headrace.infra.run.revisions import join_and_write_schemas
from headrace.infra.run.run import RecipeNews, Run
from headrace.infra.stopwatch import Stopwatch
from headrace.schemas.headers import Stamp
from headrace.schemas.ids import describe_long_fields
from headrace.schemas.records import TrajectoryGroup
from headrace.schemas.topics import policy_of

log = structlog.get_logger()

MOST_FAILURES = 8
"""Groups in a row for which the chain may fail, so that rollouts are not wasted without end."""
NOW_THAT_IT_IS_OVER = (
    "groups that still arrive are curated; stop this process when `headrace status` shows no group in flight"
)
LARGEST_INLINE_GROUP = 7 << 20
"""Most bytes of a group inside its record: the broker would refuse the curated record of a larger group."""


def main(run: str, policy: str | None = None, slot: str | None = None, variant: str | None = None) -> None:
    """Curate the groups of one policy (with `variant`, of a shadow) until a signal stops it.

    `slot` is the supervisor's slot: a later process with the same slot fences this one.
    """
    configure_logging("curate", **{name: given for name, given in (("policy", policy), ("variant", variant)) if given})
    address, stop = parse_run(run), stop_on_signals()
    slot = slot or secrets.token_hex(4)  # the same at each attempt: only this id can end what the one before left open

    for attempt in begin_attempts(stop):
        with attempt:
            joined = join_and_write_schemas(address, JOIN_PATIENCE_S, stop)
            name = joined.resolve(policy, variant)
            bind_to_log(policy=policy_of(name))
            transactional_id = f"{joined.topics.curate_group(name)}.{slot}"
            writer = TransactionalWriter(joined.connection, transactional_id, joined.topic_names)
            published, issued = PublishedVersions(joined, policy_of(name)), IssuedNumbers(joined)
            with (
                closing(writer),
                closing(published),
                closing(issued),
                closing(open_curator(joined, name, published, issued)) as consumer,
            ):
                run_loop(consumer, writer, stop, Stopwatch())


def open_curator(run: Run, policy_variant: str, published: PublishedVersions, issued: IssuedNumbers) -> GroupConsumer:
    """Return the group consumer of a policy's or shadow's curator; check the chain before it joins the group.

    Groups older than a shadow go through the shadow's first chain. Raises OtherSource or SourceChanged if the source of
    the chain's plug-ins is not the run's, and TopicDiffers for another number of partitions.
    """
    topics, topic = run.topics, run.topics.trajectories(policy_variant)
    check_sources(run.plug_ins, curator_plug_ins(run.recipe, policy_variant))
    load_policy_chain(run.recipe, policy_variant)
    require_partition_count(run.connection, topic, run.partitions)

    recipes, news = dict(enumerate(run.revisions)), RecipeNews(run.address, run.recipe_end)

    def recipe_of(revision: int) -> Recipe:
        if revision not in recipes:
            for new in news.look():
                if new.run_id == run.run_id:
                    recipes[new.revision] = Recipe.from_json(new.recipe)
                    check_sources(new.plug_ins, curator_plug_ins(recipes[new.revision], policy_variant))
        return find_recipe(recipes, revision, policy_variant)

    context = CuratorContext(
        run.run_id,
        policy_variant,
        topics,
        recipe_of,
        run.get_group,
        is_published=published.can_move_clock if run.asks_for_published else None,
        is_issued=issued.is_issued if run.asks_for_issued else None,
    )
    component = f"curate.{policy_variant}"
    return GroupConsumer(
        Membership(
            connection=run.connection,
            component=component,
            run_id=run.run_id,
            group=topics.curate_group(policy_variant),
            topics=(topic,),
            state_topic=topics.state,
            state_partition=run.state_partition_id(component)[1],
            snapshot_every_s=run.recipe.curate.snapshot_every_s,
        ),
        lambda partition_id: CuratorPartition(context, partition_id, run.partitions),
        EndWatch(run, NOW_THAT_IT_IS_OVER, policy=policy_variant).look,
    )


class CuratorPartition:
    """One partition of trajectories: dedupe, clock and chains; a function of its records in order."""

    def __init__(self, context: CuratorContext, partition_id: PartitionId, partitions: int) -> None:
        self._context = context
        self._partition, self._partitions = partition_id[1], partitions
        self._messages = CuratorMessages(context, partition_id[1])
        self._dedupe = Dedupe(partition_id[1], partitions)
        self._clock = -1
        self._replayable = ReplayableGroups(context.run_id, context.policy)
        self._chains = RevisionChains(context)
        self.is_last_refused = False
        """Whether the last handled message became a dead letter."""
        self._failures = 0
        """Number of groups in a row for which the chain failed."""

    def handle(self, message: Message) -> Iterable[Outgoing]:
        """Return the dead letter, or the outcome (and curated record), of a message; nothing for a repetition.

        A message that was sent back is not a repetition if a dead letter had concluded its number; if the dead letter
        is forgotten, the message becomes another dead letter. In a shadow it is a repetition, because a shadow
        concludes no number by a dead letter.
        """
        self.is_last_refused = False
        try:
            stamp = self._read_stamp(message)
        except MessageRefused as refused:
            # The number stays open, because a dead letter without headers concludes nothing.
            named = replace(message, headers=[]) if refused.reason in {"misrouted", NOT_ISSUED} else message
            return self._build_dead_letter(named, refused)
        stream, number = stamp.stream, stamp.number
        is_new, is_back = self._dedupe.conclude(stream, number), is_sent_back(message) and not self._context.is_shadow
        if not is_new and not (is_back and self._dedupe.reopen(stream, number)):
            if is_back and self._dedupe.has_forgotten_dead(stream):
                # Sending the message back opened its number; this dead letter concludes it again.
                detail = (
                    "this group was sent back, but is not curated, because it may have been curated before and would "
                    f"then be trained on twice: partition {self._partition} has had more dead letters than the "
                    f"{MOST_DEAD_KEPT:,} that the curator remembers"
                )
                return self._build_dead_letter(message, MessageRefused("forgotten", detail))
            # The task had a result already; the copy is ignored.
            log.debug("group.repeated", stream=stream, number=number, attempt=stamp.attempt)
            return []
        try:
            group = self._read_group(message, stamp)
        except MessageRefused as refused:
            self._dedupe.mark_dead(stream, number)
            return self._build_dead_letter(message, refused)
        self._clock = max(self._clock, group.head_version)
        first, chain = self._chains.name_of(group.revision), self._chains.of(group.revision)
        try:
            results = chain.process(Candidate.of(group), self._clock)
        except AlgorithmFailed as error:
            return self._conclude_failed_group(message, stamp, error)
        self._failures = 0
        outgoing = self._build_messages(results, group, message.value)
        self._replayable.forget_unheld(first, chain)
        for name in self._chains.end(group, self._dedupe.low_watermark):
            self._replayable.forget_chain(name)
            # No group of this recipe revision can come any more.
            log.info("chain.ended", revision=name, partition=self._partition)
        return outgoing

    def _conclude_failed_group(self, message: Message, stamp: Stamp, error: AlgorithmFailed) -> list[Outgoing]:
        """Return the dead letter of a group for which an algorithm failed. Raises ChainError for too many in a row.

        The snapshot that follows a dead letter keeps the chain's state changes from before the failure.
        """
        # A data algorithm raised; its group became a dead letter.
        log.error("algorithm.failed", stream=stamp.stream, number=stamp.number, why=str(error))
        self._failures += 1
        if self._failures >= MOST_FAILURES:
            raise ChainError(
                f"the chain failed on {self._failures} groups in a row; the last error: {error}"
            ) from error
        self._dedupe.mark_dead(stamp.stream, stamp.number)
        return self._build_dead_letter(message, MessageRefused("algorithm_failed", str(error)))

    def _read_stamp(self, message: Message) -> Stamp:
        stamp = decode_own_stamp(message, self._context.run_id)
        if stamp.policy != self._context.policy:
            raise MessageRefused(
                "misrouted",
                f"a group of policy {stamp.policy!r} is on the topic of the trajectories of {self._context.policy!r}",
            )
        if not self._dedupe.is_own(stamp.number):
            raise MessageRefused(
                "misrouted",
                f"the group has number {stamp.number} and is on partition {self._partition}, but its partition must be "
                f"its number modulo {self._partitions}, and its number 0 or more",
            )
        is_issued = self._context.is_issued
        if is_issued is not None and not is_issued(message, stamp):
            raise MessageRefused(
                NOT_ISSUED, f"the feeder never issued a task with number {stamp.number} of stream {stamp.stream!r}"
            )
        if not self._dedupe.has_room(stamp.stream, stamp.number):
            raise MessageRefused(
                "misrouted",
                f"number {stamp.number} of stream {stamp.stream!r} is refused: with it, the groups on partition "
                f"{self._partition} would be of more than {MOST_STREAMS} streams, or their numbers would have more "
                f"than {MOST_RUNS} gaps",
            )
        return stamp

    def _read_group(self, message: Message, stamp: Stamp) -> TrajectoryGroup:
        value = message.value
        if len(value) > LARGEST_INLINE_GROUP:
            raise MessageRefused(
                "unusable",
                f"a group inside its record may have at most {LARGEST_INLINE_GROUP} bytes; got {len(value)}: put the "
                "trajectories into the object store, and a claim check into the record",
            )
        group = fetch_trajectories(decode_record(value, TrajectoryGroup), self._context.fetch)
        for name in ("run_id", "stream", "number", "policy", "revision"):
            if (found := getattr(group, name)) != (named := getattr(stamp, name)):
                raise MessageRefused(
                    "undecodable",
                    f"the {name} in the record's value is {found!r:.80}, but in its headers {named!r:.80}",
                )
        if wrong := describe_long_fields(group, ("task_id", "tier", "reason")):
            raise MessageRefused("unusable", f"the group has texts that are too long: {'; '.join(wrong)}")
        if (count := len(group.trajectories)) > MOST_EPISODES:
            raise MessageRefused("unusable", f"a group may have at most {MOST_EPISODES} trajectories; got {count}")
        self._refuse_time_travel(message, group)
        try:
            self._chains.of(group.revision)
        except UnknownRevision as error:
            raise MessageRefused("unknown_revision", str(error)) from error
        return group

    def _refuse_time_travel(self, message: Message, group: TrajectoryGroup) -> None:
        """Refuse a group that would move the clock to a version that no worker can have used.

        Any published version may move the clock, however far, because a partition may get no group for thousands of
        versions. Raises MessageRefused.
        """
        version, is_published = group.head_version, self._context.is_published
        if is_published is None:
            if version > max(self._clock, 0) + LARGEST_LEAP:
                raise MessageRefused(
                    TIME_TRAVEL,
                    f"head_version {version} is more than {LARGEST_LEAP} versions ahead of the newest version on "
                    f"this partition, {max(self._clock, 0)}",
                )
        elif version > self._clock and not is_published(message, group):
            raise MessageRefused(
                TIME_TRAVEL, f"the head_version of the group is {version}, but no such version is published"
            )

    def _build_messages(self, results: Sequence[Result], group: TrajectoryGroup, value: bytes) -> list[Outgoing]:
        """Return the records of the chain's results for a group with the bytes `value`. Raises ChainError."""
        name, chain, outgoing = self._chains.name_of(group.revision), self._chains.of(group.revision), []
        for result in results:
            match result:
                case Keep(candidate):
                    stamp, limit = build_stamp(candidate), self._chains.max_staleness(group.revision)
                    self._replayable.add(stamp, name if chain.can_replay else None)
                    outgoing += self._messages.build_kept(candidate, value, stamp, limit)
                case Drop(reason, why):
                    log.debug("group.dropped", stream=group.stream, number=group.number, reason=reason, why=why)
                    outgoing.append(self._messages.build_dropped(group, value, reason, why))
                case Replay():
                    stamp, back = self._replayable.replay(result, name)
                    outgoing += self._messages.build_replay(result, stamp, back)
        return outgoing

    def _build_dead_letter(self, message: Message, refused: MessageRefused) -> list[Outgoing]:
        self.is_last_refused = True
        return self._messages.build_dead_letter(message, refused.refusal)

    @property
    def flagged(self) -> Counter[str]:
        """Number of trajectories flagged by `repetition` and `gibberish`, also with `monitor`, by algorithm."""
        return self._chains.flagged

    def snapshot(self) -> bytes:
        """Return the state as JSON, without groups that are too old for a replay."""
        self._chains.forget_stale(self._clock)
        state = {
            "partitions": self._partitions,
            "dedupe": self._dedupe.snapshot(),
            "clock": self._clock,
            "uses": self._replayable.snapshot(self._chains.by_name()),
            **self._chains.snapshot(),
        }
        return json.dumps(state, separators=(",", ":")).encode()

    def restore(self, body: bytes) -> None:
        """Restore a snapshot. Raises ValueError for a snapshot with another number of partitions.

        Its indices would belong to other numbers. Older snapshots do not record the number of partitions.
        """
        state = json.loads(body)
        if (of := state.get("partitions", self._partitions)) != self._partitions:
            raise ValueError(
                f"the curator's snapshot was taken with {of!r:.20} partitions of the trajectories topic, but now the "
                f"topic has {self._partitions}"
            )
        self._dedupe.restore(state["dedupe"])
        self._clock = state["clock"]
        self._replayable.restore(state["uses"])
        self._chains.restore(state)
