"""Finds signs of an unhealthy training run in the metrics of its versions, with advice for each.

The metrics are those in BatchTrained, so the trainer, the page and a replay of the run get the same findings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

Metrics: TypeAlias = Mapping[str, float]

HEALTH_LOOK_BACK = 20
"""Newest versions that findings depend on; earlier versions change nothing."""
LARGE_GAP = 0.02
"""Mean nats per token with equal weights; below 1e-4 is normal on a CPU, below 1e-2 on a served GPU engine."""
LARGE_KL = 0.1
"""KL in nats per token, from the sampling weights to the trained weights."""
SMALL_SAMPLE = 0.3
"""Effective sample size as a share of the tokens."""
MANY_CLIPPED = 0.4
MANY_REJECTED = 0.5
MANY_TRUNCATED = 0.5
MANY_EQUAL = 0.9
STEEP = 10.0
"""How many times its usual value a gradient norm may be."""
HEALTH_EDGE = 5
SMALL_FALL = 0.1
"""Fall of the mean reward below which it may be noise."""
FALL = 0.5
"""Share of the best mean over HEALTH_EDGE versions to which the reward may fall."""
ENTROPY_LEFT = 0.1
"""Share of the entropy at the run's or the look-back's first version below which a policy has collapsed."""


ENTROPY_FIRST = "entropy_first"
"""Metric that every version copies from the last: the entropy of the run's first version."""


class HealthFinding(NamedTuple):
    """A problem found in the metrics."""

    name: str
    """Fixed name of the kind of problem."""
    sentence: str
    """The observation, its meaning, and advice."""


def findings(recent: Iterable[Metrics]) -> list[HealthFinding]:
    """Return the problems of the newest version, worst first.

    Args:
        recent: Metrics of the last HEALTH_LOOK_BACK versions or fewer, oldest first, as BatchTrained holds them.
    """
    metrics = list(recent)
    if not metrics:
        return []
    now = metrics[-1]
    return [
        *_find_not_finite(now),
        *_find_reward_collapse(metrics),
        *_find_steep_gradient(metrics),
        *_find_mismatch(now),
        *_find_off_policy(now),
        *_find_idle_data(now),
    ]


def _find_not_finite(now: Metrics) -> Iterator[HealthFinding]:
    if skipped := now.get("steps_skipped", 0.0):
        yield HealthFinding(
            "not_finite",
            f"Skipped optimizer steps of this version: {skipped:.0f}. Loss, gradient or new weights were not finite: "
            "lower trainer.learning_rate, and look at the batch for extreme rewards or log-probabilities.",
        )


def _find_reward_collapse(metrics: Sequence[Metrics]) -> Iterator[HealthFinding]:
    entropies = [one["entropy"] for one in metrics if "entropy" in one]
    first = max(entropies[0], metrics[-1].get(ENTROPY_FIRST, 0.0)) if entropies else 0.0
    if len(entropies) > HEALTH_EDGE and entropies[-1] < ENTROPY_LEFT * first:
        yield HealthFinding(
            "entropy_collapse",
            f"Entropy has fallen from {first:.3f} to {entropies[-1]:.3f}, so the policy gives few different answers: "
            "raise trainer.entropy, add trainer.kl, lower trainer.learning_rate, or raise the loss's clip_high if it "
            "has one.",
        )
    rewards = [one["reward_mean"] for one in metrics if "reward_mean" in one]
    means = [sum(rewards[end - HEALTH_EDGE : end]) / HEALTH_EDGE for end in range(HEALTH_EDGE, len(rewards) + 1)]
    best = max(means, default=0.0)
    if means and best - means[-1] > SMALL_FALL and means[-1] < best - FALL * abs(best):
        yield HealthFinding(
            "reward_collapse",
            f"Mean reward has fallen from {best:.2f} to {means[-1]:.2f} within {len(rewards)} versions: begin a new "
            "run from an earlier version (`headrace up RECIPE --set name=NAME --branch RUN@VERSION`), with a lower "
            "trainer.learning_rate or trainer.max_staleness.",
        )


def _find_steep_gradient(metrics: Sequence[Metrics]) -> Iterator[HealthFinding]:
    usual = sorted(one["grad_norm_mean"] for one in metrics[:-1] if "grad_norm_mean" in one)
    largest = metrics[-1].get("grad_norm_max", 0.0)
    if len(usual) >= HEALTH_EDGE and largest > STEEP * usual[len(usual) // 2]:
        yield HealthFinding(
            "steep",
            f"The norm of a gradient was {largest:.3g}, while {usual[len(usual) // 2]:.3g} is usual. "
            "Norms above trainer.grad_clip are clipped; if this repeats, lower trainer.learning_rate.",
        )


def _find_mismatch(now: Metrics) -> Iterator[HealthFinding]:
    gap = now.get("logprob_gap_mean", 0.0)
    if gap > LARGE_GAP:
        yield HealthFinding(
            "mismatch",
            f"Engine and trainer differ by {gap:.2g} in log-probabilities computed with the same weights: check that "
            "both have the same model, tokenizer, sampling temperature and precision. Until they agree, set "
            'trainer.correction = ["tis"], unless trainer.loss is decoupled_ppo or m2po, which correct the difference.',
        )


def _find_off_policy(now: Metrics) -> Iterator[HealthFinding]:
    sample, divergence = now.get("ess_share", 1.0), now.get("kl_k3", 0.0)
    if sample < SMALL_SAMPLE or divergence > LARGE_KL:
        yield HealthFinding(
            "off_policy",
            f"The data are far from the policy (effective sample size {sample:.0%}, KL {divergence:.3g}): lower "
            'trainer.max_staleness or trainer.learning_rate. Or use trainer.loss = "m2po" or "decoupled_ppo", unless '
            "you do already.",
        )
    rejected = now.get("rejected_fraction", 0.0)
    if rejected > MANY_REJECTED:
        yield HealthFinding(
            "rejected",
            f"{rejected:.0%} of the tokens are rejected and teach nothing: widen the bounds of trainer.correction or "
            "of trainer.loss, or lower trainer.max_staleness.",
        )
    clipped = now.get("clip_fraction", 0.0)
    if clipped > MANY_CLIPPED:
        yield HealthFinding(
            "clipped",
            f"{clipped:.0%} of the tokens are clipped, so they teach less or nothing: lower trainer.learning_rate, "
            "trainer.minibatches or trainer.max_staleness.",
        )


def _find_idle_data(now: Metrics) -> Iterator[HealthFinding]:
    truncated, equal = now.get("truncated_share", 0.0), now.get("zero_variance_share", 0.0)
    if truncated > MANY_TRUNCATED:
        yield HealthFinding(
            "truncated",
            f"In {truncated:.0%} of the trajectories a generation ended at the token limit, not with an end token: "
            "raise rollout.max_tokens, shorten prompts that fill the model's context, or teach the policy to stop.",
        )
    if equal > MANY_EQUAL:
        yield HealthFinding(
            "equal_rewards",
            f"In {equal:.0%} of the batch's groups all rewards are equal. An advantage that compares the rewards of a "
            "group learns nothing from them: put drop_zero_variance into curate.chain, or use tasks that the policy "
            "solves only sometimes.",
        )
