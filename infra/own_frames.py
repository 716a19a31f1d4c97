"""Finds the lines of user code in tracebacks."""

from __future__ import annotations

import asyncio
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import headrace
from headrace.infra.errors import ERROR_MARK

Frame: TypeAlias = tuple[str, int, str]
"""File, line, function."""
TRACEBACK = "Traceback (most recent call last)"
STACK = "(most recent call first):"
"""In the first line of each stack that `faulthandler` dumps."""
_FRAME = re.compile(r'^ +File "(?P<file>.+)", line (?P<line>\d+)(?:,? in (?P<name>.+))?', re.MULTILINE)
"""Matches a line of a traceback or of a dumped stack; the line of a syntax error has no function."""


def locate_error(error: BaseException) -> str:
    """Return file, line and function of the newest frame in user code, as `flow.py:12 in play`.

    Without user code it is the newest frame of all; empty for an error that was never raised. For a chained error the
    location of the last error counts.
    """
    return choose_location(_list_frames(error))


def locate_wait(task: asyncio.Task[Any]) -> str:
    """Return where an asyncio task waits, in the form of `locate_error`; empty for an ended task."""
    frames: list[Frame] = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            frames.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return choose_location(frames)


def locate_thread(ident: int) -> str:
    """Return where another thread is, in the form of `locate_error`; empty if it has ended."""
    frames: list[Frame] = []
    frame = sys._current_frames().get(ident)  # noqa: SLF001 - documented, for debuggers
    while frame is not None:
        frames.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return choose_location(frames[::-1])


def locate_function(function: object) -> str:
    """Return where a function is defined, as ` (flow.py:12)`; empty for a function not written in Python."""
    function = getattr(function, "func", function)  # of a partial
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return f" ({_shorten_path(code.co_filename)}:{code.co_firstlineno})" if code is not None else ""


def read_error_text(error: BaseException) -> str:
    """Return an error's text, even if its class fails to make one, as classes of some libraries do."""
    try:
        return str(error)
    except Exception as failed:  # noqa: BLE001 - it is code of the class of the error, and may raise whatever it wants
        return f"its text cannot be made, as {type(error).__name__}.__str__ raises {type(failed).__name__}"


def make_encodable(text: str) -> str:
    """Return a text that UTF-8 can hold: halves of characters are written as escapes."""
    return text.encode(errors="backslashreplace").decode()


def describe_with_location(error: BaseException, *, with_type: bool = False) -> str:
    """Return an error's text; for an error in user code, or `with_type`, also its type; and its location there."""
    frames, text, kind = _keep_own(_list_frames(error)), read_error_text(error), type(error).__name__
    if (frames or with_type) and not text.startswith(f"{kind}:"):
        text = f"{kind}: {text}".removesuffix(": ")
    return f"{text} at {choose_location(frames)}" if frames else text


def find_own_location(lines: Sequence[str]) -> str:
    """Return the user-code location of the last traceback in a log; empty if it has none, or another error follows.

    If the process dumped the stacks of its threads, it is the location of the last thread with user code: the main
    thread is the last one.
    """
    begins = [at for at, line in enumerate(lines) if line.startswith((TRACEBACK, ERROR_MARK)) or STACK in line]
    for at in reversed(begins):
        found = [_FRAME.match(line) for line in lines[at:]]
        own = _keep_own([(one["file"], int(one["line"]), one["name"]) for one in found if one and one["name"]])
        if STACK not in lines[at]:
            return choose_location(own)
        if own:
            return choose_location(own[:1])
    return ""


def choose_location(frames: Sequence[Frame]) -> str:
    """Return the newest frame in user code, else the newest frame; frames are ordered newest last."""
    if not frames:
        return ""
    file, line, name = (_keep_own(frames) or frames)[-1]
    return f"{_shorten_path(file)}:{line} in {name}"


def _list_frames(error: BaseException) -> list[Frame]:
    found = traceback.extract_tb(error.__traceback__)
    return [(frame.filename, frame.lineno or 0, frame.name) for frame in found]


def _keep_own(frames: Sequence[Frame]) -> list[Frame]:
    return [frame for frame in frames if is_own_file(frame[0])]


def cut_traceback(error: BaseException) -> str:
    """Return the traceback of an error or its cause from the first line of user code on; empty if it has none."""
    seen: BaseException | None = error
    while seen is not None:
        if cut_traceback_text("".join(traceback.format_exception(seen, chain=False))):
            return cut_traceback_text("".join(traceback.format_exception(seen)))
        seen = seen.__cause__
    return ""


def cut_traceback_text(shown: str) -> str:
    """Return a traceback's text from the first line of user code on; empty if there is no user code."""
    for frame in _FRAME.finditer(shown):
        if is_own_file(frame["file"]):
            return f"{TRACEBACK}:\n{shown[frame.start() :]}".rstrip()
    return ""


def is_own_file(file: str) -> bool:
    """Return whether a file is user code: not Headrace's, not Python's, and not of an installed package."""
    return not file.startswith("<") and not any(file.startswith(folder) for folder in _find_other_folders())


@cache
def _find_other_folders() -> tuple[str, ...]:
    ours = [Path(folder) for folder in headrace.__path__]
    rooms = [room.resolve() for folder in ours for room in folder.iterdir() if room.is_dir()]
    folders: Iterable[object] = (
        *ours,
        *rooms,
        *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    )
    return tuple(f"{folder}/" for folder in folders if folder)


def _shorten_path(file: str) -> str:
    """Return a file's path relative to the folder from which it was imported."""
    roots = [root.rstrip("/") + "/" for root in sys.path if root and file.startswith(root.rstrip("/") + "/")]
    return file.removeprefix(max(roots, key=len, default=""))
