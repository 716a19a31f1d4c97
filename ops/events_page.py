"""Writes `docs/events.md`: every event that the code logs, with its level, its place and its keys.

Run it as `python -m headrace.ops.events_page`, in a clone. What an event means is the comment right above its call.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PAGE = Path("docs") / "events.md"
ROOMS = ("schemas", "infra", "envs", "producers", "consumers", "trainers", "ledger", "ops", "app")
LEVELS = {"debug": "debug", "info": "info", "warning": "warning", "error": "error", "exception": "error"}
HEAD = """\
# Events in logs

After this page you can search, count and alert on log events, by names that do not change.

An event is one log line of a process of a run, on standard error. If standard error is not a terminal, each event is
one line of JSON with `event`, `level`, `timestamp`, `component`, and the keys of the table below. The environment
variable `HEADRACE_LOG` sets the lowest level that is logged; the default is `info`.

The names of events and keys are contracts ([CONTRIBUTING.md](../CONTRIBUTING.md#contracts)): new ones may be added, but
none is changed or removed. So some are older than the terms in [words.md](words.md): a letter is a dead letter, and
`line` is the name of a policy or of its shadow.

<!-- Written by `python -m headrace.ops.events_page` from the calls of loggers and the comments above them. -->

| event | level | logged in | keys | meaning |
|---|---|---|---|---|
"""


@dataclass
class Logged:
    """What the calls with one event name have; `**` among the keys stands for keys that the source does not name."""

    levels: set[str] = field(default_factory=set)
    places: set[str] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)
    meanings: list[str] = field(default_factory=list)


def find_events(clone: Path) -> dict[str, Logged]:
    """Return event to what its calls have, by name. Raises ValueError for an event without a plain name."""
    found: dict[str, Logged] = {}
    for room in ROOMS:
        for path in sorted((clone / room).rglob("*.py")):
            text = path.read_text()
            for line, level, event, keys in _find_calls(ast.parse(text)):
                if event is None:
                    raise ValueError(f"{path}:{line} logs an event without a plain name")
                one = found.setdefault(event, Logged())
                one.levels.add(level)
                one.places.add(path.relative_to(clone).as_posix())
                one.keys |= keys
                one.meanings += filter(None, [_read_comment_above(text.splitlines(), line)])
    return dict(sorted(found.items()))


def render_page(clone: Path) -> str:
    """Return the text of the page, from the sources in a clone."""
    return HEAD + "".join(
        f"| `{event}` | {', '.join(sorted(one.levels))} | {_quote(one.places)} | {_quote(one.keys)} "
        f"| {' '.join(one.meanings)} |\n"
        for event, one in find_events(clone).items()
    )


def _find_calls(tree: ast.Module) -> Iterator[tuple[int, str, str | None, set[str]]]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Attribute(ast.Name("log" | "_log"), level), args, keywords) if level in LEVELS:
                event = args[0].value if args and isinstance(args[0], ast.Constant) else None
                name = event if isinstance(event, str) else None
                yield node.lineno, LEVELS[level], name, {one.arg or "**" for one in keywords}


def _read_comment_above(lines: list[str], number: int) -> str:
    first = number - 1
    while lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return " ".join(line.lstrip(" #") for line in lines[first : number - 1])


def _quote(names: set[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def main() -> None:
    """Write the page of the clone that is the working folder."""
    PAGE.write_text(render_page(Path.cwd()))


if __name__ == "__main__":
    main()
