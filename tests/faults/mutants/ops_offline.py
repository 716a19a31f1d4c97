"""Protections of archives, replays, offline work and sweeps, taken out one each."""

from __future__ import annotations

from mutants.catchers import IN_STORE, ISSUED, OFFLINE, PUBLISHED
from mutants.mutant import Mutant

RETRAIN = "tests/integration/test_retrain.py::"
EXPORT = "tests/unit/test_export.py::"
SWEEP = "tests/unit/test_sweep.py::"

TRIAL = "tests/unit/test_trial.py::"

OPS_OFFLINE = (
    Mutant(
        "traceback-of-ours",
        "a traceback begins at the user's own line",
        "infra/own_frames.py",
        '        if is_own_file(frame["file"]):',
        '        if frame["file"]:',
        (
            f"{TRIAL}test_an_error_in_an_episode_is_shown_from_the_users_first_line_on_with_task_role_and_turn",
            f"{TRIAL}test_an_error_outside_of_episodes_is_shown_from_the_users_first_line_on",
        ),
    ),
    Mutant(
        "own-metrics-unseen",
        "what a user's own loss measures is shown beside what is shipped",
        "app/views/inspection_page.py",
        "return facts([*known, *own_metric_facts(metrics)])",
        "return facts(known)",
        ("tests/unit/test_seen.py::test_a_step_shows_short_answers_in_a_table",),
    ),
    Mutant(
        "told-of-chance",
        "what a policy is told to say has the log-probabilities that it gives the words",
        "ops/offline/given_answers.py",
        "found: npt.NDArray[np.float32] = logprobs.float().cpu().numpy()",
        "found = np.zeros(said.size, np.float32)",
        (
            f"{TRIAL}test_a_policy_that_is_told_what_to_say_learns_from_it_as_if_it_had_said_so",
            f"{TRIAL}test_what_is_told_has_the_log_probabilities_that_the_engine_gives_the_same_words",
        ),
    ),
    Mutant(
        "tried-without-its-chain",
        "a trial steps over what the recipe's chain keeps",
        "ops/offline/tried_policy.py",
        "[fate for fate in fates if fate.kept is not None] or ",
        "",
        (f"{TRIAL}test_every_turn_is_shown_and_a_group_that_the_chain_fails_over_is_dead",),
    ),
    Mutant(
        "refused-then",
        "what was refused for its version is refused whenever it is curated again",
        "ops/offline/refusals.py",
        "if letter.reason in {TIME_TRAVEL, NOT_ISSUED}:",
        "if letter.reason in {NOT_ISSUED}:",
        (PUBLISHED,),
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
        "threads-as-they-come",
        "versions are trained again with as many threads as they were made with",
        "ops/offline/retrain.py",
        'pin_threads(int(part.fingerprint.get("threads", "0")))',
        "pin_threads()",
        (f"{RETRAIN}test_the_same_batches_give_the_same_hashes_with_as_many_threads_as_the_trainer_had",),
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
        "if UseId.of(curated) != UseId.of(use):",
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
        "not-issued-then",
        "what was refused as never issued is refused whenever it is curated again",
        "ops/offline/refusals.py",
        "if letter.reason in {TIME_TRAVEL, NOT_ISSUED}:",
        "if letter.reason in {TIME_TRAVEL}:",
        (ISSUED,),
    ),
)
