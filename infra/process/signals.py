"""What every component process does around its work: stop on a signal, log how it ended."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType, TracebackType

import structlog

from headrace.infra.errors import HeadraceError, Unavailable

log = structlog.get_logger()

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended, as shells have it."""
STOP_WITHIN_S = 9.5
"""Seconds from Ctrl-C until the last process of a run is gone."""
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

RESTART_PAUSE_S = 0.5
LONG_LIFE_S = 60.0
"""After this long, a repeated failure is logged again."""
JOIN_PATIENCE_S = 60.0
"""How long a component waits for broker and recipe: both may come up beside it."""


class MustRestart(HeadraceError):
    """Memory ran ahead of the log: the component is to be built anew from what is committed."""


class StopRequested(HeadraceError):
    """The process is to stop in the middle of long work, which its successor begins again."""


class Attempt:
    """One life of a component, a block that builds and runs it; errors that another life may fix do not leave it."""

    def __init__(self) -> None:
        self.why: str | None = None
        """What ended the block; None when it came to its own end."""
        self.was_stopped = False

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        if not isinstance(error, StopRequested | MustRestart | Unavailable):
            return False
        # Not the error itself: its frames hold what the next life builds anew.
        self.why, self.was_stopped = str(error), isinstance(error, StopRequested)
        return True


def begin_attempts(stop: threading.Event) -> Iterator[Attempt]:
    """Yield one life of a component after the other until `stop` is set: its memory must be dropped now and then.

    Unreachable servers are waited for, which is logged once. StopRequested is an end like any. Every other error
    ends the process.
    """
    logged = ""
    while not stop.is_set():
        began = time.monotonic()
        attempt = Attempt()
        yield attempt
        if attempt.was_stopped or (attempt.why is not None and stop.is_set()):
            log.info("component.stopping", why=attempt.why)
        elif attempt.why is not None:
            if attempt.why != logged or time.monotonic() - began > LONG_LIFE_S:
                log.warning("component.restarting", why=attempt.why)
            logged = attempt.why
            stop.wait(RESTART_PAUSE_S)


def stop_on_signals() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set; a second signal ends the process at once."""
    stop = threading.Event()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        log.info("process.stopping", signal=signal.Signals(number).name)
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    return stop


@contextmanager
def handle_signals(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
    """Give the signals that stop a program to a handler; a SIGHUP that is ignored (nohup) stays so."""
    before = {number: signal.getsignal(number) for number in STOPPING}
    taken = {n: old for n, old in before.items() if n is not signal.SIGHUP or old is not signal.SIG_IGN}
    for number in taken:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in taken.items():
            signal.signal(number, old)


def interrupt_on_signals() -> AbstractContextManager[None]:
    """SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt in the block."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    return handle_signals(interrupt)


def ignore_signals() -> AbstractContextManager[None]:
    """Nothing interrupts the block: it stops what runs, within a bounded time."""
    return handle_signals(signal.SIG_IGN)
