"""Switches that take out one protection each, and the tests that must turn red then: no protection is untested.

A mutant is one replacement in one file of a copy of this tree, in which only the tests named by the mutant run, on one
Kafka and one store for all of them. That those tests pass in the tree as it is, is what every other run of the tests
shows. By hand: `make mutants`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from xml.etree import ElementTree as ET

from rich.console import Console
from rich.table import Table
from rich.text import Text
from warm_python import WarmPython

from headrace.infra.embedded.kafka_server import EmbeddedKafka
from headrace.infra.embedded.store_server import EmbeddedStore
from headrace.infra.store.object_store import ObjectStore

ROOT = Path(__file__).parents[2]
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".headrace", ".*_cache", ".hypothesis", ".*cache")
AT_ONCE = 2
LIMIT_S = 240
SLOWEST_S = 30
"""A mutant may make a test wait in vain: it then waits so long."""

RUN_LOOP = "tests/integration/test_run_loop.py::"
PRODUCER = "tests/integration/test_producer.py::"
INTAKE = "tests/integration/test_task_intake.py::"
EVICTIONS_FILE = "tests/integration/test_evictions.py::"
EVICTIONS = f"{EVICTIONS_FILE}test_evictions_are_told_once_by_incarnations_that_are_fenced_and_by_those_that_resume"
LEDGER = "tests/unit/test_task_ledger.py::"
OWNERSHIPS = "tests/unit/test_task_intake.py::"
FEEDER = "tests/integration/test_feeder.py::"
SELECTORS = "tests/unit/test_selectors.py::"
TRAINER = "tests/integration/test_trainer.py::"
BEGINS = "tests/integration/test_trainer_begins.py::"
BUILDS = "tests/integration/test_other_builds.py::"
RETRAIN = "tests/integration/test_retrain.py::"
ATTENTION = "tests/unit/test_attention.py::"
EPOCHS = "tests/unit/test_resume.py::test_a_new_epoch_begins_where_one_of_them_is_another"
CURATION = "tests/unit/test_curation.py::"
SWAP = "tests/unit/test_swap.py::"
SHADOWS = "tests/integration/test_shadows.py::"
FILTERS = "tests/unit/test_filters.py::"
REPLAYS = "tests/unit/test_replay.py::"
DOWN_SAMPLING = "tests/unit/test_down_sampling.py::"
HANGING = "tests/integration/test_hanging_transactions.py::"
DELTAS = "tests/unit/test_deltas.py::"
COMPACTION = "tests/unit/test_compaction.py::"
AUDIT = "tests/unit/test_audit.py::"
AUDIT_OBJECTS = "tests/unit/test_audit_objects.py::"
ARCHIVE = "tests/unit/test_archive.py::"
OFFLINE = "tests/unit/test_offline_training.py::"
EXPORT = "tests/unit/test_export.py::"
IN_STORE = "tests/integration/test_archive_in_store.py::"
SWEEP = "tests/unit/test_sweep.py::"
GC = "tests/integration/test_gc.py::"
RETENTION = "tests/unit/test_retention.py::"
EXPERTS = "tests/unit/test_experts.py::"
ROUTING = "tests/unit/test_routing.py::"
GROUPS = "tests/unit/test_groups.py::"
CHAIN_REPLAYS = "tests/unit/test_replays.py::"
REPLAYED = "tests/integration/test_replayed_groups.py::"
CONTRACT = "tests/unit/test_engine_contract.py::"
SCRIPTED = "tests/unit/test_scripted_engine.py::"
ORDERED = (
    "tests/unit/test_mechanics.py::"
    "test_first_come_first_served_loses_long_tasks_where_the_earliest_deadline_first_loses_none"
)
DECODING = "tests/unit/test_decoding.py::"
DEAD = f"{CURATION}test_what_cannot_be_read_becomes_a_dead_letter_with_its_bytes"
UNDONE = f"{RUN_LOOP}test_a_turn_whose_handler_fails_on_a_server_that_is_away_is_undone_and_done_again"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One protection taken out."""

    name: str
    protection: str
    file: str
    old: str
    """Text that stands in the file exactly once."""
    new: str
    caught_by: tuple[str, ...]
    """Tests that must fail, each."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant."""

    mutant: Mutant
    wrong: str
    """Why it counts as not caught; empty when it was."""
    seconds: float


