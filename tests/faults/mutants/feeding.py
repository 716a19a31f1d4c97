"""Mutants of the feeder's state, of evaluations that are asked again, of `state`'s partitions and of clocks."""

from __future__ import annotations

from mutants.catchers import FEEDER
from mutants.mutant import Mutant

FEED_STATE = "tests/unit/test_feed_state.py::"
EVALUATION_LOST = "test_what_was_lost_of_an_evaluation_is_asked_again_until_it_has_its_result_or_six_attempts"
OWNERSHIPS = "tests/unit/test_task_intake.py::"
GC = "tests/integration/test_gc.py::"

FEEDING = (
    Mutant(
        "evaluations-lost",
        "a task of an evaluation that was lost is issued again",
        "producers/feed/task_commits.py",
        "return found + self._evaluations(state, now)",
        "return found",
        (f"{FEEDER}{EVALUATION_LOST}",),
    ),
    Mutant(
        "evaluations-in-a-hurry",
        "a task of an evaluation is not issued again while its group may wait for the evaluator",
        "producers/feed/task_commits.py",
        "self._past_markers(place, progress.positions, end) for place",
        "end for place",
        (f"{FEEDER}{EVALUATION_LOST}",),
    ),
    Mutant(
        "evaluations-forgotten",
        "a feeder remembers what is lost of an evaluation over a restart",
        "producers/feed/feed_state.py",
        'state.get("evaluating", ())',
        "()",
        (f"{FEED_STATE}test_a_lost_task_of_an_evaluation_is_asked_again_with_its_problem_and_version_over_a_restart",),
    ),
    Mutant(
        "feeder-state-whole",
        "of the feeder's state only what changed is written",
        "producers/feed/open_tasks.py",
        "changed, self._changed = sorted(self._changed), set()",
        "changed = sorted(self._changed)",
        ("tests/unit/test_pacing.py::test_what_is_written_of_a_change_does_not_grow_with_what_is_open",),
    ),
    Mutant(
        "feeder-state-unwritten",
        "every number that changes is written again",
        "producers/feed/pacing.py",
        "        self.table.touch(group)\n        task.unacknowledged.discard(policy)\n",
        "        task.unacknowledged.discard(policy)\n",
        ("tests/unit/test_pacing.py::test_every_change_of_a_number_has_it_written_again",),
    ),
    Mutant(
        "feeder-state-of-old",
        "a feeder's state in one record is read, and written in parts from then on",
        "producers/feed/pacing.py",
        '[plain] if "open" in plain else list(chunks)',
        "list(chunks)",
        (
            "tests/unit/test_pacing.py::test_a_snapshot_of_before_there_were_chunks_is_read_and_goes_on_in_chunks",
            f"{FEEDER}test_a_run_whose_state_is_in_one_record_goes_on_in_parts",
        ),
    ),
    Mutant(
        "state-by-component",
        "a component's records in `state` are where it looks for them",
        "ops/retention/collector.py",
        "topic, partition = run.state_place(trainer_component(policy_variant))",
        "topic, partition = run.topics.state, 0",
        ("tests/integration/test_state_partitions.py::test_each_component_goes_on_from_its_partition",),
    ),
    Mutant(
        "state-of-old",
        "a run that has begun keeps the layout of its `state`",
        "infra/run/revisions.py",
        "of_first = 0 if first is None else codec.decode(first, RecipeRevision).state_partitions or 1",
        "of_first = 0",
        ("tests/integration/test_state_partitions.py::test_a_run_that_has_begun_keeps_its_layout",),
    ),
    Mutant(
        "task-partitions",
        "tasks go to all partitions that they have",
        "producers/feed/feed_state.py",
        "recipe.feed.pace, recipe.task_partitions)",
        "recipe.feed.pace, recipe.kafka.partitions)",
        (f"{FEEDER}test_tasks_have_a_partition_count_of_their_own",),
    ),
    Mutant(
        "tasks-by-the-clock",
        "no clock of whoever issued a task decides when it starts",
        "producers/rollout/task_queue.py",
        "insort(self._waiting, task, key=lambda waiting: waiting.task is not None)",
        "insort(self._waiting, task, key=lambda waiting: waiting.task.issued_ms if waiting.task else 0)",
        (f"{OWNERSHIPS}test_tasks_start_as_they_came_whatever_the_clocks_of_their_feeders_say",),
    ),
    Mutant(
        "gc-by-its-own-clock",
        "objects are as old as the clock says that dates them",
        "ops/retention/collector.py",
        "now = next((answer for answer in answers if answer is not None), datetime.now(UTC))",
        "now = datetime.now(UTC)",
        (f"{GC}test_no_clock_but_the_stores_says_how_old_an_object_is",),
    ),
    Mutant(
        "leaves-a-dead-broker",
        "a worker's last commit has a limit",
        "producers/rollout/task_intake.py",
        "last.join(within_s)",
        "last.join()",
        (f"{OWNERSHIPS}test_a_dead_broker_holds_nobody_up_who_leaves",),
    ),
)
