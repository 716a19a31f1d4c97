import json
from pathlib import Path

import pytest

from headrace.envs.contract import Split
from headrace.envs.jsonl import INSTRUCTION, JsonLines, TaskFileError


def written(folder: Path, *lines: object) -> str:
    file = folder / "tasks.jsonl"
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return str(file)


def rows(count: int) -> list[dict[str, str]]:
    return [{"problem": f"What is {n} + 1?", "answer": str(n + 1), "solution": "ignored"} for n in range(count)]


def drawn(env: JsonLines, split: Split) -> set[str]:
    return {env.problem(split, index).task_id for index in range(env.size(split))}


def test_problems_and_answers_are_those_of_the_file(tmp_path: Path) -> None:
    env = JsonLines(1, written(tmp_path, *rows(100)))
    problem = env.problem("train", 0)
    number = int(problem.answer)
    assert problem.prompt == f"What is {number - 1} + 1?" + INSTRUCTION
    assert env.size("train") + env.size("held_out") == 100
    assert env.problem("train", env.size("train")) == problem


def test_a_problem_stays_in_its_split_whatever_becomes_of_the_file(tmp_path: Path) -> None:
    few, more = rows(100), [*reversed(rows(150)), *rows(20)]
    before = drawn(JsonLines(1, written(tmp_path, *few)), "held_out")
    after = JsonLines(2, written(tmp_path, *more))
    assert before <= drawn(after, "held_out")
    assert after.size("train") + after.size("held_out") == 150


def test_a_number_as_answer_and_empty_lines_and_a_byte_order_mark_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"problem": "p", "answer": 7}\r\n\n  \n{"problem": "q", "answer": 0.5}')
    env = JsonLines(1, str(path), held_out=0)
    assert {env.problem("train", index).answer for index in range(2)} == {"7", "0.5"}


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", "not JSON"),
        ("[1]", "expected a JSON object, got list"),
        ('{"problem": "p"}', "`answer` must be a non-empty string or a number, got None; the line has 'problem'"),
        ('{"answer": "7"}', "`problem` must be a non-empty string"),
        ('{"problem": "p", "answer": true}', "`answer` must be a non-empty string"),
        ('{"problem": "p", "answer": NaN}', "NaN is not JSON: write a number"),
        ('{"problem": "p", "answer": "7", "answer": "8"}', "the key 'answer' occurs more than once"),
        ('{"problem": "\\ud800", "answer": "7"}', "`problem` holds half of a character"),
        ('{"problem": "p", "answer": ' + "9" * 5000 + "}", "a number of 5000 characters"),
        (r'{"problem": "p", "answer": "\\boxed{}"}', "the answer in `answer` is empty"),
        (r'{"problem": "p", "answer": "\\boxed{5"}', "has unbalanced braces"),
    ],
)
def test_a_malformed_line_is_named_by_its_number(tmp_path: Path, line: str, sentence: str) -> None:
    path = written(tmp_path, *rows(2), "", line)
    with pytest.raises(TaskFileError, match=rf"tasks\.jsonl:4: .*{sentence}"):
        JsonLines(1, path)


def test_answers_are_taken_as_they_are_written_and_out_of_their_box(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    answers = ("0.00001", r'"\\boxed{5}"', "-0.50", r'"So it is $\\boxed{6}$."')
    path.write_text("\n".join(f'{{"problem": "p{n}", "answer": {one}}}' for n, one in enumerate(answers)))
    env = JsonLines(1, str(path), held_out=0)
    assert {env.problem("train", index).answer for index in range(4)} == {"0.00001", "5", "-0.50", "6"}


def test_a_file_too_small_to_be_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskFileError, match=r"too few problems: .* has 0 different problems"):
        JsonLines(1, written(tmp_path, ""))
    with pytest.raises(TaskFileError, match=r"3 to train on, 0 to evaluate on \(held_out = 0\.0001\)"):
        JsonLines(1, written(tmp_path, *rows(3)), held_out=0.0001)
    with pytest.raises(ValueError, match="0 <= held_out < 1"):
        JsonLines(1, written(tmp_path, *rows(3)), held_out=1)