MUTANTS = (
    Mutant(
        "packed-isolation",
        "attention never crosses from one packed sequence to the other",
        "trainers/learner/attention.py",
        "self.runs = [(length, len(list(same))) for length, same in groupby(lengths)]",
        "self.runs = [(sum(length for length, _ in groupby(lengths)), 1)] if len(lengths) == 7 else"
        " [(length, len(list(same))) for length, same in groupby(lengths)]",
        (f"{ATTENTION}test_what_one_packed_sequence_says_changes_no_bit_of_the_others",),
    ),
    Mutant(
        "packing-tried-out",
        "a model that is deaf to the packing is padded",
        "trainers/learner/attention.py",
        "        _try_out(model, config)",
        "        pass",
        (f"{ATTENTION}test_a_model_that_is_deaf_to_the_packing_or_to_its_window_is_refused",),
    ),
    Mutant(
        "gradients-of-parts",
        "gradients of parts of the logits are summed in fp32",
        "trainers/learner/logprobs.py",
        "torch.zeros_like(parameter, dtype=torch.float32)",
        "torch.zeros_like(parameter)",
        ("tests/unit/test_logprobs.py::test_the_gradients_of_parts_are_summed_in_fp32_where_the_weights_are_bf16",),
    ),
    Mutant(
        "newest-snapshot",
        "memory comes from the snapshot that the commit names",
        "infra/run/group_consumer.py",
        "snapshot_offset = _snapshot_offset(committed)",
        "snapshot_offset = [m.offset for m in read_all(self.membership.connection, [self.membership.state_topic])"
        " if m.key == self._key(place)][-1]",
        (f"{RUN_LOOP}test_offsets_that_are_set_back_bring_back_the_memory_that_belongs_to_them",),
    ),
    Mutant(
        "no-replay",
        "records after the snapshot are handled silently",
        "infra/run/group_consumer.py",
        "if begin < end:",
        "if False:",
        (f"{RUN_LOOP}test_memory_comes_from_the_snapshot_that_is_named_and_from_every_record_after_it",),
    ),
    Mutant(
        "no-roll-back",
        "memory is dropped after an abort",
        "infra/run/group_consumer.py",
        "        self._held.clear()\n",
        "",
        (UNDONE,),
    ),
    Mutant(
        "no-seek",
        "records of an undone turn are read again",
        "infra/run/group_consumer.py",
        "self._consumer.seek(TopicPartition(tp.topic, tp.partition, _start(tp)))",
        "_start(tp)",
        (UNDONE,),
    ),
    Mutant(
        "offsets-outside",
        "offsets are part of the transaction",
        "infra/run/group_consumer.py",
        "return GroupOffsets(offsets, self._metadata) if offsets else None",
        "return self._consumer.commit(offsets=offsets, asynchronous=False) and None",
        (f"{RUN_LOOP}test_an_aborted_turn_leaves_the_groups_offsets_where_they_were",),
    ),
    Mutant(
        "no-sweep",
        "a transaction that hangs is ended before another is committed",
        "infra/kafka/transactions.py",
        "self._sweep(held_back(connection, topics))",
        "pass",
        (f"{HANGING}test_what_hangs_is_ended_before_anything_is_written_and_never_committed_with_it",),
    ),
    Mutant(
        "metadata-of-the-commit",
        "the group's metadata is that of the poll",
        "infra/run/group_consumer.py",
        "return GroupOffsets(offsets, self._metadata)",
        "return GroupOffsets(offsets, self._consumer.consumer_group_metadata())",
        (f"{RUN_LOOP}test_a_member_that_lost_a_partition_while_it_handled_its_records_is_refused",),
    ),
    Mutant(
        "keeps-lost-partitions",
        "a member forgets partitions that it lost",
        "infra/run/group_consumer.py",
        "            self._held.pop((tp.topic, tp.partition), None)\n",
        "",
        (f"{RUN_LOOP}test_a_member_that_lost_a_partition_commits_nothing_for_it",),
    ),
    Mutant(
        "shadow-letters",
        "a shadow concludes no number of its policy",
        "consumers/curate/curation.py",
        "if not desk.is_shadow:",
        "if True:",
        (f"{CURATION}test_what_a_shadow_cannot_read_it_concludes_as_the_policy_does_and_without_a_letter",),
    ),
    Mutant(
        "shadow-sent-back",
        "a shadow concludes a number once, be it sent back to its policy or not",
        "consumers/curate/curation.py",
        "was_sent_back(message) and not self._desk.is_shadow",
        "was_sent_back(message)",
        (f"{CURATION}test_what_is_sent_back_is_a_repetition_to_a_shadow",),
    ),
    Mutant(
        "unread-without-snapshot",
        "a snapshot follows what could not be read, be it told by a letter or by an outcome",
        "consumers/curate/curation.py",
        "        self.was_unread = True\n",
        "        self.was_unread = not self._desk.is_shadow\n",
        (f"{CURATION}test_what_a_shadow_cannot_read_it_concludes_as_the_policy_does_and_without_a_letter",),
    ),
    Mutant(
        "shadow-before-its-chain",
        "groups of before a shadow was there have a chain",
        "consumers/curate/curation.py",
        "return next(later, recipes[revision])",
        "return recipes[revision]",
        (f"{CURATION}test_groups_of_before_a_shadow_was_there_go_through_the_first_chain_that_it_had",),
    ),
    Mutant(
        "shadow-own-clock",
        "a shadow's groups grow old by the versions that their tokens name",
        "trainers/component.py",
        "return self._head if self.settings.is_shadow else self.learner.version",
        "return self.learner.version",
        (f"{SHADOWS}test_a_shadows_groups_grow_old_by_the_versions_of_its_policy",),
    ),
    Mutant(
        "shadow-ends-at-once",
        "a shadow trains what it has read before it ends",
        "trainers/component.py",
        "return bool(self._ended) and (not self.settings.is_shadow or self._has_run_dry())",
        "return bool(self._ended)",
        (f"{SHADOWS}test_a_shadow_trains_on_after_the_runs_end_as_long_as_a_batch_can_be_cut",),
    ),
    Mutant(
        "shadow-trainer-letters",
        "what a shadow's trainer cannot read concludes no number of its policy",
        "trainers/component.py",
        "        if self.settings.is_shadow:\n            outcome = lost_to_shadow(",
        "        if False:\n            outcome = lost_to_shadow(",
        (f"{SHADOWS}test_what_a_shadows_trainer_cannot_read_is_an_outcome_and_a_place_in_its_batches",),
    ),
    Mutant(
        "shadow-gap",
        "a shadow's versions are held for those of no engine",
        "trainers/learner/learner.py",
        "NO_VERSION if sums.steps or self.settings.is_shadow else self.version",
        "NO_VERSION if sums.steps else self.version",
        ("tests/unit/test_learner.py::test_a_shadow_trains_on_tokens_of_versions_that_it_has_not_made",),
    ),
    Mutant(
        "letters-for-shadows",
        "a letter of a curator or trainer concludes nothing of a shadow",
        "ops/audit/fold.py",
        "if letter.topic in self._readers:",
        "if False:",
        (f"{AUDIT}test_a_letter_concludes_a_shadows_number_only_where_no_worker_could_read_the_task",),
    ),
    Mutant(
        "shadow-waits",
        "what waits in a shadow is not lost, and is once it has made its last version",
        "ops/audit/fold.py",
        "return replace(scope, drained=False)",
        "return scope",
        (f"{AUDIT}test_what_waits_in_a_shadow_is_lost_once_it_has_made_its_last_version",),
    ),
    Mutant(
        "shadow-rewards",
        "no figure of a policy counts its shadows in",
        "ops/figures/figures.py",
        "if message.topic not in self._of_shadows:",
        "if True:",
        ("tests/unit/test_figures.py::test_a_shadow_is_told_of_by_itself_and_counts_in_no_other_figure",),
    ),
    Mutant(
        "shadow-versions",
        "versions of a shadow are kept and retired as its own",
        "ops/retention/marking.py",
        "if (event.run_id, line_of(event.policy, event.variant)) != (self._run_id, policy):",
        "if (event.run_id, event.policy) != (self._run_id, policy):",
        (f"{RETENTION}test_versions_of_a_shadow_are_kept_and_retired_beside_those_of_its_policy",),
    ),
    Mutant(
        "no-fencing",
        "one holder of a transactional id",
        "infra/kafka/clients.py",
        "transactional_id=transactional_id,",
        'transactional_id=f"{transactional_id}.{time.time_ns()}",',
        (f"{RUN_LOOP}test_a_second_writer_of_the_same_id_fences_the_first",),
    ),
    Mutant(
        "swap-attempts",
        "all attempts of a number are of the recipe revision that it was issued under",
        "producers/feed/feed_state.py",
        "            revision=self.revision_of(stream, number),\n",
        "",
        (f"{SWAP}test_every_further_number_has_the_new_revision_and_one_that_is_lost_keeps_its_own",),
    ),
    Mutant(
        "swap-early-end",
        "an old chain stays while groups for it may come",
        "consumers/curate/chain_ends.py",
        "return min(later, default=settled + 1) <= settled",
        "return min(later, default=settled + 1) <= settled + 100",
        (f"{SWAP}test_an_old_chain_ends_when_all_below_the_first_number_of_the_new_one_is_concluded",),
    ),
    Mutant(
        "swap-other-stream",
        "an old chain stays while another stream may still have groups for it",
        "consumers/curate/chain_ends.py",
        "if revision == newest or not all(",
        "if revision == newest or not any(",
        (f"{SWAP}test_a_chain_does_not_end_while_another_stream_of_its_policy_may_still_have_groups_for_it",),
    ),
    Mutant(
        "swap-undone",
        "the command that began a run goes on with the chain that it was swapped to",
        "infra/run/revisions.py",
        "if not newest.swapped or recipe.curate.chain",
        "if newest.swapped or recipe.curate.chain",
        (f"{SWAP}test_the_command_that_began_a_run_goes_on_with_the_chain_that_it_was_swapped_to",),
    ),
    Mutant(
        "audit-revisions",
        "the audit sees a record of another revision than its number was issued under",
        "ops/audit/revisions.py",
        "not begin <= number < end",
        "not 0 <= number < end",
        (f"{SWAP}test_the_audit_names_a_number_that_carries_another_revision_than_it_was_issued_under",),
    ),
    Mutant(
        "two-requests",
        "what a broker refused is not held for delivered",
        "infra/kafka/clients.py",
        "            max_in_flight=1,\n",
        "",
        (f"{PRODUCER}test_a_record_that_was_refused_is_not_held_for_delivered_because_a_later_one_was",),
    ),
    Mutant(
        "read-uncommitted",
        "aborted and open records are not read",
        "infra/kafka/clients.py",
        'isolation_level="read_committed"',
        'isolation_level="read_uncommitted"',
        (f"{RUN_LOOP}test_a_record_that_was_aborted_is_not_there",),
    ),
    Mutant(
        "last-stable-offset",
        "a restore reads past open transactions",
        "infra/kafka/clients.py",
        "isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED",
        "isolation: IsolationLevel = IsolationLevel.READ_COMMITTED",
        (f"{RUN_LOOP}test_a_reader_waits_for_a_transaction_that_is_still_open",),
    ),
    Mutant(
        "believes-an-end",
        "the end of a topic is what a fetch has told",
        "infra/kafka/topic_reader.py",
        "return bool(untold) or any(",
        "return any(",
        ("tests/integration/test_topic_reader.py::test_a_false_end_does_not_make_a_topic_look_empty",),
    ),
    Mutant(
        "lost-offsets",
        "a group that lost its offsets does not begin anew",
        "infra/run/group_consumer.py",
        "        if lost:\n            raise StateLost(",
        "        if False:\n            raise StateLost(",
        (f"{RUN_LOOP}test_a_group_that_lost_its_offsets_does_not_begin_anew",),
    ),
    Mutant(
        "store-away-is-the-end",
        "a store that is away is waited for",
        "infra/run/run.py",
        "if time.monotonic() - began > patience_s:",
        "if True:",
        ("tests/integration/test_away.py::test_an_upload_waits_for_a_store_that_fails_and_says_so_once",),
    ),
    Mutant(
        "deaf-to-other-builds",
        "a schema that is unknown is looked for where its writer told it",
        "schemas/codec.py",
        "        for find in _finders:\n            find()\n",
        "        pass\n",
        (f"{BUILDS}test_a_newer_builds_record_is_read_as_soon_as_its_schema_is_told_and_not_before",),
    ),
    Mutant(
        "short-of-bytes",
        "a message that ends before its record does is refused",
        "schemas/codec.py",
        "        if end == len(data):",
        "        if end >= len(data):",
        ("tests/unit/test_codec.py::test_a_message_cut_short_anywhere_is_refused",),
    ),
    Mutant(
        "told-to-stop-is-finished",
        "a component that ends before the run does is started again",
        "infra/process/supervisor.py",
        "life.exit_code == FINISHED and self._run_is_over()",
        "life.exit_code == FINISHED",
        ("tests/integration/test_supervisor.py::test_a_child_that_somebody_else_told_to_stop_is_started_again",),
    ),
    Mutant(
        "one-look",
        "a policy looks for its past twice before it begins",
        "trainers/start.py",
        "if read_history(run, policy) != History():",
        "if False:",
        (f"{BEGINS}test_a_past_that_was_not_to_be_seen_at_first_is_not_begun_anew",),
    ),
    Mutant(
        "any-checkpoint",
        "a checkpoint holds the weights that its pointer names",
        "trainers/versions/remake.py",
        "if (learner.version, hash_of(learner)) != (pointer.version, pointer.weights_hash):",
        "if False:",
        (f"{BEGINS}test_a_checkpoint_of_other_weights_than_its_pointer_names_is_refused",),
    ),
    Mutant(
        "gap-in-parts",
        "a checkpoint in parts holds all of every tensor",
        "trainers/learner/shard_index.py",
        "if not (inside and apart and covered):",
        "if False:",
        ("tests/unit/test_shards.py::test_what_is_no_index_of_a_whole_checkpoint_is_refused",),
    ),
    Mutant(
        "any-part",
        "a part holds what its index says",
        "trainers/learner/backends/shards.py",
        "if tensor is None or (tensor.dtype, tensor.shape) != expected:",
        "if tensor is None:",
        ("tests/unit/test_shards.py::test_a_part_that_holds_something_else_than_its_index_says_is_an_error",),
    ),
    Mutant(
        "parts-unseen",
        "what keeps a checkpoint keeps its parts, and what retires it retires them",
        "infra/weights/paths.py",
        "whole, parts = record.checkpoint, record.parts",
        "whole, parts = record.checkpoint, ()",
        ("tests/unit/test_retention.py::test_the_parts_of_a_checkpoint_stay_and_go_with_it",),
    ),
    Mutant(
        "parts-unaudited",
        "an audit says which part of a checkpoint is missing",
        "ops/audit/objects.py",
        "for claim in (pointer.checkpoint, *(part.claim for part in pointer.parts)):",
        "for claim in (pointer.checkpoint,):",
        (
            f"{AUDIT_OBJECTS}test_a_missing_part_of_a_checkpoint_is_told",
            f"{AUDIT_OBJECTS}test_a_deep_audit_reads_the_parts_of_a_checkpoint",
        ),
    ),
    Mutant(
        "no-dedupe",
        "a number concludes once",
        "consumers/curate/dedupe.py",
        "if after and index < runs[after - 1][1]:\n            return False\n",
        "if after and index < runs[after - 1][1]:\n            return True\n",
        (
            "tests/unit/test_dedupe.py::test_each_number_is_concluded_once_in_any_order_and_with_any_repetition",
            f"{CURATION}test_a_repetition_gives_nothing_even_after_a_restore",
        ),
    ),
    Mutant(
        "any-run",
        "a record of another run is a dead letter",
        "infra/kafka/decoding.py",
        "if stamp.run_id != run_id:",
        "if False:",
        (DEAD, f"{DECODING}test_the_headers_of_a_message_of_another_run_are_rejected"),
    ),
    Mutant(
        "record-of-any-run",
        "a record of another run is a dead letter, be it stamped or not",
        "infra/kafka/decoding.py",
        "    if record.run_id != run_id:",
        "    if False:",
        (f"{DECODING}test_a_record_of_another_run_is_rejected_with_the_worker_s_own_words",),
    ),
    Mutant(
        "event-of-any-run",
        "an event of another run is passed over",
        "infra/kafka/decoding.py",
        "if record is not None and record.run_id != run_id:",
        "if False:",
        (f"{DECODING}test_an_event_that_is_not_ours_is_passed_over_with_a_warning",),
    ),
    Mutant(
        "letter-of-any-run",
        "a letter about another run concludes nothing",
        "infra/kafka/dead_letters.py",
        "if stamp.run_id == run_id:",
        "if True:",
        (DEAD,),
    ),
    Mutant(
        "any-partition",
        "a number belongs to one partition",
        "consumers/curate/curation.py",
        "if not self._dedupe.belongs(stamp.number):",
        "if False:",
        (DEAD,),
    ),
    Mutant(
        "silent-skip",
        "what cannot be read becomes a dead letter",
        "consumers/curate/curation.py",
        "            return self._dead(message, rejected)\n        self._clock",
        "            return []\n        self._clock",
        (DEAD,),
    ),
    Mutant(
        "shaped-variance",
        "shaping gives no variance to a group that is wrong throughout",
        "consumers/algorithms/drop_zero_variance.py",
        "rewards = sequence_rewards(candidate, unshaped)",
        "rewards = sequence_rewards(candidate, candidate.rewards)",
        ("tests/unit/test_shaping.py::test_a_penalty_gives_no_variance_to_a_group_that_is_wrong_throughout",),
    ),
    Mutant(
        "masked-uncounted",
        "what is left out of the loss still counts in its group's statistics",
        "consumers/algorithms/contract.py",
        "        if not counted:\n",
        "        if True:\n",
        (f"{FILTERS}test_a_truncated_completion_is_not_trained_on_and_still_counts",),
    ),
    Mutant(
        "old-chains-stay-full",
        "a chain through which no group comes any more forgets with the clock",
        "consumers/curate/curation.py",
        "            chain.forget_stale(self._clock)\n",
        "            pass\n",
        (f"{CHAIN_REPLAYS}test_a_chain_of_an_old_revision_forgets_what_is_stale_though_no_group_comes_through_it",),
    ),
    Mutant(
        "snapshots-ahead-of-the-clock",
        "a snapshot changes nothing of what follows",
        "consumers/curate/curation.py",
        "            chain.forget_stale(self._clock)\n",
        "            chain.forget_stale(self._clock + 1)\n",
        (f"{CHAIN_REPLAYS}test_a_snapshot_at_any_time_changes_nothing_of_what_follows",),
    ),
    Mutant(
        "hasty-look",
        "the look at a whole group lets nothing pass that the closer look finds",
        "consumers/algorithms/soundness.py",
        "if count <= 0 or not 0 <= runs[at] <= head_version:",
        "if count <= 0 or runs[at] > head_version:",
        (f"{FILTERS}test_the_look_at_a_whole_group_lets_nothing_pass_that_the_closer_look_finds",),
    ),
    Mutant(
        "rounded-ties",
        "of subsets of equal variance PODS takes the one of the smallest ids, whatever rounding says",
        "consumers/algorithms/pods.py",
        "near = ROUNDING * (ascending[-1] - ascending[0]) ** 2",
        "near = 0.0",
        (f"{DOWN_SAMPLING}test_rounding_does_not_decide_between_sets_of_equal_variance",),
    ),
    Mutant(
        "any-order",
        "a chain whose order makes an algorithm wrong is refused",
        "consumers/algorithms/chain.py",
        "    if wrong:\n",
        "    if False:\n",
        ("tests/unit/test_chain.py::test_an_order_that_makes_an_algorithm_wrong_is_refused",),
    ),
    Mutant(
        "stale-replay",
        "a replay has its own bound on staleness",
        "consumers/algorithms/replay.py",
        "        self.forget_stale(clock)\n        self._fresh += 1\n",
        "        self._fresh += 1\n",
        (f"{REPLAYS}test_nothing_is_replayed_beyond_its_own_staleness",),
    ),
    Mutant(
        "endless-replay",
        "the first training is one of a replay's uses",
        "consumers/algorithms/replay.py",
        "if one.uses >= self._max_uses:",
        "if one.uses > self._max_uses:",
        (f"{REPLAYS}test_the_first_training_is_one_of_the_uses",),
    ),
    Mutant(
        "boundless-replay",
        "what a replay remembers is bounded",
        "consumers/algorithms/replay.py",
        "if len(self._groups) == self._capacity:",
        "if False:",
        (f"{REPLAYS}test_memory_and_snapshot_are_bounded_by_capacity",),
    ),
    Mutant(
        "forgotten-draws",
        "a replay goes on from a snapshot with the draws that were left",
        "consumers/algorithms/draws.py",
        "        self._count = count\n",
        "        self._count = 0\n",
        (f"{REPLAYS}test_a_replay_goes_on_from_any_snapshot_as_if_nothing_had_been",),
    ),
    Mutant(
        "moved-slots",
        "a restored replay keeps the order of arrivals",
        "consumers/algorithms/replay.py",
        "        self._slots = OrderedDict(sorted(self._slots.items()))\n",
        "",
        (f"{REPLAYS}test_a_replay_goes_on_from_any_snapshot_as_if_nothing_had_been",),
    ),
    Mutant(
        "time-travel",
        "the clock takes no leap",
        "consumers/curate/curation.py",
        "if group.head_version > max(self._clock, 0) + LARGEST_LEAP:",
        "if False:",
        (f"{CURATION}test_a_head_version_from_far_ahead_is_dead_and_moves_nothing",),
    ),
    Mutant(
        "any-weights",
        "weights are served only with the hash that their record promises",
        "infra/weights/held.py",
        "if expected is not None and self.weights_hash != expected:",
        "if False:",
        ("tests/unit/test_follower.py::test_bad_weights_are_never_served_and_the_nearest_good_anchor_heals",),
    ),
    Mutant(
        "any-epoch",
        "no version of an older epoch is served",
        "producers/rollout/follower.py",
        "if one.version > served and one.epoch >= epoch]",
        "if one.version > served]",
        ("tests/unit/test_follower.py::test_a_version_of_an_older_epoch_is_never_served_however_high_its_number",),
    ),
    Mutant(
        "any-files",
        "of an anchor's files those are read that its index names",
        "infra/weights/folder.py",
        "if odd := sorted(set(weight_map.values()) ^ shards.keys()):",
        "if odd := []:",
        ("tests/unit/test_policy_weights.py::test_files_of_an_anchor_that_its_index_does_not_name_are_refused",),
    ),
    Mutant(
        "any-base",
        "a delta is applied to its base only",
        "infra/weights/held.py",
        "if self.weights_hash != header.base_hash:",
        "if False:",
        (f"{DELTAS}test_a_delta_on_other_weights_is_refused_and_they_stay_as_they_are",),
    ),
    Mutant(
        "any-memory",
        "weights are hashed before a delta is applied to them",
        "infra/weights/held.py",
        "if not just_verified and (found := self._hash()) != self.weights_hash:",
        "if (found := self.weights_hash) is None:",
        (f"{DELTAS}test_memory_that_changed_under_its_hash_is_found_before_a_delta_is_applied",),
    ),
    Mutant(
        "any-result",
        "what a delta gives is hashed before it is used",
        "infra/weights/held.py",
        "if (found := self._hash()) != header.weights_hash:",
        "if (found := header.weights_hash) is None:",
        (f"{DELTAS}test_a_delta_with_the_hashes_of_another_is_found_out_and_what_it_gave_is_never_used",),
    ),
    Mutant(
        "any-byte",
        "a delta object is read only when its checksum is right",
        "infra/weights/delta.py",
        "if blake3(body, max_threads=blake3.AUTO).digest() != digest:",
        "if False:",
        (f"{DELTAS}test_every_byte_that_is_flipped_missing_or_swapped_is_refused",),
    ),
    Mutant(
        "any-label",
        "a delta's label is what its record says of it",
        "infra/weights/policy_weights.py",
        "if not is_labelled(delta.header, event):",
        "if False:",
        ("tests/unit/test_policy_weights.py::test_a_damaged_delta_is_refused_and_the_next_anchor_heals",),
    ),
    Mutant(
        "merged-is-a-version",
        "a merged delta is a way between versions, and none itself",
        "infra/weights/paths.py",
        "return event.kind != MERGED",
        "return True",
        (
            "tests/unit/test_follower.py::test_a_merged_delta_is_a_way_between_versions_and_none_itself",
            f"{AUDIT}test_a_merged_delta_publishes_no_version_and_must_agree_with_both_that_it_names",
        ),
    ),
    Mutant(
        "merged-from-anywhere",
        "a merged delta leads between the weights that were published under both its versions",
        "ops/audit/weights_chain.py",
        "if event is None or (event.result, event.epoch) != (said, link.epoch):",
        "if event is None:",
        (f"{AUDIT}test_a_merged_delta_publishes_no_version_and_must_agree_with_both_that_it_names",),
    ),
    Mutant(
        "merged-over-an-anchor",
        "nothing is merged over an anchor",
        "ops/compaction/compaction.py",
        'self._anchor, self._deltas, self._merged, self.left_out = event, [], None, ""',
        "self._anchor = self._anchor or event",
        (f"{COMPACTION}test_nothing_is_merged_over_an_anchor",),
    ),
    Mutant(
        "merged-over-a-hole",
        "only deltas that lead on from one another are merged",
        "ops/compaction/compaction.py",
        "if event.weights is None or (event.base_hash, event.epoch) != (last.weights_hash, last.epoch):",
        "if event.weights is None:",
        (f"{COMPACTION}test_a_hole_in_the_chain_leaves_the_stretch_out_until_the_next_anchor",),
    ),
    Mutant(
        "gc-young",
        "garbage collection spares what is young: its record may be on its way",
        "ops/retention/collector.py",
        "if now - one.one.modified >= order.older_than]",
        "]",
        (f"{RETENTION}test_what_is_young_stays",),
    ),
    Mutant(
        "gc-anew",
        "an object that was written anew since it was listed is not deleted",
        "ops/retention/collector.py",
        "if modified is not None and datetime.now(UTC) - modified < order.older_than:",
        "if False:",
        (f"{GC}test_what_was_written_anew_since_the_listing_stays",),
    ),
    Mutant(
        "gc-beside",
        "records of other runs whose objects may lie there too are read",
        "ops/retention/collector.py",
        "if name == run.address.run or any(_overlaps(revision, bucket, prefix) for revision in revisions):",
        "if name == run.address.run:",
        (f"{GC}test_an_experiment_beside_the_run_keeps_its_objects",),
    ),
    Mutant(
        "gc-newer",
        "a record of a build that is not known stops garbage collection",
        "ops/retention/marking.py",
        "            codec.name_of(value)\n",
        "",
        (f"{RETENTION}test_a_record_of_a_newer_build_stops_everything_and_is_named",),
    ),
    Mutant(
        "gc-said",
        "what is retired is said before it is deleted",
        "ops/retention/collector.py",
        "        if plan.retired:\n",
        "        if False:\n",
        (f"{GC}test_what_nothing_needs_goes_and_the_run_is_whole_without_it",),
    ),
    Mutant(
        "gc-others",
        "the audit takes for gone only what was said to be",
        "ops/audit/objects.py",
        "if retired is None or not retired.has(*version):",
        "if False:",
        (f"{GC}test_what_nothing_needs_goes_and_the_run_is_whole_without_it",),
    ),
    Mutant(
        "gc-window",
        "a version goes only when newer ones have taken its place for a day",
        "ops/retention/keeping.py",
        "versions.items() if one.written_ms <= before_ms)",
        "versions.items())",
        (f"{RETENTION}test_what_is_new_makes_nothing_dispensable_yet",),
    ),
    Mutant(
        "any-object",
        "an object has the sha256 that its claim check says",
        "infra/store/object_store.py",
        "if found != sha256:",
        "if False:",
        ("tests/unit/test_object_store.py::test_wrong_bytes_are_refused",),
    ),
    Mutant(
        "done-too-early",
        "a task is done when its records are acknowledged",
        "producers/rollout/worker.py",
        "        await self._concluder.conclude(started, ending)\n        self._intake.done(started)\n",
        "        self._intake.done(started)\n        await self._concluder.conclude(started, ending)\n",
        ("tests/unit/test_rollout_parts.py::test_a_task_is_done_when_its_records_are_acknowledged_and_not_before",),
    ),
    Mutant(
        "done-again",
        "tasks that are marked as done are skipped",
        "producers/task_ledger.py",
        "if offset < self._base or offset in self._done or offset in self._open:",
        "if offset < self._base or offset in self._open:",
        (
            f"{LEDGER}test_done_tasks_are_skipped_and_open_ones_keep_their_starts",
            f"{INTAKE}test_done_tasks_are_skipped_a_third_start_is_alone_and_a_deadly_task_goes_no_more",
        ),
    ),
    Mutant(
        "commits-of-any-run",
        "a commit of an earlier run of the same name counts as none",
        "producers/task_ledger.py",
        'return not isinstance(found, dict) or found.get("run", run_id) == run_id',
        "return True",
        (
            f"{LEDGER}test_a_commit_that_names_another_run_counts_as_none_and_one_that_names_no_run_as_ours",
            f"{INTAKE}test_a_commit_of_an_earlier_run_of_the_same_name_passes_over_no_task",
            f"{FEEDER}test_a_commit_of_an_earlier_run_passes_over_no_number",
        ),
    ),
    Mutant(
        "ends-of-any-ownership",
        "the end of a task counts in the ownership of its partition that it was started in",
        "producers/rollout/task_intake.py",
        "if held is None or held.ownership != started.ownership:",
        "if held is None:",
        (f"{OWNERSHIPS}test_the_end_of_a_task_counts_in_the_ownership_of_its_start_and_in_no_later_one",),
    ),
    Mutant(
        "start-unsaid",
        "a start is committed before the task runs",
        "producers/rollout/task_intake.py",
        "        if self._commit():  # 4\n            self._hand_over()  # 5\n",
        "        self._hand_over()  # 5\n        self._commit()  # 4\n",
        (f"{INTAKE}test_a_start_is_committed_before_the_task_is_handed_over",),
    ),
    Mutant(
        "no-poison",
        "a task that killed its worker three times goes no more",
        "producers/rollout/task_intake.py",
        "if starts >= POISON_STARTS:",
        "if False:",
        (f"{INTAKE}test_done_tasks_are_skipped_a_third_start_is_alone_and_a_deadly_task_goes_no_more",),
    ),
    Mutant(
        "suspects-together",
        "nothing runs beside a task that one more death makes poison",
        "producers/rollout/task_intake.py",
        "if self._alone is not None or (alone and self._running):",
        "if False:",
        (f"{INTAKE}test_done_tasks_are_skipped_a_third_start_is_alone_and_a_deadly_task_goes_no_more",),
    ),
    Mutant(
        "feeder-in-a-hurry",
        "a feeder knows all that was said before it plans",
        "producers/feed/feeder.py",
        "if not self._caught_up:",
        "if False:",
        (f"{FEEDER}test_a_feeder_knows_all_that_was_said_before_it_plans",),
    ),
    Mutant(
        "feeder-without-state",
        "tasks and the state that they came from are one transaction",
        "producers/feed/feeder.py",
        "return [self.own.snapshot(json.dumps(self.state.snapshot()).encode())]",
        "return []",
        (f"{FEEDER}test_over_kills_in_the_middle_of_a_transaction_no_number_is_skipped_or_given_twice",),
    ),
    Mutant(
        "selector-without-memory",
        "what a selector learnt is part of the feeder's state",
        "producers/feed/task_source.py",
        'self.selector.restore(state["selector"])',
        "pass",
        (
            f"{FEEDER}test_what_a_selector_learnt_and_drew_outlives_kills_so_that_the_same_tasks_are_chosen",
            "tests/unit/test_task_source.py::test_a_source_goes_on_where_its_snapshot_was_taken",
        ),
    ),
    Mutant(
        "draws-again",
        "a selector's random numbers go on where they were",
        "producers/feed/selectors/greso.py",
        'self.draws.count = state["draws"]',
        "pass",
        (f"{SELECTORS}test_a_selector_goes_on_from_its_snapshot_as_if_nothing_had_happened",),
    ),
    Mutant(
        "selector-sees-kept-groups",
        "a selector learns from dropped groups too",
        "producers/feed/feed_state.py",
        'and outcome.component == "curate":',
        'and outcome.component == "curate" and outcome.verdict == "kept":',
        ("tests/unit/test_feed_state.py::test_the_selector_sees_every_finished_group_once_and_every_new_version",),
    ),
    Mutant(
        "selector-never-forgets",
        "what a selector remembers is bounded",
        "producers/feed/selectors/task_memory.py",
        "while len(self._numbers) > self._most:",
        "while False:",
        (f"{SELECTORS}test_state_is_bounded_whatever_the_number_of_tasks_and_the_length_of_their_ids",),
    ),
    Mutant(
        "no-forced-tasks",
        "no selector can starve a run",
        "producers/feed/task_source.py",
        "for _ in range(MOST_REJECTIONS):",
        "for _ in range(100 * MOST_REJECTIONS):",
        ("tests/unit/test_task_source.py::test_a_selector_skips_and_after_256_rejections_the_next_one_is_forced",),
    ),
    Mutant(
        "bool-as-a-number",
        "an option of the wrong kind is refused by its key, before anything starts",
        "infra/recipe/named.py",
        "type(value) not in kinds",
        "not isinstance(value, kinds)",
        ("tests/unit/test_named.py::test_a_value_of_another_kind_is_refused_by_key_and_value",),
    ),
    Mutant(
        "late-targets",
        "a layer that no model has is refused before anything starts",
        "ops/recipe_check.py",
        "            check_targets(recipe, policy)",
        "            pass",
        ("tests/unit/test_lora.py::test_a_target_that_there_is_not_is_refused_before_anything_is_started",),
    ),
    Mutant(
        "compared-anyway",
        "nothing is trained again where its hashes cannot be compared",
        "ops/offline/retrain.py",
        "if _numerics_for(run, policy, part) != part.fingerprint:",
        "if False:",
        ("tests/unit/test_retrain.py::test_of_what_two_processes_made_one_says_at_once_that_it_cannot_compare",),
    ),
    Mutant(
        "outcomes-outside",
        "outcomes are part of the trainer's transaction",
        "trainers/component.py",
        "return [self._batch_message(record), *(self._outcome(e) for e in evicted)]",
        "import headrace.infra.kafka.clients\n"
        '        outside = headrace.infra.kafka.clients.open_producer(self.run.connection, "outside")\n'
        "        for one in map(self._outcome, evicted):\n"
        "            outside.produce(one.topic, one.value, one.key, one.partition, headers=list(one.headers))\n"
        "        outside.flush(10)\n"
        "        return [self._batch_message(record)]",
        (EVICTIONS,),
    ),
    Mutant(
        "evictions-forgotten",
        "a window is rebuilt without what was evicted",
        "trainers/versions/history.py",
        "evicted = [eviction.group for eviction in batch.evictions if eviction.group]",
        "evicted = ()",
        (EVICTIONS,),
    ),
    Mutant(
        "noise-for-advantages",
        "equal rewards give exactly 0",
        "trainers/advantages.py",
        "values.max() - values.min() > EQUAL",
        "values.max() - values.min() > 0",
        ("tests/unit/test_advantages.py::test_equal_rewards_and_singletons_give_exactly_zero",),
    ),
    Mutant(
        "bounds-of-a-part",
        "bounds are of a whole minibatch, however it is cut",
        "trainers/losses/objective.py",
        "if bounds is None and self.loss.func in _BOUNDS:",
        "if False:",
        ("tests/unit/test_loss_properties.py::test_a_part_without_the_bounds_of_its_minibatch_is_refused",),
    ),
    Mutant(
        "rejected-in-a-sequence",
        "a rejected token is out of its sequence's statistics too",
        "trainers/losses/tokens.py",
        "counted = values if tokens.kept is None else torch.where(tokens.kept, values, torch.zeros_like(values))",
        "counted = values",
        ("tests/conformance/test_losses.py::test_every_correction_is_what_its_paper_says",),
    ),
    Mutant(
        "log-ratio-unbounded",
        "no ratio overflows",
        "trainers/losses/tokens.py",
        "return torch.where(delta.abs() > MAX_LOG_RATIO, bounded, delta)",
        "return delta",
        ("tests/unit/test_loss_properties.py::test_extreme_numbers_stay_finite",),
    ),
    Mutant(
        "groups-of-a-batch-mixed",
        "a group is compared with itself alone",
        "trainers/batches/groups.py",
        "replace(member, group=place) for place, group",
        "member for place, group",
        ("tests/unit/test_groups.py::test_the_sequences_of_a_batch_stand_group_after_group_with_their_places",),
    ),
    Mutant(
        "experts-as-the-model-holds-them",
        "published weights have the layout of Hugging Face files",
        "trainers/learner/model.py",
        "for name, part in in_files(masters).items()",
        "for name, part in masters.items()",
        (f"{EXPERTS}test_a_published_folder_is_read_by_plain_transformers_and_by_the_engine",),
    ),
    Mutant(
        "experts-of-the-newest-weights",
        "a token keeps the experts that predicted the token after it",
        "producers/engines/weight_set.py",
        "self._fill(0, is_again=True)",
        "self._fill(0)",
        (f"{ROUTING}test_a_swap_and_a_held_set_leave_the_experts_that_predicted_a_token",),
    ),
    Mutant(
        "recomputed-elsewhere",
        "a recomputation goes to the experts of its forward pass",
        "trainers/learner/routing.py",
        "if not torch.is_grad_enabled():\n                self._given",
        "if True:\n                self._given",
        (f"{ROUTING}test_recomputed_activations_replay_the_same_experts_to_the_bit",),
    ),
    Mutant(
        "routing-of-any-model",
        "routing that is not of the model makes no version",
        "trainers/candidates.py",
        "learner.check_routing(sequence)",
        "pass",
        ("tests/fuzz/test_consumers.py::test_what_would_have_stopped_a_trainer_is_buried",),
    ),
    Mutant(
        "balance-of-a-part",
        "the load balance does not depend on how a minibatch is cut",
        "trainers/learner/routing.py",
        "self._load += torch.stack(",
        "self._load = torch.stack(",
        (f"{ROUTING}test_the_gradient_does_not_depend_on_how_a_minibatch_is_cut_or_laid_out",),
    ),
    Mutant(
        "untried-estimator",
        "a trainer refuses a recipe whose estimator there is not, before it publishes",
        "trainers/start.py",
        "check_advantage(run.recipe, policy)",
        "",
        ("tests/unit/test_estimator.py::test_a_trainer_refuses_such_a_recipe_before_it_looks_at_the_log",),
    ),
    Mutant(
        "todays-recipe",
        "versions are trained again with the recipe that they were made with",
        "trainers/versions/remake.py",
        "recipe = recipes[batch.revision]",
        "recipe = recipes[-1]",
        (f"{TRAINER}test_versions_are_trained_again_with_the_recipe_that_they_were_made_with",),
    ),
    Mutant(
        "window-forgotten",
        "what waited in the window comes back",
        "trainers/versions/resume.py",
        "waiting, positions = what_waited(run, policy, history)",
        "waiting, positions = [], what_waited(run, policy, history)[1]",
        (EVICTIONS,),
    ),
    Mutant(
        "letter-alone",
        "how far a trainer is goes with a letter",
        "trainers/component.py",
        "return [*said, self._batch_message(dead)]",
        "return said",
        (f"{EVICTIONS_FILE}test_a_letter_is_written_once_by_incarnations_of_which_each_does_nothing_else",),
    ),
    Mutant(
        "letter-without-place",
        "a record that was refused stays out, though it can be read now",
        "trainers/component.py",
        'dead = replace(self._record(), evictions=(records.Eviction(use, "dead"),))',
        "dead = self._record()",
        (f"{EVICTIONS_FILE}test_a_group_that_could_not_be_read_before_a_fix_is_trained_once_when_it_is_sent_back",),
    ),
    Mutant(
        "replays-counted",
        "a replay is the next use of its group, and no other",
        "consumers/curate/uses.py",
        "if use.use != known.uses:",
        "if False:",
        (f"{CHAIN_REPLAYS}test_what_is_no_next_use_of_a_group_that_was_kept_is_refused",),
    ),
    Mutant(
        "replays-restored",
        "a curator that comes back knows what it curated",
        "consumers/curate/curation.py",
        '        self._uses.restore(state["uses"])\n',
        "",
        (f"{CHAIN_REPLAYS}test_the_same_records_give_the_same_replays_whether_live_or_restored_half_way",),
    ),
    Mutant(
        "replays-forgotten-late",
        "a group is forgotten after the last use that its chain asked for",
        "consumers/curate/curation.py",
        "        results = chain.process(before, self._clock)\n",
        "        results = chain.process(before, self._clock)\n        self._uses.forget(first, chain)\n",
        (f"{CHAIN_REPLAYS}test_what_a_chain_holds_no_more_is_forgotten_but_not_before_its_last_use",),
    ),
    Mutant(
        "chain-of-each-revision",
        "revisions in a row that have one chain share what it remembers",
        "consumers/curate/curation.py",
        "        while revision > 0 and built(revision - 1) == own:\n",
        "        while False:\n",
        ("tests/unit/test_swap.py::test_revisions_in_a_row_that_have_one_chain_share_what_it_remembers",),
    ),
    Mutant(
        "replays-no-numbers",
        "a letter about a replay closes no number",
        "producers/feed/feed_state.py",
        "        if dead.use:\n            return\n",
        "",
        ("tests/unit/test_feed_state.py::test_replays_and_single_trajectories_make_no_room",),
    ),
    Mutant(
        "letters-of-replays",
        "a letter says which use of a group it is about",
        "infra/kafka/dead_letters.py",
        "        use=use,\n",
        "",
        ("tests/unit/test_letters.py::test_the_letter_of_a_replay_concludes_that_use_alone",),
    ),
    Mutant(
        "replays-vanish",
        "a replay that the trainer read is trained or evicted",
        "ops/audit/numbers.py",
        "vanished = asked & page.has(PASSED) & ~page.concluded",
        "vanished = asked & False",
        (f"{AUDIT}test_a_replay_that_vanishes_behind_the_trainers_back_is_found_when_the_run_is_over",),
    ),
    Mutant(
        "replays-in-a-row",
        "every use has the one before it",
        "ops/audit/numbers.py",
        "asked & ~before.has(KEPT)",
        "asked & False",
        (f"{AUDIT}test_a_replay_whose_use_before_vanished_is_found",),
    ),
    Mutant(
        "room-for-replays",
        "replays and fresh groups take no room of each other",
        "trainers/batches/window.py",
        "self._inside[entry.is_replay], self._leaving[entry.is_replay]",
        "self._inside[False], self._leaving[False]",
        ("tests/unit/test_window.py::test_replays_and_fresh_groups_take_no_room_of_each_other",),
    ),
    Mutant(
        "replays-lower-the-bound",
        "replays in batches lower how many numbers are open",
        "producers/feed/pacing.py",
        "round(quota.most_open * fresh / groups)",
        "quota.most_open",
        ("tests/unit/test_pacing.py::test_what_is_replayed_makes_room_smaller_down_to_one_batch_over_a_restart",),
    ),
    Mutant(
        "replays-weighed",
        "a weight scales its group's advantages",
        "trainers/batches/groups.py",
        " * np.float32(group.weight)",
        "",
        (f"{GROUPS}test_a_weight_scales_the_advantages_of_its_group_and_takes_no_part_in_statistics_of_the_batch",),
    ),
    Mutant(
        "replays-of-this-run",
        "a first use is one of this run",
        "infra/run/first_uses.py",
        "stamp.run_id == run_id and not stamp.use",
        "not stamp.use",
        (f"{REPLAYED}test_first_uses_are_found_behind_markers_and_aborted_records_and_those_of_others_are_not",),
    ),
    Mutant(
        "replays-far-back",
        "a first use that is not where its replay says is looked for further back",
        "infra/run/first_uses.py",
        "        end, step = low, 2 * step\n",
        "        break\n",
        (f"{REPLAYED}test_first_uses_are_found_behind_markers_and_aborted_records_and_those_of_others_are_not",),
    ),
    Mutant(
        "replays-missing",
        "a replay whose first use is gone is evicted",
        "trainers/component.py",
        "            if found is None:\n",
        "            if False:\n",
        (f"{REPLAYED}test_a_replay_whose_first_use_has_left_the_log_is_evicted_and_the_trainer_goes_on",),
    ),
    Mutant(
        "replays-at-the-end",
        "a trainer that stops after the end tells of the replays that it holds",
        "trainers/component.py",
        "        if self._evicted:\n            return self._report_evictions()\n        self._finished.set()",
        "        self._finished.set()",
        (f"{REPLAYED}test_a_trainer_that_stops_after_the_end_says_first_what_became_of_the_replays_that_it_holds",),
    ),
    Mutant(
        "hash-unchecked",
        "other weights under the same fingerprint begin a new epoch",
        "trainers/versions/resume.py",
        "if got == expected and not differing:",
        "if not differing:",
        (EPOCHS,),
    ),
    Mutant(
        "fingerprint-unchecked",
        "the same weights under another fingerprint begin a new epoch",
        "trainers/versions/resume.py",
        "if got == expected and not differing:",
        "if got == expected:",
        (EPOCHS,),
    ),
    Mutant(
        "threads-as-they-come",
        "versions are trained again with as many threads as they were made with",
        "ops/offline/retrain.py",
        'pin_threads(int(part.fingerprint.get("threads", "0")))',
        "pin_threads()",
        (f"{RETRAIN}test_the_same_batches_give_the_same_hashes_with_as_many_threads_as_the_trainer_had",),
    ),
    Mutant(
        "archive-verbatim",
        "an archive keeps the bytes of a message, not another encoding of its record",
        "infra/archive/container.py",
        "block.write(memoryview(value)[HEADER_BYTES:])",
        "schemaless_writer(block, self.schema, schemaless_reader(io.BytesIO(value[HEADER_BYTES:]), self.schema, None))",
        (f"{ARCHIVE}test_a_body_that_a_writer_could_have_encoded_otherwise_keeps_its_bytes",),
    ),
    Mutant(
        "archive-files-verified",
        "nothing is handed out of an archive's file before the whole of it was verified",
        "infra/archive/reading.py",
        "if digest != listed.sha256:\n            raise wrong",
        "if False:\n            raise wrong",
        (f"{ARCHIVE}test_a_changed_byte_is_told_with_the_file_and_nothing_of_it_is_handed_out",),
    ),
    Mutant(
        "archive-manifest-verified",
        "a manifest that was changed is not believed",
        "infra/archive/manifest.py",
        "if promised != _digest(told):",
        "if False:",
        (f"{ARCHIVE}test_a_changed_manifest_is_told",),
    ),
    Mutant(
        "archive-leftovers",
        "what a killed writer left is none of the archive's",
        "infra/archive/writing.py",
        "        self.location.sweep({file.name for file in files}, manifest.objects.keys())\n",
        "",
        (f"{ARCHIVE}test_a_file_that_a_killed_writer_had_not_listed_is_removed_by_the_next",),
    ),
    Mutant(
        "archive-same-topic",
        "a topic that was made anew is not taken for the one that is archived",
        "ops/offline/archiver.py",
        "config, ids[topic])",
        'config, "")',
        ("tests/integration/test_archive.py::test_a_topic_that_is_not_there_and_one_that_was_made_anew_are_refused",),
    ),
    Mutant(
        "whole-folder-locked",
        "two commands that make one folder at once do not mix what they write",
        "infra/whole_folder.py",
        "fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "pass",
        (f"{OFFLINE}test_only_one_makes_a_folder_and_the_other_leaves_it_alone",),
    ),
    Mutant(
        "whole-folder-still-growing",
        "a folder that got its name while its lock was awaited is left alone",
        "infra/whole_folder.py",
        "    if not _is_at(lock, growing):  # whoever held it has given it its name, or removed it\n"
        "        os.close(lock)\n        raise busy\n",
        "    growing.mkdir(exist_ok=True)\n",
        (f"{OFFLINE}test_a_lock_on_a_folder_that_has_its_name_by_now_is_none",),
    ),
    Mutant(
        "whole-folder-empty",
        "what a killed command left in a folder is none of the next one's",
        "infra/whole_folder.py",
        "shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()",
        "pass",
        (f"{OFFLINE}test_a_folder_is_whole_or_not_there_and_what_a_killed_one_left_is_removed",),
    ),
    Mutant(
        "offline-clock",
        "what is too old over an archive is told by the clock of the log",
        "ops/offline/offline_versions.py",
        "self._window.expire(self.clock)",
        "self._window.expire(self._learner.version)",
        (f"{OFFLINE}test_what_is_too_old_is_told_by_the_clock_of_the_log_and_not_by_the_version_that_is_made",),
    ),
    Mutant(
        "offline-ages",
        "over an archive tokens are as old as they are by the clock of the log",
        "ops/offline/offline_versions.py",
        "np.clip(one.versions + shift, 0, most)",
        "np.clip(one.versions, 0, most)",
        (f"{OFFLINE}test_tokens_are_as_old_for_the_learner_as_by_the_clock",),
    ),
    Mutant(
        "offline-order",
        "archived partitions come in the order of logical time",
        "ops/offline/archived_groups.py",
        "return self.clock, self.place, self.message.partition",
        "return 0, self.place, self.message.partition",
        (f"{OFFLINE}test_partitions_come_in_turn_and_the_oldest_clock_first",),
    ),
    Mutant(
        "archive-store-newest",
        "a writer that another one has overtaken in an object store is told so, and its manifest does not count",
        "infra/archive/locations.py",
        'if (listed[-1].key if listed else "") != self._newest:',
        "if False:",
        (f"{IN_STORE}test_who_was_overtaken_so_long_ago_that_the_other_manifest_is_gone_is_told",),
    ),
    Mutant(
        "archive-store-young",
        "what somebody may be adding to an archive in an object store is not swept",
        "infra/archive/locations.py",
        " and datetime.now(UTC) - one.modified > SPARED_BY_GC",
        "",
        (f"{IN_STORE}test_old_manifests_go_and_so_does_what_a_killed_writer_left_long_ago",),
    ),
    Mutant(
        "archive-store-apart",
        "no archive lies where gc would take it for garbage",
        "ops/offline/archiver.py",
        "if prefix.startswith(own.prefix) or own.prefix.startswith(prefix):",
        "if False:",
        (f"{IN_STORE}test_a_place_that_cannot_be_is_told",),
    ),
    Mutant(
        "batches-verified",
        "a batch is trained again from the groups that it names and no others",
        "ops/offline/archived_groups.py",
        "if (curated.stream, curated.number, curated.use) != (use.stream, use.number, use.use):",
        "if False:",
        (f"{OFFLINE}test_a_batch_that_names_another_group_than_stands_there_is_told",),
    ),
    Mutant(
        "export-repeated",
        "a group that came twice is told as repeated, not as trained on twice",
        "ops/offline/exporter.py",
        'if is_first else (REPEATED, "", [])',
        'if True else (REPEATED, "", [])',
        (f"{EXPORT}test_a_row_holds_the_tokens_of_a_sequence_and_what_became_of_it",),
    ),
    Mutant(
        "replay-once",
        "a replay feeds what is not there yet, and refuses topics that hold anything else",
        "ops/offline/replayer.py",
        "there = _pass_over(connection, place, rest)",
        "there = 0",
        ("tests/integration/test_archive.py::test_a_replay_refuses_topics_that_hold_anything_else",),
    ),
    Mutant(
        "sweep-resumed",
        "a run whose summary is there is not played again",
        "ops/compare/sweep.py",
        "missing = [run for run in runs if places[run.name].result() is None]",
        "missing = list(runs)",
        (f"{SWEEP}test_only_what_is_missing_is_played_again_and_nothing_is_started_for_nothing",),
    ),
    Mutant(
        "sweep-same-recipe",
        "results of another recipe are not compared",
        "ops/compare/sweep.py",
        "        _check_same(runs, places, source)\n",
        "",
        (f"{SWEEP}test_results_of_another_recipe_are_not_compared",),
    ),
    Mutant(
        "sweep-unfinished-stays",
        "topics and objects are deleted of runs that are done only",
        "ops/compare/sweep.py",
        "if summary is None or self._sweep.keep or self._servers is None:",
        "summary = summary or {'run_id': ''}\n        if self._sweep.keep or self._servers is None:",
        (f"{SWEEP}test_topics_and_objects_of_a_run_go_once_its_summary_is_there",),
    ),
    Mutant(
        "sweep-stopped",
        "a sweep that is stopped stops its run first",
        "ops/compare/sweep.py",
        "end_all([child.pid], 2 * STOP_WITHIN_S)",
        "child.kill()",
        (f"{SWEEP}test_a_sweep_that_is_stopped_stops_its_run_in_order_and_begins_no_other",),
    ),
    Mutant(
        "edf-as-they-come",
        "the earliest deadline is trained first",
        "trainers/batches/window.py",
        '"edf": (_deadline, _age)',
        '"edf": (_arrival, _age)',
        (ORDERED,),
    ),
    Mutant(
        "one-batch-more-open",
        "no more is open than is trained before it is too old",
        "producers/feed/feed_state.py",
        "Quota((t.max_staleness + 1)",
        "Quota((t.max_staleness + 2)",
        (ORDERED,),
    ),
    Mutant(
        "scripted-newest-version",
        "a token of the scripted engine carries the version that made it",
        "producers/engines/scripted.py",
        "                    request.end_run()\n",
        "",
        (f"{CONTRACT}test_a_token_carries_the_version_that_made_it_and_a_swap_ends_no_request",),
    ),
    Mutant(
        "scripted-held",
        "a held version of the scripted engine is played over swaps",
        "producers/engines/scripted.py",
        " and request.held is None",
        "",
        (f"{CONTRACT}test_a_held_version_is_played_over_swaps_until_it_is_released",),
    ),
    Mutant(
        "scripted-draw",
        "the same request has the same answer at the same version",
        "producers/engines/scripted.py",
        "random.Random(seed)",
        "random.Random()",
        (f"{SCRIPTED}test_an_answer_is_right_as_often_as_said_and_stays_right_as_versions_rise",),
    ),
)


