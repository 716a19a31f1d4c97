"""Problems from data sets of any form: columns, splits, order, worked examples, and what is refused."""

from __future__ import annotations

import gzip
import hashlib
import inspect
import json
import re
import sys
import tomllib
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from chat_models import save_tokenizer
from made_recipes import sums_recipe

from headrace.envs.contract import GivesExamples, Split
from headrace.envs.data.rows import ReadsData, TaskFileError, list_left_out_of
from headrace.envs.dataset import Dataset
from headrace.envs.jsonl import INSTRUCTION, JsonLines
from headrace.envs.payload import problem_from_json, problem_to_json
from headrace.envs.registry import EnvironmentSettingsError, load_environment
from headrace.infra.recipe.settings import Policy
from headrace.ops.preflight.contract import list_doubts
from headrace.ops.preflight.table import examine_for_trial

COLUMNS = {"problem": "question", "answer": "label.value", "tier": "level"}

GOLDEN = {"train": ["p12", "p2", "p11", "p21", "p31"], "held_out": ["p22", "p17"], "task_id": "598aa1678b7005b4"}
"""What the first build with this environment drew, of the file below."""


def rows(count: int) -> list[dict[str, Any]]:
    return [{"question": f"What is {n} + 1?", "label": {"value": n + 1}, "level": n % 3} for n in range(count)]


def written(file: Path, found: list[dict[str, Any]]) -> str:
    file.write_text("\n".join(map(json.dumps, found)))
    return str(file)


