"""The process that runs the expressions of the scorer `regex`; `headrace.envs.judge_processes` starts and kills it."""

from __future__ import annotations

import re
import sys
from functools import partial

from headrace.envs.answers import is_same_answer
from headrace.envs.judge_processes import answer_lines


def is_right(pattern: str, text: str, answer: str) -> bool:
    """Return whether the answer, as an expression, matches; with a pattern, whether its last match is the answer."""
    if not pattern:
        return re.search(answer, text) is not None
    last = None
    for last in re.finditer(pattern, text):  # noqa: B007 - the last match is needed
        pass
    return last is not None and is_same_answer(last[1 if last.re.groups else 0] or "", answer)


def main() -> None:
    """Answer each line with a text and an answer by whether the text is right."""
    answer_lines(partial(is_right, sys.argv[1]))


if __name__ == "__main__":
    main()
