"""Logging, configured once per process: few lines, each with an event name and keys.

On a terminal the lines are for people, elsewhere they are JSON. They go to standard error, so standard output stays
free for results. A command that answers and ends prints warnings as sentences.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import TextIO, cast

import structlog
from structlog.typing import EventDict

from headrace.infra.environment import LOG_LEVEL_VARIABLE, read_environment
from headrace.infra.errors import UsageError
from headrace.infra.printable import escape_controls

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


_bound: dict[str, str] = {}
"""Keys on every line from any thread; context variables would not reach other threads."""


def _add_bound(_logger: object, _method: str, event: EventDict) -> EventDict:
    return {**_bound, **event}


def _escape_values(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Write control characters in values as escapes: an error of an episode may hold text of a model or a tool."""
    return {key: escape_controls(value) if isinstance(value, str) else value for key, value in event.items()}


def bind_to_log(**known: str) -> None:
    """Add keys to every further log line of this process."""
    _bound.update(known)


def read_bound() -> dict[str, str]:
    """Return the keys of every log line, as arguments of `configure_logging`; empty if that was never called."""
    return dict(_bound)


class BestEffortStream:
    """A stream that ignores failures: with a full disk or a closed stream, a process goes on without its log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text, or drop it on failure."""
        with suppress(OSError, ValueError):  # ValueError: closed
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, or drop the buffer on failure."""
        with suppress(OSError, ValueError):
            self._stream.flush()


def configure_logging(component: str, **bound: str) -> None:
    """Set up structlog for this process; `component` and `bound` go on every line."""
    level = (read_environment(LOG_LEVEL_VARIABLE) or "info").lower()
    if level not in LEVELS:
        raise UsageError(f"{LOG_LEVEL_VARIABLE} is {level!r}: give one of {', '.join(LEVELS)}")
    _bound.clear()
    bind_to_log(component=component, **bound)
    people = sys.stderr.isatty()
    renderer = structlog.dev.ConsoleRenderer() if people else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _add_bound,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S" if people else "iso", utc=not people),
            structlog.processors.StackInfoRenderer(),
            *([_escape_values] if people else [structlog.processors.format_exc_info]),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, BestEffortStream(sys.stderr))),
        cache_logger_on_first_use=True,
    )


def warn_in_sentences() -> None:
    """Set up structlog for a command that answers: warnings as sentences, nothing below.

    HEADRACE_LOG switches to the log lines of components.
    """
    if read_environment(LOG_LEVEL_VARIABLE):
        configure_logging("headrace")
        return
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            _escape_values,
            render_sentence,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, BestEffortStream(sys.stderr))),
        cache_logger_on_first_use=True,
    )


def render_sentence(_logger: object, _method: str, event: EventDict) -> str:
    """Render an event as `warning: server killed: why it is so (server=broker, pid=7)`."""
    keys = dict(event)
    what = str(keys.pop("event")).replace(".", " ").replace("_", " ")
    words = [str(keys.pop("level", "warning")), what]
    words += [str(keys.pop(key)) for key in ("why", "detail", "error") if key in keys]
    trace = str(keys.pop("exception", ""))
    more = ", ".join(f"{key}={value}" for key, value in keys.items())
    return ": ".join(words) + (f" ({more})" if more else "") + (f"\n{trace}" if trace else "")
