"""Decides how fast tasks are issued, and to which partition, without I/O and without a clock.

A *number* of a stream is open for a policy from its issue until the policy has trained on it or discarded it, or the
number is dead. A policy has room while it has fewer open numbers than `(max_staleness + 1) * groups_per_batch`. A task
may be issued while one (`any`) or every (`all`) policy of its workflow has room; policies that have all their versions
are left out. Open numbers are summed over streams, as the policy's trainer holds all of them in one window.

Replays have no number, but take room in batches. Then a number would wait (max_staleness + 1) / (share of fresh groups)
versions, and expire. So the bound is multiplied by the share of fresh groups in the newest batches, but is never less
than one batch.

Numbers concluded by a dead letter are kept separately, because `headrace redrive` may reopen them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from headrace.producers.feed.open_tasks import OpenTask, TaskTable, iterate_passed
from headrace.producers.feed.overdue import Passed
from headrace.producers.feed.silent_regions import Silent
from headrace.schemas.avro import Plain
from headrace.schemas.ids import GroupId
from headrace.schemas.topics import workflow_of

FRESH_LOOK_BACK = 16
"""Newest batches from which the share of fresh groups is computed."""
MOST_DEAD_NUMBERS = 4096
"""Dead numbers that are kept. An older number that is sent back is still processed, but not counted here."""


@dataclass(frozen=True, slots=True)
class Quota:
    """How many groups one policy can use."""

    most_open: int
    """Most open numbers of the policy, if all groups of its batches are fresh."""
    steps: int
    """The policy's last version."""
    batch: int = 1
    """Groups per batch. At least so many numbers may be open, whatever is replayed, so that a batch can fill up."""


