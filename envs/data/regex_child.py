"""The process that the scorer `regex` runs its expressions in; `headrace.envs.judge_processes` starts and kills it."""

from __future__ import annotations

import re
import sys
from functools import partial

from headrace.envs.answers import is_same_answer
from headrace.envs.judge_processes import answer_lines


def is_right(pattern: str, text: str, answer: str) -> bool:
    """Return whether the answer, as an expression, is found; with a pattern, whether what that finds is the answer."""
    if not pattern:
        return re.search(answer, text) is not None
    last = None
    for last in re.finditer(pattern, text):  # noqa: B007 - the last one is what is wanted
        pass
    return last is not None and is_same_answer(last[1 if last.re.groups else 0] or "", answer)


def main() -> None:
    """Answer each line of a text and an answer with whether it is right."""
    answer_lines(partial(is_right, sys.argv[1]))


if __name__ == "__main__":
    main()
