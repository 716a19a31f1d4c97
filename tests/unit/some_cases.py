"""Of a matrix of cases, the few that the gate takes; `make test-numerics` takes the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest


def named(cases: Mapping[str, Any], *few: str) -> list[Any]:
    """Return cases as parameters by their names, all but the few marked as numerics."""
    assert cases.keys() >= set(few)
    marks = {name: () if name in few else (pytest.mark.numerics,) for name in cases}
    return [pytest.param(case, id=name, marks=marks[name]) for name, case in cases.items()]
