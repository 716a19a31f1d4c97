"""The final summary of a run, from its topics and the launcher's accounts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.infra.embedded.data_folder import DataFolder, Effort
from headrace.infra.run.run import Run
from headrace.infra.stopwatch import compute_log_share
from headrace.ledger.follow import ask_ledger
from headrace.ledger.ledger import Ledger
from headrace.ops.audit.numbers import PolicyAudit
from headrace.ops.audit.report import report
from headrace.ops.discards import Bias, PolicyDiscards, find_discards
from headrace.ops.figures.best_version import BestVersion, average_over_workflows, find_best_version
from headrace.ops.figures.figures import Figures
from headrace.ops.figures.pulse import Pulse, compute_mean_rates, find_pulse
from headrace.ops.figures.run_figures import GroupCounts, RewardPoint, RunFigures, Selection, ShadowFigures
from headrace.ops.figures.weights_figures import WeightsFigures
from headrace.schemas.ids import now_ms
from headrace.schemas.records import EvalResult

LOG_PROCESSES = ("broker", "feed", "curate")
"""Processes whose whole CPU time counts as Kafka's; for other processes only librdkafka's threads count."""
SECONDS_PREFIX = "seconds_"


MOST_PROBLEMS = 3
AUDIT_OPEN = 1
"""Exit code of a run that ended but whose audit does not close."""
NO_VERDICT = 3
"""Exit code of a run that ended but whose objects could not be checked."""


@dataclass(frozen=True, slots=True)
class FeedSettings:
    """The settings of the recipe's `[feed]` that decide how a run may end."""

    solved_share: float
    raise_tier: bool


@dataclass(frozen=True, slots=True)
class AuditVerdict:
    """The verdict of `headrace audit`."""

    ok: bool
    lost: int
    doubled: int
    problems: tuple[str, ...] = ()
    """The first problems of any kind, in sentences."""
    unchecked: str = ""
    """Why some objects could not be checked; empty otherwise."""

    @property
    def exit_code(self) -> int:
        """Exit code of `headrace up` at the end of the run, as of `headrace audit`."""
        return AUDIT_OPEN if self.problems else 0 if self.ok else NO_VERDICT

    @property
    def advice(self) -> str:
        """What to do about an audit that does not close."""
        if self.problems:
            return "does not close (see above): `headrace audit` names what is wrong"
        return "has no verdict (see above): give `headrace audit` when the store answers"


@dataclass(frozen=True, slots=True)
class DataUsed:
    """A run's data folder."""

    folder: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Lengths:
    """Mean lengths of trained groups and of groups discarded before the run's end, and their ratio."""

    trained: float | None
    discarded: float | None
    bias: Bias | None


@dataclass(frozen=True, slots=True)
class PolicySummary:
    """The result of one policy; None for values that were never measured."""

    versions: int
    reward_first: float | None
    reward_last: float | None
    eval_first: float | None
    eval_last: float | None
    eval_last_error: float | None
    """Standard error of `eval_last` over the problems."""
    eval_tiers: dict[str, tuple[float | None, float | None]]
    """Tier to its held-out reward at the first and the last evaluated version; empty for fewer than two tiers."""
    eval_workflows: dict[str, tuple[float | None, float | None]]
    """The same by workflow; empty for fewer than two workflows."""
    best: BestVersion | None
    """The version with the highest held-out reward."""
    groups: PolicyAudit
    weights: WeightsFigures
    reward_curve: tuple[tuple[int, float], ...]
    """(version, reward)."""
    eval_curve: tuple[tuple[int, float], ...]
    """(version, held-out reward), without evaluations of which all episodes failed."""
    eval_failures: int
    """Number of failed episodes in all evaluations; no reward includes them."""
    trajectories: int
    progress: tuple[tuple[int, int, float], ...]
    """(version, trajectories, seconds): the effort until the version was made."""
    lengths: Lengths
    has_own_steps: bool = False
    """Whether the recipe sets `trainer.steps` of this policy itself, so that `[trainer]` does not change it."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a run; `--summary` writes it field by field."""

    run: str
    run_id: str
    ended: str
    feed: FeedSettings
    versions: int
    """Newest version of the slowest policy."""
    wall_s: float
    reward_first: float | None
    """This field and the next three are those of the only policy; None for several policies."""
    reward_last: float | None
    eval_first: float | None
    eval_last: float | None
    groups: GroupCounts
    selection: dict[str, Selection]
    audit: AuditVerdict
    log_share: float
    """Kafka's share of the time of workers' and trainers' loops."""
    log_cpu_share: float
    """Kafka's share of all CPU seconds."""
    tokens_per_s: float
    """Tokens of the groups that reached a curator, per second of `wall_s`."""
    samples_per_s: float
    """Trajectories of these groups, per second of `wall_s`."""
    tokens: int
    wasted_tokens: int
    dead_letters: int
    unnumbered_letters: dict[str, int]
    """Reason to the number of dead letters that name no training task."""
    cpu_s: dict[str, float]
    """Process to its CPU seconds."""
    data: DataUsed
    policies: dict[str, PolicySummary]
    shadows: dict[str, ShadowFigures]
    errors: tuple[str, ...] = ()
    """Sentences: how episodes failed, and what became dead letters, the most frequent first."""
    stood_still: tuple[str, ...] = ()
    """Sentences: which policies and shadows made no version for too long, or were trained on hardly any group."""
    rest: str = ""
    """What is still missing of the run, in words; empty if it has drained, or if the audit does not close."""

    @property
    def in_flight(self) -> int:
        """Number of tasks that are issued and not concluded, over all policies and shadows."""
        return self.groups.in_flight + sum(shadow.groups.in_flight for shadow in self.shadows.values())


