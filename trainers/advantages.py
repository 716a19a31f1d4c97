"""Advantage estimators: pure functions from rewards to advantages, named as in recipes.

All functions take the sequences of one group or of a whole batch, whose groups `RewardedSequence.group` numbers, and
compute in float64. They return float32[n], one advantage for all generated tokens of a sequence, or n arrays
float32[length], one advantage per generated token. Plain rewards, float[n], count as n trajectories of one sequence of
one token. What is compared is a *key*: the sequences of one group, and with `group_by` of one role, or of one role and
turn. With `weight = trajectory` a trajectory is one value per key, the mean of its sequences' rewards there, and all
its sequences there get the same advantage; with `weight = sequence` every sequence is a value. Values r_1..r_m of one
key have the mean mu and the standard deviation sigma, unbiased unless said otherwise; a key of one value, or of equal
ones, gives exactly 0. Statistics are over all sequences, kept or not; those over tokens are over the kept ones.

All functions raise RewardError for rewards without a defined advantage, and ValueError for a parameter out of range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.infra.errors import HeadraceError
from headrace.infra.recipe.ranges import at_least, within
from headrace.schemas.field_types import Float32s
from headrace.schemas.rewards import EQUAL

GroupBy = Literal["task", "task+role", "task+role+turn"]
Weight = Literal["trajectory", "sequence"]
Floats: TypeAlias = npt.NDArray[np.float64]
Int64s: TypeAlias = npt.NDArray[np.int64]

_KEYS: Mapping[str, tuple[str, ...]] = {
    "task": ("group",),
    "task+role": ("group", "role"),
    "task+role+turn": ("group", "role", "turn"),
}
_LARGEST = 1e30
"""Largest reward: the square of a larger one may overflow float64."""
_SHOWN = 8
"""Most wrong numbers that an error message shows."""


class RewardError(HeadraceError):
    """A reward for which no advantage is defined."""


@dataclass(frozen=True, slots=True)
class RewardedSequence:
    """One sequence of a group, kept or not."""

    trajectory: int
    """Index of its trajectory within the group."""
    role: str
    reward: float
    """Its own shaped reward if the workflow set one, else its trajectory's."""
    turn: int = 0
    """Turn of its first generated token."""
    length: int = 1
    """Generated tokens."""
    baseline: float | None = None
    """Baseline that the workflow gives; None if it gives none."""
    group: int = 0
    """Index of its group in the batch."""
    kept: bool = True
    """Whether the sequence is trained on."""
    token_rewards: Floats | None = None
    """float64[length], the reward of each generated token, with sum `reward`; None: all of it on the last token."""
    token_values: Floats | None = None
    """float64[length], a critic's value V_t before each generated token; None for V = 0."""


RewardedSequences: TypeAlias = Sequence[RewardedSequence] | Sequence[float] | npt.NDArray[np.floating]
"""Sequences of one group or of a batch."""
Advantages: TypeAlias = Float32s | list[Float32s]
"""float32[n], or n arrays float32[length]."""


@dataclass(frozen=True, slots=True)
class ComparedValues:
    """The m values of one key."""

    sequences: Int64s
    """int64[k], indices of the sequences with this key, ascending."""
    value_of: Int64s
    """int64[k], index of each sequence's value."""
    values: Floats
    """float64[m], the rewards."""
    lengths: Floats
    """float64[m], generated tokens."""


# --------------------------------------------------------------------------------------------- compared within a key


def grpo(
    sequences: RewardedSequences,
    *,
    group_by: GroupBy = "task",
    weight: Weight = "trajectory",
    std: Literal["sample", "population"] = "sample",
    eps: float = 1e-5,
) -> Float32s:
    """GRPO (arXiv 2402.03300): (r - mu) / (sigma + eps), float32[n].

    `std = sample` divides by m-1 in sigma, `population` by m. No advantage exceeds (m-1)/sqrt(m), with
    `population` sqrt(m-1).
    """
    ddof = {"sample": 1, "population": 0}.get(std)
    if ddof is None:
        raise ValueError(f'std must be "sample" or "population", got {std!r}')
    at_least(0, eps=eps)
    return _apply_by_key(
        sequences, group_by, weight, lambda key: (key.values - key.values.mean()) / (key.values.std(ddof=ddof) + eps)
    )


