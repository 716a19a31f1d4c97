"""Reads the committed offsets of workers and curators from time to time, and deletes finished tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import structlog

from headrace.infra.errors import HeadraceError
from headrace.infra.kafka.group_offsets import delete_before, fetch_commits, fetch_committed_offsets
from headrace.infra.kafka.topic_offsets import fetch_end_offsets
from headrace.infra.kafka.topic_reader import PartitionId, read_range
from headrace.infra.run.run import Run
from headrace.producers.feed.evaluator_progress import EvaluatorProgress, read_progress
from headrace.producers.feed.feed_state import FeedState
from headrace.producers.feed.overdue import OverdueNumbers, Passed
from headrace.producers.task_ledger import is_of_run, read_owner
from headrace.schemas.ids import GroupId
from headrace.schemas.topics import eval_stream, is_eval, region_of

log = structlog.get_logger()

COMMITS_LOOK_EVERY_S = 10.0
"""Seconds between two looks at the commits; less if tasks must be reissued sooner."""
DELETE_EVERY_S = 60.0


class TaskCommits:
    """Reads the workers' commits from time to time, and deletes the tasks that they have finished."""

    def __init__(self, run: Run) -> None:
        self.run = run
        after_s, partitions = run.recipe.feed.reissue_after_s, run.recipe.kafka.partitions
        self._overdue, self._evaluations_overdue = (
            OverdueNumbers(after_s, partitions),
            OverdueNumbers(after_s, partitions),
        )
        self._every_s = min(COMMITS_LOOK_EVERY_S, after_s / 2)
        self._look_due = 0.0
        self._delete_due = time.monotonic() + DELETE_EVERY_S

    def find_overdue(self, state: FeedState) -> list[GroupId]:
        """Return the numbers, of training and evaluations, that have been lost for too long; usually none."""
        now = time.monotonic()
        if now < self._look_due:
            return []
        self._look_due = now + self._every_s
        try:
            committed = {
                partition_id: offset
                for stream in state.sources
                if not region_of(stream)  # their workers commit in the region
                for partition_id, offset in self._fetch_committed(stream, state.pacing.owners).items()
            }
            if now >= self._delete_due:
                self._delete_due = now + DELETE_EVERY_S
                self._delete({**committed, **self._find_finished(state)})
            passed = list(state.pacing.find_passed(committed))
            found = self._fetch_overdue(
                self._overdue, passed, self.run.topics.trajectories, self._find_curated_ends, now
            )
            return found + self._find_overdue_evaluations(state, now)
        except HeadraceError as error:  # Kafka is away, or refuses to delete: the tasks stay
            # The workers' offsets cannot be read now, or finished tasks not deleted; the feeder tries again.
            log.info("commits.unknown", error=str(error))
            return []

    def _find_finished(self, state: FeedState) -> dict[tuple[str, int], int]:
        """Return (stream of a region, partition) to the offset below which all tasks have concluded."""
        streams = [stream for stream in state.sources if region_of(stream)]
        partition_ids = [(stream, p) for stream in streams for p in range(self.run.recipe.task_partitions)]
        topics = self.run.topics
        ends = fetch_end_offsets(self.run.connection, [(topics.tasks(s), p) for s, p in partition_ids])
        found = {(s, p): ends[topics.tasks(s), p] for s, p in partition_ids}
        for group, task in state.pacing.tasks.items():
            place = (group.stream, task.partition)
            if place in found and not task.is_home:
                found[place] = min(found[place], max(task.offset, 0))
        return found

    def _fetch_overdue(
        self,
        overdue: OverdueNumbers,
        passed: list[Passed],
        topic_of: Callable[[str], str],
        find_read_positions: Callable[[Mapping[PartitionId, int]], Mapping[PartitionId, int]],
        now: float,
    ) -> list[GroupId]:
        """Return which of the passed numbers are overdue.

        Args:
            overdue: Remembers the passed numbers between two calls.
            passed: Numbers that the workers committed past.
            topic_of: Policy to the topic of its groups.
            find_read_positions: Returns the reader's position in each partition, from the ends of these partitions.
            now: The time.
        """
        partition_ids = {source: (topic_of(source.policy), source.partition) for source in overdue.find_sources(passed)}
        ends = fetch_end_offsets(self.run.connection, list(partition_ids.values()))
        read = find_read_positions(ends)
        at_end = {source: ends[partition_id] for source, partition_id in partition_ids.items()}
        return overdue.find_due(
            passed, at_end, {source: read[partition_id] for source, partition_id in partition_ids.items()}, now
        )

    def _find_overdue_evaluations(self, state: FeedState, now: float) -> list[GroupId]:
        """Close tasks whose groups the evaluator has; return the overdue tasks of evaluations."""
        streams = {group.stream for group in state.evaluating.tasks}
        committed = {
            partition_id: offset for stream in streams for partition_id, offset in self._fetch_committed(stream).items()
        }
        passed, progress = list(state.evaluating.find_passed(committed)), EvaluatorProgress()
        if passed:
            progress = read_progress(self.run)
            state.evaluating.note_answered(progress.answers)
            passed = [one for one in passed if one.group in state.evaluating.tasks]

        def find_read_positions(ends: Mapping[PartitionId, int]) -> Mapping[PartitionId, int]:
            return {
                partition_id: self._skip_markers(partition_id, progress.positions, end)
                for partition_id, end in ends.items()
            }

        return self._fetch_overdue(
            self._evaluations_overdue, passed, self.run.topics.eval_groups, find_read_positions, now
        )

    def _delete(self, committed: dict[tuple[str, int], int]) -> None:
        topics = self.run.topics
        delete_before(self.run.connection, {(topics.tasks(s), p): offset for (s, p), offset in committed.items()})

    def _fetch_committed(
        self, stream: str, owners: dict[str, dict[int, str]] | None = None
    ) -> dict[tuple[str, int], int]:
        """Return the workers' committed offsets of a stream; one group reads both kinds of a workflow's tasks.

        The marks of the workers that committed are written to `owners`, by stream and partition.
        """
        topic, of = self.run.topics.tasks(stream), stream.removeprefix(eval_stream("")) if is_eval(stream) else stream
        found = fetch_commits(self.run.connection, self.run.topics.rollout_group(of), [topic])
        ours = {
            partition_id: commit
            for partition_id, commit in found.items()
            if is_of_run(commit.metadata, self.run.run_id)
        }
        if owners is not None:
            marks = {partition: read_owner(commit.metadata) for (_, partition), commit in ours.items()}
            owners[stream] = {partition: mark for partition, mark in marks.items() if mark}
        return {(stream, partition): commit.offset for (_, partition), commit in ours.items()}

    def _find_curated_ends(self, ends: Mapping[PartitionId, int]) -> dict[PartitionId, int]:
        """Return the curators' positions; transaction markers right after a commit count as read."""
        found: dict[PartitionId, int] = {}
        for policy in self.run.recipe.policies:
            topic, group = self.run.topics.trajectories(policy), self.run.topics.curate_group(policy)
            partition_ids = [partition_id for partition_id in ends if partition_id[0] == topic]
            committed = fetch_committed_offsets(self.run.connection, group, [topic]) if partition_ids else {}
            found |= {
                partition_id: self._skip_markers(partition_id, committed, ends[partition_id])
                for partition_id in partition_ids
            }
        return found

    def _skip_markers(self, partition_id: PartitionId, positions: Mapping[PartitionId, int], end: int) -> int:
        """Return `end` if only aborted records and transaction markers follow a reader's position."""
        position = positions.get(partition_id, 0)
        if position >= end or any(read_range(self.run.connection, partition_id, position, end)):
            return position
        return end
