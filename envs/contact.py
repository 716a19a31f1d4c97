"""How an environment tells the worker of an episode whether the server that the episode needs is there."""

from __future__ import annotations

from contextvars import ContextVar


class Contact:
    """Hears whether an episode's server is there; this one does nothing, as for an episode outside of a worker."""

    def note_reached(self) -> None:
        """Note that the server has begun the episode: it is not away, however the episode ends."""

    def note_full(self, why: str) -> None:
        """Note that the server has no place for any episode of this worker, and that they wait for one."""


CONTACT: ContextVar[Contact] = ContextVar("CONTACT", default=Contact())  # noqa: B039 - it has no state
"""That of the episode to which an asyncio task belongs."""
