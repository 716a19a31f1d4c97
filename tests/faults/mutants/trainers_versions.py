"""Protections of the trainer: batches, versions, its start and end, taken out one each."""

from __future__ import annotations

from mutants.catchers import ORDERED, REPLAYED
from mutants.mutant import Mutant

EVICTIONS_FILE = "tests/integration/test_evictions.py::"
EVICTIONS = f"{EVICTIONS_FILE}test_evictions_are_told_once_by_incarnations_that_are_fenced_and_by_those_that_resume"
TRAINER = "tests/integration/test_trainer.py::"
LOST = "test_a_trainer_that_gets_no_groups_publishes_whole_what_the_store_has_lost_and_so_may_its_successor_go_on"
BEGINS = "tests/integration/test_trainer_begins.py::"
POISONED = "test_a_batch_that_ends_the_trainer_at_each_start_becomes_smaller_and_then_dead_letters"
TRIALS = "tests/unit/test_trials.py::"
EPOCHS = "tests/unit/test_resume.py::test_a_new_epoch_begins_where_one_of_them_is_another"
SHADOWS = "tests/integration/test_shadows.py::"
GROUPS = "tests/unit/test_groups.py::"

TRAINERS_VERSIONS = (
    Mutant(
        "lost-delta",
        "weights that no new worker could get are published whole once more",
        "trainers/component.py",
        "self._pipeline.look(read=read, apply=apply)",
        "pass",
        (f"{TRAINER}{LOST}",),
    ),
    Mutant(
        "after-a-loss",
        "who joins after a loss begins at what was published for it",
        "trainers/versions/publisher.py",
        "        if is_whole(event):\n            self._anchor_offset",
        "        if event.kind == ANCHOR:\n            self._anchor_offset",
        (f"{TRAINER}{LOST}",),
    ),
    Mutant(
        "poison-batch",
        "a batch that ends the trainer's process each time is taken out of its way",
        "trainers/scheduler.py",
        "if self._trials.is_poison(version):",
        "if False:",
        (f"tests/integration/test_poison_batch.py::{POISONED}",),
    ),
    Mutant(
        "blamed-beside",
        "no step begins beside a noted one, whose batch would be blamed",
        "trainers/batches/trials.py",
        "return version == self.noted + 1",
        "return False",
        (f"{TRIALS}test_the_step_after_a_noted_one_waits_until_that_is_on_the_log_and_no_other_does",),
    ),
    Mutant(
        "killed-twice",
        "kills from outside change no batch",
        "trainers/batches/trials.py",
        "WHOLE_TRIES = 3",
        "WHOLE_TRIES = 2",
        (f"{TRIALS}test_three_deaths_cost_a_version_none_of_its_groups",),
    ),
    Mutant(
        "frozen-store",
        "what expires while a version is on its way is reported with it",
        "trainers/batches/evictions.py",
        "if not self._waiting or not is_idle:",
        "if not self._waiting:",
        ("tests/unit/test_evictions.py::test_evictions_wait_for_the_version_that_is_on_its_way",),
    ),
    Mutant(
        "shadow-own-clock",
        "a shadow's groups grow old by the versions that their tokens name",
        "trainers/intake.py",
        "return self._head if self._settings.is_shadow else self._newest_version()",
        "return self._newest_version()",
        (f"{SHADOWS}test_a_shadows_groups_grow_old_by_the_versions_of_its_policy",),
    ),
    Mutant(
        "shadow-ends-at-once",
        "a shadow trains what it has read before it ends",
        "trainers/scheduler.py",
        "return bool(self.ended) and (not self._settings.is_shadow or self._has_run_dry(at))",
        "return bool(self.ended)",
        (f"{SHADOWS}test_a_shadow_trains_on_after_the_runs_end_as_long_as_a_batch_can_be_cut",),
    ),
    Mutant(
        "shadow-trainer-letters",
        "what a shadow's trainer cannot read concludes no number of its policy",
        "trainers/messages.py",
        "        if variant_of(self.policy_variant):\n            outcome = lost_to_shadow(",
        "        if False:\n            outcome = lost_to_shadow(",
        (f"{SHADOWS}test_what_a_shadows_trainer_cannot_read_is_an_outcome_and_a_place_in_its_batches",),
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
        "outcomes-outside",
        "outcomes are part of the trainer's transaction",
        "trainers/messages.py",
        "return [self._batch_message(record), *(self._outcome(e) for e in evictions)]",
        "import headrace.infra.kafka.clients\n"
        '        outside = headrace.infra.kafka.clients.open_producer(self.run.connection, "outside")\n'
        "        for one in map(self._outcome, evictions):\n"
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
        "groups-of-a-batch-mixed",
        "a group is compared with itself alone",
        "trainers/batches/groups.py",
        "replace(member, group=place) for place, group",
        "member for place, group",
        ("tests/unit/test_groups.py::test_the_sequences_of_a_batch_stand_group_after_group_with_their_places",),
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
        "trainers/messages.py",
        "return [*reported, self._batch_message(dead)]",
        "return reported",
        (f"{EVICTIONS_FILE}test_a_letter_is_written_once_by_incarnations_of_which_each_does_nothing_else",),
    ),
    Mutant(
        "letter-without-place",
        "a record that was refused stays out, though it can be read now",
        "trainers/messages.py",
        'dead = replace(self._record(), evictions=(records.Eviction(use, "dead"),))',
        "dead = self._record()",
        (f"{EVICTIONS_FILE}test_a_group_that_could_not_be_read_before_a_fix_is_trained_once_when_it_is_sent_back",),
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
        "replays-weighed",
        "a weight scales its group's advantages",
        "trainers/batches/groups.py",
        " * np.float32(group.weight)",
        "",
        (f"{GROUPS}test_a_weight_scales_the_advantages_of_its_group_and_takes_no_part_in_statistics_of_the_batch",),
    ),
    Mutant(
        "replays-missing",
        "a replay whose first use is gone is evicted",
        "trainers/intake.py",
        "        if found is None:\n",
        "        if False:\n",
        (f"{REPLAYED}test_a_replay_whose_first_use_has_left_the_log_is_evicted_and_the_trainer_goes_on",),
    ),
    Mutant(
        "replays-at-the-end",
        "a trainer that stops after the end tells of the replays that it holds",
        "trainers/scheduler.py",
        "return ReportEvictions(self._evictions.take()) if self._evictions else Leave()",
        "return Leave()",
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
        "edf-as-they-come",
        "the earliest deadline is trained first",
        "trainers/batches/window.py",
        '"edf": (_deadline, _age)',
        '"edf": (_arrival, _age)',
        (ORDERED,),
    ),
    Mutant(
        "announced-unstored",
        "weights are announced once they are stored",
        "trainers/versions/publisher.py",
        'claim, shards = self._run.put(delta, "weights", ".delta", given_up), ()',
        'claim, shards = ClaimCheck("main", "weights/1", "a" * 64, len(delta)), ()\n'
        "            threading.Thread(target=self._run.put, args=(delta,)).start()",
        (
            "tests/unit/test_publisher.py::test_weights_are_announced_once_they_are_stored_and_not_where_the_store_was_given_up",
        ),
    ),
    Mutant(
        "left-out-wanted",
        "a version that somebody waits for is not left out",
        "trainers/versions/pipeline.py",
        "if self._on_their_way and not version.planned.must_publish and version.storing is None:",
        "if self._on_their_way and version.storing is None:",
        ("tests/unit/test_pipeline.py::test_one_that_somebody_waits_for_is_published_in_its_turn",),
    ),
    Mutant(
        "left-out-checkpoint",
        "a version that has a checkpoint is not left out",
        "trainers/versions/pipeline.py",
        "and not version.planned.must_publish and version.storing is None:",
        "and not version.planned.must_publish:",
        ("tests/unit/test_pipeline.py::test_one_that_has_a_checkpoint_is_published_in_its_turn",),
    ),
    Mutant(
        "last-left-out",
        "the last version is published",
        "trainers/scheduler.py",
        "must_publish=is_last or (every > 0 and version % every == 0),",
        "must_publish=every > 0 and version % every == 0,",
        ("tests/unit/test_scheduler.py::test_the_last_version_and_each_that_is_evaluated_must_be_published",),
    ),
    Mutant(
        "evaluated-left-out",
        "a version that is evaluated is published",
        "trainers/scheduler.py",
        "must_publish=is_last or (every > 0 and version % every == 0),",
        "must_publish=is_last,",
        ("tests/unit/test_scheduler.py::test_the_last_version_and_each_that_is_evaluated_must_be_published",),
    ),
)
