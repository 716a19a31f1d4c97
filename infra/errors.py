"""Base classes of all errors that Headrace raises on purpose.

HeadraceError            an error; the message says what is wrong, where, and what to do
├── UsageError           the user's input is wrong: a recipe, an option, a name (exit code 2)
├── Unavailable          a broker or a store does not answer; the caller should wait and try again
├── EnvironmentBroken    a box, a task or a judge does not work, which says nothing about the policy
└── (others are defined beside the code that raises them)

MaskedValueError is not one of these: checks of a recipe's values raise it, and it becomes part of a UsageError.
"""

from __future__ import annotations

from typing import ClassVar

ERROR_MARK = "error: "
"""Begin of the line by which a command prints the error that ends it."""
FENCED = 76
"""Exit code of a component that another process has replaced; it does not count as a death."""


class HeadraceError(Exception):
    """Base of all errors raised on purpose; the message includes the remedy."""

    exit_code: ClassVar[int] = 1
    """Exit code of the command line."""


class UsageError(HeadraceError):
    """The user's input is wrong."""

    exit_code = 2


class Unavailable(HeadraceError):
    """A server does not answer now; the caller may wait and try again."""


class EnvironmentBroken(HeadraceError):
    """What an episode needs does not work: a box, a task's own files, a judge. It is a failure, never a reward."""


class MaskedValueError(ValueError):
    """A wrong value that may hold a secret. The message shows what may be shown, so callers must not add the value."""
