"""The smallest recipe that most tests need."""

from __future__ import annotations

from typing import Any

from headrace.infra.recipe.settings import Recipe


def sums_recipe(**tables: Any) -> Recipe:
    """One policy, solver, and one workflow, sums; `tables` come beside them or instead of them."""
    workflow = {"env": {"use": "arithmetic"}, "policies": {"solver": "solver"}}
    fields = {"name": "t", "policies": {"solver": {"path": "/models/any"}}, "workflows": {"sums": workflow}}
    return Recipe.model_validate({**fields, **tables})
