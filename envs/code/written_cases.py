"""What a tester reads and writes: its prompt, the two cases in its answer, and what a solver is told of them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from headrace.envs.code.cases import Cases, is_too_deep, write_text
from headrace.envs.contract import Problem
from headrace.envs.thoughts import read_answer

LEAST_LEFT = 0.25
"""Share of a statement that must remain without its examples."""
ASK, TOLD = "ask", "told"
"""Keys in a problem's `extra`: other words for the two texts below, for policies that know few words."""
_ASK = """

The program above may be wrong. Think in an <analysis> block about what could be wrong with it. Then write exactly two
test cases that a right program passes and a wrong one fails, as one fenced block: ```json with a list of objects
{"input": …, "output": …}. For a program that reads stdin both are texts. For a function `input` is the list of its
arguments, and `output` its result."""
_TOLD = "\n\nAn earlier program was tested, each case with input and output. Answer with a better one.\n"
_EXAMPLES = re.compile(r"(?im)^[\W_]*(?:sample|example)s?\b[^\n]*$")
_SECTION = re.compile(r"(?im)^[\W_]*(?:constraint|note|hint|limit|explanation|follow.?up|scoring|task|answer)s?\b")
_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)


def strip_examples(statement: str) -> str:
    """Return a statement without its examples, from their heading to the next section or the end.

    Unchanged if less than a quarter would remain.
    """
    kept = statement
    while found := _EXAMPLES.search(kept):
        after = _SECTION.search(kept, found.end())
        kept = kept[: found.start()] + (kept[after.start() :] if after else "")
    return kept if len(kept.strip()) >= LEAST_LEFT * len(statement) else statement


def write_test_prompt(problem: Problem, code: str) -> str:
    """Return what the tester reads: the problem without examples, a program, and what to do."""
    return f"{strip_examples(problem.text)}{code}{problem.extra.get(ASK, _ASK)}"


def read_written_cases(answer: str, function: str) -> Cases | None:
    """Return the cases in an answer, for a function or for a program that reads stdin; None unless there are two.

    The last fenced block counts, or the whole text: JSON of two objects with `input` and `output`, or of two pairs.
    Values that are nested too deep for a box are no cases.
    """
    text = read_answer(answer)
    try:
        found = json.loads((_FENCED.findall(text) or [text])[-1])
        (one, wanted), (two, other) = ((it["input"], it["output"]) if isinstance(it, dict) else it for it in found)
    except (KeyError, RecursionError, TypeError, ValueError):
        return None
    if is_too_deep(found):
        return None
    if function:
        return Cases(function, [it if isinstance(it, list) else [it] for it in (one, two)], [wanted, other])
    return Cases("", [write_text(one), write_text(two)], [write_text(wanted), write_text(other)])


def write_feedback(problem: Problem, cases: Cases, passed: Sequence[bool]) -> str:
    """Return what the solver reads after its problem: each case with PASS or FAIL."""
    told = zip(cases.inputs, cases.outputs, passed, strict=True)
    lines = (f"{json.dumps([one, two])} {'PASS' if is_passed else 'FAIL'}\n" for one, two, is_passed in told)
    return str(problem.extra.get(TOLD, _TOLD)) + "".join(lines)
