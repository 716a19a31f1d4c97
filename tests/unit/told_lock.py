"""A lock that tells when somebody has to wait for it, so that a test needs no sleep to bring two threads together."""

from __future__ import annotations

import threading
from types import TracebackType


class ToldLock:
    """Stands for a `threading.Lock` in `with`; sets `waited` when a thread finds it taken."""

    def __init__(self, waited: threading.Event) -> None:
        self._lock, self._waited = threading.Lock(), waited

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._waited.set()
            self._lock.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._lock.release()