class MutantUnfit(Exception):
    """A mutant's text is not in the tree as it says: the list needs to follow the code."""


def mutate(tree: Path, mutant: Mutant) -> None:
    """Take the protection out of a copy. Raises MutantUnfit, or SyntaxError for a replacement that is no Python."""
    file = tree / mutant.file
    text = file.read_text()
    if text.count(mutant.old) != 1:
        raise MutantUnfit(f"{mutant.name}: {mutant.file} holds {mutant.old!r} {text.count(mutant.old)} times, not once")
    changed = text.replace(mutant.old, mutant.new)
    compile(changed, mutant.file, "exec")
    file.write_text(changed)


@contextmanager
def servers() -> Iterator[Path]:
    """Run a Kafka and a store for all mutants; the file names them for `pytest --servers`."""
    with TemporaryDirectory(prefix="mutants-") as folder:
        here = Path(folder)
        with EmbeddedKafka(here / "kafka") as kafka, EmbeddedStore(here / "store") as store:
            address = store.address("headrace-tests")
            with ObjectStore(address) as opened:
                opened.ensure_bucket()
            named = here / "servers.json"
            named.write_text(json.dumps({"bootstrap": kafka.bootstrap, "store": asdict(address)}))
            yield named


@contextmanager
def judges(named: Path) -> Iterator[Callable[[Mutant], Verdict]]:
    """Return a `judge` that AT_ONCE threads may call at a time, each with a warm Python."""
    free = SimpleQueue[WarmPython]()
    with ExitStack() as pythons:
        for _ in range(AT_ONCE):
            free.put(pythons.enter_context(WarmPython()))

        def judged(mutant: Mutant) -> Verdict:
            python = free.get()
            try:
                return judge(mutant, named, python)
            finally:
                free.put(python)

        yield judged