def dr_grpo(sequences: RewardedSequences, *, group_by: GroupBy = "task", weight: Weight = "trajectory") -> Float32s:
    """Dr. GRPO (arXiv 2503.20783): r - mu, float32[n]; meant for the loss aggregation `constant`."""
    return _apply_by_key(sequences, group_by, weight, _centre)


def rloo(sequences: RewardedSequences, *, group_by: GroupBy = "task", weight: Weight = "trajectory") -> Float32s:
    """RLOO (arXiv 2402.14740): r_i minus the mean of the others, m / (m-1) * (r - mu), float32[n]."""
    return _apply_by_key(
        sequences, group_by, weight, lambda key: _centre(key) * (key.values.size / (key.values.size - 1))
    )


def maxrl(sequences: RewardedSequences, *, group_by: GroupBy = "task", weight: Weight = "trajectory") -> Float32s:
    """MaxRL (arXiv 2602.02710): (r - mu) / mu, and 0 where mu <= 0, float32[n]; meant for rewards >= 0."""

    def formula(key: ComparedValues) -> Floats:
        mean = key.values.mean()
        return _centre(key) / mean if mean > 0 else np.zeros_like(key.values)

    return _apply_by_key(sequences, group_by, weight, formula)


def opo(sequences: RewardedSequences, *, group_by: GroupBy = "task", weight: Weight = "trajectory") -> Float32s:
    """OPO (arXiv 2505.23585): r_i - sum_j L_j r_j / sum_j L_j with L generated tokens, float32[n].

    The lengths of a trajectory's sequences are added. If nothing was generated, the baseline is mu.
    """

    def formula(key: ComparedValues) -> Floats:
        weights = key.lengths if key.lengths.any() else np.ones_like(key.lengths)
        advantages: Floats = key.values - (weights * key.values).sum() / weights.sum()
        return advantages

    return _apply_by_key(sequences, group_by, weight, formula)


def pass_at_k(
    sequences: RewardedSequences, *, group_by: GroupBy = "task", weight: Weight = "trajectory", eps: float = 1e-5
) -> Float32s:
    """Pass@k with k = m (arXiv 2503.19595): the best has (r_max - r_2nd) / (sigma + eps), all others 0, float32[n]."""
    at_least(0, eps=eps)

    def formula(key: ComparedValues) -> Floats:
        second, best = np.sort(key.values)[-2:]
        lead = (best - second) / (key.values.std(ddof=1) + eps)
        return np.where(key.values == best, lead, 0.0)

    return _apply_by_key(sequences, group_by, weight, formula)


def given(sequences: RewardedSequences, *, group_by: GroupBy = "task", weight: Weight = "trajectory") -> Float32s:
    """Subtract the workflow's baseline from each sequence's reward: r - `RewardedSequence.baseline`, float32[n].

    For ReMax (arXiv 2310.10505) the workflow gives the reward of a greedy completion as the baseline. For a sequence
    without a baseline, the mean mu of its key is used. Raises RewardError for a group without any baseline.
    """
    known = _to_sequences(sequences)
    _require_baseline_per_group(known)
    advantages = np.array([sequence.reward for sequence in known], np.float64)
    baselines = np.zeros_like(advantages)
    for key in iterate_comparisons(known, group_by, weight):
        baselines[key.sequences] = key.values.mean()
    for index, sequence in enumerate(known):
        if sequence.baseline is not None:
            baselines[index] = sequence.baseline
    return _to_float32(np.where(np.abs(advantages - baselines) <= EQUAL, 0.0, advantages - baselines))


# --------------------------------------------------------------------------------------- compared within a whole batch


def gpg(sequences: RewardedSequences, *, group_by: GroupBy = "task", weight: Weight = "trajectory") -> Float32s:
    """GPG (arXiv 2504.02546, as in verl): (B / nonzero) * (r - mu), float32[n].

    B counts the batch's sequences, `nonzero` those whose reward is not 0, and is at least 1.
    """
    known = _to_sequences(sequences)
    nonzero = sum(sequence.reward != 0 for sequence in known)
    return _apply_by_key(known, group_by, weight, lambda key: _centre(key) * (len(known) / max(nonzero, 1)))


