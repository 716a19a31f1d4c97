"""The source of held-out problems: a share of the training data, a separate source, or several named sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace.envs.data.sources import HUB, Source
from headrace.envs.data.split_rows import Numbers

KEYS = frozenset({"path", "split", "config", "revision"})
"""Keys of a table for one source; a table with other keys holds sets by name."""


def read_held_out(held_out: Any, source: Source) -> float | dict[str, Source]:
    """Return the share to hold out, or the separate sources by the name of the set ("" for a single source).

    Raises ValueError for any other setting.
    """
    if isinstance(held_out, Mapping) and held_out and not KEYS & held_out.keys():
        return {_check_name(name): _parse_source(f"held_out.{name}", given, source) for name, given in held_out.items()}
    if isinstance(held_out, str | Mapping):
        return {"": _parse_source("held_out", held_out, source)}
    if isinstance(held_out, bool) or not isinstance(held_out, int | float) or not 0 <= held_out < 1:
        raise ValueError(
            "held_out must be a share (0 <= held_out < 1), a path, a table such as { path = …, split = … }, or a table "
            f"of several sets, such as {{ easy = PATH, hard = PATH }}; got {held_out!r}"
        )
    return float(held_out)


def interleave_sets(sizes: Sequence[int]) -> tuple[Numbers, Numbers]:
    """Return the set of each held-out problem and its index in the set, alternating between the sets.

    Both are int64[sum of sizes]. So the first problems, which an evaluation takes, come from all sets.
    """
    sets = np.repeat(np.arange(len(sizes)), sizes)
    indices = np.concatenate([np.arange(size) for size in sizes]) if sizes else np.zeros(0, np.int64)
    order = np.lexsort((sets, indices))
    return sets[order], indices[order]


def _check_name(name: Any) -> str:
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"the name of a set in held_out must be a non-empty string; got {name!r}")
    return name


def _parse_source(key: str, given: Any, source: Source) -> Source:
    if isinstance(given, str):
        given = {"path": given, "split": source.split}
    if not isinstance(given, Mapping) or not given or set(given) - KEYS:
        raise ValueError(f"{key} must be a path, or a table of {', '.join(sorted(KEYS))}; got {given!r}")
    settings = {"path": source.path, "config": source.config, "revision": source.revision, **given}
    for name, value in settings.items():
        if not isinstance(value, str):
            raise ValueError(f"{key}.{name} must be a text; got {value!r}")  # noqa: TRY004 - a bad setting is a ValueError
    found = Source(**settings)
    if found == source:
        others = "split, config or revision" if source.path.startswith(HUB) else "split, if the data has several splits"
        share = "; or give the share of the problems to hold out, as in held_out = 0.1" if key == "held_out" else ""
        raise ValueError(f"{key} names the training data itself: give another path, or another {others}{share}")
    return found
