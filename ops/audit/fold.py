"""The audit of a run as a fold over the messages of its topics, the partitions in any order. No I/O.

The order of topics matters: batches are read before curated groups, and dead letters before trajectories.

Per policy: numbers issued = trained (first use) + discarded (whole groups) + dead + in flight. Evaluations are audited
apart and are left out; replays and discarded single trajectories are counted apart. The same holds for a shadow, which
reads every number of its policy. A shadow writes no dead letters, so only tasks that no worker could read are dead.

It keeps its account, and the newest snapshot of every component.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.topic_reader import name_offset
from headrace.infra.recipe.settings import Recipe
from headrace.ledger.feeder_snapshot import NO_SNAPSHOT, FeederSnapshot, describe_unusable, read_issued
from headrace.ledger.ledger import Ledger
from headrace.ledger.plain_headers import GroupStamp, read_group_headers, read_task_headers
from headrace.ops.audit.account import RunAccount
from headrace.ops.audit.commits import CURATOR
from headrace.ops.audit.evaluations import Evaluations, read_issued_evaluations, read_positions
from headrace.ops.audit.redrives import Redrives
from headrace.ops.audit.weights_chain import ChainLink
from headrace.ops.audit.weights_events import fold_event
from headrace.schemas import codec
from headrace.schemas.avro import SchemaError
from headrace.schemas.headers import HeaderError
from headrace.schemas.records import BatchTrained, CheckpointPointer, DeadLetter, Outcome, WeightsPublished
from headrace.schemas.topics import (
    checkpoint_key,
    checkpoint_prefix,
    eval_stream,
    is_eval,
    policy_of,
    policy_variant_of,
    workflow_of,
)

EVALUATOR_KEY = b"evaluate"
"""Key of the evaluator's snapshots."""
CURATOR_KEY = CURATOR.encode()
"""Beginning of the keys of the curators' snapshots."""


