"""Protections of rollout workers and their engines, taken out one each."""

from __future__ import annotations

from mutants.catchers import FEEDER, PRODUCER, ROUTING
from mutants.mutant import Mutant

INTAKE = "tests/integration/test_task_intake.py::"
LEDGER = "tests/unit/test_task_ledger.py::"
OWNERSHIPS = "tests/unit/test_task_intake.py::"
CONTRACT = "tests/unit/test_engine_contract.py::"
WORKER = "tests/integration/test_rollout_worker.py::"
SCRIPTED = "tests/unit/test_scripted_engine.py::"
TASK_QUEUE = "tests/unit/test_task_queue.py::"
FAILURES = "tests/unit/test_failures.py::"
REACHABILITY = "tests/unit/test_reachability.py::"
OWN_VALUES = "tests/unit/test_own_values.py::"

PRODUCERS_ROLLOUT = (
    Mutant(
        "slow-worker",
        "a worker that is slow to read a revision writes no dead letter of a task that others can play",
        "producers/rollout/task_queue.py",
        " or self._gate.is_written(task.revision):",
        ":",
        ("tests/unit/test_task_queue.py::test_a_task_waits_for_a_revision_that_is_written_however_slow_its_worker_is",),
    ),
    Mutant(
        "revision-unread",
        "whether a revision is written is read from its topic",
        "producers/rollout/admission.py",
        "self.written.update(one.revision for one in read_revisions(self.concluder.run.address))",
        "pass",
        ("tests/model/test_protocol.py::test_a_worker_that_is_slow_to_read_a_revision_loses_no_task",),
    ),
    Mutant(
        "unreachable-fails",
        "an episode whose environment cannot be reached is played again",
        "producers/rollout/reachability.py",
        "            if not _is_unreachable(outcome):\n",
        "            if True:\n",
        (f"{REACHABILITY}test_an_episode_is_played_again_until_its_environment_answers_with_longer_and_longer_pauses",),
    ),
    Mutant(
        "all-try-at-once",
        "an environment that is away is tried by one episode at a time",
        "producers/rollout/reachability.py",
        "                async with self._trying:\n",
        "                if True:\n",
        (f"{REACHABILITY}test_while_it_is_away_one_at_a_time_tries_it_and_none_begins",),
    ),
    Mutant(
        "waits-for-ever",
        "an episode does not wait for its environment for ever",
        "producers/rollout/reachability.py",
        "self._clock() - failed_at_s >= self._longest_wait_s",
        "False",
        (f"{REACHABILITY}test_an_episode_waits_ten_minutes_at_most_so_that_another_may_be_tried",),
    ),
    Mutant(
        "alone-for-ever",
        "an episode that alone cannot reach its environment fails",
        "producers/rollout/reachability.py",
        "times >= MOST_TIMES or ",
        "",
        (f"{REACHABILITY}test_an_episode_that_alone_cannot_reach_it_fails_after_some_times",),
    ),
    Mutant(
        "stalled-by-its-environment",
        "a worker that waits for its environment is not taken for stalled",
        "producers/rollout/pauses.py",
        '{"Kafka", "object store", ENVIRONMENT}',
        '{"Kafka", "object store"}',
        (f"{REACHABILITY}test_tasks_may_wait_for_their_environment_without_being_taken_for_stalled",),
    ),
    Mutant(
        "limit-taken-for-away",
        "a time limit of ours does not say that a server is away",
        "infra/unreachable.py",
        "return not isinstance(error, OutOfTime) and not isinstance(error.__cause__, asyncio.CancelledError)",
        "return True",
        (f"{FAILURES}test_other_errors_are_failures",),
    ),
    Mutant(
        "traceback-each-time",
        "a traceback is kept once for each error of a worker",
        "producers/rollout/failures.py",
        'return failure if times == 1 else replace(failure, traceback="")',
        "return failure",
        (
            f"{FAILURES}test_an_error_stands_once_with_its_traceback_in_log_and_records_and_then_its_count_at_powers_of_ten",
        ),
    ),
    Mutant(
        "any-frame",
        "an error is placed in the user's own code, not in what that calls",
        "infra/own_frames.py",
        "(_own(frames) or frames)[-1]",
        "frames[-1]",
        (f"{FAILURES}test_the_place_of_an_error_is_the_newest_line_of_the_users_own",),
    ),
    Mutant(
        "rewards-as-given",
        "any number is a reward, as a float",
        "envs/contract.py",
        'object.__setattr__(self, "reward", number("Score.reward", self.reward))',
        "pass",
        (
            f"{OWN_VALUES}test_any_number_is_a_reward_and_a_part_and_travels",
            f"{OWN_VALUES}test_what_is_no_number_is_refused_by_name",
        ),
    ),
    Mutant(
        "any-episode",
        "what a workflow returns is looked at before it is taken for an episode",
        "producers/rollout/episodes.py",
        "if not isinstance(played, RoleTrajectory):",
        "if False:",
        ("tests/unit/test_episodes.py::test_what_is_no_episode_is_a_failure_that_names_it",),
    ),
    Mutant(
        "deleted-topic",
        "a worker whose topic was deleted ends",
        "producers/rollout/worker.py",
        "for error in (topics.error, self.follower.error",
        "for error in (self.follower.error",
        (f"{WORKER}test_a_worker_whose_topic_was_deleted_ends_and_says_which_and_what_to_do",),
    ),
    Mutant(
        "implicit-acknowledgement-of-a-group",
        "a worker sends again what was acknowledged only because a later record was",
        "producers/rollout/record_producer.py",
        "if error is None and not is_delivered(raw):",
        "if False:",
        (f"{PRODUCER}test_a_worker_sends_a_record_again_that_was_refused_and_reported_as_delivered",),
    ),
    Mutant(
        "any-epoch",
        "no version of an older epoch is served",
        "producers/rollout/published_weights.py",
        "if one.version > served and one.epoch >= epoch]",
        "if one.version > served]",
        ("tests/unit/test_follower.py::test_a_version_of_an_older_epoch_is_never_served_however_high_its_number",),
    ),
    Mutant(
        "done-too-early",
        "a task is done when its records are acknowledged",
        "producers/rollout/conclusions.py",
        "        self.delivering += 1\n        try:\n",
        "        done(started)\n        self.delivering += 1\n        try:\n",
        ("tests/unit/test_conclusions.py::test_a_task_is_done_when_its_records_are_acknowledged_and_not_before",),
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
        "producers/rollout/owned_partitions.py",
        "if owned is None or owned.ownership != started.ownership:",
        "if owned is None:",
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
        "producers/rollout/task_queue.py",
        "if starts >= POISON_STARTS:",
        "if False:",
        (f"{INTAKE}test_done_tasks_are_skipped_a_third_start_is_alone_and_a_deadly_task_goes_no_more",),
    ),
    Mutant(
        "suspects-together",
        "nothing runs beside a task that one more death makes poison",
        "producers/rollout/task_queue.py",
        "if self._owned.alone is not None or (is_suspect and self._owned.running):",
        "if False:",
        (f"{INTAKE}test_done_tasks_are_skipped_a_third_start_is_alone_and_a_deadly_task_goes_no_more",),
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
    Mutant(
        "cache-kept",
        "a swap of weights has the cache of running sequences computed again",
        "producers/engines/weight_set.py",
        "self.recomputed_tokens += self._fill(0, is_again=True)",
        "self.recomputed_tokens += 1",
        ("tests/unit/test_torch_engine.py::test_a_swap_in_flight_gives_version_runs_that_can_be_reproduced",),
    ),
    Mutant(
        "inline-unlimited",
        "a group that is too large for a record goes to the store",
        "producers/rollout/conclusions.py",
        "if len(encoded.value) > inline_limit_bytes:",
        "if False:",
        ("tests/unit/test_conclusions.py::test_a_group_that_is_too_large_for_a_record_is_announced_once_it_is_stored",),
    ),
    Mutant(
        "inline-announced",
        "a large group is announced once it is stored",
        "producers/rollout/conclusions.py",
        "                await asyncio.sleep(backoff.next_s())\n",
        '                return ClaimCheck(STORE_NAME, "groups/one", "a" * 64, len(encoded.value))\n',
        ("tests/unit/test_conclusions.py::test_a_group_that_is_too_large_for_a_record_is_announced_once_it_is_stored",),
    ),
)
