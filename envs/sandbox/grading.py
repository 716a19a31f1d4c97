"""Grades what was made in a box in another one, which the code that made it never touched."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from headrace.envs.sandbox.contract import Box, BoxFailed, Result, TransferRefused
from headrace.envs.sandbox.kinds import OWN, make_box
from headrace.envs.sandbox.limits import Limits
from headrace.infra.errors import UsageError

TESTS, LOGS = "/tests", "/logs"


@dataclass(frozen=True, slots=True)
class Graded:
    """What the grader's box said."""

    result: Result | None
    """What the tests' command did; None if there was nothing to grade."""
    logs: dict[str, bytes]
    """Name below /logs to content of each file that the tests wrote."""
    refused: str = ""
    """Why what is to be graded could not be taken out of the box: it is missing, too large, or no files."""
    left_out: tuple[str, ...] = ()
    """What was not graded: links to folders, dangling links, sockets and the like."""


async def grade_in_fresh_box(  # noqa: PLR0913 - all but the first by name
    box: Box,
    *,
    results: Sequence[str],
    tests: Path,
    command: str | Sequence[str] = ("sh", f"{TESTS}/test.sh"),
    limits: Limits | None = None,
    kind: str = OWN,
    env: Mapping[str, str] | None = None,
    cwd: str = "/",
    hosts: Collection[str] = (),
) -> Graded:
    """Copy files out of a box into a new one, and run tests on them there.

    The new box has the results at the same paths, the folder `tests` at /tests, which nothing there can change, and an
    empty /logs. Only contents of files are copied: links, and processes, stay behind.

    Args:
        box: Box whose work is graded; it stays as it is.
        results: Paths of files and folders to grade.
        tests: Folder outside, with what the command needs.
        command: Command that grades.
        limits: Limits of the new box.
        kind: Kind of the new box, as in `make_box`.
        env: Environment variables of the command.
        cwd: Where the command begins.
        hosts: What the new box can reach, as in `make_box`.

    Raises BoxFailed and BoxUnavailable, which say nothing about the results, and UsageError for a wrong path.
    """
    for path in results:
        if PurePosixPath(path).parts[:2] in {("/", "tests"), ("/", "logs")} or len(PurePosixPath(path).parts) < 2:
            raise UsageError(f"{path} cannot be graded: {TESTS} and {LOGS} belong to the grader")
    with tempfile.TemporaryDirectory(prefix="headrace-grade-") as name:
        copies = {path: Path(name) / str(number) for number, path in enumerate(results)}
        left_out: list[str] = []
        for path, copy in copies.items():
            try:
                left_out += await box.download(path, copy)
            except TransferRefused as refused:
                return Graded(None, {}, str(refused))
            except OSError as error:
                raise BoxFailed(f"cannot keep {path} of a box in {name}: {error}") from error
        folders = {path if copy.is_dir() else str(PurePosixPath(path).parent) for path, copy in copies.items()}
        folders_there = [*sorted(folders - {"/"}), LOGS]
        fresh = make_box(kind, hosts=hosts, limits=limits, folders=folders_there, read_only={TESTS: tests})
        try:
            await fresh.start()
            try:
                for path, copy in copies.items():
                    await fresh.upload(copy, path)
            except TransferRefused as refused:
                return Graded(None, {}, str(refused))
            result = await fresh.exec(command, env=env, cwd=cwd)
            logs = await _read_logs(fresh, Path(name) / "logs")
        finally:
            await fresh.stop()
    return Graded(result, logs, left_out=tuple(left_out))


async def _read_logs(box: Box, copy: Path) -> dict[str, bytes]:
    try:
        await box.download(LOGS, copy)
    except TransferRefused:
        return {}
    return _read_files(copy)


def _read_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
