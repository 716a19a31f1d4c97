r"""Scorers of data sets: shipped scorers by name, or a user's own function.

Shipped scorers read what a completion says outside its thoughts. A comparing scorer uses the last `\boxed{}` of that. A
number outside a box never counts; otherwise the policy would learn to write many numbers instead of an answer.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from headrace.envs.answers import drop_name, find_last_boxed, is_same_answer, parse_number
from headrace.envs.contract import LateScore, Problem, Score
from headrace.envs.data.judge import Judge
from headrace.envs.math_judge import is_equal, require_math_verify
from headrace.envs.thoughts import read_answer
from headrace.infra.recipe.named import check_kinds, find_named

BOX_INSTRUCTION = "\nReason step by step, and put the final answer within \\boxed{}."

JUDGE_LIMIT_S = 5.0
"""Seconds for math-verify or a regular expression, which may compute for ever on a policy's text: then it is wrong."""


def _accept(_answer: str) -> str:
    return ""


def _do_nothing() -> None: ...


@dataclass(frozen=True, slots=True)
class Scorer:
    """A scorer of completions."""

    score: Callable[[Problem, str], Score | float]
    instruction: str = ""
    """Text at the end of each prompt, unless the recipe gives another."""
    needs_answer: bool = True
    is_boxed: bool = False
    """Whether it reads the last box."""
    reads_thoughts: bool = False
    """Whether it gets the whole completion, and decides itself what of it counts."""
    keeps: tuple[str, ...] = ()
    """Columns that it needs in `problem.extra`, beside those that the recipe keeps."""
    find_fault: Callable[[str], str] = _accept
    """Returns what is wrong with an answer of the data set; an empty text for a usable answer."""
    late: LateScore | None = None
    """What counts for a completion that it cannot judge in time; None: the episode fails."""
    prepare: Callable[[], object] = _do_nothing
    """Does what takes long in a process that will score; raises if it cannot score at all."""
    is_in_one_process: bool = False
    """Whether it limits what it does in its process, as a rate."""


def build_scorer(spec: str | Mapping[str, Any]) -> Scorer:
    """Build a scorer from its name, or from a table with `use` and its settings.

    Raises ValueError for settings that it does not take, and UsageError for an unknown name.
    """
    table: Any = {"use": spec} if isinstance(spec, str) else spec
    if not isinstance(table, Mapping) or not isinstance(name := table.get("use"), str):
        raise ValueError(  # noqa: TRY004 - a bad setting of an environment is a ValueError
            f'a scorer must be a name or a table with `use`, as in {{ use = "numeric" }}; got {spec!r}'
        )
    settings = {key: value for key, value in table.items() if key != "use"}
    build = find_named("scorer", name, SCORERS)
    if name not in SCORERS:
        return _wrap_function(name, build, settings)
    try:
        inspect.signature(build).bind(**settings)
    except TypeError as error:
        takes = ", ".join(inspect.signature(build).parameters) or "(none)"
        raise ValueError(f"scorer {name}: {error}; the settings are {takes}") from error
    check_kinds(f"scorer {name}", build, settings)
    try:
        built: Scorer | Judge = build(**settings)
    except ValueError as error:
        raise ValueError(f"scorer {name}: {error}") from error
    scorer = built if isinstance(built, Scorer) else Scorer(built.score, needs_answer=False, is_in_one_process=True)
    return scorer if scorer.reads_thoughts else replace(scorer, score=partial(_score_answer, scorer.score))


def _score_answer(score: Callable[[Problem, str], Score | float], problem: Problem, text: str) -> Score | float:
    """Score a completion by what follows its thoughts."""
    return score(problem, read_answer(text))


def _compare_boxed(is_same: Callable[[str, str], bool], problem: Problem, text: str) -> Score:
    boxed = find_last_boxed(text)
    if boxed is None:
        return Score(0.0, {"boxed": 0.0})
    return Score(float(is_same(boxed, problem.answer)), {"boxed": float(bool(boxed.strip()))})


