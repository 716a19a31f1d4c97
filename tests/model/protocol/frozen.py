"""Processes and brokers as values: bytes to go on from, and a canonical key.

Production objects hold threads, locks and closures. A thread that never ran is its attributes; a lock that nobody holds
is any lock; a closure is its code and what it closes over.
"""

from __future__ import annotations

import io
import pickle
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headrace.infra.recipe.settings import Recipe
from headrace.schemas.records import RecipeRevision

SHARED: dict[int, Any] = {}
"""What never changes, and so is in every world the same object."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """A process or a broker. Equal keys mean that nothing that follows can tell them apart."""

    key: Any
    data: bytes
    digest: int = field(init=False)
    """Of the key, which is large and asked for often."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", hash(self.key))

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Frozen) and self.digest == other.digest and bool(self.key == other.key)
        )

    def __hash__(self) -> int:
        return self.digest


class _Pickler(pickle.Pickler):
    def reducer_override(self, thing: Any) -> Any:
        reduce = _REDUCERS.get(type(thing))
        if reduce is not None:
            return reduce(thing)
        if isinstance(thing, threading.Thread):
            state = {name: value for name, value in vars(thing).items() if name not in _THREADS_OWN}
            return _thread, (type(thing), state)
        return NotImplemented


def freeze(thing: Any) -> bytes:
    """Return the bytes of a process, or of a broker."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(thing)
    return buffer.getvalue()


def thaw(data: bytes) -> Any:
    """Return another one like that."""
    return pickle.loads(data)  # noqa: S301 - our own, of this process


def share(thing: Any) -> Any:
    """Return how an object is known that all worlds have in common."""
    SHARED[id(thing)] = thing
    return _shared, (id(thing),)


def _shared(number: int) -> Any:
    return SHARED[number]


def _function(function: types.FunctionType) -> Any:
    if "<" not in function.__qualname__:
        return NotImplemented
    SHARED[id(function.__code__)] = function.__code__
    cells = tuple(cell.cell_contents for cell in function.__closure__ or ())
    return _closure, (function.__module__, id(function.__code__), function.__defaults__, cells)


def _closure(module: str, code: int, defaults: Any, cells: tuple[Any, ...]) -> Callable[..., Any]:
    names = vars(sys.modules[module])
    return types.FunctionType(SHARED[code], names, None, defaults, tuple(map(types.CellType, cells)))


def _thread(kind: type[threading.Thread], state: dict[str, Any]) -> threading.Thread:
    thread = kind.__new__(kind)
    threading.Thread.__init__(thread, daemon=True)
    vars(thread).update(state)
    return thread


def _event(is_set: bool) -> threading.Event:
    event = threading.Event()
    if is_set:
        event.set()
    return event


def _view(view: memoryview) -> Any:
    return _viewed, (bytes(view), view.readonly)


def _viewed(data: bytes, readonly: bool) -> memoryview:
    return memoryview(data if readonly else bytearray(data))


def _free_lock(_lock: object) -> Any:
    return threading.Lock, ()


def _free_reentrant_lock(_lock: object) -> Any:
    return threading.RLock, ()


_THREADS_OWN = vars(threading.Thread(daemon=True)).keys()
_REDUCERS: dict[type, Callable[[Any], Any]] = {
    Recipe: share,
    RecipeRevision: share,
    types.FunctionType: _function,
    memoryview: _view,
    threading.Event: lambda event: (_event, (event.is_set(),)),
    type(threading.Lock()): _free_lock,
    type(threading.RLock()): _free_reentrant_lock,
}
