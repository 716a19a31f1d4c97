"""Words that agree with a number."""

from __future__ import annotations


def inflect(count: int, one: str, many: str = "") -> str:
    """Return `one` if the count is 1, else `many`; without `many`, the regular plural.

    >>> f"{3} {inflect(3, 'group')} {inflect(3, 'is', 'are')} lost"
    '3 groups are lost'
    """
    return one if count == 1 else many or f"{one}s"


def format_ordinal(number: int) -> str:
    """Return a number as an ordinal.

    >>> [format_ordinal(number) for number in (1, 2, 3, 11, 40, 112, 121)]
    ['1st', '2nd', '3rd', '11th', '40th', '112th', '121st']
    """
    ending = "th" if number % 100 in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"
