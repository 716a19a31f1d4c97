r"""Problems from a file of JSON lines with `problem` and `answer`, the field names of DeepScaleR.

A problem's split comes from a hash of its text alone, so it stays where it is when lines are added, moved or doubled.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headrace.envs.answers import BOXED, LONGEST_NUMBER, find_last_boxed, is_same_answer
from headrace.envs.contract import Problem, Score, Split
from headrace.envs.math_judge import MathJudge, require_math_verify

INSTRUCTION = "\nReason step by step, and put the final answer within \\boxed{}."

COMPARISONS = ("exact", "math_verify")


class TaskFileError(ValueError):
    """A task file that cannot be used; the message names file, line and remedy."""


@dataclass(frozen=True, slots=True)
class _Row:
    problem: str
    answer: str
    digest: str
    where: str
    """File and line."""


class JsonLines:
    """A finite set of problems; the order of `train` comes from the seed.

    `held_out` is the share that is kept for evaluations; the split `warm_start` is empty, since a line holds no worked
    example. `compare` is how answers are compared: as exact numbers or normalised text, or by math-verify, an extra, in
    processes of its own. Raises ValueError where that is not installed, and TaskFileError for a file that is missing,
    malformed or too small to be split.
    """

    name = "jsonl"

    def __init__(
        self,
        seed: int,
        path: str,
        held_out: float = 0.1,
        instruction: str = INSTRUCTION,
        compare: Literal["exact", "math_verify"] = "exact",
    ) -> None:
        self._math = _open_judge(compare)
        if not 0 <= held_out < 1:
            raise ValueError(f"held_out is a share, 0 <= held_out < 1; got {held_out}")
        self._instruction = instruction
        rows = sorted(_drop_duplicates(_read_rows(Path(path))), key=lambda row: row.digest)
        kept = [row for row in rows if _share(row) < held_out]
        train = [row for row in rows if _share(row) >= held_out]
        if not train or (held_out and not kept):
            raise TaskFileError(
                f"{path}: {len(rows)} different problems split by held_out = {held_out} leave {len(train)} to train on "
                f"and {len(kept)} to evaluate on; give more problems or another held_out (0 for no evaluation)",
            )
        train.sort(key=lambda row: _digest(f"{seed} {row.digest}"))
        self._splits: dict[Split, list[_Row]] = {"train": train, "held_out": kept, "warm_start": []}

    def size(self, split: Split) -> int:
        """Return the number of different problems."""
        return len(self._splits[split])

    def problem(self, split: Split, index: int) -> Problem:
        """Return the problem at an index; the order begins again at the end. Raises ValueError for an empty split."""
        rows = self._splits[split]
        if not rows or index < 0:
            raise ValueError(f"there is no problem {index} among the {len(rows)} of split {split!r}")
        row = rows[index % len(rows)]
        return Problem(task_id=row.digest[:16], prompt=row.problem + self._instruction, answer=row.answer)

    def score(self, problem: Problem, text: str) -> Score:
        """Return reward 1 when the last box equals the answer, as exact numbers or as normalised text, else 0.

        With `compare = "math_verify"` also when both are the same mathematics.
        """
        boxed = find_last_boxed(text)
        if boxed is None:
            return Score(0.0, {"boxed": 0.0})
        is_right = is_same_answer(boxed, problem.answer) or (
            self._math is not None and self._math.is_same(boxed, problem.answer)
        )
        return Score(float(is_right), {"boxed": 1.0})


def _open_judge(compare: str) -> MathJudge | None:
    if compare not in COMPARISONS:
        raise ValueError(f"compare is one of {', '.join(COMPARISONS)}; got {compare!r}")
    if compare == "exact":
        return None
    require_math_verify()
    return MathJudge()


def _share(row: _Row) -> float:
    """Return the position of a row in [0, 1)."""
    return int(row.digest[-8:], 16) / 2**32


def _drop_duplicates(rows: list[_Row]) -> list[_Row]:
    """Return each problem once. Raises TaskFileError for one that has two answers, with both lines."""
    found: dict[str, _Row] = {}
    for row in rows:
        other = found.setdefault(row.digest, row)
        if not is_same_answer(row.answer, other.answer):
            raise TaskFileError(
                f"{row.where} and {other.where} hold the same `problem` with different answers, {row.answer!r:.60} and "
                f"{other.answer!r:.60}: keep the right one"
            )
    return list(found.values())


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _read_rows(path: Path) -> list[_Row]:
    try:
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        raise TaskFileError(f"cannot read tasks from {path}: {error.strerror or error}") from error
    return [_parse_row(line, f"{path}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]


def _parse_row(line: bytes, where: str) -> _Row:
    try:
        # Numbers stay as they are written: 0.00001 would come back as 1e-05, and 5,000 digits not at all.
        found = json.loads(line.decode(), parse_float=_Written, parse_int=_Written, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise TaskFileError(f"{where}: not UTF-8 ({error.reason} at byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise TaskFileError(f"{where}: not JSON ({error.msg} at column {error.colno}); one object per line") from error
    except _NotANumber as error:
        raise TaskFileError(f"{where}: {error} is not a number of JSON; give every answer a value") from error
    if not isinstance(found, dict):
        raise TaskFileError(f"{where}: expected an object with `problem` and `answer`, got {type(found).__name__}")
    problem, answer = _read_text(found, "problem", where), _read_text(found, "answer", where)
    return _Row(problem, _strip_box(answer, where), _digest(problem), where)


def _strip_box(answer: str, where: str) -> str:
    r"""Return an answer without the box that it may be written in; completions give theirs in one.

    Raises TaskFileError for a number too long to be compared exactly.
    """
    boxed = find_last_boxed(answer)
    bare = boxed if boxed is not None and answer.strip() == f"{BOXED}{boxed}}}" else answer
    if len(bare) > LONGEST_NUMBER and bare.strip("+-").replace(".", "", 1).isdigit():
        raise TaskFileError(
            f"{where}: the answer is a number of {len(bare)} characters, and numbers of up to {LONGEST_NUMBER} are "
            "compared"
        )
    return bare


class _Written(str):
    """A JSON number, as it is written."""

    __slots__ = ()


class _NotANumber(ValueError):
    """NaN or an infinity."""


def _refuse_constant(name: str) -> None:
    raise _NotANumber(name)


def _refuse_surrogates(value: str, field: str, where: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise TaskFileError(
            f"{where}: `{field}` holds half of a character ({value[error.start]!r} at place {error.start}): write the "
            "whole one"
        ) from error


def _read_text(found: dict[str, Any], field: str, where: str) -> str:
    """Return a field as text; an answer may be written as a JSON number."""
    value = found.get(field)
    if isinstance(value, str) and value.strip() and (field == "answer" or not isinstance(value, _Written)):
        _refuse_surrogates(value, field, where)
        return str(value)
    names = ", ".join(map(repr, found)) or "nothing"
    raise TaskFileError(f"{where}: `{field}` must be a non-empty string, got {value!r:.60}; the line has {names}")
