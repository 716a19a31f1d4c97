"""Protections of a trainer that comes back, starts again and again, or holds large groups, taken out one each."""

from __future__ import annotations

from mutants.catchers import AUDIT
from mutants.mutant import Mutant

LOST_OBJECTS = "tests/unit/test_lost_objects.py::"
KEPT_STARTS = "tests/unit/test_kept_warm_starts.py::"
WINDOW = "tests/unit/test_window.py::"

TRAINERS_RETURN = (
    Mutant(
        "last-turn",
        "the record of the last version names what came in the turn that commits it, so no audit takes it for lost",
        "trainers/scheduler.py",
        "if is_over := self.is_over(at):",
        "if (is_over := self.is_over(at)) and not at.has_version:",
        ("tests/unit/test_scheduler.py::test_the_record_of_the_last_version_names_what_came_with_its_last_turn",),
    ),
    Mutant(
        "curated-twice",
        "a curated record that somebody wrote twice does not kill its trainer, again and again",
        "trainers/component.py",
        "if self._holds(key):",
        "if False:",
        ("tests/model/test_protocol.py::test_a_curated_record_that_is_written_twice_is_named_and_stops_nobody",),
    ),
    Mutant(
        "wrong-delta",
        "a delta that was wrong when it was stored counts as lost",
        "trainers/versions/lost_objects.py",
        "if apply and events:",
        "if False:",
        (f"{LOST_OBJECTS}test_a_delta_that_was_wrong_from_the_beginning_is_found_when_it_is_applied",),
    ),
    Mutant(
        "lost-before-an-epoch",
        "where an epoch begins, weights that nobody can get stop nothing either",
        "trainers/versions/publisher.py",
        "        if base is None:\n            return None\n",
        "        if base is None or not base.is_published:\n            return None\n",
        (
            f"{LOST_OBJECTS}test_where_an_epoch_begins_what_is_lost_of_the_last_one_is_replaced_by_an_anchor_of_the_version",
        ),
    ),
    Mutant(
        "epoch-of-an-anchor",
        "an epoch that an anchor has begun is not begun under the same number by other weights",
        "trainers/versions/resume.py",
        "if begun is not None and begun.epoch > epoch:",
        "if False:",
        ("tests/unit/test_resume.py::test_an_epoch_that_an_anchor_has_begun_goes_on_where_its_weights_are_these",),
    ),
    Mutant(
        "begins-elsewhere",
        "the batch after an anchor that begins an epoch begins from its weights",
        "ops/audit/weights_chain.py",
        "found = self._begins_epoch(before) or self._batches",
        "found = self._batches",
        (f"{AUDIT}test_the_batch_after_an_anchor_that_begins_an_epoch_begins_from_its_weights",),
    ),
    Mutant(
        "resume-too-late",
        "a trainer that comes back reads all records that conclude what its window may hold",
        "trainers/versions/batch_offsets.py",
        "while len(self._sections) > LOOK_BACK and _is_before(self._sections[0], positions):",
        "while len(self._sections) > LOOK_BACK:",
        ("tests/unit/test_history.py::test_from_its_checkpoints_offset_on_a_trainer_reads_all_that_it_needs",),
    ),
    Mutant(
        "resume-from-the-beginning",
        "a trainer that comes back keeps no more of its past than it needs",
        "trainers/versions/history.py",
        "if use.offset >= positions.get(use.partition, 0)",
        "if True",
        ("tests/unit/test_history.py::test_of_a_log_without_offsets_only_what_is_needed_is_kept",),
    ),
    Mutant(
        "window-bytes",
        "groups that are too large together leave the window",
        "trainers/batches/window.py",
        "self._bytes[entry.is_replay] > self._most_bytes and",
        "False and",
        (
            f"{WINDOW}test_beyond_its_bytes_groups_leave_by_the_same_rule_and_a_successor_holds_the_same",
            f"{WINDOW}test_one_large_group_takes_the_place_of_several_and_as_many_as_a_batch_stay_whatever_their_size",
        ),
    ),
    Mutant(
        "window-of-a-batch",
        "groups of any size make a batch",
        "trainers/batches/window.py",
        " and len(inside) > self._least",
        "",
        (f"{WINDOW}test_one_large_group_takes_the_place_of_several_and_as_many_as_a_batch_stay_whatever_their_size",),
    ),
    Mutant(
        "late-tokens",
        "tokens of groups that came too late to the trainer count as wasted",
        "ops/figures/figures.py",
        "            self._rewards.left_window(outcome)\n",
        "            pass\n",
        ("tests/unit/test_figures.py::test_tokens_of_groups_that_came_too_late_to_the_trainer_were_wasted",),
    ),
    Mutant(
        "late-lengths",
        "an outcome of the trainer tells what was generated for its group",
        "trainers/messages.py",
        "            lengths=generated_lengths(group),\n",
        "",
        (
            "tests/integration/test_trainer.py::test_stale_surplus_and_leftover_groups_each_get_one_outcome_and_the_run_ends",
        ),
    ),
    Mutant(
        "warm-start-anew",
        "a warm start that is killed again and again comes to its end",
        "trainers/learner/warm_start.py",
        "progress = follower.resume()",
        "progress = None",
        (f"{KEPT_STARTS}test_a_start_that_is_killed_again_and_again_ends_with_the_bits_of_one_that_is_not",),
    ),
    Mutant(
        "warm-start-moments",
        "a warm start goes on with the moments of its optimizer",
        "trainers/learner/warm_start.py",
        '"state": dict(moments)}',
        '"state": {}}',
        (f"{KEPT_STARTS}test_a_start_that_is_killed_again_and_again_ends_with_the_bits_of_one_that_is_not",),
    ),
)
