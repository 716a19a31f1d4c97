r"""Judging answers by math-verify, in processes of their own: `pip install headrace[math]`.

math-verify reads an answer as mathematics, so that `x=2` is `2` and `\frac{2}{4}` is `0.5` (Hugging Face,
https://github.com/huggingface/Math-Verify). It uses sympy, which may compute for ever, and signals for its own time
limit, which only a main thread can have. So it runs in children. One that does not answer in time is killed, and its
answer counts as another than the gold one.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from queue import LifoQueue
from weakref import finalize

LIMIT_S = 5.0
FIRST_LIMIT_S = 60.0
"""Of the first answer of a process: it imports sympy."""
PROCESSES = 2


class MathJudge:
    """Compares answers in child processes, which are started when they are needed, and end with this one.

    Any number of threads may ask; they wait for one another when all processes are busy.
    """

    def __init__(
        self,
        command: Sequence[str] = (),
        limit_s: float = LIMIT_S,
        processes: int = PROCESSES,
        first_limit_s: float = FIRST_LIMIT_S,
    ) -> None:
        self._command = list(command) or [sys.executable, "-m", "headrace.envs.math_judge"]
        self._limit_s, self._first_limit_s = limit_s, first_limit_s
        self._idle: LifoQueue[subprocess.Popen[bytes] | None] = LifoQueue()
        for _ in range(processes):
            self._idle.put(None)
        finalize(self, _stop_all, self._idle)

    def is_same(self, given: str, gold: str) -> bool:
        """Return whether two answers mean the same; False when it does not come out in time."""
        child = self._idle.get()
        try:
            limit_s = self._limit_s
            if child is None:
                child, limit_s = self._start(), self._first_limit_s
            answer = _ask(child, json.dumps([given, gold]).encode() + b"\n", limit_s)
            if answer is None:
                _stop(child)
                child = None
            return answer == b"true\n"
        finally:
            self._idle.put(child)

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )


def _stop(child: subprocess.Popen[bytes]) -> None:
    with child:  # closes its pipes, and waits for it
        child.kill()


def _stop_all(idle: LifoQueue[subprocess.Popen[bytes] | None]) -> None:
    while not idle.empty():
        if (child := idle.get()) is not None:
            _stop(child)


def _ask(child: subprocess.Popen[bytes], question: bytes, limit_s: float) -> bytes | None:
    """Return a child's answer to a line; None when it has died or the time is over."""
    assert child.stdin is not None  # noqa: S101 - both are pipes
    assert child.stdout is not None  # noqa: S101
    try:
        child.stdin.write(question)
    except OSError:
        return None
    ready, _, _ = select.select([child.stdout], [], [], limit_s)
    return (child.stdout.readline() or None) if ready else None


def require_math_verify(setting: str) -> None:
    """Raise ValueError, with the setting that asks for it and what to install, where math-verify is missing."""
    if find_spec("math_verify") is None:
        raise ValueError(f'{setting} needs math-verify: pip install "headrace[math]"')


def main() -> None:
    """Answer each line of two answers with whether they mean the same."""
    from math_verify import parse, verify

    for line in sys.stdin:
        given, gold = (parse(f"\\boxed{{{answer}}}") for answer in json.loads(line))
        sys.stdout.write(json.dumps(bool(verify(gold, given))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
