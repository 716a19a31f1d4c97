"""Of a matrix of cases, the few that the gate takes; `make test-numerics` takes the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest


def named(cases: Mapping[str, Any], *few: str) -> list[Any]:
    """Return cases as parameters by their names, all but the few marked as numerics."""
    assert cases.keys() >= set(few)
    return [pytest.param(case, id=name, marks=_marks(name in few)) for name, case in cases.items()]


def paired(cases: Iterable[tuple[Any, Any]], few: Callable[[Any, Any], bool], label: Callable[[Any], str]) -> list[Any]:
    """Return pairs as parameters, all but the few marked as numerics."""
    return [pytest.param(*case, id="-".join(map(label, case)), marks=_marks(few(*case))) for case in cases]


def _marks(is_one_of_few: bool) -> tuple[pytest.MarkDecorator, ...]:
    return () if is_one_of_few else (pytest.mark.numerics,)