class Pacing:
    """Next numbers, open numbers and versions of a run.

    Args:
        policies_of: Stream to the policies that it trains.
        quotas: Quota by policy.
        pace: Whether any or all of a stream's policies must have room.
        partitions: Partitions of every tasks topic.
    """

    def __init__(
        self,
        policies_of: Mapping[str, tuple[str, ...]],
        quotas: Mapping[str, Quota],
        pace: Literal["any", "all"],
        partitions: int,
    ) -> None:
        self.policies_of = dict(policies_of)
        self.quotas = dict(quotas)
        self.pace = pace
        self.next: dict[str, int] = dict.fromkeys(policies_of, 0)
        """Next number by stream."""
        self.versions: dict[str, int] = {}
        """Newest version of each policy that a trainer has made."""
        self.closed: set[str] = set()
        """Streams whose tasks are solved, so that no more are issued."""
        self.table = TaskTable()
        self.tasks, self.dead = self.table.open, self.table.dead
        self._deaths = 0
        self._fresh: dict[str, deque[tuple[int, int]]] = {p: deque(maxlen=FRESH_LOOK_BACK) for p in quotas}
        """(fresh groups, all groups) of each policy's newest batches."""
        self._turn = 0
        self._open: Counter[str] = Counter()
        self._outstanding = {stream: [0] * partitions for stream in policies_of}
        self.owners: dict[str, dict[int, str]] = {}
        """Stream to partition to a mark of the worker that has committed it last, as far as they are known."""
        self._chosen: dict[str, int] = {}
        """Stream to the partition of its newest task."""
        self.silent = Silent()
        """The regions from which no group comes."""
        self.answers = Counter[str]()
        """Stream to the number of groups that have passed the curator in this process."""

    # ------------------------------------------------------------------------------------------------------- questions

    def count_open(self, policy: str) -> int:
        """Return how many numbers are open for a policy."""
        return self._open[policy]

    def open_limit(self, policy: str) -> int:
        """Return the number of open numbers of a policy at which issuing stops."""
        quota, batches = self.quotas[policy], self._fresh[policy]
        fresh, groups = (sum(column) for column in zip(*batches, strict=True)) if batches else (1, 1)
        return max(min(quota.batch, quota.most_open), round(quota.most_open * fresh / groups))

    def count_outstanding(self, stream: str) -> tuple[int, ...]:
        """Return how many numbers of each partition the workers or the curators still have."""
        return tuple(self._outstanding[stream])

    def has_reached_end(self, policy: str) -> bool:
        """Return whether a policy has all its versions."""
        return self.versions.get(policy, -1) >= self.quotas[policy].steps

    def has_room(self, stream: str) -> bool:
        """Return whether a task of this stream may be issued."""
        if stream in self.closed or (stream in self.silent.held and any(self._outstanding[stream])):
            return False
        left = [policy for policy in self.policies_of[stream] if not self.has_reached_end(policy)]
        room = [self._open[policy] - self.silent.count_held(policy) < self.open_limit(policy) for policy in left]
        return bool(room) and (any(room) if self.pace == "any" else all(room))

    def choose_stream(self) -> str | None:
        """Return the next stream that has room; None if no stream has room.

        Workflows take turns. Of a workflow's streams, at home and in regions, it is the one with the partition that has
        the fewest outstanding numbers. So fast regions get more tasks. One that is silent has one task at most, so that
        it is known when it is back, and what it holds takes no room from the others.
        """
        workflows = list(dict.fromkeys(map(workflow_of, self.policies_of)))
        for step in range(len(workflows)):
            workflow = workflows[(self._turn + step) % len(workflows)]
            streams = [one for one in self.policies_of if workflow_of(one) == workflow and self.has_room(one)]
            if streams:
                self._turn = (self._turn + step + 1) % len(workflows)
                return min(streams, key=lambda one: (min(self._outstanding[one]), sum(self._outstanding[one])))
        return None

    def end_reason(self) -> str:
        """Return why no more tasks will be issued, steps or solved; empty while there is work."""
        left = [policy for policy in self.quotas if not self.has_reached_end(policy)]
        if not left:
            return "steps"
        alive = {p for stream, policies in self.policies_of.items() if stream not in self.closed for p in policies}
        return "" if alive & set(left) else "solved"

    def find_passed(self, committed: Mapping[tuple[str, int], int]) -> Iterator[Passed]:
        """Yield the passed numbers; see `iterate_passed`."""
        return iterate_passed(self.tasks, committed)

    # ---------------------------------------------------------------------------------------------------------- events

    def issue(self, stream: str, index: int, tier: str) -> tuple[int, OpenTask]:
        """Give the next number to a problem, on a partition of the worker with the fewest outstanding numbers."""
        number, policies = self.next[stream], self.policies_of[stream]
        task = OpenTask(index, tier, self._find_least_loaded(stream), unacknowledged=set(policies), open=set(policies))
        self.next[stream] = number + 1
        self._keep(GroupId(stream, number), task)
        return number, task

    def reissue(self, group: GroupId) -> OpenTask:
        """Send an open number again, as another attempt."""
        self.table.note_change(group)
        task = self.tasks[group]
        self._queue_of(group, task)[task.partition] -= bool(task.unacknowledged)
        partition = self._find_least_loaded(task.find_queue(group.stream))
        task.partition, task.attempt, task.offset = partition, task.attempt + 1, -1
        self._queue_of(group, task)[task.partition] += bool(task.unacknowledged)
        return task

    def move_home(self, group: GroupId) -> None:
        """Issue further attempts of an open number at home, because its region is lost."""
        task = self.tasks[group]
        self._queue_of(group, task)[task.partition] -= bool(task.unacknowledged)
        task.is_home = True
        self._queue_of(group, task)[task.partition] += bool(task.unacknowledged)

    def _queue_of(self, group: GroupId, task: OpenTask) -> list[int]:
        """Return the outstanding numbers by partition of the topic that a task is on."""
        return self._outstanding[task.find_queue(group.stream)]

    def acknowledge(self, group: GroupId, policy: str) -> bool:
        """Note that a policy's group has passed the curator; return True the first time."""
        dead, task = self.dead.get(group), self.tasks.get(group)
        if dead is not None and policy in dead.unacknowledged:
            self.table.note_change(group)
            dead.unacknowledged.discard(policy)  # sent back and curated, before the letter `redriven` was read
            return True
        if task is None or policy not in task.unacknowledged:
            return False
        self.table.note_change(group)
        task.unacknowledged.discard(policy)
        if not task.unacknowledged:
            self._queue_of(group, task)[task.partition] -= 1
        self.answers[group.stream] += not task.is_home
        return True

    def conclude(self, group: GroupId, policy: str = "") -> bool:
        """Close a number for a policy, or for all if none is named; return False if it was closed before.

        If a dead number concludes, it was sent back but the letter `redriven` is not yet read: that letter will not
        reopen it.
        """
        self._take_dead(group, policy)
        return bool(self._close(group, policy))

    def mark_dead(self, group: GroupId, policy: str = "") -> None:
        """Close a number by a dead letter, for a policy, or for all if none is named."""
        task = self.tasks.get(group)
        unacknowledged = set(task.unacknowledged) if task is not None else set()
        closed = self._close(group, policy)
        if task is None or not closed:
            return
        self._deaths += 1
        dead = self.dead.setdefault(group, replace(task, unacknowledged=set(), open=set(), died=self._deaths))
        dead.open |= closed
        dead.unacknowledged |= closed & unacknowledged
        while len(self.dead) > MOST_DEAD_NUMBERS:
            oldest = next(iter(self.dead))
            self.table.note_change(oldest)
            del self.dead[oldest]

    def reopen(self, group: GroupId, policy: str, again_at: tuple[int, int] | None = None) -> bool:
        """Reopen a dead number whose message was sent back. False if it is not dead or its copy has concluded.

        Args:
            group: The number in its stream.
            policy: Policy for which to reopen it; empty for all for which it is dead.
            again_at: Partition and offset of the new task, if it was the task that was sent back.
        """
        found = self._take_dead(group, policy)
        if found is None:
            return False
        task = self.tasks.get(group, found)
        if task is not found:  # another policy has it open
            self._queue_of(group, task)[task.partition] -= bool(task.unacknowledged)
            self._open.subtract(task.open)
            task.open |= found.open
            task.unacknowledged |= found.unacknowledged
        if again_at is not None:
            task.partition, task.offset = again_at
        self._keep(group, task)
        return True

    def _take_dead(self, group: GroupId, policy: str) -> OpenTask | None:
        """Remove a number from the dead ones for a policy, or for all if none is named; None if it is not dead."""
        dead = self.dead.get(group)
        found = set() if dead is None else {policy} & dead.open if policy else set(dead.open)
        if dead is None or not found:
            return None
        self.table.note_change(group)
        task = replace(dead, open=found, unacknowledged=found & dead.unacknowledged, died=0)
        dead.open -= found
        dead.unacknowledged -= found
        if not dead.open:
            del self.dead[group]
        return task

    def _close(self, group: GroupId, policy: str) -> set[str]:
        """Close a number; return the policies for which it was open."""
        task = self.tasks.get(group)
        closing = set() if task is None else {policy} & task.open if policy else set(task.open)
        if task is None or not closing:
            return set()
        self.table.note_change(group)
        for name in closing:
            self.acknowledge(group, name)
            self._open[name] -= 1
        task.open -= closing
        if not task.open:
            del self.tasks[group]
        return closing

    def note_batch(self, policy: str, fresh: int, groups: int) -> None:
        """Take in how many of a batch's groups were fresh."""
        if groups and policy in self._fresh:
            self._fresh[policy].append((fresh, groups))

    def note_version(self, policy: str, version: int) -> bool:
        """Take in a version; return True if it is newer than any before."""
        news = version > self.versions.get(policy, -1)
        if news:
            self.versions[policy] = version
        return news

    def _find_least_loaded(self, stream: str) -> int:
        """Return a partition of the worker with the fewest outstanding numbers, and of its partitions the least loaded.

        So a worker's share does not depend on how many partitions it has. A partition counts as a worker of its own
        until its owner is known. Of equal partitions it is the next after the last one chosen.
        """
        waiting, owners = self._outstanding[stream], self.owners.get(stream, {})
        workers = [owners.get(partition) or partition for partition in range(len(waiting))]
        load: Counter[str | int] = Counter()
        for worker, count in zip(workers, waiting, strict=True):
            load[worker] += count
        after = self._chosen.get(stream, -1) + 1
        keys = [(load[worker], waiting[p], (p - after) % len(waiting)) for p, worker in enumerate(workers)]
        found = keys.index(min(keys))
        self._chosen[stream] = found
        return found

    def _keep(self, group: GroupId, task: OpenTask) -> None:
        self.table.note_change(group)
        self.tasks[group] = task
        self._count(group, task)

    def _count(self, group: GroupId, task: OpenTask) -> None:
        self._open.update(task.open)
        self._queue_of(group, task)[task.partition] += bool(task.unacknowledged)

    # ----------------------------------------------------------------------------------------------------------- state

    def snapshot(self) -> Plain:
        """Return the state without open and dead numbers, which are in the table's chunks."""
        return {
            "next": dict(self.next),
            "versions": dict(self.versions),
            "closed": sorted(self.closed),
            "turn": self._turn,
            "fresh": {policy: list(batches) for policy, batches in self._fresh.items()},
            "deaths": self._deaths,
        }

    def restore(self, plain: Plain, chunks: Iterable[Plain] = ()) -> Counter[str]:
        """Take the state that `snapshot` returned, and the table's chunks; return how many numbers were closed.

        New streams begin at 0, and quotas are those of the current recipe. Numbers of policies that the recipe no
        longer trains are closed, and counted by stream. Old snapshots hold all numbers themselves; these are now
        written in chunks.
        """
        self.next.update(plain["next"])
        self.versions = dict(plain["versions"])
        self.closed = set(plain["closed"])
        self._turn = int(plain["turn"])
        self._deaths = plain.get("deaths", 0)
        for policy, batches in plain.get("fresh", {}).items():
            for fresh, groups in batches:
                self.note_batch(policy, fresh, groups)
        self.table.restore([plain] if "open" in plain else list(chunks))
        forgotten = self.table.forget_others(self.policies_of)
        for group, task in self.tasks.items():
            self._count(group, task)
        for group in (*self.tasks, *self.dead) if "open" in plain else ():
            self.table.note_change(group)
        return forgotten
