"""A Python that has imported what is slow to import, and forks itself for every run of pytest.

Of the seconds that the tests of a mutant take, most would go into importing torch and transformers once more. Nothing
of ours is imported here: it comes from the folder that a run is told.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

SLOW = (
    "confluent_kafka",
    "fastavro",
    "hypothesis",
    "minio",
    "pydantic",
    "pytest",
    "rich.console",
    "structlog",
    "torch",
    "torch._dynamo",
    "transformers.models.qwen3.modeling_qwen3",
    "typer",
)
QUIETLY = "-Wignore:Module already imported:pytest.PytestAssertRewriteWarning"
"""transformers brings anyio, which is a plugin of pytest too, and none that we use."""


class WarmPython:
    """One such process; it takes one run after the other. Used as a context: at its end the process ends."""

    def __enter__(self) -> Self:
        """Start the process, which is imports for some seconds before its first run."""
        command = [sys.executable, "-B", __file__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the process to end, with the run that it is at."""
        with suppress(BrokenPipeError):
            self._process.communicate()

    def pytest(self, words: Sequence[str], folder: Path, environment: Mapping[str, str], output: Path) -> int:
        """Run pytest in a folder, from which everything of ours is imported; return its exit code.

        Raises BrokenPipeError when the process is gone, RuntimeError when it ends meanwhile.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = [list(words), str(folder), dict(environment), str(output)]
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the warm Python has ended with {self._process.wait()}; what it said is above")
        return int(answer)


def serve() -> None:
    """Fork for every order on standard input, and answer with the exit code."""
    for name in SLOW:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # or every collection of a child would look at all this, and copy its pages
    for line in sys.stdin:
        if (child := os.fork()) == 0:
            _run(*json.loads(line))
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()
    _leave(0)


def _run(words: list[str], folder: str, environment: dict[str, str], output: str) -> NoReturn:
    """Be `python -m pytest` in that folder and environment; does not return."""
    nothing, told = os.open(os.devnull, os.O_RDONLY), os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for here, there in ((nothing, 0), (told, 1), (told, 2)):
        os.dup2(here, there)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in environment
    sys.path[:1] = [f"{folder}/src", folder]
    sys.argv = ["pytest", QUIETLY, *words]
    try:
        runpy.run_module("pytest", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        _leave(int(ended.code or 0))
    _leave(1)


def _leave(code: int) -> NoReturn:
    """End at once: taking apart all that was imported takes as long as a test."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    serve()
