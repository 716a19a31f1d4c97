"""Names and keys of logged events are contracts: docs/events.md lists what the code logs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.ops.events_page import PAGE, ROOMS, find_events, render_page

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / PAGE).read_text()
EVENTS = re.findall(r"^\| `(.+?)` \|", TEXT, re.MULTILINE)


def test_the_page_is_what_the_code_logs() -> None:
    assert render_page(ROOT) == TEXT, "run `python -m headrace.ops.events_page`"
    assert len(EVENTS) > 80


def test_an_event_has_the_levels_keys_places_and_comments_of_all_its_calls(tmp_path: Path) -> None:
    source = tmp_path / "app" / "a.py"
    source.parent.mkdir()
    source.write_text('# It began.\n# Twice.\nlog.info("a.b", x=1)\n_log.exception("a.b", **more)\n')
    assert "\n| `a.b` | error, info | `app/a.py` | `**`, `x` | It began. Twice. |\n" in render_page(tmp_path)

    source.write_text("log.info(name)\n")
    with pytest.raises(ValueError, match=r"a\.py:1 logs an event without a plain name"):
        find_events(tmp_path)


def test_loggers_are_called_log_so_that_their_events_are_found() -> None:
    names = set()
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            names |= set(re.findall(r"(\w+)(?:: [\w.]+)? = structlog\.get_logger\(", path.read_text()))

    assert names == {"log", "_log"}


def test_an_event_is_called_by_what_it_is_about_and_what_happened() -> None:
    assert not [event for event in EVENTS if not re.fullmatch(r"[a-z_]+\.[a-z_]+", event)]