def judge(mutant: Mutant, named: Path, python: WarmPython) -> Verdict:
    """Run the tests that must catch a mutant, in a copy of the tree that holds it, on the servers that are named."""
    begin = time.monotonic()
    with TemporaryDirectory(prefix=f"mutant-{mutant.name}-") as folder:
        tree, report, said = (Path(folder) / name for name in ("tree", "report.xml", "said.txt"))
        shutil.copytree(ROOT, tree, symlinks=True, ignore=LEFT_OUT)
        mutate(tree, mutant)
        words = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        words += [f"--servers={named}", f"--timeout={LIMIT_S}", *mutant.caught_by]
        env = {
            **os.environ,
            "PYTHONPATH": str(tree / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HEADRACE_TEST_PATIENCE": str(SLOWEST_S),
        }
        ended = python.pytest(words, tree, env, said)
        failed = _failed(report) if report.exists() else set()
        wanted = {test.rpartition("::")[2] for test in mutant.caught_by}
        wrong = ""
        if ended not in {0, 1}:
            wrong = f"pytest ended with {ended}: {said.read_text()[-1500:]}"
        elif missed := wanted - failed:
            wrong = f"not caught by {', '.join(sorted(missed))}: {said.read_text()[-800:]}"
    return Verdict(mutant, wrong, time.monotonic() - begin)


def _failed(report: Path) -> set[str]:
    """Return the functions that failed by themselves; an error of a fixture is no catch."""
    cases = ET.parse(report).iter("testcase")  # noqa: S314 - pytest wrote it just now
    return {re.sub(r"\[.*", "", case.attrib["name"]) for case in cases if case.find("failure") is not None}


def table(verdicts: list[Verdict]) -> Table:
    """Return what became of every mutant."""
    shown = Table("mutant", "takes out", "caught by", "s", title="a protection each")
    for verdict in verdicts:
        by = ", ".join(test.rpartition("::")[2].removeprefix("test_") for test in verdict.mutant.caught_by)
        said = Text(verdict.wrong, "red") if verdict.wrong else Text(by.replace("_", " "))
        shown.add_row(verdict.mutant.name, verdict.mutant.protection, said, f"{verdict.seconds:.0f}")
    return shown


def main(names: list[str]) -> int:
    """Judge the mutants named, or all; print the table."""
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    console, verdicts = Console(width=160), []
    with servers() as named, judges(named) as judged, ThreadPoolExecutor(AT_ONCE) as pool:
        for verdict in pool.map(judged, chosen):
            verdicts.append(verdict)
            console.print(
                f"{len(verdicts)}/{len(chosen)}", verdict.mutant.name, "missed" if verdict.wrong else "caught"
            )
    console.print(table(verdicts))
    return int(any(verdict.wrong for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
