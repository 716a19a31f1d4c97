"""The lines of `headrace check-engine`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.app.views.safe_text import Text

if TYPE_CHECKING:  # the check needs torch, and its page does not
    from headrace.ops.engine_check.engine_check import Checked

STYLES = {"kept": "green", "broken": "bold red", "skipped": "yellow"}


def format_check(checked: Checked) -> Text:
    """Return the line of one promise."""
    return Text.assemble(
        (f"{checked.verdict:<8}", STYLES[checked.verdict]),
        (f"{checked.what:<18}", "bold"),
        f"{checked.detail}  ",
        (f"{checked.seconds:.1f} s", "dim"),
    )
