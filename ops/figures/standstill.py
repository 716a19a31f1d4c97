"""Why a run makes no version: what is missing, since when, what happens without you, and what to do. No I/O, no clock.

A version is overdue after five times what most of the newest ones took, and after a minute at least; the first one
after five minutes without a sign of life from the trainer. Causes are looked for in the order of CAUSES, and the first
that shows is reported. The same is reported where versions are made of hardly any group, as nearly all are discarded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from headrace.infra.recipe.settings import Recipe
from headrace.infra.utc import format_utc
from headrace.ops.figures.concluded import RECENT_GROUPS, ConcludedFold
from headrace.ops.figures.failing import FailingFold
from headrace.ops.figures.failing_words import advise_on_failing, describe_end_of_failing, describe_failing
from headrace.ops.figures.weights_figures import is_there
from headrace.producers.rollout.pauses import ENVIRONMENT
from headrace.schemas.records import WorkerStatus
from headrace.schemas.topics import policy_of, variant_of

if TYPE_CHECKING:
    from headrace.infra.embedded.server_probe import Silence
    from headrace.infra.process.supervisor import ChildState

CAUSES = (
    "server",
    "failing",
    "unreachable",
    "trainer",
    "no_worker",
    "waiting",
    "dropped",
    "feeder",
    "curator",
    "playing",
)
"""Of `Standstill.cause`, in the order in which they are looked for. A trainer is looked at a second time, after the
curator, once it has made its first weights. Failing and unreachable are
reported before a version is overdue."""
FIRST_MS = 300_000
LEAST_MS = 60_000
TIMES = 5
PACE_LOOK_BACK = 20
"""Versions whose times say what is usual. A quarter of them may be longer: a run may have rested."""
ENOUGH, ENOUGH_AT_ONCE = 8, RECENT_GROUPS // 2
"""Groups that must have concluded before their share of drops says anything: since a version that stays the newest; and
while versions are made."""
MOST, NEARLY_ALL = 0.9, 0.97
"""Share of discards that explains a standstill; and that is reported while versions are made."""
QUIET_MS = 20_000
"""A curator that has groups to read and concludes none for so long counts as stopped."""
SHOWN_WORKERS = 3
"""Workers that are named."""

OTHER_ADVICE = ("the feeder issues further tasks", "`headrace discards` shows which groups these are")
ADVICE_BY_REASON = {
    "zero_variance": (
        "the feeder draws further tasks, or ends the run as solved (feed.solved_share) if most have high rewards",
        "use harder tasks if most answers are right, easier tasks if most are wrong, or a larger rollout.group_size",
    ),
    "stale": ("fresher groups are generated", "raise trainer.max_staleness, or find out why workers load weights late"),
    "expired": ("fresher groups are generated", "raise trainer.max_staleness, or run fewer workers for this trainer"),
    "surplus": ("newer groups are trained", "run fewer workers for this trainer"),
    "algorithm_failed": (
        "the next groups go through the chain; eight in a row that fail end the curator",
        "fix the algorithm: `headrace dead-letters` gives its error, `headrace redrive` sends the groups back",
    ),
    "failed": ("the feeder issues further tasks", "`headrace discards` shows how the episodes fail"),
}
"""Reason of a discard to what happens without a person, and what a person can do; else OTHER_ADVICE."""


@dataclass(frozen=True, slots=True)
class Standstill:
    """A policy or shadow that gets no further."""

    policy: str
    """Its name; of a shadow, `policy.variant`."""
    cause: str
    """One of CAUSES."""
    since_ms: int
    """Wall time in ms since the epoch."""
    sentence: str
    """A sentence for people: what is missing, since when, what happens without them, what they can do."""
    hopeless: bool = False
    """Whether no episode has ever succeeded, and failures have come for `launch.all_failed_limit_s`."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is known of a run beside its topics."""

    began_ms: int = 0
    """When `headrace up` started it last, in ms since the epoch; 0 if unknown, as of a run of separate parts."""
    silent: tuple[Silence, ...] = ()
    """Servers that do not answer."""
    processes: Mapping[str, ChildState] = field(default_factory=dict)
    """Component processes of this machine, where a launcher runs them."""
    logs: str = ""
    """Folder of their logs; empty if it is not known."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the topics of a run say at one moment, as far as it matters here."""

    recipe: Recipe
    versions: Mapping[str, int]
    """Policy variant to its newest version; none before the first."""
    made_ms: Mapping[str, Mapping[int, int]]
    """Policy variant to version to when it was made."""
    groups: ConcludedFold
    episodes: FailingFold
    workers: Sequence[WorkerStatus]
    """Trainers are among them, while they report long work."""
    lag: Mapping[str, int]
    """Topic to unread records."""
    in_flight: Mapping[str, int]
    """Policy variant to numbers that are issued and not concluded."""


