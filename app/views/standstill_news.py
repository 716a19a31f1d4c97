"""The lines about a standstill of a run and its end, each once per cause."""

from __future__ import annotations

import math
from collections.abc import Mapping

from headrace.ops.figures.standstill import Standstill

WELL_S = 5.0
GOOD_NEWS = {"failing": "episodes succeed again", "dropped": "groups are trained again"}
"""Cause of a standstill to the line about its end. The line is printed WELL_S later, as such causes come and go."""
VERSIONS_AGAIN = "new versions are made again"
"""The line about the end of a standstill that had another cause at any time: its groups may have failed afterwards."""


class StandstillNews:
    """The lines about a standstill and its end, each once per cause."""

    def __init__(self) -> None:
        self.cause = ""
        """Cause of the standstill that was reported last; empty once its end was reported."""
        self._good_news = ""
        self._told: set[tuple[str, str]] = set()
        """Policies and causes since the last end; those that failing episodes have may come in turn."""
        self._well_since_s = math.inf
        self._versions: dict[str, int] = {}
        """The newest versions during the standstill."""

    def take_sentence(self, found: Standstill | None, now_s: float, versions: Mapping[str, int]) -> str:
        """Return the sentence to print now, each only once; empty if there is nothing new.

        Args:
            found: The standstill of this moment, if there is one.
            now_s: Of a monotonic clock.
            versions: The newest version of each policy.
        """
        if found is not None:
            self._well_since_s, self._versions = math.inf, dict(versions)
            is_new = (found.policy, found.cause) not in self._told
            self._told = {one for one in self._told if one[1] in GOOD_NEWS} | {(found.policy, found.cause)}
            self.cause = found.cause
            if self._good_news != VERSIONS_AGAIN:
                self._good_news = GOOD_NEWS.get(found.cause, VERSIONS_AGAIN)
            return found.sentence if is_new else ""
        self._well_since_s = min(self._well_since_s, now_s)
        if not self.cause or (self.cause in GOOD_NEWS and now_s - self._well_since_s < WELL_S):
            return ""
        if self._good_news == VERSIONS_AGAIN and self._versions == versions:  # as while a killed worker starts again
            return ""
        good_news, self._good_news, self.cause = self._good_news, "", ""
        self._told.clear()
        return good_news
