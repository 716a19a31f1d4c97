"""Carries errors from one process to another, with their types, texts, tracebacks and causes."""

from __future__ import annotations

import pickle
from types import TracebackType
from typing import Any

from tblib import pickling_support

from headrace.infra.own_frames import read_error_text


def pack_error(error: BaseException) -> bytes:
    """Return an error as bytes. One that cannot be pickled is replaced: same name, text, place and nearest base."""
    try:
        pickling_support.install(error)
        packed = pickle.dumps(error)
        if read_error_text(pickle.loads(packed)) == read_error_text(error):
            return packed
    except Exception:  # noqa: BLE001 - whatever its own code raises
        pickling_support.install()
    base = next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    packed_cause = None if cause is None else pack_error(cause)
    return pickle.dumps((type(error).__name__, base, read_error_text(error), error.__traceback__, packed_cause))


def unpack_error(packed: bytes) -> BaseException:
    """Return a packed error."""
    found: Any = pickle.loads(packed)
    return found if isinstance(found, BaseException) else _make_replacement(*found)


def _make_replacement(
    name: str, base: type[BaseException], text: str, at: TracebackType | None, cause: bytes | None
) -> BaseException:
    kind: Any = type(name, (base,), {"__str__": lambda _: text})
    made: BaseException = kind.__new__(kind)
    made.args = (text,)
    made.__cause__ = None if cause is None else unpack_error(cause)
    return made.with_traceback(at)


def convert_to_exception(what: str, error: BaseException) -> Exception:
    """Return an error of user code as an Exception that fails only its episode.

    An Exception is returned unchanged. Other errors would end the process: those of `sys.exit()` and of test frameworks
    are not Exceptions, and no future can carry a StopIteration. Each becomes the cause of a RuntimeError.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    text = read_error_text(error)
    says = f": {text}" if text else ""
    made = RuntimeError(f"{what} raised {type(error).__name__}{says}: catch it there")
    made.__cause__ = error
    return made.with_traceback(error.__traceback__)