class AuditFold:
    """Takes in messages, and counts their facts in its account.

    Args:
        run_id: Id of the run; records of other runs are skipped, because their consumers made them dead letters.
        recipe: The newest revision.
        revisions: All its revisions, by number; if empty, this recipe is the only one.
        ledger: An empty ledger for the rows; None for one in memory.
    """

    def __init__(
        self, run_id: str, recipe: Recipe, revisions: Sequence[Recipe] = (), ledger: Ledger | None = None
    ) -> None:
        self.run_id = run_id
        self.recipe = recipe
        self.account = RunAccount(recipe, revisions, ledger)
        self.snapshots: dict[bytes, Message] = {}
        """The newest snapshot of the evaluator and of every curator, by key."""
        self.feeder = FeederSnapshot()
        self.curated = frozenset(recipe.topics.curated(variant) for variant in recipe.policy_variants)
        """Topics of curated groups."""
        self.groups = self.curated | {recipe.topics.trajectories(policy) for policy in recipe.policies}
        """Topics of groups."""
        of_evaluations = {recipe.topics.eval_groups(policy) for policy in recipe.policies}
        of_evaluations |= {recipe.topics.tasks(eval_stream(workflow)) for workflow in recipe.workflows}
        self.redrives = Redrives(self.groups | of_evaluations)
        self.evaluations: Evaluations | None = None
        """Takes in dead letters about evaluations; None if evaluations are not audited."""
        self.schemas: dict[bytes, str] = {}
        """Fingerprints of the schemas that records are written in, with the position of the first record of each."""
        self._run_header = run_id.encode()
        self._policies = {topic: policy_of(variant) for topic, variant in self.account.variant_of_topic.items()}
        """Policy of each topic."""
        self._policies |= {recipe.topics.trajectories(policy): policy for policy in recipe.policies}
        self._takers = self._map_topics_to_folds()

    def _map_topics_to_folds(self) -> dict[str, Callable[[Message], bool]]:
        topics = self.recipe.topics
        takers: dict[str, Callable[[Message], bool]] = {
            topics.dead_letters: self._fold_dead_letter,
            topics.state: self._fold_state,
        }
        for stream in self.recipe.streams:
            takers[topics.tasks(stream)] = self._fold_task
        for variant in self.recipe.policy_variants:
            takers |= {
                topics.outcomes(variant): self._fold_outcome,
                topics.batches(variant): self._fold_batch,
                topics.weights(variant): self._fold_weights,
                topics.trajectories(variant): self._fold_trajectories,
                topics.curated(variant): self._fold_curated,
            }
        return takers

    # -------------------------------------------------------------------------------------------------------- messages

    def fold_message(self, message: Message) -> bool:
        """Take in a message of any of the run's topics; return whether it counts.

        An unreadable message does not count, nor a record of another run, nor a group that was delivered before. For
        groups and tasks only the headers are read, never the value.
        """
        taker = self._takers.get(message.topic)
        if taker is None:
            return False
        self.schemas.setdefault(message.value[2:10], name_offset(message))
        if self.redrives.expected:
            self.redrives.fold_message(message)
        try:
            return taker(message)
        except (SchemaError, HeaderError) as error:
            self.account.unread.record(message.topic, message.partition, message.offset, str(error))
            return False

    def _find_owner(self, topic: str, policy: str, variant: str | None = None) -> str:
        """Return the policy variant that owns a topic if the record's policy and variant fit it; else an empty word."""
        owner = self.account.variant_of_topic.get(topic, "")
        named = policy_of(owner) == policy if variant is None else owner == policy_variant_of(policy, variant)
        return owner if named else ""

    def _require_owner(self, topic: str, policy: str, variant: str | None = None) -> str:
        """Like `_find_owner`, but raise HeaderError for a record on the topic of another policy or shadow."""
        owner = self._find_owner(topic, policy, variant)
        if not owner:
            raise HeaderError(
                f"it is of policy {policy_variant_of(policy, variant or ''):.60}, but on the topic of another policy"
            )
        return owner

    def _fold_outcome(self, message: Message) -> bool:
        plain = codec.decode_plain(message.value, Outcome)
        if plain["run_id"] != self.run_id:
            return False
        variant = self._require_owner(message.topic, plain["policy"])
        self.account.fold_outcome(variant, plain, message)
        return True

    def _fold_batch(self, message: Message) -> bool:
        plain = codec.decode_plain(message.value, BatchTrained)
        if plain["run_id"] != self.run_id:
            return False
        variant = self._require_owner(message.topic, plain["policy"], plain["variant"])
        self.account.fold_batch(variant, plain, message)
        return True

    def _fold_dead_letter(self, message: Message) -> bool:
        try:
            dead_letter = codec.decode(message.value, DeadLetter)
        except SchemaError:
            self.account.unreadable_letters += 1  # it gets no dead letter, which would be read here again
            self.redrives.fold_dead_letter(message, None)
            return False
        if dead_letter.run_id != self.run_id:
            return False
        self.account.fold_dead_letter(dead_letter, message)
        self.redrives.fold_dead_letter(message, dead_letter)
        if self.evaluations is not None and is_eval(dead_letter.stream):
            self.evaluations.fold_dead_letter(dead_letter)
        return True

    def _fold_state(self, message: Message) -> bool:
        if self.feeder.fold_message(message):
            return True
        if message.key == EVALUATOR_KEY or message.key.startswith(CURATOR_KEY):
            self.snapshots[message.key] = message
            return True
        if not any(message.key.startswith(checkpoint_prefix(variant)) for variant in self.account.chains):
            return False
        pointer = codec.decode(message.value, CheckpointPointer)
        variant = policy_variant_of(pointer.policy, pointer.variant)
        if pointer.run_id != self.run_id or variant not in self.account.chains:
            return False
        key, where = checkpoint_key(variant, pointer.version), name_offset(message)
        if message.key != key:
            self.account.found.add_sentence(
                f"the key of checkpoint {where} is {message.key!r:.60}, but must be {key!r}"
            )
        link = ChainLink(pointer.epoch, "", pointer.weights_hash, where)
        self.account.chains[variant].fold_checkpoint(pointer.version, link)
        return True

    def _fold_weights(self, message: Message) -> bool:
        event = codec.decode(message.value, WeightsPublished)
        if event.run_id != self.run_id:
            return False
        variant = self._require_owner(message.topic, event.policy, event.variant)
        fold_event(self.account.chains[variant], event, message)
        return True

    def _fold_task(self, message: Message) -> bool:
        run_id, stream, number = read_task_headers(message)
        if run_id != self._run_header or is_eval(stream):
            return False
        # A number of a region that is lost is issued again at home.
        if message.topic not in {self.recipe.topics.tasks(one) for one in (stream, workflow_of(stream))}:
            raise HeaderError(f"it is a task of stream {stream!r:.60}, but on the topic of another stream")
        self.account.fold_task(stream, number, message)
        return True

    def _fold_trajectories(self, message: Message) -> bool:
        policy, group = self._read_checked_headers(message)
        return self.account.fold_produced(policy, group, message)

    def _fold_curated(self, message: Message) -> bool:
        policy, curated = self._read_checked_headers(message)
        self.account.fold_curated(self.account.variant_of_topic[message.topic], curated, message)
        versions = (curated.min_version, curated.max_version, curated.head_version)
        self.account.chains[policy].note_sampled(versions, (message.topic, message.partition, message.offset))
        return True

    def _read_checked_headers(self, message: Message) -> tuple[str, GroupStamp]:
        """Return the policy and the headers of a group of this run. Raises HeaderError."""
        run_id, policy, group = read_group_headers(message)
        if run_id != self._run_header:
            raise HeaderError(f"it is of run id {run_id!r:.60}, not of this run")
        if policy != self._policies[message.topic]:
            raise HeaderError(f"it is of policy {policy!r:.60}, but on the topic of another policy")
        if (own := group.number % self.recipe.kafka.partitions) != message.partition:
            raise HeaderError(f"group number {group.number} does not belong to this partition, but to partition {own}")
        return policy, group

    # ---------------------------------------------------------------------------------------------------------- the end

    def begin(self, feeder: FeederSnapshot, evaluator: Message | None = None) -> None:
        """Take in the newest snapshots of feeder and evaluator of a running run, before all other messages.

        Without a snapshot, no number was issued before: the feeder may issue the first ones while the audit reads.
        """
        known, evaluations = self.account.known, self.evaluations
        known.issued_before = {}
        if evaluations is not None:
            evaluations.issued_before, evaluations.read_before = {}, read_positions(evaluator)
        with suppress(*NO_SNAPSHOT):  # `fold_feeder_snapshot` reports it
            if (snapshot := feeder.decode()) is not None and snapshot.run_id == self.run_id:
                state = json.loads(snapshot.body)
                known.issued_before = read_issued(state)
                if evaluations is not None:
                    evaluations.issued_before = read_issued_evaluations(state)

    def fold_feeder_snapshot(self) -> None:
        """Read the feeder's newest snapshot, after all messages were taken in."""
        if (message := self.feeder.message) is None:
            return
        try:
            snapshot = self.feeder.decode()
            if snapshot is not None and snapshot.run_id != self.run_id:
                raise ValueError(f"it is of another run, with the id {snapshot.run_id!r:.60}")
            if snapshot is not None:
                self.account.fold_issued(snapshot)
        except NO_SNAPSHOT as error:
            why = describe_unusable(error)
            self.account.found.add_sentence(f"the feeder's snapshot {name_offset(message)} cannot be read: {why}")