def lite_ppo(
    sequences: RewardedSequences, *, group_by: GroupBy = "task", weight: Weight = "trajectory", eps: float = 1e-5
) -> Float32s:
    """Lite PPO (arXiv 2508.08221): (r - mu) / (sigma_batch + eps), float32[n].

    sigma_batch is the unbiased deviation of all values of the batch, whatever their key.
    """
    at_least(0, eps=eps)
    known = _to_sequences(sequences)
    values = np.concatenate([np.empty(0), *(key.values for key in iterate_comparisons(known, group_by, weight))])
    sigma = values.std(ddof=1) if values.size > 1 else 0.0
    return _apply_by_key(known, group_by, weight, lambda key: _centre(key) / (sigma + eps))


def reinforce_pp(sequences: RewardedSequences, *, gamma: float = 1.0, eps: float = 1e-5) -> list[Float32s]:
    """REINFORCE++ (arXiv 2501.03262): R_t = sum_{s >= t} gamma^(s-t) r_s, whitened, n arrays float32[length].

    The discount gamma applies per generated token; observations do not count. Whitening is over the generated tokens of
    the batch, as in `batch_norm`.
    """
    within(0, 1, gamma=gamma)
    known = _to_sequences(sequences)
    returns = [_sum_discounted(_rewards_of(sequence), gamma) for sequence in known]
    return _to_float32s(_whiten(returns, known, eps))


def reinforce_pp_baseline(
    sequences: RewardedSequences, *, group_by: GroupBy = "task", weight: Weight = "trajectory", eps: float = 1e-5
) -> Float32s:
    """REINFORCE++ with the group's mean as baseline (arXiv 2501.03262): r - mu, whitened as in `batch_norm`."""
    known = _to_sequences(sequences)
    centred = _apply_by_key_exactly(known, group_by, weight, _centre)
    return _whiten_each(centred, known, eps)


def batch_norm(advantages: Advantages, sequences: RewardedSequences, *, eps: float = 1e-5) -> Advantages:
    """Return (A - mean) / (std + eps) in the form of `advantages`, over the generated tokens of all kept sequences.

    The deviation is unbiased, and every token has the same weight. Fewer than 2 tokens, or equal advantages, give
    exactly 0.
    """
    known = _to_sequences(sequences)
    if isinstance(advantages, np.ndarray):
        return _whiten_each(advantages.astype(np.float64), known, eps)
    return _to_float32s(_whiten([each.astype(np.float64) for each in advantages], known, eps))


# ------------------------------------------------------------------------------------------------------- token by token


def gae(
    sequences: RewardedSequences, *, gamma: float = 1.0, lam: float = 1.0, length_adaptive: float | None = None
) -> list[Float32s]:
    """GAE (arXiv 1506.02438) over each sequence's generated tokens, see `generalized_advantage`: float32[length] each.

    Without a critic, V = 0, A_t is the sum of later rewards discounted by gamma * lam. With `length_adaptive` = alpha,
    lam is as in VAPO (arXiv 2504.05118): 1 - 1 / (alpha * length), at least 0; its authors use alpha = 0.05.
    """
    if length_adaptive is not None and not length_adaptive > 0:
        raise ValueError(f"length_adaptive must be above 0, got {length_adaptive}")
    found = []
    for sequence in _to_sequences(sequences):
        decay = lam
        if length_adaptive is not None:
            decay = max(0.0, 1 - 1 / (length_adaptive * max(sequence.length, 1)))
        advantages, _ = generalized_advantage(_rewards_of(sequence), sequence.token_values, gamma=gamma, lam=decay)
        found.append(advantages)
    return _to_float32s(found)


def generalized_advantage(
    rewards: npt.ArrayLike,
    values: npt.ArrayLike | None = None,
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
    mask: npt.ArrayLike | None = None,
) -> tuple[Floats, Floats]:
    """Return (advantages, returns), float64[T]: A_t = delta_t + gamma lam A_{t+1}, returns = A + V (arXiv 1506.02438).

    delta_t = r_t + gamma V_{t+1} - V_t, and V after the end is 0.

    Args:
        rewards: float[T].
        values: float[T], V_t; 0 without a critic.
        gamma: Discount of rewards.
        lam: Discount of deltas.
        mask: bool[T], False on observed tokens. A and V pass over them unchanged, and both results are 0 there. A
            reward on an observed token moves to the last generated token before it, or to the first generated token.
    """
    within(0, 1, gamma=gamma, lam=lam)
    each = np.asarray(rewards, np.float64)
    critic = np.zeros_like(each) if values is None else np.asarray(values, np.float64)
    chosen = np.ones(each.shape, np.bool_) if mask is None else np.asarray(mask, np.bool_)
    if each.ndim != 1 or not each.shape == critic.shape == chosen.shape:
        raise ValueError(
            f"rewards, values and mask must be vectors of the same length, got shapes {each.shape}, {critic.shape} "
            f"and {chosen.shape}"
        )
    advantages, returns = np.zeros_like(each), np.zeros_like(each)
    if chosen.any():
        moved = np.bincount(np.maximum(np.cumsum(chosen) - 1, 0), each, minlength=int(chosen.sum()))
        before = critic[chosen]
        delta = moved + gamma * np.append(before[1:], 0.0) - before
        advantages[chosen] = _sum_discounted(delta, gamma * lam)
        returns[chosen] = advantages[chosen] + before
    return advantages, returns


