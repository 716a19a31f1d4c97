"""Tells one object that is lost from a store that is away.

If a disk has lost a part of an object, the store may cut its answer short, or report an error that sounds temporary, at
every attempt. Who waits for this object would wait for ever. So an object that cannot be read for a while counts as
lost, if others can be read meanwhile.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice

from headrace.infra.store.bucket import Bucket
from headrace.infra.store.store_errors import StoreError

LOST_AFTER_S = 60.0
"""Seconds from the first failed read in a row, after which an object counts as lost."""
FEWEST_FAILURES = 3
"""Failed reads in a row, which an object that counts as lost has at least."""
MOST_OTHERS = 2
"""Most other objects that are tried after a failure. If the store is silent, each costs a timeout."""
MOST_NOTED = 1000
"""Most objects whose failures are noted."""


@dataclass(slots=True)
class _Failures:
    since: float
    count: int = 0


class UnreadObjects:
    """Failed reads of the objects of one bucket. Thread-safe.

    Args:
        bucket: The bucket; another of its objects is read after a failure.
        clock: Seconds that never go back.
    """

    def __init__(self, bucket: Bucket, clock: Callable[[], float]) -> None:
        self._bucket, self._clock = bucket, clock
        self._failures: dict[str, _Failures] = {}
        self._read: deque[str] = deque(maxlen=MOST_OTHERS + 1)
        """Objects that were read lately."""
        self._lock = threading.Lock()

    def note_read(self, key: str) -> None:
        """Take in that an object was read."""
        with self._lock:
            self._failures.pop(key, None)
            if key not in self._read:
                self._read.appendleft(key)

    def note_failure(self, key: str) -> bool:
        """Take in a failed read; return whether the object counts as lost.

        Only failures count during which another object can be read: while the store is away, nothing is lost.
        """
        with self._lock:
            if len(self._failures) >= MOST_NOTED and key not in self._failures:
                self._failures.clear()
            noted = self._failures.setdefault(key, _Failures(self._clock()))
            noted.count += 1
            if key in self._read:
                self._read.remove(key)
        if noted.count == 1:
            return False
        if not any(map(self._can_read, islice(self._name_others(key), MOST_OTHERS))):
            with self._lock:
                self._failures.pop(key, None)
            return False
        return noted.count >= FEWEST_FAILURES and self._clock() - noted.since >= LOST_AFTER_S

    def _name_others(self, key: str) -> Iterator[str]:
        """Yield other objects: first those that were read lately, then those of the same kind."""
        with self._lock:
            read = list(self._read)
        yield from chain(read, self._list_others(key))

    def _list_others(self, key: str) -> Iterator[str]:
        with suppress(StoreError, ValueError):  # a listing that the client cannot read
            for other in self._bucket.list_some(key[: key.rfind("/") + 1], MOST_OTHERS + 1):
                if other != key:
                    yield other

    def _can_read(self, key: str) -> bool:
        def read() -> bytes:
            with self._bucket.open_object(key, 0, 1) as response:
                return response.read(1)

        try:
            return bool(self._bucket.ask(read, key))
        except StoreError:
            return False
