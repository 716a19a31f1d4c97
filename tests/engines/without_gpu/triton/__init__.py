"""Stand-in for triton: every name imports, decorators pass on what they get, and a kernel that is launched raises."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types
from collections.abc import Callable
from typing import Any

__version__ = "3.8.0"


class _Kernel:
    def __init__(self, function: Callable[..., Any]) -> None:
        self.fn = function
        self.__name__ = getattr(function, "__name__", "kernel")

    def __getitem__(self, grid: Any) -> Any:
        raise NotImplementedError(f"triton kernel {self.__name__} cannot run without a GPU")

    def __getattr__(self, name: str) -> Any:
        _refuse_special(name)
        return None


def jit(function: Callable[..., Any] | None = None, **_: Any) -> Any:
    return _Kernel(function) if function is not None else _Kernel


def autotune(*_: Any, **__: Any) -> Any:
    return lambda function: function


heuristics = autotune


def cdiv(number: int, divisor: int) -> int:
    return -(-number // divisor)


def next_power_of_2(number: int) -> int:
    return 1 << (int(number) - 1).bit_length() if number > 0 else 1


class Config:
    def __init__(self, kwargs: dict[str, Any] | None = None, **_: Any) -> None:
        self.kwargs = kwargs or {}


class _Anything:
    """A value of any use: a decorator, a base class, a module's constant."""

    def __call__(self, *words: Any, **named: Any) -> Any:
        return words[0] if len(words) == 1 and callable(words[0]) and not named else self

    def __getattr__(self, name: str) -> Any:
        _refuse_special(name)
        return _Anything()

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (object,)

    def __getitem__(self, index: Any) -> Any:
        return self

    def __bool__(self) -> bool:
        return False


class _NoDriver:
    @property
    def active(self) -> Any:
        raise RuntimeError("0 active drivers")


class _Module(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012 - what the import system reads of a package

    def __getattr__(self, name: str) -> Any:
        _refuse_special(name)
        value = type(name, (), {}) if name[:1].isupper() else _Anything()
        setattr(self, name, value)
        return value


class _Finder:
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.startswith("triton.") else None  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> types.ModuleType:
        module: Any = _Module(spec.name)
        if spec.name == "triton.language":
            module.constexpr = type(
                "constexpr", (), {"__init__": lambda self, value=None: setattr(self, "value", value)}
            )
        if spec.name == "triton.runtime":
            module.driver = _NoDriver()
        found: types.ModuleType = module
        return found

    def exec_module(self, module: types.ModuleType) -> None:
        """Leave it as it was made."""


def _refuse_special(name: str) -> None:
    if name.startswith("__"):
        raise AttributeError(name)


def __getattr__(name: str) -> Any:
    _refuse_special(name)
    return importlib.import_module(f"triton.{name}")


sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]
