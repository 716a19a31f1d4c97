"""Control characters in text of models, tools and data are printed as escapes, wherever they stand."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.columns import Columns
from rich.console import Group
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table

from headrace.app.cli import main as cli
from headrace.app.cli.options import open_console, open_viewer, print_answer
from headrace.app.views.safe_text import Text
from headrace.infra.errors import HeadraceError
from headrace.infra.log import warn_in_sentences

CLEARS = "a\x1b[2Jb\x9b"


def page(said: str) -> Group:
    table = Table(said, box=None)
    table.add_row(Text(said, style="red"))
    table.add_row(Padding(said, 1))
    return Group(
        table, Panel(Text(said), title=Text(said), subtitle=Text(said)), Columns([said]), Text.assemble((said, "bold"))
    )


def test_no_page_lets_a_terminal_obey_what_a_tool_has_written(capsys: pytest.CaptureFixture[str]) -> None:
    print_answer(CLEARS, page, as_json=False)
    for console in (open_viewer(), open_console(outlives_reader=True), open_console(on_stderr=True)):
        console.print(page(CLEARS))
        console.print(CLEARS, soft_wrap=True, markup=False)
    printed = "".join(capsys.readouterr())
    assert not {"\x1b", "\x9b"} & set(printed)
    assert printed.count(r"a\x1b[2Jb\x9b") == 4 * 8 + 3


def test_every_page_is_made_of_texts_that_show_escapes() -> None:
    views = (Path(__file__).parents[2] / "app" / "views").glob("*.py")
    assert [path.name for path in views if "rich.text" in path.read_text()] == ["safe_text.py"]
    assert Text.assemble("a", ("\x07\r", "red"), "\tb\n").plain == "a\\x07\\x0d\tb\n"


def test_errors_and_warnings_are_printed_so_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> None:
        import structlog

        warn_in_sentences()
        structlog.get_logger().warning("episode.failed", why=CLEARS)
        raise HeadraceError(f"{CLEARS}\nin two lines")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit):
        cli.main(["status"])
    told = capsys.readouterr().err
    assert r"warning: episode failed: a\x1b[2Jb\x9b" in told
    assert told.endswith("error: a\\x1b[2Jb\\x9b\nin two lines\n")
