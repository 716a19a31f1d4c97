"""Why a run makes no version: what is missing, since when, what happens next, and what to do. No I/O, no clock.

A version is overdue after five times the usual time of the newest versions, but not within a minute. The first version
is overdue after five minutes without a report from the trainer. Causes are checked in the order of CAUSES, and the
first that applies is reported. It is also reported if versions are made, but nearly all groups are discarded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from headrace.infra.inflection import inflect
from headrace.infra.recipe.settings import Recipe
from headrace.infra.utc import format_utc
from headrace.ledger.liveness import is_alive
from headrace.ops.figures.concluded import RECENT_GROUPS, Concluded
from headrace.ops.figures.discard_advice import ADVICE_BY_REASON, OTHER_ADVICE
from headrace.ops.figures.failing import Failures
from headrace.ops.figures.failing_words import advise_on_failing, describe_end_of_failing, describe_failing
from headrace.ops.figures.late_versions import LEAST_MS, patience_ms
from headrace.ops.figures.standstill_words import SHOWN_WORKERS, describe_playing, describe_restarts, describe_waiting
from headrace.producers.rollout.pauses import ENVIRONMENT
from headrace.producers.rollout.watchdog import BLOCKED
from headrace.schemas.records import WorkerStatus
from headrace.schemas.topics import policy_of, variant_of

if TYPE_CHECKING:
    from headrace.infra.embedded.server_probe import Silence
    from headrace.infra.process.child_life import ChildState

CAUSES = (
    "server",
    "failing",
    "blocked",
    "unreachable",
    "trainer",
    "no_worker",
    "waiting",
    "dropped",
    "feeder",
    "curator",
    "playing",
)
"""Values of `Standstill.cause`, in the order in which they are checked. The trainer is checked a second time, after the
curator, once it has made its first weights. `failing`, `blocked` and `unreachable` are reported before a version is
overdue. If only one of several workflows fails, it is reported when no version is overdue."""
ENOUGH, ENOUGH_AT_ONCE = 8, RECENT_GROUPS // 2
"""Smallest number of concluded groups for which the share of discards is judged: since the newest version, and while
versions are made."""
MOST, NEARLY_ALL = 0.9, 0.97
"""Share of discards that explains a standstill, and share that is reported while versions are made."""
QUIET_MS = 20_000
"""A curator with unread groups that concludes none for this time counts as stopped."""


@dataclass(frozen=True, slots=True)
class Standstill:
    """A policy or shadow that makes no more versions, and why."""

    policy: str
    """Name of the policy, or of the shadow as `policy.variant`."""
    cause: str
    """One of CAUSES."""
    since_ms: int
    """Wall time in ms since the epoch."""
    sentence: str
    """A sentence for users: what is missing, since when, what happens next, and what they can do."""
    hopeless: bool = False
    """Whether no episode has ever succeeded, and failures have come for `launch.all_failed_limit_s`."""
    in_part: bool = False
    """Whether episodes of another workflow of the policy succeed, so that versions come."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The facts about a run that are not on its topics."""

    began_ms: int = 0
    """When `headrace up` started it last, in ms since the epoch; 0 if unknown, as of a run of separate parts."""
    silent: tuple[Silence, ...] = ()
    """Servers that do not answer."""
    processes: Mapping[str, ChildState] = field(default_factory=dict)
    """Component processes of this machine, where a launcher runs them."""
    logs: str = ""
    """Folder of the logs of these processes; empty if it is not known."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The state of a run at one moment, from its topics, as far as it is used here."""

    recipe: Recipe
    versions: Mapping[str, int]
    """Policy variant to its newest version; none before the first."""
    made_ms: Mapping[str, Mapping[int, int]]
    """Policy variant to version to the time when it was made."""
    groups: Concluded
    episodes: Failures
    workers: Sequence[WorkerStatus]
    """Newest status of every worker, and of trainers that report long work."""
    lag: Mapping[str, int]
    """Topic to unread records."""
    in_flight: Mapping[str, int]
    """Policy variant to the number of tasks that are issued and not concluded."""
    many_failed: Mapping[str, str] = field(default_factory=dict)
    """Policy to the advice that many of its episodes fail, if they do: the cause of discards, and what to do."""


