"""The requests that a server has, which end before its weights are swapped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from headrace.producers.engines.served.server_api import ServerAway

ANSWERS_LIMIT_S = 60.0
"""Seconds to wait for the answers of requests that a swap ends."""
AGAIN_S = 0.05
"""Seconds between two orders to end requests: an order that overtakes its request ends nothing."""


class OpenRequests:
    """Which requests a server has; none may begin until `begin_admitting`. Any thread may call.

    Args:
        name: Of the server, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._ids: set[str] = set()
        self._is_admitting = False
        self._turn = threading.Condition()
        """Guards both, and is notified when a request ends."""

    def __contains__(self, request_id: str) -> bool:
        """Return whether a request is open."""
        return request_id in self._ids

    def try_begin(self, request_id: str) -> bool:
        """Note a request before it is sent; return False if no request may be sent now."""
        with self._turn:
            if self._is_admitting:
                self._ids.add(request_id)
            return self._is_admitting

    def note_end(self, request_id: str) -> None:
        """Note that a request is over."""
        with self._turn:
            self._ids.discard(request_id)
            self._turn.notify_all()

    def begin_admitting(self) -> None:
        """Let requests begin."""
        with self._turn:
            self._is_admitting = True

    def stop_admitting(self) -> None:
        """Let no request begin."""
        with self._turn:
            self._is_admitting = False

    def end_all(self, order: Callable[[], object]) -> None:
        """Repeat the order to end requests until none is open. Never call it where the answers are awaited.

        Raises ServerAway if requests are still open after ANSWERS_LIMIT_S.
        """
        end = time.monotonic() + ANSWERS_LIMIT_S
        while self._ids:
            if time.monotonic() > end:
                raise ServerAway(
                    f"{self._name} was asked to abort its requests before new weights are loaded, but some were still "
                    f"open after {ANSWERS_LIMIT_S:.0f} s"
                )
            order()
            with self._turn:
                self._turn.wait_for(lambda: not self._ids, AGAIN_S)