def rae(
    rewards: Sequence[float], roles: Sequence[str], baselines: Mapping[str, float] | None = None, *, decay: float = 0.95
) -> tuple[Float32s, dict[str, float]]:
    """RAE (arXiv 2506.24119): for each reward in order r - b_role, then b_role <- decay b_role + (1 - decay) r.

    For your own code, which must keep the state: returns float32[n] and the new baselines; a new role starts at 0.
    """
    within(0, 1, decay=decay)
    known, advantages = dict(baselines or {}), np.zeros(len(rewards), np.float64)
    for index, (sequence, role) in enumerate(zip(_to_sequences(rewards), roles, strict=True)):
        before = known.get(role, 0.0)
        advantages[index] = sequence.reward - before
        known[role] = decay * before + (1 - decay) * sequence.reward
    return _to_float32(advantages), known


ADVANTAGES: Mapping[str, Callable[..., Advantages]] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "maxrl": maxrl,
    "opo": opo,
    "pass_at_k": pass_at_k,
    "given": given,
    "gpg": gpg,
    "lite_ppo": lite_ppo,
    "reinforce_pp": reinforce_pp,
    "reinforce_pp_baseline": reinforce_pp_baseline,
    "gae": gae,
}
"""Estimators by name: `advantage = { use = "grpo", eps = 1e-5 }`; the other keys are the function's parameters.

Role-conditioned estimation is not in the table, only available as the function `rae`: its baseline depends on all
earlier rewards, so a version could not be remade from its batch alone.
"""
WHOLE_BATCH = frozenset({"gpg", "lite_ppo", "reinforce_pp", "reinforce_pp_baseline"})
"""Estimators whose advantages of a group depend on the other groups of its batch."""


# ---------------------------------------------------------------------------------------------------------------- parts


def iterate_comparisons(
    sequences: Sequence[RewardedSequence], group_by: GroupBy, weight: Weight
) -> Iterator[ComparedValues]:
    """Yield the values of every key, in the order of each key's first sequence. Your own estimators may use it."""
    if group_by not in _KEYS or weight not in ("trajectory", "sequence"):
        raise ValueError(
            f"group_by must be one of {', '.join(_KEYS)}, and weight must be trajectory or sequence; got "
            f"group_by = {group_by!r} and weight = {weight!r}"
        )
    indices: dict[tuple[object, ...], list[int]] = {}
    for index, sequence in enumerate(sequences):
        indices.setdefault(tuple(getattr(sequence, part) for part in _KEYS[group_by]), []).append(index)
    for those in indices.values():
        rewards = np.array([sequences[index].reward for index in those], np.float64)
        lengths = np.array([sequences[index].length for index in those], np.float64)
        value_of = np.arange(len(those))
        if weight == "trajectory":
            _, value_of = np.unique([sequences[index].trajectory for index in those], return_inverse=True)
            rewards = np.bincount(value_of, rewards) / np.bincount(value_of)
            lengths = np.bincount(value_of, lengths).astype(np.float64)
        yield ComparedValues(np.array(those, np.int64), value_of, rewards, lengths)


def _apply_by_key(
    sequences: RewardedSequences, group_by: GroupBy, weight: Weight, formula: Callable[[ComparedValues], Floats]
) -> Float32s:
    return _to_float32(_apply_by_key_exactly(_to_sequences(sequences), group_by, weight, formula))


def _apply_by_key_exactly(
    sequences: Sequence[RewardedSequence],
    group_by: GroupBy,
    weight: Weight,
    formula: Callable[[ComparedValues], Floats],
) -> Floats:
    """Return float64[n]: `formula` for each key with at least two different values, 0 for other keys."""
    advantages = np.zeros(len(sequences), np.float64)
    for key in iterate_comparisons(sequences, group_by, weight):
        if _has_spread(key.values):
            advantages[key.sequences] = formula(key)[key.value_of]
    return advantages


