"""Names and keys of logged events are contracts: docs/events.md lists them, and the code logs these and no others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("schemas", "infra", "envs", "producers", "consumers", "trainers", "ledger", "ops", "app")
LEVELS = {"debug": "debug", "info": "info", "warning": "warning", "error": "error", "exception": "error"}


def logged() -> Iterator[tuple[str, str, set[str]]]:
    """Yield event, level and keys of every call of a logger; keys that are given as a dict (`**`) are not seen."""
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                match node:
                    case ast.Call(func=ast.Attribute(ast.Name("log" | "_log"), level), args=args, keywords=keywords):
                        if level in LEVELS:
                            event = args[0].value if args and isinstance(args[0], ast.Constant) else None
                            assert isinstance(event, str), f"{path}:{node.lineno} logs an event without a plain name"
                            yield event, LEVELS[level], {one.arg for one in keywords if one.arg}


def listed() -> dict[str, tuple[set[str], set[str]]]:
    """Return event to levels and keys, as the page has them."""
    page = (ROOT / "docs" / "events.md").read_text()
    rows = re.findall(r"^\| `([a-z_.]+)` \| ([a-z, ]+) \| .+ \| .+ \| (.+) \|$", page, re.MULTILINE)
    return {event: (set(levels.split(", ")), set(re.findall(r"`(\w+)`", keys))) for event, levels, keys in rows}


def test_every_event_is_on_the_page_by_name_level_and_keys_and_none_has_gone() -> None:
    found: dict[str, tuple[set[str], set[str]]] = {}
    for event, level, keys in logged():
        levels, known = found.setdefault(event, (set(), set()))
        levels.add(level)
        known |= keys

    assert len(found) > 80
    assert found == listed()


def test_loggers_are_called_log_so_that_their_events_are_found() -> None:
    names = set()
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            names |= set(re.findall(r"(\w+)(?:: [\w.]+)? = structlog\.get_logger\(", path.read_text()))

    assert names == {"log", "_log"}


def test_an_event_is_called_by_what_it_is_about_and_what_happened() -> None:
    assert not [event for event in listed() if not re.fullmatch(r"[a-z_]+\.[a-z_]+", event)]
