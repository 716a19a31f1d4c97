"""The two forms of tables on pages: names with values, and columns under titles."""

from __future__ import annotations

from rich.table import Column, Table

from headrace.app.views.safe_text import Text

PLAIN = "table.header"
"""Style of titles that are not grey."""


def make_facts(*, fold: bool = False) -> Table:
    """Return an empty table of grey names and their values; `fold` breaks long values anywhere, and no name."""
    values = Column(overflow="fold" if fold else "ellipsis")
    return Table.grid(Column(style="dim", no_wrap=fold), values, padding=(0, 2))


def make_columns(
    *columns: str | Text | Column, right: slice = slice(0), titles: str = "dim", pad_edge: bool = False
) -> Table:
    """Return an empty table without lines.

    Args:
        columns: Titles of the columns, or columns with a form of their own.
        right: The columns that are aligned to the right.
        titles: Style of the titles.
        pad_edge: Whether there is a space before the first column.
    """
    made = [one if isinstance(one, Column) else Column(one) for one in columns]
    for column in made[right]:
        column.justify = "right"
    return Table(*made, box=None, header_style=titles, pad_edge=pad_edge)


def number(title: str | Text) -> Column:
    """Return a column of numbers."""
    return Column(title, justify="right", no_wrap=True)


def fold_text(title: str | Text) -> Column:
    """Return a column of texts that are broken anywhere, and so are whole."""
    return Column(title, overflow="fold")