def _centre(key: ComparedValues) -> Floats:
    centred: Floats = key.values - key.values.mean()
    return centred


def _has_spread(values: Floats) -> bool:
    return values.size > 1 and bool(values.max() - values.min() > EQUAL)


def _whiten_each(advantages: Floats, sequences: Sequence[RewardedSequence], eps: float) -> Float32s:
    """Return float32[n] for float64[n], whitened."""
    return _to_float32(np.concatenate([np.empty(0), *_whiten(list(advantages[:, None]), sequences, eps)]))


def _whiten(advantages: Sequence[Floats], sequences: Sequence[RewardedSequence], eps: float) -> list[Floats]:
    """Normalise n arrays, float64[length] or float64[1] for all tokens, over all tokens of kept sequences."""
    at_least(0, eps=eps)
    kept = [
        np.broadcast_to(each, sequence.length)
        for each, sequence in zip(advantages, sequences, strict=True)
        if sequence.kept
    ]
    tokens = np.concatenate([np.empty(0), *kept])
    if not _has_spread(tokens):
        return [np.zeros_like(each) for each in advantages]
    mean, deviation = tokens.mean(), tokens.std(ddof=1)
    return [(each - mean) / (deviation + eps) for each in advantages]


def _rewards_of(sequence: RewardedSequence) -> Floats:
    """Return float64[length], the reward of each generated token."""
    if sequence.token_rewards is not None:
        return sequence.token_rewards
    rewards = np.zeros(sequence.length, np.float64)
    rewards[-1:] = sequence.reward
    return rewards


def _sum_discounted(values: Floats, factor: float) -> Floats:
    """Return S_t = sum_{s >= t} factor^(s-t) v_s, float64[T], in log2(T) passes with doubling windows."""
    sums, width, share = values.copy(), 1, factor
    while width < sums.size and share > 0:
        sums[:-width] += share * sums[width:]  # numpy multiplies first, so the right side has the last pass's values
        width, share = 2 * width, share * share
    return sums


def _to_sequences(sequences: RewardedSequences) -> list[RewardedSequence]:
    """Return the sequences; plain rewards become trajectories of one token.

    Raises RewardError for rewards for which no advantage is defined.
    """
    known = [
        sequence if isinstance(sequence, RewardedSequence) else RewardedSequence(index, "", float(sequence))
        for index, sequence in enumerate(sequences)
    ]
    rewards = [sequence.reward for sequence in known]
    _check_finite("rewards", rewards, "check the environment's scorer, the workflow and the chain's reward shaping")
    baselines = [m.baseline for m in known if m.baseline is not None]
    _check_finite("baselines", baselines, "check the baselines that the workflow sets")
    for sequence in known:
        for what, values, source in (
            ("token rewards", sequence.token_rewards, "the rewards that the workflow gives to turns"),
            ("token values", sequence.token_values, "the critic that computes them"),
        ):
            if values is None:
                continue
            if values.shape != (sequence.length,):
                raise RewardError(
                    f"a sequence must have one number per generated token in its {what}: it has {sequence.length} "
                    f"generated tokens and {what} of shape {values.shape}"
                )
            _check_finite(what, values, f"check {source}")
    return known


def _check_finite(what: str, numbers: npt.ArrayLike, remedy: str) -> None:
    values = np.asarray(numbers, np.float64)
    wrong = values[~(np.abs(values) < _LARGEST)]
    if wrong.size:
        raise RewardError(f"a group's {what} must be finite and within ±{_LARGEST:g}, got {wrong[:_SHOWN]}: {remedy}")


def _require_baseline_per_group(sequences: Sequence[RewardedSequence]) -> None:
    bare = {sequence.group for sequence in sequences} - {m.group for m in sequences if m.baseline is not None}
    if bare:
        raise RewardError(
            "the advantage `given` needs a baseline in every group, but no sequence of a group has one: set `baseline` "
            "in the workflow, or use an advantage that compares within the group, such as `dr_grpo`"
        )


def _to_float32(advantages: Floats) -> Float32s:
    with np.errstate(over="ignore"):  # too large values become infinite, which `Estimator` refuses
        return advantages.astype(np.float32)


def _to_float32s(advantages: Sequence[Floats]) -> list[Float32s]:
    return [_to_float32(each) for each in advantages]
