"""The five calls of a box, which any sandbox can have: start, exec, upload, download, stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headrace.infra.errors import EnvironmentBroken, HeadraceError


class BoxUnavailable(EnvironmentBroken):
    """This machine has no boxes, or none as asked for; the message says how to get one."""


class BoxFailed(EnvironmentBroken):
    """A box cannot start, or ended by itself. This says nothing about the code in it, so it is never a reward."""


class TransferRefused(HeadraceError):
    """Files cannot be taken out of a box, or put into it, because of what code in it did, or of its limits."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a command did."""

    stdout: str
    stderr: str
    return_code: int
    """As a shell has it: 128 and the signal's number for a command that a signal ended, 127 for one not found."""
    timed_out: bool = False
    """The time was over; all processes of the box were killed."""
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    wall_s: float = 0.0


class Box(Protocol):
    """A sandbox that keeps its files between commands."""

    async def start(self) -> None:
        """Make the box. Raises BoxUnavailable or BoxFailed."""

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        stdin: str | bytes = b"",
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> Result:
        """Run a command, a string by the box's shell, and return what it did. Raises BoxFailed."""

    async def upload(self, source: Path, target: str) -> None:
        """Copy a file, or what is in a folder, to a path of the box. Raises TransferRefused or BoxFailed."""

    async def download(self, source: str, target: Path) -> list[str]:
        """Copy a file or folder of the box to a path that is not there yet; return the names that were left out.

        Only files and folders are copied, and files that links lead to; links to folders, dangling links, sockets and
        the like are left out. Raises TransferRefused or BoxFailed.
        """

    async def stop(self) -> None:
        """End all processes of the box, and delete its files."""
