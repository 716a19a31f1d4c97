"""Every error that Headrace raises on purpose.

HeadraceError            something is wrong, and the message names what, where and what to do
├── UsageError           the user asked for something that cannot be: a recipe, an option, a name (exit code 2)
├── Unavailable          a broker or a store is not there; waiting and trying again is right
└── (others live beside the code that raises them)

MaskedValueError is none of these: what checks one value of a recipe raises it, and it becomes part of a UsageError.
"""

from __future__ import annotations

from typing import ClassVar

FENCED = 76
"""Exit code of a component that another process has replaced: no fault of its own, and no death."""


class HeadraceError(Exception):
    """Base of all errors raised on purpose; the message carries its remedy."""

    exit_code: ClassVar[int] = 1
    """Exit code of the command line."""


class UsageError(HeadraceError):
    """The user's input cannot be right."""

    exit_code = 2


class Unavailable(HeadraceError):
    """A server does not answer now; the caller may wait and try again."""


class MaskedValueError(ValueError):
    """A wrong value that may hold a secret: the message shows as much of it as may be shown, so nobody adds it."""