def summarize(run: Run, effort: Effort, folder: DataFolder, rest: str = "") -> Summary:
    """Return the summary of a run that has ended, and whose processes have stopped. Raises KafkaAway or KafkaRefused.

    Args:
        run: The run.
        effort: Wall time and CPU time that it has taken.
        folder: Its data folder.
        rest: What is still missing of it, in words; empty if it has drained.
    """
    return ask_ledger(run, folder.ledger, lambda ledger: _build_summary(run, ledger, effort, folder, rest))


def _build_summary(run: Run, ledger: Ledger, effort: Effort, folder: DataFolder, rest: str) -> Summary:
    fold, now = Figures(ledger), now_ms()
    figures, pulse = fold.compute_figures({}, now), find_pulse(ledger, now)
    proof, rates, feed = report(run, rests=True), compute_mean_rates(ledger, effort.wall_s), run.recipe.feed
    fates = {name: find_discards(ledger, name) for name in run.recipe.policies}
    policies = {
        name: replace(
            summarize_policy(figures, name, fold.seconds_to_versions(name), fates[name]),
            has_own_steps="steps" in policy.trainer,
        )
        for name, policy in run.recipe.policies.items()
    }
    only = next(iter(policies.values())) if len(policies) == 1 else None
    return Summary(
        run=figures.run,
        run_id=run.run_id,
        ended=figures.ended,
        feed=FeedSettings(feed.solved_share, feed.raise_tier),
        versions=min(block.versions for block in policies.values()),
        wall_s=round(effort.wall_s, 1),
        reward_first=only.reward_first if only else None,
        reward_last=only.reward_last if only else None,
        eval_first=only.eval_first if only else None,
        eval_last=only.eval_last if only else None,
        groups=figures.groups,
        selection=figures.selection,
        audit=AuditVerdict(proof.ok, proof.lost, proof.doubled, proof.problems[:MOST_PROBLEMS], proof.unchecked),
        log_share=round(log_share_of(figures, pulse), 4),
        log_cpu_share=round(log_cpu_share(effort.cpu), 4),
        tokens_per_s=round(rates.tokens, 1),
        samples_per_s=round(rates.samples, 1),
        tokens=figures.tokens,
        wasted_tokens=figures.count_wasted_tokens(),
        dead_letters=pulse.dead_letters,
        unnumbered_letters=figures.unnumbered_letters,
        cpu_s={name: round(used["process"], 1) for name, used in effort.cpu.items()},
        data=DataUsed(str(folder.root), folder.size_bytes()),
        policies=policies,
        shadows=figures.shadows,
        errors=tuple(error.sentence for error in figures.errors),
        stood_still=fold.describe_standstills(figures),
        rest=rest if proof.ok else "",
    )


