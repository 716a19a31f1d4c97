"""The environment `search`: documents by BM25, F1 times form, and questions that only the documents answer."""

from __future__ import annotations

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from headrace.envs.contract import Problem
from headrace.envs.data.rows import TaskFileError
from headrace.envs.search.environment import Search
from headrace.envs.search.retrieval import Retrieval, compute_f1
from headrace.envs.tool_calls import ToolCall
from headrace.envs.tools.outcomes import Limits
from headrace.envs.tools.solutions import SolvedCalls, play_solution


def test_f1_is_that_of_two_sets_of_words_for_the_best_gold_answer() -> None:
    assert compute_f1("a b", ["a"]) == pytest.approx(2 / 3)
    assert compute_f1("The A, a!", ["x y", "a the"]) == 1.0
    assert compute_f1("", ["a"]) == compute_f1("b", []) == 0.0


def test_documents_with_rare_words_of_the_query_come_first_and_none_without_a_word_of_it() -> None:
    found = Retrieval(lambda: ["tea is hot", "tea and silk", "silk is dear", "salt"]).find
    assert found("Silk, tea!", 2) == ["tea and silk", "tea is hot"]
    assert found("salt pepper", 3) == ["salt"]
    assert found("pepper", 3) == found("", 3) == []


def test_every_question_of_one_to_three_hops_is_solved_by_searches_alone() -> None:
    world = Search(3, hops=[1, 2, 3], people=60)
    solved, tiers = SolvedCalls(world, Limits()), set()
    for split in ("train", "held_out"):
        for index in range(40):
            problem = world.problem(split, index)
            tiers.add((problem.tier, len(world.solve(problem))))
            assert asyncio.run(play_solution(solved, problem)).fault == ""
    assert tiers == {("hops1", 2), ("hops2", 3), ("hops3", 4)}


def test_held_out_questions_ask_for_people_of_whom_no_question_in_training_asks() -> None:
    world = Search(1, people=50)
    train, held_out = (
        {world.problem(split, index).extra["queries"][0] for index in range(500)} for split in ("train", "held_out")
    )
    assert (len(train), len(held_out)) == (40, 10)
    assert not train & held_out


def test_an_answer_in_another_form_gets_nothing() -> None:
    problem = Problem("", "", answer="red fox")
    plain, tagged = Search(1), Search(1, tagged=True)
    assert plain.score(problem, "<think>cat</think> the fox").reward == pytest.approx(0.5)
    assert plain.score(problem, "red fox\nor hen").parts == {"f1": pytest.approx(2 / 3), "form": 0.0}
    assert plain.score(problem, "red fox\nor hen").reward == 0
    assert tagged.score(problem, "it is <answer>red fox</answer>").reward == 1
    assert tagged.score(problem, "red fox").reward == 0


def test_own_documents_and_questions_take_the_place_of_the_world(tmp_path: Path) -> None:
    (tmp_path / "docs.jsonl").write_text('{"title": "Rome", "text": "has a river, the Tiber"}\n{"text": "other"}\n')
    rows = [{"problem": f"river of Rome {at}?", "answer": "Tiber", "answers": ["the Tiber"]} for at in range(20)]
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    questions = {"path": str(tmp_path / "asked.jsonl"), "keep": ["answers"], "held_out": 0.2, "instruction": ""}
    world = Search(1, corpus=str(tmp_path / "docs.jsonl"), questions=questions)

    assert 0 < world.size("held_out") < world.size("train")  # type: ignore[operator]
    assert world.search("Rome") == "Rome: has a river, the Tiber"
    assert world.score(world.problem("train", 0), "the tiber").reward == 1
    assert [one.rows for one in world.read_data()] == [20, 2]

    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"text": ["a river"]}), tmp_path / "docs.parquet")
    assert Search(1, corpus=str(tmp_path / "docs.parquet"), questions=questions).search("river") == "a river"


@pytest.mark.parametrize(
    ("docs", "answers", "told"),
    [
        ('{"title": "Rome"}\n', ["x"], "docs.jsonl:1 needs a text"),
        ("", ["x"], "docs.jsonl has no document"),
        ('{"text": "."}\n', ["x"], "docs.jsonl has no document"),
        ('{"text": "Rome"}\n', "the Tiber", "must be a list of texts, got str 'the Tiber'"),
        ('{"text": "Rome"}\n', [1], "must be a list of texts"),
    ],
)
def test_bad_documents_and_questions_are_refused_before_an_episode(
    tmp_path: Path, docs: str, answers: object, told: str
) -> None:
    (tmp_path / "docs.jsonl").write_text(docs)
    row = json.dumps({"problem": "river?", "answer": "Tiber", "answers": answers})
    (tmp_path / "asked.jsonl").write_text(row)
    questions = {"path": str(tmp_path / "asked.jsonl"), "keep": ["answers"], "held_out": 0, "instruction": ""}
    world = Search(1, corpus=str(tmp_path / "docs.jsonl"), questions=questions)
    with pytest.raises(TaskFileError, match=told):  # noqa: PT012 - either of them
        world.read_data()
        world.problem("train", 0)


def test_the_index_is_built_once_and_before_the_time_of_the_first_search_begins() -> None:
    def read() -> list[str]:
        reads.append(1)
        time.sleep(0.2)
        return ["tea"]

    reads: list[int] = []
    retrieval = Retrieval(read)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: retrieval.find("tea", 1), range(4))) == [["tea"]] * 4
    assert len(reads) == 1

    class Slow(Search):
        def prepare_scoring(self) -> None:
            self._retrieval = Retrieval(partial(_read_slowly, ["tea"]))
            super().prepare_scoring()

    solved = SolvedCalls(Slow(1), Limits(call_limit_s=1))
    with solved.isolated.open_episode() as env:
        [outcome] = asyncio.run(solved.answer([ToolCall("search", {"query": "tea"})], env, Problem("", ""), []))
    assert outcome.text == "tea"


def _read_slowly(texts: list[str]) -> list[str]:
    time.sleep(1.5)
    return texts


@pytest.mark.parametrize(
    "settings",
    [
        {"hops": [0]}, {"hops": []}, {"hops": 1}, {"hops": "12"}, {"people": 4}, {"people": 901}, {"people": "x"},
        {"top_k": 0}, {"corpus": "x"},
    ],
)  # fmt: skip
def test_settings_out_of_their_range_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"must be|belong together"):
        Search(1, **settings)  # type: ignore[arg-type]
