"""What every component process does around its work: stop on a signal, say how it ended."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

import structlog

from headrace.infra.errors import HeadraceError, Unavailable

log = structlog.get_logger()

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
