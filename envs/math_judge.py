r"""Judging answers by math-verify, in processes of their own: `make install EXTRAS=math`.

math-verify reads an answer as mathematics, so that `x=2` is `2` and `\frac{2}{4}` is `0.5` (Hugging Face,
https://github.com/huggingface/Math-Verify). It uses sympy, which may compute for ever, and signals for its own time
limit, which only a main thread can have. So it runs in children. One that does not answer in time is killed, and its
answer counts as another than the gold one.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

from headrace.envs.judge_processes import JudgeProcesses, answer_lines


def open_math_judge() -> JudgeProcesses:
    """Return what says whether two answers are the same mathematics."""
    return JudgeProcesses((sys.executable, "-m", "headrace.envs.math_judge"))


def require_math_verify(setting: str) -> None:
    """Raise ValueError, with the setting that asks for it and what to install, where math-verify is missing."""
    if find_spec("math_verify") is None:
        raise ValueError(f"{setting} needs math-verify: make install EXTRAS=math")


def main() -> None:
    """Answer each line of two answers with whether they mean the same."""
    from math_verify import parse, verify

    def is_same(given: str, gold: str) -> bool:
        left, right = (parse(f"\\boxed{{{answer}}}") for answer in (given, gold))
        return bool(verify(right, left))

    answer_lines(is_same)


if __name__ == "__main__":
    main()
