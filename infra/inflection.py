"""Words that agree with a number."""

from __future__ import annotations


def inflect(count: int, one: str, many: str = "") -> str:
    """Return `one` if the count is 1, else `many`; without `many`, the regular plural.

    >>> f"{3} {inflect(3, 'group')} {inflect(3, 'is', 'are')} lost"
    '3 groups are lost'
    """
    return one if count == 1 else many or f"{one}s"
