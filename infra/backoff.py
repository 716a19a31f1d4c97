"""How long to wait before trying again."""

from __future__ import annotations


class Backoff:
    """Pauses that double up to a longest one. The caller waits.

    The library `tenacity` does not fit, because it calls the function to retry; here a loop repeats its turn, and waits
    on its own event.

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