def summarize_policy(
    figures: RunFigures, policy: str, seconds: Mapping[int, float], groups: PolicyDiscards
) -> PolicySummary:
    """Return the result of one policy.

    Args:
        figures: Figures of the run.
        policy: Policy of the summary.
        seconds: Version to the seconds after which it was made.
        groups: Trained and discarded groups of the policy.
    """
    evals = sorted((one for one in figures.evals if one.policy == policy), key=lambda one: one.version)
    first, last = find_eval_ends(evals)
    rewards = figures.rewards.get(policy, ())
    return PolicySummary(
        versions=max(0, figures.versions.get(policy, 0)),
        reward_first=figures.reward_first.get(policy),
        reward_last=figures.reward_last.get(policy),
        eval_first=first,
        eval_last=last,
        eval_last_error=estimate_last_error(evals),
        eval_tiers=find_eval_tier_ends(evals),
        eval_workflows=find_eval_workflow_ends(evals),
        best=find_best_version(evals),
        groups=figures.policies[policy],
        weights=figures.weights[policy],
        reward_curve=tuple((point.version, round(point.reward, 4)) for point in rewards),
        eval_curve=tuple((one.version, round(one.avg_at_k, 4)) for one in evals if one.has_reward),
        eval_failures=sum(one.failures for one in evals),
        trajectories=sum(point.trajectories for point in rewards),
        progress=compute_progress(rewards, seconds),
        lengths=compute_lengths(groups),
    )


def compute_lengths(groups: PolicyDiscards) -> Lengths:
    """Return mean lengths of trained groups and of groups discarded before the run's end, and their ratio."""
    return Lengths(groups.trained.length, groups.before_end.length, groups.before_end.bias)


def compute_progress(points: Sequence[RewardPoint], seconds: Mapping[int, float]) -> tuple[tuple[int, int, float], ...]:
    """Return for every version (version, trajectories, seconds): the effort until it was made.

    The trajectories are those of all groups that workers finished before they knew the version, trained or not.
    """
    counts = {point.version: point.trajectories for point in points}
    found: list[tuple[int, int, float]] = []
    before, done = 0, -1
    for version, at_s in sorted(seconds.items()):
        before += sum(counts.get(head, 0) for head in range(done, version))
        found.append((version, before, round(at_s, 2)))
        done = version
    return tuple(found)


def find_eval_ends(evals: Sequence[EvalResult]) -> tuple[float | None, float | None]:
    """Return avg@k of the first and the last version evaluated in all workflows; for a single version only the last."""
    means = list(average_over_workflows(evals).values())
    return (means[0] if len(means) > 1 else None), (means[-1] if means else None)


def estimate_last_error(evals: Sequence[EvalResult]) -> float | None:
    """Return the standard error of the last value of `find_eval_ends`; None if the error of a workflow is not known."""
    version = max(average_over_workflows(evals), default=None)
    errors = [one.standard_error for one in evals if one.version == version and one.has_reward]
    return math.hypot(*errors) / len(errors) if errors and min(errors) >= 0 else None


def find_eval_workflow_ends(evals: Sequence[EvalResult]) -> dict[str, tuple[float | None, float | None]]:
    """Return, by workflow, avg@k of the first and the last version that was evaluated; empty for one workflow."""
    workflows = sorted({one.workflow for one in evals})
    ends = {name: find_eval_ends([one for one in evals if one.workflow == name]) for name in workflows}
    return ends if len(ends) > 1 else {}


def find_eval_tier_ends(evals: Sequence[EvalResult]) -> dict[str, tuple[float | None, float | None]]:
    """Return, by tier, avg@k of the first and the last evaluated version, as `find_eval_ends` does."""
    tiers = sorted({tier.tier for one in evals for tier in one.tiers})
    of_tier = {
        name: [replace(one, avg_at_k=t.avg_at_k, played=t.played) for one in evals for t in one.tiers if t.tier == name]
        for name in tiers
    }
    return {name: find_eval_ends(found) for name, found in of_tier.items()}


def log_share_of(figures: RunFigures, pulse: Pulse) -> float:
    """Return Kafka's share of the time of workers' and trainers' loops, without waiting."""
    total: dict[str, float] = {}
    parts: list[Mapping[str, float]] = [worker.seconds for worker in figures.workers]
    parts += [
        {
            key.removeprefix(SECONDS_PREFIX): value
            for key, value in one.metrics.items()
            if key.startswith(SECONDS_PREFIX)
        }
        for one in pulse.policies.values()
    ]
    for part in parts:
        for activity, seconds in part.items():
            total[activity] = total.get(activity, 0.0) + seconds
    return compute_log_share(total)


def log_cpu_share(cpu: Mapping[str, Mapping[str, float]]) -> float:
    """Return the CPU seconds of broker, feeder, curators and librdkafka's threads over all CPU seconds."""
    everything = sum(used["process"] for used in cpu.values())
    logs = sum(used["process" if name.startswith(LOG_PROCESSES) else "librdkafka"] for name, used in cpu.items())
    return logs / everything if everything else 0.0
