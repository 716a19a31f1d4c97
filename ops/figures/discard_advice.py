"""What happens next if nearly all groups are discarded, and what a user can do, by the reason of the discards."""

from __future__ import annotations

OTHER_ADVICE = ("the feeder issues further tasks", "`headrace discards` shows their lengths, rewards and ages")
ADVICE_BY_REASON = {
    "zero_variance": (
        "the feeder draws further tasks, or ends the run as solved (feed.solved_share) if most have high rewards",
        "use harder tasks if most answers are right, easier tasks if most are wrong, or a larger rollout.group_size",
    ),
    "stale": ("workers play newer groups", "raise trainer.max_staleness, or check why workers load weights late"),
    "expired": ("workers play newer groups", "raise trainer.max_staleness, or run fewer workers for this trainer"),
    "surplus": ("newer groups are trained on", "run fewer workers for this trainer"),
    "algorithm_failed": (
        "the next groups go through the chain; after eight failed groups in a row the curator ends with an error",
        "fix the algorithm: `headrace dead-letters` gives its error, `headrace redrive` sends the groups back",
    ),
    "failures": (
        "the feeder issues further tasks",
        "fix the error of the failed episodes: `headrace discards` shows it",
    ),
    "failed": ("the feeder issues further tasks", "`headrace discards` shows how the episodes fail"),
}
"""Reason of a discard to what happens next, and what a user can do; other reasons have OTHER_ADVICE."""
