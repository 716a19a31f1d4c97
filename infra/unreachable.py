"""Which errors mean that another server cannot be reached: they end by waiting, and no code is wrong."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator

ERRNOS = frozenset(
    {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.ENETRESET, errno.ETIMEDOUT}
)
DEEPEST_ERROR = 10
"""How many errors of a chain of causes are looked at."""


class OutOfTime(TimeoutError):
    """A time limit of our own has passed; no server is unreachable."""


def is_unreachable(error: BaseException) -> bool:
    """Return whether an error, or one that it was raised from, says that a server cannot be reached.

    These are ConnectionError, TimeoutError, a host name that cannot be resolved, and OSErrors of hosts and networks. A
    TimeoutError that `asyncio.timeout` made of a cancellation does not count, because it may have cut off anything. A
    group of errors counts if all of its errors do.
    """
    return any(_is_away(one) for one in _list_causes(error))


def _is_away(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(is_unreachable(one) for one in error.exceptions)
    if isinstance(error, TimeoutError):
        return not isinstance(error, OutOfTime) and not isinstance(error.__cause__, asyncio.CancelledError)
    if isinstance(error, ConnectionError | socket.gaierror):
        return True
    return isinstance(error, OSError) and error.errno in ERRNOS


def _list_causes(error: BaseException) -> Iterator[BaseException]:
    one: BaseException | None = error
    for _ in range(DEEPEST_ERROR):
        if one is None:
            return
        yield one
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
