"""Questions whose answers stand in documents that the policy searches, in a generated world or in files of yours.

The reward is the F1 of the answer's words, times 1 for an answer in the right form and 0 for any other
(ASearcher, arXiv 2508.07976).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from headrace.envs.contract import Problem, Score, Split
from headrace.envs.data.rows import TaskFileError
from headrace.envs.data.sources import Source
from headrace.envs.dataset import Dataset
from headrace.envs.messages import show_value
from headrace.envs.search.retrieval import Retrieval, compute_f1, split_words
from headrace.envs.search.world import World
from headrace.envs.thoughts import read_answer
from headrace.schemas.records import ReadData

MOST_PEOPLE = 900
"""There are 980 names."""
TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
NOTHING_FOUND = "nothing found"


class Search:
    """Questions over documents.

    Args:
        seed: Of the questions; the generated world is the same for every seed.
        hops: How many documents a question of the generated world needs: numbers from 1 to 3, drawn alike.
        people: People in the generated world.
        top_k: Documents that a search returns.
        document_chars: Most characters of a document in a result.
        tagged: Whether an answer must stand between `<answer>` and `</answer>`, once.
        corpus: A file of documents in place of the generated world: JSON lines or Parquet, with the columns `text` and,
            perhaps, `title`.
        questions: Settings of the environment `dataset`, with which it reads the questions. Further right answers may
            be a list in a column `answers` that `keep` names.

    Raises ValueError for settings out of their range, and TaskFileError for files that cannot be read.
    """

    name = "search"

    def __init__(  # noqa: PLR0913, PLR0917 - settings, each given by its name
        self,
        seed: int,
        hops: Sequence[int] = (1,),
        people: int = 400,
        top_k: int = 1,
        document_chars: int = 5000,
        tagged: bool = False,
        corpus: str = "",
        questions: Mapping[str, Any] | None = None,
    ) -> None:
        are_hops = isinstance(hops, Sequence) and all(isinstance(one, int) and 1 <= one <= 3 for one in hops)
        if not are_hops or not hops:
            raise ValueError(f"hops must be a list of numbers from 1 to 3, got {hops!r}")
        if bool(corpus) != bool(questions):
            raise ValueError("corpus and questions belong together: give both or none")
        are_whole = all(isinstance(one, int) for one in (people, top_k, document_chars))
        if not are_whole or not 5 <= people <= MOST_PEOPLE or top_k < 1 or document_chars < 1:
            raise ValueError(
                f"people must be from 5 to {MOST_PEOPLE}, top_k and document_chars 1 or more, all whole numbers; got "
                f"{people!r}, {top_k!r}, {document_chars!r}"
            )
        self._seed, self._hops, self._tagged = seed, tuple(hops), tagged
        self._top_k, self._document_chars = top_k, document_chars
        self._world = World(0, people)
        self._questions = Dataset(seed, **questions) if questions else None
        self._corpus, self._corpus_data = corpus, tuple[ReadData, ...]()
        self._retrieval = Retrieval(lambda: _read_corpus(corpus)[0] if corpus else self._world.documents)
        self.tools = (self.search,)

    def size(self, split: Split) -> int | None:
        """Return the number of questions in the files; None for the generated world, whose questions do not end."""
        return None if self._questions is None else self._questions.size(split)

    def read_data(self) -> tuple[ReadData, ...]:
        """Read the files of questions and documents; see `ReadsData`."""
        if self._questions is None:
            return ()
        self._corpus_data = self._corpus_data or (_read_corpus(self._corpus)[1],)
        return self._questions.read_data() + self._corpus_data

    def prepare_scoring(self) -> None:
        """Read and index the documents, before the time of the first search begins. Raises TaskFileError."""
        self._retrieval.prepare()

    def problem(self, split: Split, index: int) -> Problem:
        """Return a question; held-out ones of the generated world ask for other people. Raises TaskFileError."""
        if self._questions is not None:
            return _check_answers(self._questions.problem(split, index))
        seed = 0 if split == "held_out" else self._seed
        draw = Random(f"search {split} {seed} {index}")  # noqa: S311
        hops = draw.choice(self._hops)
        asked = self._world.ask(draw, hops, held_out=split == "held_out")
        extra = {"queries": list(asked.queries)}
        return Problem(asked.text, asked.text, answer=asked.answer, tier=f"hops{hops}", extra=extra)

    def search(self, query: str) -> str:
        """Search the documents.

        Args:
            query: Words that the document has.
        """
        found = self._retrieval.find(query, self._top_k)
        return "\n".join(text[: self._document_chars] for text in found) or NOTHING_FOUND

    def score(self, problem: Problem, text: str) -> Score:
        """Return F1 times form; both are parts."""
        answer = read_answer(text).strip()
        tagged = TAGGED.findall(answer)
        is_formed = len(tagged) == 1 if self._tagged else bool(answer) and "\n" not in answer
        golds = [problem.answer, *(problem.extra.get("answers") or ())]
        f1 = compute_f1(tagged[-1] if self._tagged and tagged else answer, golds)
        return Score(f1 * is_formed, {"f1": f1, "form": float(is_formed)})

    def solve(self, problem: Problem) -> Sequence[str]:
        """Return the answers of a perfect policy: a search for each document, and the answer.

        Raises ValueError for questions from files: nobody knows what to search for.
        """
        if self._questions is not None:
            raise ValueError("questions from files have no worked solutions: train a model that can already search")
        answer = f"<answer>{problem.answer}</answer>" if self._tagged else problem.answer
        return [*(f"@search {query}" for query in problem.extra["queries"]), answer]


def _check_answers(problem: Problem) -> Problem:
    """Return a question from files. Raises TaskFileError unless its further answers are a list of texts."""
    answers = problem.extra.get("answers")
    if answers is not None and not (isinstance(answers, list) and all(isinstance(one, str) for one in answers)):
        raise TaskFileError(
            f"`answers` of the question {problem.text!r:.60} must be a list of texts, got {show_value(answers)}"
        )
    return problem


def _read_corpus(path: str) -> tuple[list[str], ReadData]:
    """Return the texts of a file with the columns `text` and, perhaps, `title`. Raises TaskFileError."""
    source = Source(path)
    try:
        rows = source.open_rows(["title", "text"])
    except TaskFileError:
        rows = source.open_rows(["text"])
    texts = []
    for number, row in enumerate(rows.scan()):
        if not isinstance(text := row.get("text"), str):
            raise TaskFileError(f"{rows.name_row(number)} needs a text in `text`, got {show_value(text)}")
        texts.append(f"{row['title']}: {text}" if row.get("title") else text)
    if not any(map(split_words, texts)):
        raise TaskFileError(f"{path} has no document with a word: name a file with the documents to search")
    return texts, ReadData(path, len(texts), rows.hash_content())
