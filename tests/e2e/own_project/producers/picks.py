"""A task selector."""

from __future__ import annotations

from headrace.producers.feed.selectors.contract import AcceptAll


class Most(AcceptAll):
    """Take all tasks."""
