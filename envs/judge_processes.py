"""Runs judges in child processes, for code that may compute for ever and cannot be interrupted by a thread."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Callable, Sequence
from queue import LifoQueue
from weakref import finalize

from headrace.infra.errors import HeadraceError
from headrace.infra.process.log_lines import find_last_error

JUDGE_LIMIT_S = 5.0
FIRST_LIMIT_S = 60.0
"""Seconds for the first answer of a process, which includes its imports."""
PROCESSES = 2
PROBE = ("1", "1")
"""Two texts that every judge can compare."""


class JudgeBroken(HeadraceError):
    """A judge cannot answer at all, so its answers say nothing about the texts."""


class JudgeProcesses:
    """Child processes that compare two texts at a time; they start on demand, and end with this process.

    Any number of threads may call it; they wait if all processes are busy.

    Args:
        command: Starts a child, which answers by `answer_lines`.
        limit_s: Seconds for an answer. A child that takes longer is killed, and its answer is no.
        processes: Most child processes.
        first_limit_s: Seconds for the first answer of a child, its start included.

    A child that dies or is late answers no, because the texts may be the cause. Before that, one child must have
    compared two simple texts.
    """

    def __init__(
        self,
        command: Sequence[str],
        limit_s: float = JUDGE_LIMIT_S,
        processes: int = PROCESSES,
        first_limit_s: float = FIRST_LIMIT_S,
    ) -> None:
        self._command = list(command)
        self._limit_s, self._first_limit_s = limit_s, first_limit_s
        self._is_proven = False
        """Whether a child has ever answered."""
        self._idle: LifoQueue[subprocess.Popen[bytes] | None] = LifoQueue()
        for _ in range(processes):
            self._idle.put(None)
        finalize(self, _stop_all, self._idle)

    def is_same(self, given: str, gold: str) -> bool:
        """Return a child's verdict on two texts; False if it does not answer in time. Raises JudgeBroken."""
        child, answer = self._idle.get(), None
        try:
            limit_s = self._limit_s
            if child is None:
                child, limit_s = self._start(), self._first_limit_s
                if not self._is_proven:
                    self._check_can_answer(child)
            answer = _ask(child, _encode(given, gold), limit_s)
            return answer == b"true\n"
        finally:
            if answer is None and child is not None:  # late, dead or interrupted: it must not answer later
                _kill(child)
                child = None
            self._idle.put(child)

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )

    def _check_can_answer(self, child: subprocess.Popen[bytes]) -> None:
        """Raise JudgeBroken, with what a further child writes, if a child cannot answer."""
        if _ask(child, _encode(*PROBE), self._first_limit_s) is None:
            raise JudgeBroken(
                f"answers cannot be scored, because the process that compares them, `{' '.join(self._command[:3])}`, "
                f"{self._describe_failure()}"
            )
        self._is_proven = True

    def _describe_failure(self) -> str:
        limit_s = self._first_limit_s
        try:
            ended = subprocess.run(
                self._command, input=_encode(*PROBE), capture_output=True, timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            return f"gives no answer within {limit_s:g} s"
        lines = ended.stderr.decode(errors="replace").splitlines()
        return f"exits with status {ended.returncode}: {find_last_error(lines) or 'it wrote no error'}"


def _encode(given: str, gold: str) -> bytes:
    return json.dumps([given, gold]).encode() + b"\n"


def _kill(child: subprocess.Popen[bytes]) -> None:
    with child:  # closes its pipes, and waits for it
        child.kill()


def _stop_all(idle: LifoQueue[subprocess.Popen[bytes] | None]) -> None:
    while not idle.empty():
        if (child := idle.get()) is not None:
            _kill(child)


def _ask(child: subprocess.Popen[bytes], question: bytes, limit_s: float) -> bytes | None:
    """Return a child's answer to a line; None if it has died or the time is over."""
    assert child.stdin is not None  # noqa: S101 - both are pipes
    assert child.stdout is not None  # noqa: S101
    try:
        child.stdin.write(question)
    except OSError:
        return None
    poll = select.poll()  # `select.select` refuses descriptors from 1,024 on
    poll.register(child.stdout, select.POLLIN)
    return (child.stdout.readline() or None) if poll.poll(limit_s * 1000) else None


def answer_lines(judge: Callable[[str, str], bool]) -> None:
    """Run as a child: answer each line of two texts with the result of `judge`, until the parent ends."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps(judge(*json.loads(line))) + "\n")
        sys.stdout.flush()
