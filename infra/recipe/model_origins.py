"""Which keys of a policy replace one another when recipes are merged: a model has one origin."""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping, Sequence
from typing import Any

REPLACES: Mapping[str, Sequence[str]] = {"path": ("model", "alphabet", "warm_start"), "model": ("path",)}


def drop_other_origins(table: MutableMapping[str, Any], here: Sequence[str | int], given: Collection[str]) -> None:
    """Drop from a table what a key of a policy replaces.

    Args:
        table: The table that has or gets the key.
        here: The whole path of the key.
        given: Keys that are given with it, and stay.
    """
    if len(here) == 3 and here[0] == "policies":
        for other in REPLACES.get(str(here[-1]), ()):
            if other not in given:
                table.pop(other, None)
