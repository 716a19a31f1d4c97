"""Protections of the feeder, taken out one each."""

from __future__ import annotations

from mutants.catchers import END, FEEDER, ORDERED, SWAP
from mutants.mutant import Mutant

SELECTORS = "tests/unit/test_selectors.py::"

PRODUCERS_FEED = (
    Mutant(
        "swap-attempts",
        "all attempts of a number are of the recipe revision that it was issued under",
        "producers/feed/feed_state.py",
        "self.revision.run_id, self.revision_of(*group), group, problem)",
        "self.revision.run_id, self.revision.revision, group, problem)",
        (f"{SWAP}test_every_further_number_has_the_new_revision_and_one_that_is_lost_keeps_its_own",),
    ),
    Mutant(
        "asked-again-while-curators-are-down",
        "a number is not issued again while its group may wait for a curator",
        "producers/feed/overdue.py",
        "all(curated.get(source, 0) >= end for source, end in wait.ends.items())",
        "True",
        (
            "tests/unit/test_pacing.py::test_no_number_is_overdue_while_the_curators_have_not_read_what_there_was_when_it_was_passed",
            f"{FEEDER}test_nothing_is_asked_again_while_its_group_waits_for_a_curator",
        ),
    ),
    Mutant(
        "asked-again-without-an-end",
        "a number that nobody answers is issued so often and no more",
        "producers/feed/feed_state.py",
        "if task.attempt + 1 >= MOST_ATTEMPTS:",
        "if False:",
        (f"{FEEDER}test_a_number_that_stays_without_an_answer_ends_as_a_dead_letter",),
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
        "return self.own.snapshot(_json(self.state.snapshot()), changes)",
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
        "replays-no-numbers",
        "a letter about a replay closes no number",
        "producers/feed/feed_state.py",
        "        if dead.use:\n            return\n",
        "",
        ("tests/unit/test_feed_state.py::test_replays_and_single_trajectories_make_no_room",),
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
        "one-batch-more-open",
        "no more is open than is trained before it is too old",
        "producers/feed/feed_state.py",
        "Quota((t.max_staleness + 1)",
        "Quota((t.max_staleness + 2)",
        (ORDERED,),
    ),
    Mutant(
        "silent-end-of-a-feeder",
        "a feeder that outlives the run says so",
        "producers/feed/feeder.py",
        "if self.state.ended != self._said_over:",
        "if False:",
        (f"{END}test_a_feeder_of_a_run_that_is_over_says_so",),
    ),
    Mutant(
        "tasks-stay",
        "tasks that the workers are done with are deleted",
        "producers/feed/task_commits.py",
        "                self._delete(committed)\n",
        "",
        (
            "tests/integration/test_feeder.py::test_a_number_that_the_workers_passed_in_silence_is_asked_again_and_done_tasks_are_deleted",
        ),
    ),
)
