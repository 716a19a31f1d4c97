"""Options of what a recipe names, held against the annotations of what it names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pytest

from headrace.infra.errors import UsageError
from headrace.infra.recipe.named import check_options

if TYPE_CHECKING:
    pass


def plain(
    tokens: object, *, cap: float = 1.0, depth: int | None = None, fast: bool = False, kind: Literal["a", "b"] = "a"
) -> None:
    """Take options of plain kinds."""


@pytest.mark.parametrize("options", [{"cap": 1}, {"cap": 0.5}, {"depth": 3}, {"fast": True}, {"kind": "c"}], ids=str)
def test_values_of_the_right_kind_pass_and_others_are_the_functions_to_judge(options: dict[str, Any]) -> None:
    check_options("here", plain, options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cap": "a lot"}, "^here: cap must be a number, got 'a lot'$"),
        ({"cap": True}, "cap must be a number, got True"),
        ({"depth": 1.0}, "depth must be an integer, got 1.0"),
        ({"depth": False}, "depth must be an integer, got False"),
        ({"fast": 1}, "fast must be true or false, got 1"),
        ({"cup": 1}, "no option 'cup'; the options are cap, depth, fast$"),
    ],
)
def test_a_value_of_another_kind_is_refused_by_key_and_value(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_options("here", plain, options, elsewhere={"kind"})
