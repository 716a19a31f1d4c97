"""How long to wait before trying again."""

from __future__ import annotations


class Backoff:
    """Pauses that double, up to a longest one. Pure memory: the caller waits.

    The library `tenacity` does not fit: it calls what is to be tried again, and here a turn of a loop is tried again,
    by a caller that waits on its own event and stops when that is set.

    Args:
        first_s: The first pause, in seconds.
        longest_s: The longest.
    """

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s, self._longest_s = first_s, longest_s
        self._next_s = first_s

    def next_s(self) -> float:
        """Return how long to wait now."""
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, self._longest_s)
        return pause_s

    def reset(self) -> None:
        """Begin with the first pause again."""
        self._next_s = self._first_s
