"""Checks the order of the algorithms in a chain.

This order is always right: failures, validate, max_staleness, drop_zero_variance and other filters, shaping,
down-sampling, replay. `drop_zero_variance` looks at unshaped rewards, so it may come anywhere before a replay.
"""

from __future__ import annotations

from collections.abc import Sequence

GROUP_SHAPING = frozenset({"linear_length", "kimi_length", "normalise_rewards"})
"""Shaping that compares the members of a group."""
SHAPING = GROUP_SHAPING | {"scale_rewards", "overlong"}
DOWN_SAMPLING = frozenset({"pods", "best_and_worst", "random_m", "gfpo"})
REPLAYS = frozenset({"replay_latest", "replay_uniform", "replay_dots", "replay_recency", "replay_prioritised"})
FIRST = ("failures", "validate")


def find_wrong_order(names: Sequence[str]) -> str:
    """Return a sentence on the first two algorithms in the wrong order, or an empty text.

    A user's own algorithm may come anywhere except after a replay.
    """
    for index, earlier in enumerate(names):
        for later in names[index + 1 :]:
            why = _explain_order(earlier, later)
            if why:
                return f"{later} cannot come after {earlier}: {why}"
    return ""


def _explain_order(earlier: str, later: str) -> str:
    if earlier in REPLAYS:
        if later in REPLAYS:
            return "a chain may have only one replay; keep one of the two"
        return f"{earlier} would replay groups without the effect of {later}; put {earlier} last"
    if earlier == later or ":" in earlier:
        return ""
    return _explain_not_yet(earlier, later)


def _explain_not_yet(earlier: str, later: str) -> str:
    if later in FIRST and earlier not in FIRST[: FIRST.index(later)]:
        what = "whether failed episodes count" if later == "failures" else "what is malformed"
        return f"{what} must be known before other algorithms see the group; put {later} before {earlier}"
    if later in SHAPING and earlier in DOWN_SAMPLING:
        return f"rewards must be shaped before {earlier} chooses trajectories; put {later} before {earlier}"
    if later == "length_bounds" and earlier in GROUP_SHAPING:
        return f"{earlier} would use the rewards of trajectories that {later} takes out; put {later} before {earlier}"
    return ""
