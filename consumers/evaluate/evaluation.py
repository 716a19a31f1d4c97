"""Folds evaluation groups into results, without I/O."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import fsum
from typing import Any, NamedTuple

from headrace.consumers.algorithms.contract import generated_lengths
from headrace.consumers.evaluate.pass_at_k import mean_pass_at_k
from headrace.infra.recipe.settings import Recipe
from headrace.schemas.episode_errors import error_key_of, group_errors
from headrace.schemas.headers import HeaderError, Headers, Stamp
from headrace.schemas.records import EpisodeError, EvalResult, Failure, TierResult, TrajectoryGroup
from headrace.schemas.topics import workflow_of

RIGHT_ABOVE = 0.5
"""A sample counts as right in pass@k if its reward is above this."""
LARGEST_MEAN = 1e300
"""Largest mean reward; beyond it sums or squares could overflow, so the mean counts as NaN."""
MOST_ERRORS = 4
"""Most different errors in a result."""
MOST_OPEN_ERRORS = 32
"""Most different errors that a running evaluation counts; further ones count only as failures."""
MOST_TIERS = 16
"""Most tiers in a result; with more, the tiers are a data column that nobody reads one by one, and are left out."""


class EvaluationId(NamedTuple):
    """One evaluation of a version on a workflow."""

    workflow: str
    policy: str
    version: int
    """The requested version."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Contribution of one problem to a result."""

    samples: int
    """Number of requested episodes."""
    right: int
    score: float
    """Sum of the rewards; NaN if it is not finite."""
    tokens: int
    """Generated tokens of all trajectories."""
    trajectories: int
    """Number of episodes that played."""
    failures: int
    """Number of episodes that failed; an episode in which the policy did not act neither played nor failed."""
    tier: str = ""
    """Tier of the problem; empty for none, and for an unreadable group."""


def count_answers(group: TrajectoryGroup) -> Answers:
    """Return a group's contribution. An episode that failed, or that the policy did not act in, is no wrong answer."""
    rewards = [trajectory.reward for trajectory in group.trajectories]
    return Answers(
        samples=max(group.n_asked, len(rewards)),
        right=sum(reward > RIGHT_ABOVE for reward in rewards),
        score=_sum_or_nan(rewards),
        tokens=sum(generated_lengths(group)),
        trajectories=len(rewards),
        failures=min(len(group.failures), max(group.n_asked - len(rewards), 0)),
        tier=group.tier,
    )


def mean_score(played: Sequence[Answers]) -> float:
    """Return the mean reward over problems with played episodes, with equal weights; NaN if there are none."""
    mean = _sum_or_nan([one.score / one.trajectories for one in played]) / len(played) if played else math.nan
    return mean if abs(mean) <= LARGEST_MEAN else math.nan


def estimate_error(played: Sequence[Answers], mean: float) -> float:
    """Return the standard error of `mean_score` from the spread of the problems' means; -1 if unknown."""
    if len(played) < 2:
        return -1.0
    deviations = [one.score / one.trajectories - mean for one in played]
    variance = _sum_or_nan([one * one for one in deviations]) / (len(played) - 1)
    return math.sqrt(variance / len(played)) if math.isfinite(variance) else -1.0


def measure_tiers(found: Sequence[Answers]) -> tuple[TierResult, ...]:
    """Return the result of each tier, if there are several tiers."""
    tiers = defaultdict[str, list[Answers]](list)
    for one in found:
        if one.tier:
            tiers[one.tier].append(one)
    if not 1 < len(tiers) <= MOST_TIERS:
        return ()
    played = {tier: [one for one in answers if one.trajectories] for tier, answers in tiers.items()}
    return tuple(
        TierResult(tier, len(tiers[tier]), sum(one.trajectories for one in played[tier]), mean_score(played[tier]))
        for tier in sorted(tiers)
    )


def read_lost_stamp(headers: Headers, run_id: str) -> Stamp | None:
    """Return the stamp of an unreadable group, so that it counts as unanswered and its evaluation concludes.

    The requested version is that of its tokens. Returns None if the headers do not name it: then its number stays open.
    """
    try:
        stamp = Stamp.from_headers(headers)
    except HeaderError:
        return None
    return stamp if stamp.run_id == run_id and stamp.min_version >= 0 else None


def build_group_without_answers(stamp: Stamp, policy: str, revisions: Sequence[Recipe]) -> TrajectoryGroup:
    """Return a group without answers in place of an unreadable group, from its stamp and the run's recipes.

    All its episodes count as failed.
    """
    asked_under = revisions[min(max(stamp.revision, 0), len(revisions) - 1)]
    return TrajectoryGroup(
        stream=stamp.stream,
        number=stamp.number,
        policy=policy,
        revision=stamp.revision,
        n_asked=asked_under.evaluate.played_samples,
        failures=(Failure(reason="unreadable"),) * asked_under.evaluate.played_samples,
        asked_version=stamp.min_version,
    )


@dataclass(slots=True)
class _Open:
    """An evaluation without a result."""

    revision: int
    """The lowest revision of its groups, under which it was requested; reissued tasks have later ones."""
    problems: int
    """Number of requested problems."""
    found: dict[int, Answers]
    """Answers by number."""
    errors: dict[tuple[str, str, str], EpisodeError] = field(default_factory=dict)
    """Errors of its episodes by kind."""

    def add(self, number: int, answers: Answers, errors: Iterable[EpisodeError]) -> None:
        """Take in a problem; ignore a repetition."""
        if number in self.found:
            return
        self.found[number] = answers
        for error in errors:
            kind = error_key_of(error)
            if (before := self.errors.get(kind)) is not None:
                self.errors[kind] = replace(before, episodes=before.episodes + error.episodes)
            elif len(self.errors) < MOST_OPEN_ERRORS:
                self.errors[kind] = error

    def list_frequent_errors(self) -> tuple[EpisodeError, ...]:
        """Return the errors for the result, the most frequent first."""
        return tuple(sorted(self.errors.values(), key=lambda error: -error.episodes)[:MOST_ERRORS])


