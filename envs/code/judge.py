"""Runs a program's tests in a box of its own, and compares its answers outside of it."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cachetools import LRUCache

from headrace.envs.code import in_box
from headrace.envs.code.cases import Cases
from headrace.envs.code.in_box import LATE, OK, RAISED, READY
from headrace.envs.sandbox.contract import BoxFailed
from headrace.envs.sandbox.kinds import check_boxes, make_box
from headrace.envs.sandbox.limits import Limits

SMALL = {"cpu_s": 60, "memory_mb": 512, "processes": 32, "disk_mb": 32, "file_mb": 16, "output_kb": 4096}
"""Limits of a box, unless the recipe gives others."""
MOST_BYTES = 1 << 20
"""Largest answer to one input."""
START_S = 1
KEPT = 4096
"""Programs whose answers are kept: many answers of a group are the same text."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program did with one input."""

    kind: str
    """`ok`, `raised` or `late`."""
    text: str
    """Its output or value; else what went wrong."""


class Judge:
    """Runs programs, each in a box of its own. Any number of threads may call it.

    Args:
        test_limit_s: Seconds for one input.
        total_limit_s: Seconds for all inputs together; keep it below `rollout.score_limit_s`.
        limits: Of the box, by name.

    Raises BoxUnavailable where this machine has no boxes, UsageError for a wrong limit, ValueError for a wrong time.
    """

    def __init__(
        self, test_limit_s: float = 6.0, total_limit_s: float = 8.0, limits: Mapping[str, int] | None = None
    ) -> None:
        if not 0 < test_limit_s <= total_limit_s:
            raise ValueError(
                f"test_limit_s must be above 0 and at most total_limit_s, got {test_limit_s} and {total_limit_s}"
            )
        self._test_limit_s, self._total_limit_s = test_limit_s, total_limit_s
        self._limits = Limits.from_settings({**SMALL, "wall_s": int(total_limit_s) + START_S, **(limits or {})})
        self._kept: LRUCache[bytes, list[Answer]] = LRUCache(KEPT)
        self._lock = threading.Lock()
        check_boxes()

    def check(self, code: str, cases: Cases, *, is_stopped_early: bool = True) -> list[bool]:
        """Return which tests a program passes. Raises BoxFailed and BoxUnavailable.

        After the first input that ends with an error or too late the others count as failed, if `is_stopped_early`.
        """
        answers = self.run(code, cases.function, cases.inputs, is_stopped_early=is_stopped_early)
        return [
            at < len(answers) and answers[at].kind == OK and cases.is_passed(at, answers[at].text)
            for at in range(len(cases.inputs))
        ]

    def run(
        self,
        code: str,
        function: str,
        inputs: Sequence[Any],
        *,
        is_stopped_early: bool = True,
        is_exact: bool = False,
    ) -> list[Answer]:
        """Return a program's answers to inputs, at most one for each, with values as `repr` if `is_exact`."""
        asked = {
            "code": code,
            "function": function,
            "inputs": list(inputs),
            "limit_s": self._test_limit_s,
            "most_bytes": MOST_BYTES,
            "is_stopped_early": is_stopped_early,
            "is_exact": is_exact,
        }
        request = repr(asked).encode(errors="backslashreplace")
        key = hashlib.blake2b(request).digest()
        with self._lock:
            if (known := self._kept.get(key)) is not None:
                return known
        answers = asyncio.run(self._run_in_box(request))
        with self._lock:
            self._kept[key] = answers
        return answers

    async def _run_in_box(self, request: bytes) -> list[Answer]:
        box = make_box(limits=self._limits)
        try:
            await box.start()
            command = ["python3", "-I", "-S", "-c", _read_program()]
            done = await box.exec(command, stdin=request, timeout_s=self._total_limit_s)
        finally:
            await box.stop()
        if not done.stdout.startswith(READY):
            raise BoxFailed(f"Python does not run in a box: exit code {done.return_code}, {done.stderr.strip()[-300:]}")
        answers = _read_answers(done.stdout.partition("\n")[2])
        return [*answers, Answer(LATE, f"no answer within {self._total_limit_s:g} s")] if done.timed_out else answers


@cache
def _read_program() -> str:
    return Path(in_box.__file__).read_text(encoding="utf-8")


def _read_answers(output: str) -> list[Answer]:
    """Return the answers in what came out of a box, up to the first thing that is none: the program may write there."""
    answers = []
    while output:
        head, _, output = output.partition("\n")
        kind, _, length = head.partition(" ")
        if kind not in {OK, RAISED, LATE} or not length.isdecimal() or len(length) > len(str(MOST_BYTES)):
            break
        answers.append(Answer(kind, output[: int(length)]))
        output = output[int(length) :]
    return answers