def standstill(seen: Seen, around: Surroundings, now_ms: int, *, at_once: bool = False) -> Standstill | None:
    """Return what keeps a run from its next version; None while versions come.

    With `at_once` it answers before a version is overdue, because the run is given up.
    """
    played = [one for one in seen.recipe.policy_variants if seen.recipe.workflows_of(policy_of(one))]
    candidates = [_Stand(seen, around, now_ms, one) for one in played]
    candidates = [one for one in candidates if one.version < seen.recipe.trainer_of(one.policy_variant).steps]
    looks = (_Stand.explain_failing, _Stand.explain_blocked, _Stand.explain_unreachable)
    soon = [found for one in candidates for look in looks if (found := look(one))]
    if whole := [found for found in soon if not found.in_part]:
        return whole[0]
    late = [one for one in candidates if at_once or one.overdue_ms > 0]
    if late:
        return max(late, key=lambda one: one.overdue_ms).explain(is_given_up=at_once)
    return next(filter(None, (*soon, *(one.explain_discards() for one in candidates))), None)


class _Cause(NamedTuple):
    name: str
    """One of CAUSES."""
    short: str
    """What is missing."""
    itself: str
    """What happens next without the user."""
    to_do: str
    """What the user can do."""


class _Stand:
    """Progress of one policy or shadow, and what stops it."""

    def __init__(self, seen: Seen, around: Surroundings, now_ms: int, policy_variant: str) -> None:
        self.seen, self.around, self.now_ms, self.policy_variant = seen, around, now_ms, policy_variant
        self.version = seen.versions.get(policy_variant, -1)
        self._trainer = f"train-{policy_variant}"
        made = seen.made_ms.get(policy_variant, {})
        began_ms = around.began_ms or min((w.started_ms for w in self._list_workers(here=True)), default=0)
        self.since_ms = max(began_ms, made.get(self.version, 0), *self._find_trainer_reports())
        self.overdue_ms = now_ms - self.since_ms - patience_ms(made.values()) if self.since_ms else 0

    def _list_workers(self, *, here: bool) -> list[WorkerStatus]:
        """Return the workers that play for the policy; with `here`, only those that are alive."""
        streams = self.seen.recipe.workflows_of(policy_of(self.policy_variant))
        return [w for w in self.seen.workers if w.workflow in streams and (not here or is_alive(w, self.now_ms))]

    def _find_trainer_reports(self) -> list[int]:
        """Return the times at which the trainer reported long work, after a 0 so that the list is not empty."""
        return [0, *(worker.updated_ms for worker in self.seen.workers if worker.worker == self._trainer)]

    def explain(self, *, is_given_up: bool) -> Standstill:
        """Return the standstill with the first cause that applies; with `is_given_up`, nothing happens next."""
        no_weights = self.version < 0
        found = (
            self._blame_server()
            or (self._blame_trainer() if no_weights else None)
            or self._blame_no_worker()
            or self._blame_waiting()
            or self._blame_discards()
            or self._blame_feeder()
            or self._blame_curator()
            or (self._blame_trainer() if self._has_a_batch() else None)
            or self._blame_workers()
        )
        if is_given_up:
            found = found._replace(itself="nothing, because the run is given up")
        made = "its first weights" if no_weights else "a version" if self.version else "its first version"
        last = f" (version {self.version} was the last)" if self.version > 0 else ""
        return self._build_standstill(
            found, self.since_ms, f"has not made {made} since {self._format_time(self.since_ms)}{last}"
        )

    def explain_failing(self) -> Standstill | None:
        """Return the standstill that every episode fails, if that is so and the servers answer."""
        recipe = self.seen.recipe
        lately_ms = max(LEAST_MS, round(2000 * recipe.rollout.episode_limit_s))
        failing = self.seen.episodes.find_failing(self.policy_variant, self.around.began_ms)
        lately = [one for one in failing if self.now_ms - one.last_ms <= lately_ms]
        if not lately or variant_of(self.policy_variant) or self.around.silent:
            return None
        found = max(lately, key=lambda one: one.episodes)
        limit_s, never = recipe.launch.all_failed_limit_s, not self.seen.episodes.has_success
        hopeless = never and 0 < limit_s <= (found.last_ms - found.first_ms) / 1000
        workflows = len(recipe.workflows_of(self.policy_variant))
        short = describe_failing(found, workflows, self._format_time(found.first_ms))
        short += "; none has ever succeeded" * never
        ends_s, has_launcher = limit_s if never else 0.0, bool(self.around.began_ms)
        itself = describe_end_of_failing(ends_s, is_hopeless=hopeless, has_launcher=has_launcher)
        here = [one for one in self._list_workers(here=True) if one.workflow in found.streams]
        look = self._log_hint(here[0].worker) if here else "look into a worker's log"
        to_do = advise_on_failing(found, look, has_parts=bool(ends_s) and not has_launcher)
        sentence = f"{self.policy_variant} {short}. What happens next: {itself}. What you can do: {to_do}."
        return Standstill(self.policy_variant, "failing", found.first_ms, sentence, hopeless, found.in_part)

    def explain_blocked(self) -> Standstill | None:
        """Return the standstill that the user's code blocks all workers, if that is so."""
        if not (why := self._find_detail_of_all(BLOCKED)):
            return None
        itself = "a worker that stays blocked ends, prints its stacks, and is started again"
        found = _Cause("blocked", f"its workers are {BLOCKED}{why}", itself, "correct this line")
        return self._build_standstill(found, self.now_ms, "gets no episode")

    def _find_detail_of_all(self, mark: str) -> str:
        """Return what follows a mark in the first worker's status, if all workers have it; else an empty text."""
        here = self._list_workers(here=True)
        if not here or self.around.silent or not all(mark in worker.detail for worker in here):
            return ""
        return here[0].detail.partition(mark)[2]

    def explain_unreachable(self) -> Standstill | None:
        """Return the standstill that all workers wait for their environment, if that is so."""
        if not (why := self._find_detail_of_all(f"{ENVIRONMENT}: ")):
            return None
        found = _Cause(
            "unreachable",
            f"its environment cannot be reached ({why})",
            "the workers try again every few seconds, and play the same episodes when the environment answers",
            "check that the environment runs, and that the machines of the workers can reach it",
        )
        return self._build_standstill(found, self.now_ms, "waits")

    def explain_discards(self) -> Standstill | None:
        """Return the standstill that nearly all groups are discarded, although versions are made."""
        count, discarded = self.seen.groups.count_since(self.policy_variant, 0)
        if count < ENOUGH_AT_ONCE or discarded.total() < NEARLY_ALL * count:
            return None
        begin_ms = self.seen.groups.begin_ms(self.policy_variant)
        since_ms = min(begin_ms, self.since_ms) if self.since_ms else begin_ms
        what = f"has been trained on hardly any group since {self._format_time(since_ms)}"
        return self._build_standstill(self._build_discarded_cause(count, discarded), since_ms, what)

    def _build_standstill(self, found: _Cause, since_ms: int, what: str) -> Standstill:
        name = self.policy_variant
        sentence = f"{name} {what}: {found.short}. What happens next: {found.itself}. What you can do: {found.to_do}."
        return Standstill(name, found.name, since_ms, sentence)

    # ---------------------------------------------------------------------------------------------------------- causes

    def _blame_server(self) -> _Cause | None:
        if not self.around.silent:
            return None
        one = self.around.silent[0]
        silence = f"has not answered since {self._format_time(one.since_ms)}" if one.since_ms else "does not answer"
        return _Cause(
            "server",
            f"{one.server} {silence}",
            "all components wait, and continue when the server answers",
            one.remedy,
        )

    def _blame_no_worker(self) -> _Cause | None:
        if self._list_workers(here=True):
            return None
        last = max((worker.updated_ms for worker in self._list_workers(here=False)), default=0)
        seen = f"; the last was seen at {self._format_time(last)}" if last else ""
        streams = self.seen.recipe.workflows_of(policy_of(self.policy_variant))
        names = tuple(f"rollout-{stream}-" for stream in streams)
        own = {name: one for name, one in self.around.processes.items() if name.startswith(names)}
        frozen = [f"process {one.pid} of {name} exists, but may be frozen" for name, one in own.items() if one.pid]
        short = "; ".join([f"no worker is alive{seen}", *frozen[:SHOWN_WORKERS]]) + self._describe_trouble(*names)
        which = f" --workflow {streams[0]}" if len(self.seen.recipe.workflows) > 1 else ""
        kind = self.seen.recipe.kind_of(streams[0])
        by_up = f"`headrace scale rollout=N{which}` or " if self.around.began_ms else ""
        start = f"start workers by {by_up}`headrace rollout{which}{f' --kind {kind}' if kind else ''} --run ADDRESS`"
        if self.around.processes and not own:
            pauses = "the run pauses, and continues when a worker starts"
            return _Cause("no_worker", f"{short}, and `headrace up` runs none", pauses, start)
        to_do = f"{self._log_hint(f'rollout-{streams[0]}-0')}, or {start}"
        return _Cause("no_worker", short, self._describe_restarts("rollout-"), to_do)

    def _blame_waiting(self) -> _Cause | None:
        here = self._list_workers(here=True)
        topics, streams = self.seen.recipe.topics, self.seen.recipe.workflows_of(policy_of(self.policy_variant))
        unread = sum(self.seen.lag.get(topics.tasks(stream), 0) for stream in streams)
        # The last record of a partition may be the mark of a transaction, which nobody reads.
        short = describe_waiting(here, have_tasks=unread > self.seen.recipe.kafka.partitions * len(streams))
        if not short:
            return None
        itself = "the workers continue when the wait is over; weights that the store has lost are published again"
        return _Cause("waiting", short, itself, f"check what the workers wait for; {self._log_hint(here[0].worker)}")

    def _blame_discards(self) -> _Cause | None:
        count, discarded = self.seen.groups.count_since(self.policy_variant, self.since_ms)
        if count < ENOUGH or discarded.total() < MOST * count:
            return None
        return self._build_discarded_cause(count, discarded)

    def _build_discarded_cause(self, count: int, discarded: Counter[str]) -> _Cause:
        found = _build_discarded_cause(self.policy_variant, count, discarded)
        first = self.seen.many_failed.get(policy_of(self.policy_variant))
        return found._replace(to_do=first.removesuffix(".")) if first else found

    def _blame_feeder(self) -> _Cause | None:
        if self.seen.in_flight.get(self.policy_variant, 0) > 0:
            return None
        short = f"no task is open{self._describe_trouble('feed')}"
        return _Cause("feeder", short, self._describe_restarts("feed"), self._log_hint("feed"))

    def _blame_curator(self) -> _Cause | None:
        policy = policy_of(self.policy_variant)
        waiting = self.seen.lag.get(self.seen.recipe.topics.trajectories(policy), 0)
        last_ms = max(self.seen.groups.find_curated_ms(self.policy_variant), self.around.began_ms)
        if variant_of(self.policy_variant) or not waiting or self.now_ms - last_ms < QUIET_MS:
            return None
        name = f"curate-{self.policy_variant}"
        since = f" since {self._format_time(last_ms)}" if last_ms else ""
        groups = f"{waiting} {inflect(waiting, 'group waits', 'groups wait')}"
        short = f"{groups} for the curator, which has concluded no group{since}"
        to_do = (
            f"{self._log_hint(f'{name}-0')}, or start a curator by `headrace curate --policy {policy} --run ADDRESS`"
        )
        return _Cause("curator", short + self._describe_trouble(name), self._describe_restarts(name), to_do)

    def _has_a_batch(self) -> bool:
        unread = self.seen.lag.get(self.seen.recipe.topics.curated(self.policy_variant), 0)
        return unread >= self.seen.recipe.trainer_of(self.policy_variant).groups_per_batch

    def _blame_trainer(self) -> _Cause:
        words = [w for w in self.seen.workers if w.worker == self._trainer]
        last = "".join(f"; it last reported {w.state}: {w.detail} at {self._format_time(w.updated_ms)}" for w in words)
        waits = "groups wait for the trainer" if self.version >= 0 else "the trainer has published nothing"
        short = f"{waits}{last}{self._describe_trouble(self._trainer)}"
        return _Cause("trainer", short, self._describe_restarts(self._trainer), self._log_hint(self._trainer))

    def _blame_workers(self) -> _Cause:
        here = self._list_workers(here=True)
        count, discarded = self.seen.groups.count_since(self.policy_variant, self.since_ms)
        batch = self.seen.recipe.trainer_of(self.policy_variant).groups_per_batch
        short = describe_playing(here, count, discarded.total(), batch)
        short += "".join(f"; {worker.worker}: {worker.detail}" for worker in here[:SHOWN_WORKERS] if worker.detail)
        limit = self.seen.recipe.rollout.episode_limit_s
        itself = f"an episode that takes {limit:g} s is ended and counts as failed"
        to_do = f"run more workers, or lower trainer.groups_per_batch; {self._log_hint(here[0].worker)}"
        return _Cause("playing", short, itself, to_do)

    # ----------------------------------------------------------------------------------------------------------- words

    def _format_time(self, ms: int) -> str:
        date = "%Y-%m-%d " if abs(self.now_ms - ms) > 43_200_000 else ""
        return format_utc(ms, f"{date}%H:%M:%S UTC")

    def _describe_trouble(self, *prefixes: str) -> str:
        """Return a text about the processes of these names that have stopped or were restarted; empty if none."""
        found = [
            f"{name} is {one.state}, started {inflect(one.starts, 'once', f'{one.starts} times')}, and ended with "
            f"exit code {one.exit_code}" + (f" ({one.error})" if one.error else "")
            for name, one in self.around.processes.items()
            if name.startswith(prefixes) and one.exit_code is not None
        ]
        return f"; {', '.join(found[:SHOWN_WORKERS])}" if found else ""

    def _describe_restarts(self, prefix: str) -> str:
        return describe_restarts(prefix, self.around.processes, has_launcher=bool(self.around.began_ms))

    def _log_hint(self, name: str) -> str:
        here = name in self.around.processes and self.around.logs
        return f"look into {self.around.logs}/{name}.log" if here else f"look into the log of {name}"


def _build_discarded_cause(variant: str, count: int, discarded: Counter[str]) -> _Cause:
    [(reason, times)] = discarded.most_common(1)
    short = f"of {count} groups {discarded.total()} were discarded, {times} of them as {reason}"
    itself, to_do = ADVICE_BY_REASON.get(reason, OTHER_ADVICE)
    if reason == "algorithm_failed" and variant_of(variant):  # a shadow writes no dead letters
        to_do = "fix the algorithm: the log of its curator gives its error"
    return _Cause("dropped", short, itself, to_do)


def describe_discards(variant: str, trained: int, discarded: Mapping[str, int]) -> str:
    """Return a sentence if a finished run discarded nearly all groups of a policy or shadow; else an empty text.

    Args:
        variant: Name of the policy or shadow.
        trained: How many groups were trained.
        discarded: Reason to the number of discarded groups.
    """
    early = Counter({reason: count for reason, count in discarded.items() if reason != "run_end"})
    count = trained + early.total()
    if count < ENOUGH_AT_ONCE or early.total() < NEARLY_ALL * count:
        return ""
    found = _build_discarded_cause(variant, count, early)
    return f"{variant} was trained on hardly any group: {found.short}. What you can do: {found.to_do}"