def as_parquet(file: Path, found: list[dict[str, Any]]) -> str:
    pa = pytest.importorskip("pyarrow", reason="the optional extra data is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.Table.from_pylist(found), file, row_group_size=7)
    return str(file)


def as_saved(folder: Path, found: list[dict[str, Any]]) -> str:
    """Write what `datasets` 5.2 writes by save_to_disk: an Arrow stream, and its name."""
    pa = pytest.importorskip("pyarrow", reason="the optional extra data is not installed")
    folder.mkdir(parents=True)
    table = pa.Table.from_pylist(found)
    with (
        pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as out,
    ):
        out.write_table(table, max_chunksize=7)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    return str(folder)


def listed(env: Dataset, split: Split = "train") -> list[Any]:
    return [env.problem(split, index) for index in range(env.size(split))]


def test_columns_are_mapped_and_what_is_asked_is_put_together(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", [{"q": "1+1", "a": "2", "level": 3, "unit": "m"}])
    env = Dataset(
        1,
        path,
        columns={"problem": "q", "answer": "a", "tier": "level"},
        held_out=0,
        system="You are brief.",
        template="In {unit}: {problem} ({level})",
        instruction="!",
        keep=["unit"],
    )
    problem = env.problem("train", 0)
    assert problem.prompt == (
        {"role": "system", "content": "You are brief."},
        {"role": "user", "content": "In m: 1+1 ({level})!"},
    )
    assert (problem.answer, problem.tier, problem.extra) == ("2", "3", {"unit": "m"})


def test_the_form_of_the_file_makes_no_difference(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress("\n".join(map(json.dumps, rows(60))).encode()))
    as_parquet(tmp_path / "shards" / "0.parquet", rows(60)[:25])
    as_parquet(tmp_path / "shards" / "1.parquet", rows(60)[25:])
    as_saved(tmp_path / "dict" / "train", rows(60))
    (tmp_path / "dict" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    paths = [
        written(tmp_path / "a.jsonl", rows(60)),
        str(packed),
        as_parquet(tmp_path / "a.parquet", rows(60)),
        str(tmp_path / "shards"),
        as_saved(tmp_path / "saved", rows(60)),
        str(tmp_path / "dict"),
    ]
    found = [Dataset(1, path, columns=COLUMNS) for path in paths]
    for split in ("train", "held_out"):
        first, *others = [listed(env, split) for env in found]
        assert first
        assert [one == first for one in others] == [True] * 5


def test_decimals_are_numbers_and_files_of_other_number_types_go_together(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder = tmp_path / "shards"
    folder.mkdir()
    for name, column in (
        ("0", pa.array([3], pa.int64())),
        ("1", pa.array([0.5], pa.float64())),
        ("2", pa.nulls(1)),
        ("3", pa.array([Decimal("0.25")], pa.decimal128(5, 2))),
    ):
        parquet.write_table(pa.table({"problem": [f"p{name}"], "answer": column}), folder / f"{name}.parquet")
    alone = Dataset(1, str(folder / "3.parquet"), held_out=0)
    assert alone.problem("train", 0).answer == "0.25"
    (folder / "2.parquet").unlink()
    (folder / "3.parquet").unlink()
    assert {one.answer for one in listed(Dataset(1, str(folder), held_out=0))} == {"3.0", "0.5"}
    parquet.write_table(pa.table({"problem": ["p"], "answer": ["four"]}), folder / "4.parquet")
    with pytest.raises(TaskFileError, match=r"4\.parquet: column 'answer' is string, but in .*0\.parquet it is"):
        Dataset(1, str(folder), held_out=0).size("train")


@pytest.mark.parametrize(
    ("name", "said"),
    [("a.jsonl", r"git -C .* lfs pull"), ("a.parquet", r"git -C .* lfs pull"), ("a.csv", "CSV file: ")],
)
def test_a_pointer_and_a_table_as_text_are_told_by_name_with_what_to_do(tmp_path: Path, name: str, said: str) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    (tmp_path / name).write_text("problem,answer\n1+1,2\n" if name.endswith("csv") else pointer)
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    with pytest.raises(TaskFileError, match=said):
        Dataset(1, str(tmp_path / name), held_out=0).size("train")


def test_a_dataset_draws_as_jsonl_of_earlier_builds_did(tmp_path: Path) -> None:
    found = [{"problem": f"p{n}", "answer": "1"} for n in range(40)]
    path = written(tmp_path / "a.jsonl", found)
    assert listed(Dataset(3, path)) == listed(JsonLines(3, path))
    env = JsonLines(3, path)
    assert [env.problem("train", index).prompt.removesuffix(INSTRUCTION) for index in range(5)] == GOLDEN["train"]
    assert [env.problem("held_out", index).prompt.removesuffix(INSTRUCTION) for index in range(2)] == GOLDEN["held_out"]
    assert env.problem("train", 0).task_id == GOLDEN["task_id"]


def test_held_out_problems_have_a_file_of_their_own_and_are_not_trained_on(tmp_path: Path) -> None:
    path = written(tmp_path / "train.jsonl", rows(30))
    own = written(tmp_path / "test.jsonl", rows(40)[25:])
    env = Dataset(1, path, columns=COLUMNS, held_out=own)
    assert (env.size("train"), env.size("held_out")) == (25, 15)
    assert not {one.task_id for one in listed(env)} & {one.task_id for one in listed(env, "held_out")}
    identities = env.read_data()
    assert isinstance(env, ReadsData)
    assert [(one.path, one.rows) for one in identities] == [(path, 30), (own, 15)]
    assert identities[0].content == hashlib.sha256(Path(path).read_bytes()).hexdigest()


def test_held_out_sets_by_name_are_tiers_and_the_first_problems_are_of_all_of_them(tmp_path: Path) -> None:
    found = rows(30)
    path, hard, easy = (
        written(tmp_path / name, part) for name, part in (("a", found), ("h", found[:2]), ("e", found[5:9]))
    )
    env = Dataset(1, path, columns=COLUMNS, held_out={"hard": hard, "easy": {"path": easy}})
    assert (env.size("train"), env.size("held_out")) == (24, 6)
    assert [env.problem("held_out", index).tier for index in range(6)] == [*["hard", "easy"] * 2, "easy", "easy"]
    assert len({one.task_id for one in [*listed(env), *listed(env, "held_out")]}) == 30
    assert [one.rows for one in env.read_data()] == [30, 2, 4]


def test_one_text_in_other_spellings_is_one_problem_and_the_rows_that_are_left_out_are_counted(tmp_path: Path) -> None:
    def rows_of(*asked: Any) -> list[dict[str, Any]]:
        return [{"problem": one, "answer": "2"} for one in asked]

    held_out = written(tmp_path / "test.jsonl", rows_of("Caf\u00e9:\n  1+1?"))
    spellings = ("Cafe\u0301:\n  1+1? ", "Caf\u00e9: \r\n  1+1?\r\n", "\ufeffCaf\u00e9:\u2028\u00a0 1+1?")
    talk = [{"role": "user", "content": "Caf\u00e9:\n  1+1?"}]
    others = ("Caf\u00e9:\n1+1?", "Caf\u00e9: 1+1?", "Cafe:\n  1+1?\u00a0")
    path = written(tmp_path / "train.jsonl", rows_of(*spellings, talk, *others))
    env = Dataset(1, path, held_out=held_out, instruction="")
    assert {one.prompt for one in listed(env)} == set(others)  # as they are written
    told = f"{path}: of 7 lines 4 are left out: 3 repeat the problem of an earlier line, 1 holds a problem of held_out"
    assert list_left_out_of(env) == (told,)
    workflow = {"env": {"use": "dataset", "path": path, "held_out": held_out}, "policies": {"solver": "solver"}}
    doubts = list_doubts(examine_for_trial(sums_recipe(workflows={"math": workflow})))
    assert f"workflows.math: {told}" in doubts


def test_a_split_of_a_folder_of_datasets_is_held_out_by_its_name(tmp_path: Path) -> None:
    for split, found in {"train": rows(30), "test": rows(40)[30:]}.items():
        as_saved(tmp_path / "d" / split, found)
    (tmp_path / "d" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    env = Dataset(1, str(tmp_path / "d"), columns=COLUMNS, held_out={"split": "test"})
    assert (env.size("train"), env.size("held_out")) == (30, 10)
    with pytest.raises(TaskFileError, match="no split 'dev'; it has 'train', 'test'"):
        Dataset(1, str(tmp_path / "d"), columns=COLUMNS, split="dev").read_data()


def test_a_problem_at_an_index_is_the_same_whoever_asks_and_another_seed_has_another_order(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", rows(60))
    orders = [[one.task_id for one in listed(Dataset(seed, path, columns=COLUMNS))] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2])
    env = Dataset(1, path, columns=COLUMNS)
    assert [env.problem("train", index).task_id for index in (50, 3, 50 + env.size("train"))] == [
        orders[0][50],
        orders[0][3],
        orders[0][50],
    ]


def test_nothing_is_read_before_a_problem_is_asked_for_so_that_workers_need_no_file(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", rows(30))
    payload = problem_to_json(Dataset(1, path, columns=COLUMNS).problem("train", 0))
    problem = problem_from_json(payload)
    elsewhere = Dataset(1, "/nowhere/a.jsonl", columns=COLUMNS)
    assert elsewhere.score(problem, f"\\boxed{{{problem.answer}}}").reward == 1
    with pytest.raises(TaskFileError, match=r"cannot read tasks from /nowhere/a\.jsonl: .* does not exist"):
        elsewhere.size("train")


def test_solutions_are_worked_examples_of_problems_that_are_in_no_other_split(tmp_path: Path) -> None:
    found = [{"problem": f"p{n}", "answer": f"{n}", "why": f"as seen, {n}"} for n in range(200)]
    found[7]["why"] = r"so \boxed{7}"
    path = written(tmp_path / "a.jsonl", found)
    env = Dataset(1, path, columns={"solution": "why"}, warm_start=0.5)
    assert isinstance(env, GivesExamples)
    assert not isinstance(Dataset(1, path), GivesExamples)
    examples = [env.example(index) for index in range(env.size("warm_start"))]
    prompts = {one.prompt for one in examples}
    assert 60 < len(prompts) < 140
    assert not prompts & {one.prompt for one in [*listed(env), *listed(env, "held_out")]}
    for one in examples:
        number = one.prompt.removesuffix(INSTRUCTION).removeprefix("p")
        assert one.completion == (r"so \boxed{7}" if number == "7" else f"as seen, {number}\n\\boxed{{{number}}}")


def test_problems_and_worked_examples_give_the_chat_template_the_same_arguments(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", [{"problem": f"p{n}", "answer": "1", "why": "so"} for n in range(60)])
    arguments = {"enable_thinking": False}
    settings = {"path": path, "columns": {"solution": "why"}, "system": "Be brief.", "template_arguments": arguments}
    env = load_environment("dataset", 1, settings)
    assert isinstance(env, GivesExamples)
    problem, example = env.problem("warm_start", 0), env.example(0)
    assert problem_from_json(problem_to_json(problem)) == problem
    assert (example.prompt, example.template_arguments) == (problem.prompt, arguments)
    assert problem.template_arguments == arguments
    for given, why in (
        ({"tokenize": True}, "must not hold tokenize, which Headrace itself gives to the chat template"),
        (["enable_thinking"], "must be a dict of arguments by name, got list"),
    ):
        with pytest.raises(EnvironmentSettingsError, match=f"template_arguments {why}"):
            load_environment("dataset", 1, {**settings, "template_arguments": given})


def test_a_problem_may_be_messages_that_end_with_the_user(tmp_path: Path) -> None:
    rules, asked = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 1 + 1?"}
    shown = {"role": "assistant", "content": "2"}
    again = {"role": "user", "content": [{"type": "text", "text": "And 2 + 2?"}]}
    talks = [[asked], [rules, asked], [asked, shown, again]]
    found = [{"prompt": talk, "reward_model": {"ground_truth": n}} for n, talk in enumerate(talks)]
    columns = {"problem": "prompt", "answer": "reward_model.ground_truth"}
    settings = {"columns": columns, "held_out": 0, "template": "Q: {problem}", "instruction": "!"}
    said: list[Any] = []
    for path in (written(tmp_path / "a.jsonl", [*found, found[0]]), as_parquet(tmp_path / "a.parquet", found[:2])):
        env = Dataset(1, path, **settings)
        problems = sorted(listed(env), key=lambda one: str(one.answer))
        said.append([one.prompt for one in problems])
        assert [one.answer for one in problems] == ["0", "1", "2"][: len(problems)]
    last = {"role": "user", "content": "Q: What is 1 + 1?!"}
    assert said[0] == [(last,), (rules, last), (asked, shown, {"role": "user", "content": "Q: And 2 + 2?!"})]
    assert said[1] == said[0][:2]
    env = Dataset(1, written(tmp_path / "b.jsonl", [found[0]]), **settings, system="Be polite.")
    assert env.problem("train", 0).prompt == ({"role": "system", "content": "Be polite."}, last)


def called(arguments: Any) -> dict[str, Any]:
    call = {"type": "function", "function": {"name": "mul", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("{% for name, value in call.arguments | items %}{{ name }}: {{ value }}{% endfor %}", "a: 1"),
        ("{{ call.arguments | tojson }}", '{"a": 1}'),
        ("{{ '>' + call.arguments }}", '>{"a": 1}'),
        ("{{ '>' ~ call.arguments }}", '>{"a": 1}'),
        ("{{ call.arguments }}", '{"a": 1}'),
    ],
)
def test_arguments_of_calls_in_a_history_are_a_table_for_every_template(
    tmp_path: Path, template: str, shown: str
) -> None:
    asked = {"role": "user", "content": "?"}
    talks = [[called(given), asked] for given in ('{"a": 1}', {"a": 1})]
    path = written(tmp_path / "a.jsonl", [{"problem": talk, "answer": 1} for talk in talks])
    [problem] = listed(Dataset(1, path, held_out=0, instruction=""))
    assert problem.prompt == (called({"a": 1}) | {"content": ""}, asked)
    tokenizer = save_tokenizer(tmp_path, f"{{% set call = messages[0].tool_calls[0].function %}}{template}")
    assert tokenizer.render(problem.prompt) == shown


@pytest.mark.parametrize(
    ("talk", "why"),
    [
        (
            [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "2"}],
            "must end with a message of the user",
        ),
        ([{"role": "human", "content": "1?"}], r"`prompt`\[0\] must be a dict with a `role`"),
        (
            [called("{'a': 1}")],
            r"`prompt`\[0\]\.tool_calls\[0\]\.function\.arguments must be a JSON object, but .* no JSON",
        ),
        ([{"role": "user", "content": [{"type": "image"}]}], r"`prompt`\[0\]\.content\[0\] is of type image"),
        ([{"role": "system", "content": "a"}, {"role": "user", "content": "1?"}], "leave out the setting `system`"),
    ],
)
def test_messages_that_cannot_be_asked_are_refused_with_their_line(tmp_path: Path, talk: list[Any], why: str) -> None:
    path = written(tmp_path / "a.jsonl", [{"prompt": "fine", "answer": "1"}, {"prompt": talk, "answer": "1"}])
    env = Dataset(1, path, columns={"problem": "prompt"}, held_out=0, system="Be brief.")
    with pytest.raises(TaskFileError, match=rf"a\.jsonl:2: .*{why}"):
        env.size("train")


def test_an_answer_is_found_in_its_column_by_a_pattern(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", [{"problem": "p", "answer": "Half of 144 is 72.\n#### 72"}])
    pattern = r"####\s*(.+)"
    assert Dataset(1, path, held_out=0, answer_pattern=pattern).problem("train", 0).answer == "72"
    with pytest.raises(TaskFileError, match=r"a\.jsonl:1: answer_pattern does not match"):
        Dataset(1, path, held_out=0, answer_pattern="=(.)").read_data()
    path = written(tmp_path / "b.jsonl", [{"problem": "p", "answer": "#### "}])
    with pytest.raises(TaskFileError, match=r"b\.jsonl:1: the answer in `answer` is empty"):
        Dataset(1, path, held_out=0, answer_pattern="#### (.*)").read_data()
    with pytest.raises(ValueError, match="answer_pattern is not a valid regular expression"):
        Dataset(1, path, answer_pattern="(")


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    ("row", "settings", "words"),
    [
        ({"question": "q", "answer": "1"}, {}, "problem.*has 'question', 'answer'.*columns"),
        (
            {"problem": "p", "answer": "1"},
            {"columns": {"tier": "level"}},
            "no column 'level'.* has 'problem', 'answer'",
        ),
        ({"problem": "p", "answer": "1"}, {"keep": ["tests"]}, "no column 'tests'.* has 'problem', 'answer'"),
        ({"problem": "p", "answer": "seven"}, {"scorer": "numeric"}, "the answer 'seven' is not a number"),
        ({"problem": ["p"], "answer": "1"}, {}, r"`problem` must be a non-empty string, got \['p'\]"),
        ({"problem": "p", "answer": "("}, {"scorer": "regex"}, "is not a valid regular expression"),
        ({"problem": "p", "answer": "1", "kind": "odd"}, {"columns": {"scorer": "kind"}}, "no scorer 'odd'"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(
    tmp_path: Path, form: str, row: dict[str, Any], settings: dict[str, Any], words: str
) -> None:
    write = {"jsonl": written, "parquet": as_parquet}[form]
    path = write(tmp_path / f"a.{form}", [row])
    where = {"jsonl": ":1", "parquet": "" if "columns" in words or "no column" in words else ", row 1"}[form]
    with pytest.raises(TaskFileError, match=rf"a\.{form}{where}.*{words}"):
        Dataset(1, path, held_out=0, **settings).read_data()


@pytest.mark.parametrize(("form", "name"), [(written, "jsonl"), (as_parquet, "parquet"), (as_saved, "folder")])
@pytest.mark.parametrize("media", [[{"bytes": "x", "path": "1.png"}], "https://example.org/1.png"])
def test_a_filled_column_of_media_is_refused_unless_it_is_asked_for_and_an_empty_one_is_ignored(
    tmp_path: Path, form: Callable[[Path, list[dict[str, Any]]], str], name: str, media: Any
) -> None:
    empty = {"image": None, "images": [], "video": "", "audio": False}
    texts = [{"problem": f"p{n}", "answer": "1", **empty} for n in range(20)]
    assert Dataset(1, form(tmp_path / f"a.{name}", texts), held_out=0).size("train") == 20
    path = form(tmp_path / f"b.{name}", [*texts, {"problem": "p", "answer": "1", **empty, "image": media}])
    with pytest.raises(TaskFileError, match=rf"b\.{name}.*`image` holds media, which no policy can read: leave out"):
        Dataset(1, path, held_out=0).read_data()
    assert Dataset(1, path, held_out=0, keep=["image"]).size("train") == 21, "for a scorer of one's own"


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_one_problem_with_two_answers_is_refused_and_with_one_is_taken_once(tmp_path: Path, form: str) -> None:
    write = {"jsonl": written, "parquet": as_parquet}[form]
    twice = [{"problem": "p", "answer": "7"}, {"problem": "q", "answer": "1"}, {"problem": "p", "answer": "7.0"}]
    assert Dataset(1, write(tmp_path / f"a.{form}", twice), held_out=0).size("train") == 2
    path = write(tmp_path / f"b.{form}", [*twice, {"problem": "p", "answer": "8"}])
    with pytest.raises(TaskFileError, match=r"b\..*4 and .*b\..*1 hold the same problem .*'8' and '7'"):
        Dataset(1, path, held_out=0).read_data()


@pytest.mark.parametrize(
    ("row", "settings", "words"),
    [
        (
            '{"problem": "p", "answer": "1", "x": 1e999}',
            {"keep": ["x"]},
            r"`x` is '1e999', which a task \(JSON\) cannot hold: .*no number inf",
        ),
        ('{"problem": "p", "answer": "1", "x": ' + "9" * 5000 + "}", {"keep": ["x"]}, "`x` is '9999.* cannot hold"),
        (
            r'{"problem": "p", "answer": "1", "x": "\ud800"}',
            {"keep": ["x"], "template": "{problem} {x}"},
            "`x`.*half of a character",
        ),
        (
            r'{"problem": "p", "answer": "1", "x": "\ud800"}',
            {"columns": {"tier": "x"}},
            "`x` holds half of a character",
        ),
    ],
)
def test_what_no_task_could_carry_is_named_before_a_task_is_made_of_it(
    tmp_path: Path, row: str, settings: dict[str, Any], words: str
) -> None:
    (tmp_path / "a.jsonl").write_text(row)
    with pytest.raises(TaskFileError, match=rf"a\.jsonl:1: {words}"):
        Dataset(1, str(tmp_path / "a.jsonl"), held_out=0, **settings).read_data()


def test_what_parquet_may_hold_and_no_problem_can_is_named_by_file_and_row(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="the optional extra data is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    texts = pa.array(["p", "q"])
    torn = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(bytes(4) + b"\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff")]
    )
    for names, columns, words in (
        (
            ["problem", "answer"],
            [texts, pa.array([1.0, float("nan")])],
            "row 2: `answer` is nan, .*every row an answer",
        ),
        (["problem", "answer"], [torn, texts], "row 2: not UTF-8"),
        (["problem", "answer", "answer"], [texts, texts, texts], "several columns are called 'answer'"),
        (
            ["problem", "answer", "x"],
            [texts, texts, pa.array([b"", b""])],
            "row 1: `x`.* cannot hold: .* no value of type bytes",
        ),
    ):
        parquet.write_table(pa.Table.from_arrays(columns, names), tmp_path / "a.parquet")
        with pytest.raises(TaskFileError, match=rf"a\.parquet.*{words}"):
            Dataset(1, str(tmp_path / "a.parquet"), held_out=0, keep=["x"] if "x" in names else []).read_data()
    short = pa.table({"problem": texts, "answer": pa.array([0.1, 1e-5], pa.float32())})
    parquet.write_table(short, tmp_path / "a.parquet")
    env = Dataset(1, str(tmp_path / "a.parquet"), held_out=0)
    assert {env.problem("train", index).answer for index in range(2)} == {"0.1", "1e-05"}
    shorts = pa.list_(pa.struct([("gt", pa.float32()), ("note", pa.string())]))
    inner = [[{"gt": 0.1, "note": "a"}, {"gt": None, "note": None}, None], None]
    nested = pa.table(
        {
            "problem": texts,
            "rm": pa.array([{"gt": 0.1}, {"gt": 1e-5}], pa.struct([("gt", pa.float16())])),
            "all": pa.array(inner, shorts),
        }
    )
    parquet.write_table(nested, tmp_path / "n.parquet")
    env = Dataset(1, str(tmp_path / "n.parquet"), columns={"answer": "rm.gt"}, keep=["all"], held_out=0)
    kept = {env.problem("train", index).answer: env.problem("train", index).extra["all"] for index in range(2)}
    assert kept == dict(zip(("0.1", "1e-05"), inner, strict=True))
    (tmp_path / "b").mkdir()
    parquet.write_table(short, tmp_path / "b" / "1.parquet")
    parquet.write_table(pa.table({"problem": texts}), tmp_path / "b" / "2.parquet")
    with pytest.raises(TaskFileError, match=r"2\.parquet: no column 'answer'"):
        Dataset(1, str(tmp_path / "b"), held_out=0).read_data()
    (tmp_path / "b" / "state.json").write_text('{"_data_files": []}')
    with pytest.raises(TaskFileError, match=r"b: its state\.json lists no data file"):
        Dataset(1, str(tmp_path / "b"), held_out=0).read_data()


def test_an_empty_or_broken_file_and_one_that_was_changed_meanwhile_are_refused(tmp_path: Path) -> None:
    for path in (written(tmp_path / "a.jsonl", []), as_parquet(tmp_path / "a.parquet", rows(1)[:1])):
        with pytest.raises(TaskFileError, match=r"has [01] different problems"):
            Dataset(1, path, columns=COLUMNS, held_out=0.0000001).read_data()
    for name in ("b.parquet", "b.jsonl.gz"):
        (tmp_path / name).write_bytes(b"no such thing")
        with pytest.raises(TaskFileError, match=f"cannot read tasks from .*{name}: "):
            Dataset(1, str(tmp_path / name)).read_data()
    (tmp_path / "d").mkdir()
    with pytest.raises(TaskFileError, match="is a folder without Parquet files"):
        Dataset(1, str(tmp_path / "d")).read_data()
    path = written(tmp_path / "c.jsonl", [{"problem": "p", "answer": "1"}])
    env = Dataset(1, path, held_out=0)
    env.read_data()
    Path(path).write_text(Path(path).read_text().replace('"p"', '"q"'))
    with pytest.raises(TaskFileError, match=r"c\.jsonl:1 was changed since it was first read"):
        env.problem("train", 0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"columns": {"question": "problem"}},
            "columns must be a table with keys problem, answer, tier, solution, scorer",
        ),
        ({"columns": {"problem": ""}}, "columns.problem must be the name of a column"),
        ({"columns": {"answer": ""}}, "the scorer needs an answer to compare with"),
        ({"held_out": True}, "held_out must be a share"),
        (
            {"held_out": {"file": "x", "split": "y"}},
            "held_out must be a path, or a table of config, path, revision, split",
        ),
        ({"held_out": {"math": "a.jsonl"}}, "held_out.math names the training data itself"),
        (
            {"columns": {"solution": "s"}, "held_out": 0.5, "warm_start": 0.5},
            r"held_out \+ warm_start must be below 1, got 0\.5 \+ 0\.5",
        ),
        ({"columns": {"solution": "s"}, "warm_start": 0}, "warm_start, a share"),
        ({"template": "problem"}, r"template must contain \{problem\}"),
        ({"keep": "tests"}, "keep must be a list"),
        ({"keep": ["scorer"], "columns": {"scorer": "judge"}}, "give the column another name in the data"),
        ({"scorers": ["exact"]}, "scorers must be a table of scorers by name"),
        ({"scorer": 7}, "a scorer must be a name or a table with `use`"),
        ({"scorer": {"use": "numeric", "tolerence": 1}}, "scorer numeric: .*tolerence.*the settings are tolerance"),
        ({"colums": {}}, "colums.*the settings are columns, "),
    ],
)
def test_settings_that_cannot_be_used_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(EnvironmentSettingsError, match=f"environment dataset: .*{words}"):
        load_environment("dataset", 1, {"path": "a.jsonl", **settings})


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "rows.json",
            b'[{"problem": "p"}]',
            r"rows\.json:1: expected a JSON object, got list.*one JSON object per line.*jq",
        ),
        ("rows.jsonl", '{"problem": "p"}'.encode("utf-16"), r"rows\.jsonl:1: not UTF-8.*UTF-16.*iconv"),
        ("rows.jsonl", '{"problem": "café"}'.encode("latin1"), r"rows\.jsonl:1: not UTF-8.*iconv -f LATIN1"),
        ("rows.jsonl", b"\x1f\x8b\x08", r"rows\.jsonl:1: not UTF-8.*compressed.*\.jsonl\.gz"),
        ("https://host/rows.jsonl", b"", "is not a path on this machine"),
        ("openai/gsm8k", b"", "write hub:openai/gsm8k"),
        ("", b"", "must name a file or a folder"),
        ("a\0b", b"", "must name a file or a folder"),
    ],
)
def test_a_path_of_another_kind_is_refused_with_what_to_do(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    path = tmp_path / name if content else name
    if content:
        Path(path).write_bytes(content)
    with pytest.raises(TaskFileError, match=words):
        Dataset(1, str(path)).size("train")


def test_a_mixture_mixes_datasets_and_their_worked_examples(tmp_path: Path) -> None:
    sources = [
        {
            "use": "dataset",
            "name": name,
            "weight": weight,
            "path": written(
                tmp_path / f"{name}.jsonl",
                [{"problem": f"{name}{n}", "answer": str(n), "why": "so", "tests": [n]} for n in range(100)],
            ),
            "columns": {"solution": "why"},
            "keep": ["tests"],
        }
        for name, weight in (("easy", 3), ("hard", 1))
    ]
    env = load_environment("mixture", 1, {"sources": sources})
    assert isinstance(env, GivesExamples)
    assert isinstance(env, ReadsData)
    assert [one.rows for one in env.read_data()] == [100, 100]
    problems = [problem_from_json(problem_to_json(env.problem("train", index))) for index in range(8)]
    assert sum(problem.tier == "easy" for problem in problems) == 6
    for problem in problems:
        assert problem.extra["tests"] == [int(problem.answer)]
        assert env.score(problem, f"\\boxed{{{problem.answer}}}").reward == 1
    assert env.example(0).completion.startswith("so\n\\boxed{")


# ------------------------------------------------------------------------------------------------------------- the hub


def fake_hub(monkeypatch: pytest.MonkeyPatch, load: Any) -> None:
    pytest.importorskip("pyarrow", reason="the optional extra data is not installed")
    module = ModuleType("datasets")
    module.load_dataset = load  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)


def test_a_dataset_of_the_hub_is_loaded_with_its_split_and_known_by_its_revision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def load(name: str, config: str | None, **more: Any) -> Any:
        import pyarrow as pa

        asked.append((name, config, more))
        found = rows(30) if more["split"] == "train" else rows(40)[30:]
        info = SimpleNamespace(download_checksums={f"hf://datasets/{name}@{'a' * 40}/train.parquet": {}})
        return SimpleNamespace(
            _indices=None,
            _fingerprint="f",
            info=info,
            cache_files=[],
            data=SimpleNamespace(table=pa.Table.from_pylist(found)),
        )

    fake_hub(monkeypatch, load)
    env = Dataset(1, "hub:openai/gsm8k", config="main", columns=COLUMNS, held_out={"split": "test"})
    assert (env.size("train"), env.size("held_out")) == (30, 10)
    assert asked == [("openai/gsm8k", "main", {"split": split, "revision": None}) for split in ("train", "test")]
    assert {one.content for one in env.read_data()} == {"a" * 40}


def test_a_missing_network_or_library_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any, **__: Any) -> Any:
        raise ConnectionError("Couldn't reach 'openai/gsm8k' on the Hub\nTraceback")

    fake_hub(monkeypatch, load)
    with pytest.raises(TaskFileError) as raised:
        Dataset(1, "hub:openai/gsm8k").read_data()
    assert "\n" not in str(raised.value)
    assert "cannot load hub:openai/gsm8k, split 'train': ConnectionError: Couldn't reach" in str(raised.value)
    assert "in the cache of `datasets`" in str(raised.value)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(TaskFileError, match=r"needs the library datasets: make install EXTRAS=data"):
        Dataset(1, "hub:openai/gsm8k").read_data()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    Path("a.parquet").touch()
    with pytest.raises(TaskFileError, match=r"a\.parquet needs pyarrow: make install EXTRAS=data"):
        Dataset(1, "a.parquet").read_data()


# ------------------------------------------------------------------------------------------------------------ the page


def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    [recipe, messages, held_out, warm, judge] = re.findall(r"^```toml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    [code] = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    for split, numbers in {"train": range(20), "test": range(20, 30)}.items():
        found = [{"question": f"What is {n} halves?", "answer": f"so it is.\n#### {n / 2}"} for n in numbers]
        written(tmp_path / f"{split}.jsonl", found)
    settings = tomllib.loads(recipe.replace("/data/gsm8k", str(tmp_path)))["workflows"]["math"]["env"]
    env = load_environment(settings.pop("use"), 1, settings)
    assert (env.size("train"), env.size("held_out")) == (20, 10)
    problem = env.problem("train", 0)
    system, asked = problem.prompt
    assert system == {"role": "system", "content": "You are a careful mathematician."}
    assert asked["content"].startswith("What is ")
    assert env.score(problem, f"\\boxed{{{problem.answer}}}").reward == 1

    asked = tomllib.loads(messages)
    talk = {"prompt": [{"role": "user", "content": "1 + 1?"}], "reward_model": {"ground_truth": "2"}}
    env = load_environment("dataset", 1, {"path": written(tmp_path / "verl.jsonl", [talk]), "held_out": 0, **asked})
    assert env.problem("train", 0).prompt == tuple(talk["prompt"])

    sets = tomllib.loads(held_out)["workflows"]["math"]["env"]["held_out"]
    assert load_environment("dataset", 1, {"path": "a.jsonl", "held_out": sets})

    policy = Policy.model_validate(tomllib.loads(warm)["policies"]["solver"])
    assert policy.warm_start
    assert policy.warm_start.reward_high == 0.35

    monkeypatch.setenv("MY_JUDGE_KEY", "k")
    scorer = tomllib.loads(judge)["workflows"]["math"]["env"]["scorer"]
    assert load_environment("dataset", 1, {"path": "a.jsonl", "scorer": scorer})

    (tmp_path / "rules_of_the_page.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = {"use": "rules_of_the_page:grade", "limit": 100}
    env = Dataset(1, str(tmp_path / "train.jsonl"), columns={"problem": "question"}, held_out=0, scorer=own)
    problem = env.problem("train", 0)
    assert [env.score(problem, text).reward for text in (problem.answer, problem.answer * 100, "no")] == [1, 0, 0]


def test_the_page_has_every_setting() -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    table = page.partition("## Settings")[2].partition("## Splits")[0]
    named = set(re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in table.splitlines() if "|" in line)))
    assert named == set(inspect.signature(Dataset).parameters) - {"seed"}
