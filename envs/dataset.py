"""Problems from a data set: JSONL, Parquet, a folder of `datasets`, or the hub.

A problem's split depends only on a hash of its text, so it stays the same when rows are added, moved or duplicated. Per
row, 16 bytes of hash and the position in its file are stored; the text is read on request.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import structlog

from headrace.envs.answers import find_last_boxed
from headrace.envs.contract import LateScore, Problem, Score, Split, WorkedExample, check_template_arguments
from headrace.envs.data.held_out import interleave_sets, read_held_out
from headrace.envs.data.layout import SCORER, Columns, Layout, Record, read_columns_setting
from headrace.envs.data.pools import Pool, find_shared, read_pool
from headrace.envs.data.rows import TaskFileError
from headrace.envs.data.scorers import Scorer, build_scorer
from headrace.envs.data.sources import Source
from headrace.envs.data.split_rows import Numbers, compute_shares, hash_text, order_by_seed
from headrace.envs.thoughts import read_answer
from headrace.schemas.records import ReadData

log = structlog.get_logger()

WARM_START = 0.1
"""Share of the problems for worked examples, if the data set has solutions."""
ROW_SCORERS = ("exact", "numeric", "regex")
"""Scorers that a row may name if there is no table `scorers`."""


@dataclass(frozen=True, slots=True)
class _Deck:
    """The problems of one split, in its order."""

    pool: Pool
    indices: Numbers
    """Indices into `pool.firsts`."""
    tier: str = ""
    """Tier of all its problems; empty: each row has its own tier."""


class Dataset:
    """A finite set of problems; the order of `train` and `warm_start` comes from the seed.

    Nothing is read before the first call of `problem` or `size`, so a worker, which only scores, needs no file.

    Args:
        seed: Seed of the run.
        path: JSONL or Parquet file, folder of Parquet files or of `datasets`, or `hub:owner/name`.
        split, config, revision: Part of the data set to use; see `Source`.
        columns: Names of its columns; see `Columns`.
        held_out: Share kept for evaluations; or a separate path, or a table of `path` and `split`; or several of these
        by name, each a tier with its own result. Problems in such a file are not trained on.
        warm_start: Share for worked examples, if `columns` names a column of solutions.
        scorer: How answers are judged; see `SCORERS`.
        scorers: Scorers by their name in the column of scorers.
        system: System message before every problem.
        template: Prompt, with `{problem}` and `{name}` of a column in `keep`.
        instruction: Text at the end of every prompt; by default the scorer's instruction.
        answer_pattern: Regular expression that finds the answer in its column: the first group of the last match.
        keep: Columns that your own scorer finds in `problem.extra`.
        template_arguments: Further arguments of the policy's chat template, such as `enable_thinking`.

    Raises ValueError for unusable settings; and TaskFileError, when the data is read, if it is malformed or too small
    to be split.
    """

    name = "dataset"

    def __init__(  # noqa: PLR0913, PLR0917 - settings, each given by its name
        self,
        seed: int,
        path: str,
        split: str = "train",
        config: str = "",
        revision: str = "",
        columns: Mapping[str, str] | None = None,
        held_out: float | str | Mapping[str, str | Mapping[str, str]] = 0.1,
        warm_start: float = WARM_START,
        scorer: str | Mapping[str, Any] = "exact",
        scorers: Mapping[str, str | Mapping[str, Any]] | None = None,
        system: str = "",
        template: str = "",
        instruction: str | None = None,
        answer_pattern: str = "",
        keep: Sequence[str] = (),
        template_arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self._seed = seed
        if not isinstance(scorers or {}, Mapping):
            raise ValueError(  # noqa: TRY004 - a bad setting is a ValueError
                f'scorers must be a table of scorers by name, as in {{ code = "my_tests:run" }}; got {scorers!r}'
            )
        named_texts = {"split": split, "config": config, "revision": revision, "system": system, "template": template}
        for name, text in {**named_texts, "instruction": instruction or "", "answer_pattern": answer_pattern}.items():
            _check_text(name, text)
        self._source = Source(_check_text("path", path), split, config, revision)
        self._chosen = {"split": split, "config": config, "revision": revision}
        self._held_out_given: Mapping[str, Any] = held_out if isinstance(held_out, Mapping) else {}
        self._held_out = read_held_out(held_out, self._source)
        named = read_columns_setting(columns or {})
        built = {"": build_scorer(scorer)} | (
            {name: build_scorer(name) for name in ROW_SCORERS} if named.scorer else {}
        )
        built |= {name: build_scorer(spec) for name, spec in (scorers or {}).items()}
        self._warm_start = _check_share("warm_start", warm_start) if named.solution else 0.0
        if self._held_out_share + self._warm_start >= 1:
            raise ValueError(f"held_out + warm_start must be below 1, got {self._held_out_share} + {self._warm_start}")
        if template and "{problem}" not in template:
            raise ValueError("template must contain {problem}, the placeholder for the problem")
        self._template_arguments = _copy_arguments(template_arguments or {})
        _check_keep(keep, has_scorers=bool(named.scorer))
        named, kept = _add_needed(named, "answer" in (columns or {}), keep, built)
        if not named.answer and any(one.needs_answer for one in built.values()):
            raise ValueError(
                "the scorer needs an answer to compare with: set columns.answer to the column that holds it"
            )
        self._layout = Layout(
            named, built, kept, _compile_answer_pattern(answer_pattern), system, template, instruction
        )
        self._lock = threading.Lock()
        self._decks: dict[Split, tuple[_Deck, ...]] = {}
        self._sets, self._indices = interleave_sets([0])
        """Deck of every held-out problem, and its index there."""
        self._identities: tuple[ReadData, ...] = ()
        self._left_out: tuple[str, ...] = ()
        if named.solution:
            self.example = self._example  # an attribute, so that only data sets with solutions give examples

    def size(self, split: Split) -> int:
        """Return the number of distinct problems. Raises TaskFileError."""
        return sum(len(deck.indices) for deck in self._get_decks()[split])

    def problem(self, split: Split, index: int) -> Problem:
        """Return the problem at an index; the order begins again at the end. Raises ValueError for an empty split."""
        task_id, tier, record = self._read_record(split, index)
        prompt = self._layout.compose_prompt(record)
        arguments = self._template_arguments
        return Problem(task_id, prompt, record.answer, tier or record.tier, record.extra, template_arguments=arguments)

    def score(self, problem: Problem, text: str) -> Score:
        """Score a completion with the scorer of the data set or of the problem's row."""
        found = self._layout.find_scorer(problem.extra).score(problem, text)
        return found if isinstance(found, Score) else Score(found)

    def late_score(self, problem: Problem) -> LateScore | None:
        """See `LateScore`."""
        return self._layout.find_scorer(problem.extra).late

    def prepare_scoring(self) -> None:
        """Let the scorers do what takes long. Raises what keeps them from scoring at all."""
        for scorer in self._layout.scorers.values():
            scorer.prepare()

    @property
    def processes(self) -> int:
        """The number of child processes that score; 0 for the usual one."""
        return int(any(scorer.is_in_one_process for scorer in self._layout.scorers.values()))

    def read_data(self) -> tuple[ReadData, ...]:
        """Read the data now, once; return its description. Raises TaskFileError."""
        self._get_decks()
        return self._identities

    def list_left_out(self) -> tuple[str, ...]:
        """Return which rows no problem comes from, a sentence for each source. Raises TaskFileError."""
        self._get_decks()
        return self._left_out

    def _example(self, index: int) -> WorkedExample:
        r"""Return a worked solution; if it has no box and the scorer needs one, the answer is appended in a box."""
        _, _, record = self._read_record("warm_start", index)
        solution = record.solution
        if self._layout.find_scorer(record.extra).is_boxed and find_last_boxed(read_answer(solution)) is None:
            solution += f"\n\\boxed{{{record.answer}}}"
        return WorkedExample(self._layout.compose_prompt(record), solution, self._template_arguments)

    @property
    def held_out_names(self) -> tuple[str, ...]:
        """Names of the held-out sets; none where there is one set without a name."""
        return tuple(filter(None, self._held_out)) if isinstance(self._held_out, dict) else ()

    @property
    def _held_out_share(self) -> float:
        return self._held_out if isinstance(self._held_out, float) else 0.0

    def _read_record(self, split: Split, index: int) -> tuple[str, str, Record]:
        """Return a problem's id, the tier of its deck, and its row's contents."""
        decks = self._get_decks()[split]
        count = sum(len(deck.indices) for deck in decks)
        if not count or index < 0:
            raise ValueError(f"split {split!r} has {count} problems, so there is no problem {index}")
        index %= count
        deck = decks[0]
        if len(decks) > 1:
            deck, index = decks[int(self._sets[index])], int(self._indices[index])
        pool_index = int(deck.indices[index])
        number, rows = int(deck.pool.firsts[pool_index]), deck.pool.rows
        first, last = deck.pool.digests[pool_index].tolist()
        record = deck.pool.read_row(number)
        if hash_text(record.identity) != first.to_bytes(8, "big") + last.to_bytes(8, "big"):
            raise TaskFileError(f"{rows.name_row(number)} was changed since it was first read: restart this process")
        return f"{first:016x}", deck.tier, record

    def _get_decks(self) -> dict[Split, tuple[_Deck, ...]]:
        with self._lock:
            if not self._decks:
                self._decks = self._read_decks()
        return self._decks

    def _read_decks(self) -> dict[Split, tuple[_Deck, ...]]:
        began = time.monotonic()
        self._source.refuse_ignored(self._chosen)
        if isinstance(self._held_out, dict):
            for name, source in self._held_out.items():
                given = self._held_out_given.get(name) if name else self._held_out_given
                if isinstance(given, Mapping):
                    source.refuse_ignored(given, f"held_out.{name}." if name else "held_out.")
        pool = read_pool(self._source, self._layout)
        shares = compute_shares(pool.digests)
        is_kept = shares < self._held_out_share
        kept: tuple[_Deck, ...] = (_Deck(pool, np.flatnonzero(is_kept)),)
        rest = ~is_kept
        if isinstance(self._held_out, dict):
            kept = tuple(self._open_set(name, source) for name, source in self._held_out.items())
            for deck in kept:
                rest &= ~find_shared(pool, deck.pool)
        is_warm = rest & (shares < self._held_out_share + self._warm_start)
        train, warm = np.flatnonzero(rest & ~is_warm), np.flatnonzero(is_warm)
        self._refuse_empty(pool, kept, train, warm)
        self._sets, self._indices = interleave_sets([len(deck.indices) for deck in kept])
        pools = dict.fromkeys((pool, *(deck.pool for deck in kept)))
        both = int((~rest).sum()) if isinstance(self._held_out, dict) else 0
        told = [one.describe_left_out(both if one is pool else 0) for one in pools]
        self._identities = tuple(one.identify() for one in pools)
        self._left_out = tuple(filter(None, told))
        seconds = round(time.monotonic() - began, 2)
        for one, left_out in zip(self._identities, told, strict=True):
            # `content` is the SHA-256 of the data or its revision on the hub; `left_out` says which rows give no
            # problem.
            log.info("data.read", path=one.path, rows=one.rows, content=one.content, left_out=left_out, s=seconds)
        return {
            "train": (_Deck(pool, train[order_by_seed(pool.digests[train], self._seed)]),),
            "held_out": kept,
            "warm_start": (_Deck(pool, warm[order_by_seed(pool.digests[warm], self._seed)]),),
        }

    def _open_set(self, name: str, source: Source) -> _Deck:
        pool = read_pool(source, self._layout)
        return _Deck(pool, np.arange(len(pool.firsts)), name)

    def _refuse_empty(self, pool: Pool, kept: tuple[_Deck, ...], train: Numbers, warm: Numbers) -> None:
        """Raise TaskFileError if a needed split has no problem."""
        counts = [len(deck.indices) for deck in kept]
        is_wanted = self._held_out != 0.0
        if not len(train) or (is_wanted and not all(counts)) or (self._warm_start and not len(warm)):
            found = [f"{len(train)} to train on"]
            if isinstance(self._held_out, dict):
                found[0] += " (problems that are not in held_out)"
                found += [f"{len(deck.indices)} to evaluate on in held_out {deck.tier}".strip() for deck in kept]
            elif is_wanted:
                found.append(f"{counts[0]} to evaluate on (held_out = {self._held_out})")
            if self._warm_start:
                found.append(f"{len(warm)} for worked examples (warm_start = {self._warm_start})")
            raise TaskFileError(
                f"too few problems: {self._source} has {len(pool.firsts)} different problems. There are "
                f"{', '.join(found)}, but each part needs at least 1 problem. Give more problems, or change held_out "
                f"(0 for no evaluation){' or warm_start' if self._warm_start else ''}"
            )


