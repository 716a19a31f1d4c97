r"""Compares answers by math-verify in child processes: `make install EXTRAS=math`.

math-verify reads an answer as mathematics, so `x=2` equals `2` and `\frac{2}{4}` equals `0.5` (Hugging Face,
https://github.com/huggingface/Math-Verify). It uses sympy, which may compute for ever, and its time limit uses signals,
which only a main thread can receive. So it runs in child processes. A child that does not answer in time is killed, and
the answer counts as different from the gold answer.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

from headrace.envs.judge_processes import JudgeProcesses, answer_lines


def open_math_judge() -> JudgeProcesses:
    """Return the processes that decide whether two answers are mathematically equal."""
    return JudgeProcesses((sys.executable, "-m", "headrace.envs.math_judge"))


def require_math_verify(setting: str) -> None:
    """Raise ValueError if math-verify is missing; the message names the setting and what to install."""
    if find_spec("math_verify") is None:
        raise ValueError(f"{setting} needs math-verify: make install EXTRAS=math")


def main() -> None:
    """Answer each line of two answers by whether they are equal."""
    from math_verify import parse, verify

    def is_same(given: str, gold: str) -> bool:
        left, right = (parse(f"\\boxed{{{answer}}}") for answer in (given, gold))
        return bool(verify(right, left))

    answer_lines(is_same)


if __name__ == "__main__":
    main()