class EvaluationFold:
    """Gathers the groups of every (workflow, policy, version) until all problems have concluded, then gives its result.

    A repeated group (same stream and number) is ignored. If a workflow has several policies, those that only play along
    are measured too, at their version, once per version. So a version may get the same problems twice under other
    numbers; each counts once.

    Args:
        run_id: The run.
        problems: Problems of one evaluation, by the newest recipe.
        by_revision: Problems of one evaluation by recipe revision, as far as known.
    """

    def __init__(self, run_id: str, problems: int, by_revision: Sequence[int] = ()) -> None:
        self.run_id = run_id
        self.problems = problems
        self._by_revision = dict(enumerate(by_revision))
        self._open: dict[EvaluationId, _Open] = {}
        self._done: set[EvaluationId] = set()

    def fold_group(self, group: TrajectoryGroup) -> EvalResult | None:
        """Take in a group; return the result that it completes."""
        key = EvaluationId(workflow_of(group.stream), group.policy, group.asked_version)
        if key in self._done:
            return None
        asked = self._by_revision.get(group.revision, self.problems)
        one = self._open.setdefault(key, _Open(group.revision, asked, {}))
        if group.revision < one.revision:
            one.revision, one.problems = group.revision, asked
        one.add(group.number, count_answers(group), group_errors(group.errors))
        return self._conclude(key)

    def _conclude(self, key: EvaluationId) -> EvalResult | None:
        """Return the result of an open evaluation; None if problems are missing."""
        one = self._open[key]
        numbers = choose_numbers(one.found, one.problems) if len(one.found) >= one.problems else []
        if len(numbers) < one.problems:
            return None
        self._done.add(key)
        del self._open[key]
        errors = one.list_frequent_errors()
        return self._build_result(key, [one.found[number] for number in numbers], errors)

    def _build_result(self, key: EvaluationId, found: list[Answers], errors: tuple[EpisodeError, ...]) -> EvalResult:
        workflow, policy, version = key
        samples = min(one.samples for one in found)
        played = [one for one in found if one.trajectories]
        trajectories, mean = sum(one.trajectories for one in played), mean_score(played)
        return EvalResult(
            run_id=self.run_id,
            policy=policy,
            workflow=workflow,
            version=version,
            problems=len(found),
            asked=len(found),
            samples=samples,
            avg_at_k=mean,
            pass_at_k={
                str(k): mean_pass_at_k([(one.trajectories, one.right) for one in played if one.trajectories >= k], k)
                for k in _iterate_ks(min(samples, max((one.trajectories for one in played), default=0)))
            },
            mean_length=sum(one.tokens for one in found) / trajectories if trajectories else 0.0,
            failures=sum(one.failures for one in found),
            played=trajectories,
            tiers=measure_tiers(found),
            standard_error=estimate_error(played, mean),
            errors=errors,
        )

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON. The feeder reads it: groups that were read but are missing here count as lost."""
        rows = [[*key, at, asdict(answers)] for key, one in self._open.items() for at, answers in one.found.items()]
        asked = [[*key, one.revision, one.problems] for key, one in self._open.items()]
        errors = [[*key, list(map(asdict, one.errors.values()))] for key, one in self._open.items() if one.errors]
        done = [list(key) for key in sorted(self._done)]
        return {"open": rows, "done": done, "asked": asked, "errors": errors}

    def restore(self, state: dict[str, Any]) -> None:
        """Take the state that `snapshot` returned."""
        self._done = {EvaluationId(*key) for key in state["done"]}
        self._open = {
            EvaluationId(*key): _Open(revision, problems, {}) for *key, revision, problems in state.get("asked", ())
        }
        for *key, number, answers in state["open"]:
            one = self._open.setdefault(EvaluationId(*key), _Open(len(self._by_revision), self.problems, {}))
            one.found[number] = Answers(**answers)
        for *key, errors in state.get("errors", ()):
            self._open[EvaluationId(*key)].errors = {
                error_key_of(one): one for one in (EpisodeError(**e) for e in errors)
            }


def choose_numbers(found: Collection[int], problems: int) -> list[int]:
    """Return one number for each problem, all of the same evaluation if it is complete; `found` has enough.

    The numbers of a workflow's evaluations are consecutive, one per problem. So any stretch as long as one evaluation
    has each problem once, and numbers that far apart are of the same problem.
    """
    numbers = sorted(found)
    for at, first in enumerate(numbers[: len(numbers) - problems + 1]):
        if numbers[at + problems - 1] - first < problems:
            return numbers[at : at + problems]
    return list({number % problems: number for number in reversed(numbers)}.values())


def _sum_or_nan(values: Sequence[float]) -> float:
    try:
        return fsum(values)
    except (OverflowError, ValueError):  # too large or infinite
        return math.nan


def _iterate_ks(samples: int) -> Iterator[int]:
    """Yield the k of pass@k: powers of two below the number of samples, and that number."""
    k = 1
    while k < samples:
        yield k
        k *= 2
    if samples:
        yield samples
