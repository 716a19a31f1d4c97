"""Makes text of models, tools and data safe to print: a terminal would obey its control characters."""

from __future__ import annotations

import re

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Matches a control character that is no line break and no tab."""


def escape_controls(text: str) -> str:
    r"""Return a text with each control character as an escape.

    >>> escape_controls("\x1b[2J gone\n")
    '\\x1b[2J gone\n'
    """
    return CONTROL.sub(lambda found: rf"\x{ord(found[0]):02x}", text)
