"""Runs a program's tests in a box of its own, and compares its answers outside of it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from headrace.envs.code import in_box
from headrace.envs.code.cases import Cases
from headrace.envs.code.in_box import LATE, OK, RAISED, READY
from headrace.envs.sandbox.contract import BoxFailed
from headrace.envs.sandbox.kinds import check_boxes, make_box
from headrace.envs.sandbox.limits import Limits
from headrace.infra.recipe.named import check_kinds

SMALL = {"memory_mb": 512, "processes": 32, "disk_mb": 32, "file_mb": 16, "output_kb": 32768}
"""Limits of a box, unless the recipe gives others."""
MOST_BYTES = 1 << 20
"""Largest answer to one input."""
KEPT, KEPT_CHARACTERS = 512, 1 << 16
"""Programs whose answers are kept, and most characters of these: many answers of a group are the same text."""


class Answer(NamedTuple):
    """What a program did with one input: `ok`, `raised` or `late`; and its output or value, or what went wrong."""

    kind: str
    text: str


class Judge:
    """Runs programs, each in a box of its own. Any number of threads may call it.

    Args:
        test_limit_s: Seconds for one input.
        total_limit_s: Seconds for all inputs together; keep it below `rollout.score_limit_s`.
        limits: Of the box, as in `Limits`.

    Raises BoxUnavailable where this machine has no boxes, UsageError for a wrong limit, ValueError for wrong times.
    """

    def __init__(self, test_limit_s: float = 6.0, total_limit_s: float = 8.0, **limits: Any) -> None:
        check_kinds("programs", Judge, {"test_limit_s": test_limit_s, "total_limit_s": total_limit_s})
        if not 0 < test_limit_s <= total_limit_s < math.inf:
            raise ValueError(
                f"test_limit_s must be above 0, and at most total_limit_s, a finite number; got {test_limit_s} and "
                f"{total_limit_s}"
            )
        if "wall_s" in limits:
            raise ValueError("wall_s is no setting here: it follows total_limit_s, so set that")
        self._test_limit_s, self._total_limit_s = test_limit_s, total_limit_s
        self._limits = Limits.from_settings({**SMALL, "wall_s": int(total_limit_s) + 1, **limits})
        self._kept: dict[bytes, list[Answer]] = {}
        self._lock = Lock()
        self._program = Path(in_box.__file__).read_text(encoding="utf-8")
        check_boxes()

    def check(self, code: str, cases: Cases, *, is_stopped_early: bool = True) -> list[bool]:
        """Return which tests a program passes. Raises BoxFailed and BoxUnavailable.

        After the first input that ends with an error or too late the others count as failed, if `is_stopped_early`.
        """
        answers = self.run(code, cases.function, cases.inputs, is_stopped_early=is_stopped_early)
        passed = [one.kind == OK and cases.is_passed(at, one.text) for at, one in enumerate(answers)]
        return passed + [False] * (len(cases.inputs) - len(passed))

    def run(
        self, code: str, function: str, inputs: Sequence[Any], *, is_exact: bool = False, is_stopped_early: bool = True
    ) -> list[Answer]:
        """Return a program's answers to inputs, at most one for each, with values as `repr` if `is_exact`."""
        request = (code, function, list(inputs), is_exact, is_stopped_early, self._test_limit_s, MOST_BYTES)
        return self._answer(repr(request).encode(errors="backslashreplace"))[: len(inputs)]

    def _answer(self, request: bytes) -> list[Answer]:
        """Return the answers to a request, kept ones if there are; a late one may be the machine's fault: not kept."""
        name = blake2b(request).digest()
        if (kept := self._kept.get(name)) is not None:
            return kept
        answers = asyncio.run(self._run_in_box(request))
        if all(one.kind != LATE for one in answers) and sum(len(one.text) for one in answers) <= KEPT_CHARACTERS:
            with self._lock:
                self._kept[name] = answers
                if len(self._kept) > KEPT:
                    del self._kept[next(iter(self._kept))]
        return answers

    async def _run_in_box(self, request: bytes) -> list[Answer]:
        box = make_box(limits=self._limits)
        try:
            await box.start()
            command = ["python3", "-I", "-S", "-c", self._program]
            done = await box.exec(command, stdin=request, timeout_s=self._total_limit_s)
        finally:
            await box.stop()
        begin, _, output = done.stdout.partition("\n")
        if begin != READY:
            raise BoxFailed(f"Python does not run in a box: exit code {done.return_code}, {done.stderr.strip()[-300:]}")
        answers = []
        while output:  # up to the first thing that is no answer: the program may write there, too
            head, _, output = output.partition("\n")
            kind, _, length = head.partition(" ")
            if kind not in {OK, RAISED, LATE} or not length.isdecimal() or len(length) > len(str(MOST_BYTES)):
                break
            answers.append(Answer(kind, output[: int(length)]))
            output = output[int(length) :]
        return [*answers, Answer(LATE, f"no answer within {self._total_limit_s:g} s")] if done.timed_out else answers