def standstill(seen: Seen, around: Surroundings, now_ms: int, *, at_once: bool = False) -> Standstill | None:
    """Return what keeps a run from its next version; None while versions come.

    With `at_once` it is asked for before a version is overdue, as the run is given up.
    """
    candidates = [_Stand(seen, around, now_ms, one) for one in seen.recipe.policy_variants]
    candidates = [one for one in candidates if one.version < seen.recipe.trainer_of(one.policy_variant).steps]
    soon = (
        found for one in candidates for found in (one.explain_failing(), one.explain_unreachable()) if found is not None
    )
    if (found := next(soon, None)) is not None:
        return found
    late = [one for one in candidates if at_once or one.overdue_ms > 0]
    if late:
        return max(late, key=lambda one: one.overdue_ms).explain(given_up=at_once)
    return next(filter(None, (one.explain_discards() for one in candidates)), None)


class _Cause(NamedTuple):
    name: str
    """One of CAUSES."""
    short: str
    """What is short."""
    itself: str
    """What Headrace does about it."""
    to_do: str
    """What a person can do."""


class _Stand:
    """Progress of one policy or shadow, and what stops it."""

    def __init__(self, seen: Seen, around: Surroundings, now_ms: int, policy_variant: str) -> None:
        self.seen, self.around, self.now_ms, self.policy_variant = seen, around, now_ms, policy_variant
        self.version = seen.versions.get(policy_variant, -1)
        self._trainer = f"train-{policy_variant}"
        made = seen.made_ms.get(policy_variant, {})
        began_ms = around.began_ms or min((w.started_ms for w in self._workers(here=True)), default=0)
        self.since_ms = max(began_ms, made.get(self.version, 0), *self._words_of_trainer())
        self.overdue_ms = now_ms - self.since_ms - patience_ms(made.values()) if self.since_ms else 0

    def _workers(self, *, here: bool) -> list[WorkerStatus]:
        """Return those who play for the policy, or of them those who are there."""
        streams = self.seen.recipe.workflows_of(policy_of(self.policy_variant))
        return [w for w in self.seen.workers if w.workflow in streams and (not here or is_there(w, self.now_ms))]

    def _words_of_trainer(self) -> list[int]:
        """Return when the trainer reported long work; 0 first, so that there is one."""
        return [0, *(worker.updated_ms for worker in self.seen.workers if worker.worker == self._trainer)]

    def explain(self, *, given_up: bool) -> Standstill:
        """Return the first cause that applies; Headrace does nothing more about a run that is given up."""
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
        if given_up:
            found = found._replace(itself="nothing more, as the run is given up")
        made = "its first weights" if no_weights else "a version" if self.version else "its first version"
        last = f" (version {self.version} was the last)" if self.version > 0 else ""
        return self._standstill(
            found, self.since_ms, f"has not made {made} since {self._format_time(self.since_ms)}{last}"
        )

    def explain_failing(self) -> Standstill | None:
        """Return that every episode fails, while the servers answer."""
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
        here = [one for one in self._workers(here=True) if one.workflow in found.streams]
        look = self._look(here[0].worker) if here else "look into a worker's log"
        to_do = advise_on_failing(found, look, has_parts=bool(ends_s) and not has_launcher)
        sentence = f"{self.policy_variant} {short}. By itself: {itself}. What you can do: {to_do}."
        return Standstill(self.policy_variant, "failing", found.first_ms, sentence, hopeless)

    def explain_unreachable(self) -> Standstill | None:
        """Return that all workers wait for their environment."""
        here, mark = self._workers(here=True), f"{ENVIRONMENT}: "
        if not here or self.around.silent or not all(mark in worker.detail for worker in here):
            return None
        why = here[0].detail.partition(mark)[2]
        found = _Cause(
            "unreachable",
            f"its environment cannot be reached ({why})",
            "the workers try it every few seconds, and play the same episodes when it answers",
            "check that it runs, and that the machines of the workers can reach it",
        )
        return self._standstill(found, self.now_ms, "waits")

    def explain_discards(self) -> Standstill | None:
        """Return that nearly all groups are discarded, although versions are made."""
        count, discarded = self.seen.groups.count_since(self.policy_variant, 0)
        if count < ENOUGH_AT_ONCE or discarded.total() < NEARLY_ALL * count:
            return None
        begin_ms = self.seen.groups.begin_ms(self.policy_variant)
        since_ms = min(begin_ms, self.since_ms) if self.since_ms else begin_ms
        what = f"is trained on hardly any group since {self._format_time(since_ms)}"
        return self._standstill(_build_discarded_cause(count, discarded), since_ms, what)

    def _standstill(self, found: _Cause, since_ms: int, what: str) -> Standstill:
        name = self.policy_variant
        sentence = f"{name} {what}: {found.short}. By itself: {found.itself}. What you can do: {found.to_do}."
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
            "all components wait, and continue where they were when it answers",
            one.remedy,
        )

    def _blame_no_worker(self) -> _Cause | None:
        if self._workers(here=True):
            return None
        last = max((worker.updated_ms for worker in self._workers(here=False)), default=0)
        seen = f"; the last was seen at {self._format_time(last)}" if last else ""
        streams = self.seen.recipe.workflows_of(policy_of(self.policy_variant))
        names = tuple(f"rollout-{stream}-" for stream in streams)
        own = {name: one for name, one in self.around.processes.items() if name.startswith(names)}
        frozen = [f"process {one.pid} of {name} exists, but may be frozen" for name, one in own.items() if one.pid]
        short = "; ".join([f"no worker is alive{seen}", *frozen[:SHOWN_WORKERS]]) + self._describe_trouble(*names)
        to_do = f"{self._look(f'rollout-{streams[0]}-0')}, or start some by `headrace rollout --run ADDRESS`"
        return _Cause("no_worker", short, self._restarts("rollout-"), to_do)

    def _blame_waiting(self) -> _Cause | None:
        here = self._workers(here=True)
        if not all(worker.state != "rolling" or worker.detail for worker in here):
            return None
        named = [f"{w.worker} is {w.state}{f' ({w.detail})' if w.detail else ''}" for w in here[:SHOWN_WORKERS]]
        more = [f"and {len(here) - SHOWN_WORKERS} more"] if len(here) > SHOWN_WORKERS else []
        short = f"no worker plays: {', '.join([*named, *more])}"
        itself = "they continue when what they wait for is there; weights that the store has lost are published again"
        return _Cause("waiting", short, itself, f"check what they wait for; {self._look(here[0].worker)}")

    def _blame_discards(self) -> _Cause | None:
        count, discarded = self.seen.groups.count_since(self.policy_variant, self.since_ms)
        if count < ENOUGH or discarded.total() < MOST * count:
            return None
        return _build_discarded_cause(count, discarded)

    def _blame_feeder(self) -> _Cause | None:
        if self.seen.in_flight.get(self.policy_variant, 0) > 0:
            return None
        return _Cause(
            "feeder", f"no task is open{self._describe_trouble('feed')}", self._restarts("feed"), self._look("feed")
        )

    def _blame_curator(self) -> _Cause | None:
        policy = policy_of(self.policy_variant)
        waiting = self.seen.lag.get(self.seen.recipe.topics.trajectories(policy), 0)
        last_ms = max(self.seen.groups.curated_ms[self.policy_variant], self.around.began_ms)
        if variant_of(self.policy_variant) or not waiting or self.now_ms - last_ms < QUIET_MS:
            return None
        name = f"curate-{self.policy_variant}"
        since = f" since {self._format_time(last_ms)}" if last_ms else ""
        short = f"{waiting} groups wait for the curator; it has concluded none{since}"
        to_do = f"{self._look(f'{name}-0')}, or start one by `headrace curate --policy {policy} --run ADDRESS`"
        return _Cause("curator", short + self._describe_trouble(name), self._restarts(name), to_do)

    def _has_a_batch(self) -> bool:
        unread = self.seen.lag.get(self.seen.recipe.topics.curated(self.policy_variant), 0)
        return unread >= self.seen.recipe.trainer_of(self.policy_variant).groups_per_batch

    def _blame_trainer(self) -> _Cause:
        words = [w for w in self.seen.workers if w.worker == self._trainer]
        last = "".join(f"; it last reported {w.state}: {w.detail} at {self._format_time(w.updated_ms)}" for w in words)
        waits = "groups wait for the trainer" if self.version >= 0 else "the trainer has published nothing"
        short = f"{waits}{last}{self._describe_trouble(self._trainer)}"
        return _Cause("trainer", short, self._restarts(self._trainer), self._look(self._trainer))

    def _blame_workers(self) -> _Cause:
        here = self._workers(here=True)
        count, discarded = self.seen.groups.count_since(self.policy_variant, self.since_ms)
        batch = self.seen.recipe.trainer_of(self.policy_variant).groups_per_batch
        running = sum(worker.episodes_running for worker in here)
        came = (
            f"{count} groups have concluded since, {discarded.total()} of them discarded"
            if count
            else "no group has concluded since"
        )
        short = f"{len(here)} workers play {running} episodes, and {came}; a batch needs {batch} groups"
        limit = self.seen.recipe.rollout.episode_limit_s
        itself = f"an episode that takes {limit:g} s is ended and counts as failed"
        to_do = f"run more workers, or make batches smaller (trainer.groups_per_batch); {self._look(here[0].worker)}"
        return _Cause("playing", short, itself, to_do)

    # ----------------------------------------------------------------------------------------------------------- words

    def _format_time(self, ms: int) -> str:
        date = "%Y-%m-%d " if abs(self.now_ms - ms) > 43_200_000 else ""
        return format_utc(ms, f"{date}%H:%M:%S UTC")

    def _describe_trouble(self, *prefixes: str) -> str:
        """Report processes of these names that do not run, or not for the first time."""
        found = [
            f"{name} is {one.state}, started {one.starts} times, and ended with exit code {one.exit_code}"
            + (f" ({one.error})" if one.error else "")
            for name, one in self.around.processes.items()
            if name.startswith(prefixes) and one.exit_code is not None
        ]
        return f"; {', '.join(found[:SHOWN_WORKERS])}" if found else ""

    def _restarts(self, prefix: str) -> str:
        if any(name.startswith(prefix) for name in self.around.processes):
            return "a process that dies is started again; if that does not help, the run is given up"
        return "its supervisor starts it again; headrace itself does nothing"

    def _look(self, name: str) -> str:
        here = name in self.around.processes and self.around.logs
        return f"look into {self.around.logs}/{name}.log" if here else f"look into the log of {name}"