def _add_needed(
    named: Columns, has_answer: bool, keep: Sequence[str], built: Mapping[str, Scorer]
) -> tuple[Columns, tuple[str, ...]]:
    """Return the columns, and those to keep, with what scorers need; these then compare with no answer by default."""
    needed = [column for one in built.values() for column in one.keeps]
    return replace(named, answer="") if needed and not has_answer else named, tuple(dict.fromkeys([*keep, *needed]))


def _check_keep(keep: Any, *, has_scorers: bool) -> None:
    if not isinstance(keep, list | tuple) or not all(isinstance(column, str) for column in keep):
        raise ValueError(f'keep must be a list of columns, as in ["tests"]; got {keep!r}')
    if has_scorers and SCORER in keep:
        raise ValueError(
            f"keep must not list {SCORER!r} if columns.scorer is set: extra[{SCORER!r}] then holds the name of the "
            "row's scorer. Leave the column out of keep, or give the column another name in the data"
        )


def _copy_arguments(given: Any) -> dict[str, Any]:
    try:
        check_template_arguments("template_arguments", given)
    except TypeError as error:
        raise ValueError(str(error)) from error
    return dict(given)


def _check_share(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise ValueError(f"{name}, a share, must be above 0 and below 1; got {value!r}")
    return float(value)


def _check_text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text; got {value!r}")  # noqa: TRY004 - a bad setting is a ValueError
    return value


def _compile_answer_pattern(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern) if pattern else None
    except re.error as error:
        raise ValueError(f"answer_pattern is not a valid regular expression: {error}") from error
