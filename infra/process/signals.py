"""The frame of every component process: stopping on signals, restarting attempts, logging the end."""

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
"""Exit code of a command ended by Ctrl-C, as in shells."""
STOP_WITHIN_S = 9.5
"""Seconds from Ctrl-C until the last process of a run is gone."""
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

RESTART_PAUSE_S = 0.5
LONG_LIFE_S = 60.0
"""Seconds after which a repeated failure is logged again."""
JOIN_PATIENCE_S = 60.0
"""Seconds that a component waits for broker and recipe, which may be starting too."""


class MustRestart(HeadraceError):
    """Memory is ahead of the log: the component must be rebuilt from the committed state."""


class StopRequested(HeadraceError):
    """The process must stop during long work, which its successor repeats."""


class Attempt:
    """A block that builds and runs a component once; errors that a rebuild may fix do not leave the block."""

    def __init__(self) -> None:
        self.why: str | None = None
        """Name of the error that ended the block; None after a normal end."""
        self.was_stopped = False

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        if not isinstance(error, StopRequested | MustRestart | Unavailable):
            return False
        # Not the error itself, whose frames would keep the old component alive.
        self.why, self.was_stopped = str(error), isinstance(error, StopRequested)
        return True


def begin_attempts(stop: threading.Event) -> Iterator[Attempt]:
    """Yield attempts to run a component until `stop` is set; each attempt rebuilds its memory.

    It waits for unreachable servers, and logs this once. StopRequested is a normal end. Every other error ends the
    process.
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
                # After an error that may be temporary, the process joins the run again.
                log.warning("component.restarting", why=attempt.why)
            logged = attempt.why
            stop.wait(RESTART_PAUSE_S)


def stop_on_signals() -> threading.Event:
    """Return an event that SIGTERM, SIGINT and SIGHUP set; a second SIGTERM or SIGINT ends the process at once.

    SIGHUP comes when a terminal is closed, often twice: from the system and from the shell. If the process was started
    with SIGHUP ignored (nohup), it stays ignored.
    """
    stop = threading.Event()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            if number == signal.SIGHUP:
                return
            raise KeyboardInterrupt
        log.info("process.stopping", signal=signal.Signals(number).name)
        stop.set()

    for caught in _list_stopping():
        signal.signal(caught, on_signal)
    return stop


def _list_stopping() -> list[signal.Signals]:
    """Return the signals that stop a program: without SIGHUP if it is ignored."""
    return [one for one in STOPPING if one is not signal.SIGHUP or signal.getsignal(one) is not signal.SIG_IGN]


@contextmanager
def handle_signals(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
    """Set a handler for the signals that stop a program; an ignored SIGHUP (nohup) stays ignored."""
    taken = {number: signal.getsignal(number) for number in _list_stopping()}
    for number in taken:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in taken.items():
            signal.signal(number, old)


def interrupt_on_signals() -> AbstractContextManager[None]:
    """Make SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt in the block."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    return handle_signals(interrupt)


def ignore_signals() -> AbstractContextManager[None]:
    """Ignore signals in the block, which stops running processes within a bounded time."""
    return handle_signals(signal.SIG_IGN)