def _build_discarded_cause(count: int, discarded: Counter[str]) -> _Cause:
    [(reason, times)] = discarded.most_common(1)
    short = f"of {count} groups {discarded.total()} were discarded, {times} of them as {reason}"
    return _Cause("dropped", short, *ADVICE_BY_REASON.get(reason, OTHER_ADVICE))


def patience_ms(made_ms: Iterable[int]) -> int:
    """Return how long a version may take before it is overdue, by when those before it were made."""
    times = sorted(made_ms)[-PACE_LOOK_BACK - 1 :]
    took = sorted(later - earlier for earlier, later in pairwise(times))
    if not took:
        return FIRST_MS
    return max(LEAST_MS, TIMES * took[(len(took) - 1) * 3 // 4])


def describe_standstill(variant: str, made_ms: Mapping[int, int]) -> str:
    """Return of a run that is over how long a policy or shadow got no further, where that was too long; else nothing.

    Args:
        variant: Its name.
        made_ms: Version to when it was made, in ms since the epoch.
    """
    versions = sorted(made_ms)
    late = [
        (made_ms[after] - made_ms[before], after)
        for at, (before, after) in enumerate(pairwise(versions))
        if made_ms[after] - made_ms[before] > patience_ms(made_ms[version] for version in versions[: at + 1])
    ]
    if not late:
        return ""
    longest_ms, version = max(late)
    return (
        f"{variant} made no version for {longest_ms / 1000:,.0f} s before version {version}, times when the run was "
        f"stopped included; this run had {len(late)} pause(s) that were too long"
    )


def describe_discards(variant: str, trained: int, discarded: Mapping[str, int]) -> str:
    """Return of a finished run that nearly all groups of a policy or shadow were discarded; nothing if they were not.

    Args:
        variant: Its name.
        trained: How many groups were trained.
        discarded: Reason to how many groups were not.
    """
    early = Counter({reason: count for reason, count in discarded.items() if reason != "run_end"})
    count = trained + early.total()
    if count < ENOUGH_AT_ONCE or early.total() < NEARLY_ALL * count:
        return ""
    found = _build_discarded_cause(count, early)
    return f"{variant} was trained on hardly any group: {found.short}. What you can do: {found.to_do}"