def _build_exact() -> Scorer:
    """Compare exact numbers, or normalised texts."""
    return Scorer(partial(_compare_boxed, is_same_answer), BOX_INSTRUCTION, is_boxed=True)


def _build_numeric(tolerance: float = 0.0) -> Scorer:
    """Compare numbers: |given - answer| <= tolerance * |answer|."""
    if not isinstance(tolerance, int | float) or not 0 <= tolerance < 1:
        raise ValueError(f"tolerance, a share of the answer, must be from 0 to below 1; got {tolerance!r}")

    def is_near(given: str, gold: str) -> bool:
        left, right = parse_number(drop_name(given)), parse_number(drop_name(gold))
        return left is not None and right is not None and abs(left - right) <= tolerance * abs(right)

    def find_fault(answer: str) -> str:
        return "" if parse_number(drop_name(answer)) is not None else "is not a number, as the scorer numeric needs"

    return Scorer(partial(_compare_boxed, is_near), BOX_INSTRUCTION, is_boxed=True, find_fault=find_fault)


def _build_math() -> Scorer:
    """Compare as `exact`; answers that differ and are not both numbers go to math-verify."""
    require_math_verify('scorer = "math"')

    def is_same(given: str, gold: str) -> bool:
        # math-verify compares numbers by six digits, and misreads 2 1/2 as 3/2; it rightly reads 10% as 0.1 too
        is_final = parse_number(given) is not None and parse_number(gold) is not None and "%" not in given + gold
        return is_same_answer(given, gold) or (not is_final and is_equal(given, gold))

    late = LateScore(JUDGE_LIMIT_S, Score(0.0, {"boxed": 1.0}))
    prepare = partial(is_equal, "x=1", "1")
    return Scorer(partial(_compare_boxed, is_same), BOX_INSTRUCTION, is_boxed=True, late=late, prepare=prepare)


def _build_regex(pattern: str = "") -> Scorer:
    """Search for the answer, a regular expression; or find an answer by `pattern` and compare it as `exact`.

    The last match counts, or its first group if it has one. An expression that names `think>` gets the whole
    completion.
    """
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"`pattern` is not a valid regular expression: {error}") from error

    def find_fault(answer: str) -> str:
        try:
            re.compile(answer)
        except re.error as error:
            return f"is not a valid regular expression, as the scorer regex needs ({error})"
        return ""

    def score(problem: Problem, text: str) -> Score:
        is_about_thoughts = "think>" in pattern + problem.answer  # the format of R1-Zero, for instance
        return Score(_is_match(pattern, text if is_about_thoughts else read_answer(text), problem.answer))

    late = LateScore(JUDGE_LIMIT_S, Score(0.0))
    return Scorer(score, reads_thoughts=True, find_fault=_accept if pattern else find_fault, late=late)


def _is_match(pattern: str, text: str, answer: str) -> bool:
    """Return whether the answer, as an expression, matches; with a pattern, whether its last match is the answer."""
    if not pattern:
        return re.search(answer, text) is not None
    last = None
    for last in re.finditer(pattern, text):  # noqa: B007 - the last match is needed
        pass
    return last is not None and is_same_answer(last[1 if last.re.groups else 0] or "", answer)


def _wrap_function(name: str, function: Callable[..., Any], settings: Mapping[str, Any]) -> Scorer:
    if inspect.iscoroutinefunction(function):
        raise ValueError(f"scorer {name}: the function must not be async: it runs in a child process, and may block")
    try:
        inspect.signature(function).bind("problem", "text", **settings)
    except TypeError as error:
        raise ValueError(
            f"scorer {name}: {error}; the function is called with problem, text, and the other keys of the scorer's "
            "table as keyword arguments"
        ) from error
    return Scorer(partial(function, **settings), needs_answer=False)


SCORERS: dict[str, str | Callable[..., Any]] = {
    "exact": _build_exact,
    "numeric": _build_numeric,
    "math": _build_math,
    "regex": _build_regex,
    "judge": Judge,
    "code": "headrace.envs.code.grading:build_scorer",
}
"""Builders of shipped scorers by name; their keyword arguments are the settings in a recipe."""
