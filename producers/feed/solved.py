"""Detects that a stream's tasks no longer teach anything, without I/O."""

from __future__ import annotations

import math
from collections import deque
from statistics import fmean
from typing import Literal

from headrace.schemas.records import Outcome

WINDOW = 500
ZERO_VARIANCE = "zero_variance"
"""Drop reason of the filter `drop_zero_variance`, which the watch counts."""
EASY_ABOVE = 0.5
"""Mean reward above which a task with equal rewards counts as solved by all episodes, not by none."""

SolvedVerdict = Literal["", "solved", "too_hard"]


class SolvedWatch:
    """Watches the last 500 group outcomes of a stream for groups whose episodes all got the same reward.

    When more than `share` of a full window were dropped for this reason, the verdict is `solved` if most of them were
    easy (mean reward above 0.5), else `too_hard`, which is logged once.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self._flags: deque[str] = deque(maxlen=WINDOW)
        self._was_logged = False

    def observe(self, outcome: Outcome) -> SolvedVerdict:
        """Take in a curator's outcome of a training group."""
        self._flags.append(_encode_difficulty(outcome))
        easy, hard = self._flags.count("e"), self._flags.count("h")
        if len(self._flags) < WINDOW or easy + hard <= self.share * WINDOW:
            return ""
        if easy > hard:
            return "solved"
        was_logged, self._was_logged = self._was_logged, True
        return "" if was_logged else "too_hard"

    def clear(self) -> None:
        """Empty the window, because other tasks come now."""
        self._flags.clear()
        self._was_logged = False

    def snapshot(self) -> str:
        """Return the window: e(asy), h(ard) and . for any other group, oldest first; `!` after the warning."""
        return "".join(self._flags) + "!" * self._was_logged

    def restore(self, state: str) -> None:
        """Take the state that `snapshot` returned."""
        self._was_logged = state.endswith("!")
        self._flags = deque(state.rstrip("!"), WINDOW)


def _encode_difficulty(outcome: Outcome) -> str:
    if (outcome.verdict, outcome.reason) != ("dropped", ZERO_VARIANCE) or not outcome.rewards:
        return "."
    if not all(map(math.isfinite, outcome.rewards)):
        return "."
    return "e" if fmean(outcome.rewards) > EASY_ABOVE else "h"
