"""What every component process does around its work: stop on a signal, say how it ended."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

import structlog

from headrace.infra.errors import HeadraceError, Unavailable

log = structlog.get_logger()

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended, as shells have it."""
STOP_WITHIN_S = 9.5
"""From Ctrl-C to the last process of a run gone."""
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

RESTART_PAUSE_S = 0.5
LONG_LIFE_S = 60.0
"""Who lived so long had work to do in between: the same trouble is told again."""
JOIN_PATIENCE_S = 60.0
"""How long a component waits for broker and recipe: both may come up beside it."""


class MustRestart(HeadraceError):
    """Memory ran ahead of the log: the component is to be built anew from what is committed."""


class ToldToStop(HeadraceError):
    """The process was told to stop in the middle of long work, which its successor begins again."""


def keep_running(build_and_run: Callable[[threading.Event], None], stop: threading.Event) -> None:
    """Build and run a component until it is told to stop; build it anew when its memory must be dropped.

    Servers that are away are waited for, which is said once. ToldToStop is an end like any. Every other error ends the
    process.
    """
    said = ""
    while not stop.is_set():
        began = time.monotonic()
        try:
            build_and_run(stop)
        except ToldToStop as error:
            log.info("component.stopping", why=str(error))
        except (MustRestart, Unavailable) as error:
            if str(error) != said or time.monotonic() - began > LONG_LIFE_S:
                log.warning("component.restarting", why=str(error))
            said = str(error)
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
def handling(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
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


def signals_interrupt() -> AbstractContextManager[None]:
    """SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt in the block."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    return handling(interrupt)


def signals_ignored() -> AbstractContextManager[None]:
    """Nothing interrupts the block: it stops what runs, within a bounded time."""
    return handling(signal.SIG_IGN)
