"""Turns a row of a data set into a problem: the meaning of columns, and the policy's prompt."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from headrace.envs.answers import BOXED, LONGEST_NUMBER, find_last_boxed
from headrace.envs.data.rows import MEDIA, Row, Written, explain_media, fill_placeholders, find_value, make_plain
from headrace.envs.data.same_text import identify_prompt
from headrace.envs.data.scorers import Scorer
from headrace.envs.messages import Prompt, as_messages, check_messages, refuse_lone_surrogates

SCORER = "scorer"
"""Key in a problem's `extra` for the name of its scorer."""


class RowFault(ValueError):
    """A row cannot be used; the caller adds which row it is."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of a data set's columns by purpose; empty for none."""

    problem: str = "problem"
    answer: str = "answer"
    tier: str = ""
    solution: str = ""
    scorer: str = ""


def read_columns_setting(columns: Any) -> Columns:
    """Return the columns that a recipe names. Raises ValueError for an invalid setting."""
    names = [one.name for one in fields(Columns)]
    if not isinstance(columns, Mapping) or set(columns) - set(names):
        raise ValueError(
            f'columns must be a table with keys {", ".join(names)}, as in {{ problem = "question" }}; got {columns!r}'
        )
    for name, column in columns.items():
        if not isinstance(column, str) or not (column or name != "problem"):
            raise ValueError(f"columns.{name} must be the name of a column, got {column!r}")
    return Columns(**columns)


@dataclass(frozen=True, slots=True)
class Record:
    """The contents of a row."""

    problem: Prompt
    """A text, or messages."""
    answer: str
    tier: str
    solution: str
    extra: Mapping[str, Any]

    @property
    def identity(self) -> str:
        """What makes it another problem than others."""
        return identify_prompt(self.problem)


@dataclass(frozen=True, slots=True)
class Layout:
    """The settings for reading rows."""

    columns: Columns
    scorers: Mapping[str, Scorer]
    """Scorers by the name in a row; the empty name is for rows without one."""
    keep: Sequence[str] = ()
    """Columns that are copied into a problem's `extra`."""
    answer_pattern: re.Pattern[str] | None = None
    """Finds the answer in its column: the first group of the last match."""
    system: str = ""
    template: str = ""
    instruction: str | None = None

    @property
    def columns_to_read(self) -> tuple[str, ...]:
        """Columns that are read."""
        named = [getattr(self.columns, one.name) for one in fields(Columns)]
        return tuple(dict.fromkeys([*filter(None, named), *self.keep]))

    def read_record(self, row: Row, unit: str) -> Record:
        """Return the contents of a row. Raises RowFault, with the row's columns, if something is missing."""
        columns = self.columns
        if media := next((name for name in MEDIA if row.get(name) and name not in self.columns_to_read), None):
            raise RowFault(explain_media(media))
        problem = self._read_problem(row, unit)
        kept = {name: self._read_kept(row, name, unit) for name in self.keep}
        name = self._read_scorer(row, unit) if columns.scorer else ""
        return Record(
            problem=problem,
            answer=self._read_answer(row, self.scorers[name], unit) if columns.answer else "",
            tier=_read_label(row, columns.tier, unit),
            solution=_read_text(row, "solution", columns.solution, unit) if columns.solution else "",
            extra=kept | ({SCORER: name} if name else {}),
        )

    def find_scorer(self, extra: Mapping[str, Any]) -> Scorer:
        """Return the scorer of a problem, by its `extra`."""
        return self.scorers[str(extra.get(SCORER, "")) if self.columns.scorer else ""]

    def compose_prompt(self, record: Record) -> Prompt:
        """Return the policy's prompt: the template with the problem, and the instruction.

        With a system prompt it has two messages, the system message first. If the problem is messages, template and
        instruction change the last of them.
        """
        *before, last = as_messages(record.problem)
        text: str = last["content"]
        if self.template:
            text = fill_placeholders(self.template, {**record.extra, "problem": text})
        instruction = self.find_scorer(record.extra).instruction if self.instruction is None else self.instruction
        if isinstance(record.problem, str) and not self.system:
            return text + instruction
        system = [{"role": "system", "content": self.system}] if self.system else []
        return (*system, *before, {**last, "content": text + instruction})

    def _read_problem(self, row: Row, unit: str) -> Prompt:
        """Return a text, or the messages of a conversation that ends with a user."""
        column = self.columns.problem
        value = find_value(row, column)
        if not isinstance(value, list | tuple) or not value or not isinstance(value[0], Mapping):
            return _read_text(row, "problem", column, unit)
        try:
            messages = check_messages(f"`{column}`", make_plain([_leave_out_nulls(one) for one in value]))
        except (TypeError, ValueError) as error:
            raise RowFault(str(error)) from error
        if messages[-1]["role"] != "user" or not messages[-1]["content"].strip():
            raise RowFault(
                f"`{column}` must end with a message of the user that is not empty, got {messages[-1]!r:.60}"
            )
        if self.system and messages[0]["role"] == "system":
            raise RowFault(
                f"`{column}` begins with a system message: leave out the setting `system`, which would add another one"
            )
        return messages

    def _read_kept(self, row: Row, name: str, unit: str) -> Any:
        """Return a value for `extra`, where a user's scorer finds it; a task holds it as JSON."""
        value = _read_value(row, name, unit)
        try:
            if isinstance(value, str) and f"{{{name}}}" in self.template:
                refuse_lone_surrogates("the text", value)
            return make_plain(value)
        except ValueError as error:
            raise RowFault(
                f"`{name}` is {value!r:.60}, which a task (JSON) cannot hold: {error}. Change the data or `keep`"
            ) from error

    def _read_scorer(self, row: Row, unit: str) -> str:
        name = _read_label(row, self.columns.scorer, unit)
        if name and name not in self.scorers:
            known = ", ".join(sorted(filter(None, self.scorers)))
            raise RowFault(
                f"there is no scorer {name!r:.60}; a {unit} may name {known}: correct the {unit}, or add the scorer to "
                "`scorers` in the recipe"
            )
        return name

    def _read_answer(self, row: Row, scorer: Scorer, unit: str) -> str:
        answer = _read_text(row, "answer", self.columns.answer, unit)
        if self.answer_pattern is not None:
            found = list(self.answer_pattern.finditer(answer))
            if not found:
                raise RowFault(
                    f"answer_pattern does not match in the answer, which ends with {answer[-60:]!r}: correct the "
                    "pattern or the answer"
                )
            answer = (found[-1][1 if self.answer_pattern.groups else 0] or "").strip()
        if scorer.is_boxed:
            answer = _strip_box(answer)
        if scorer.needs_answer and not answer.strip():
            raise RowFault(
                f"the answer in `{self.columns.answer}` is empty, so an empty completion would count as right: give "
                f"the {unit} an answer, or leave the {unit} out"
            )
        if fault := scorer.find_fault(answer):
            raise RowFault(f"the answer {answer!r:.60} {fault}")
        return answer


def _leave_out_nulls(message: Any) -> Any:
    """Return a message without keys that hold null: in Parquet each one has the keys of all."""
    if not isinstance(message, Mapping):
        return message
    return {key: value for key, value in message.items() if value is not None}


def _read_label(row: Row, column: str, unit: str) -> str:
    value = _read_value(row, column, unit) if column else None
    label = "" if value is None else str(value)
    _refuse_lone_surrogates(column, label)
    return label


def _read_value(row: Row, column: str, unit: str) -> Any:
    """Return the value, perhaps null, of a column that each row must have."""
    value = find_value(row, column)
    if value is None and column not in row and column.partition(".")[0] not in row:
        raise RowFault(
            f"no column {column!r}; the {unit} has {_list_names(row)}: correct the {unit}, or `columns` or `keep` in "
            "the recipe"
        )
    return value


def _list_names(row: Row) -> str:
    return ", ".join(map(repr, row)) or "nothing"


def _read_text(row: Row, field: str, column: str, unit: str) -> str:
    """Return a field as text; an answer may be a number."""
    value = find_value(row, column)
    if field == "answer" and isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise RowFault(f"`{column}` is {value}, perhaps because the value is missing: give every {unit} an answer")
        value = repr(value)
    if isinstance(value, str) and value.strip() and (field == "answer" or not isinstance(value, Written)):
        _refuse_lone_surrogates(column, value)
        return str(value)
    hint = "" if value is not None else f'; to use another column, set columns = {{ {field} = "…" }}'
    wanted = "a non-empty string or a number" if field == "answer" else "a non-empty string"
    raise RowFault(f"`{column}` must be {wanted}, got {value!r:.60}; the {unit} has {_list_names(row)}{hint}")


def _refuse_lone_surrogates(column: str, text: str) -> None:
    try:
        refuse_lone_surrogates(f"`{column}`", text)
    except ValueError as error:
        raise RowFault(str(error)) from error


def _strip_box(answer: str) -> str:
    r"""Return the content of an answer's last box, or the answer unchanged if it has no box.

    Raises RowFault for an answer that no box can hold, and for a number too long to compare exactly.
    """
    bare = find_last_boxed(answer) if "\\boxed" in answer else answer
    if bare is None or find_last_boxed(f"{BOXED}{bare}}}") != bare:
        raise RowFault(
            f"the answer {answer!r:.60} has unbalanced braces, so \\boxed cannot hold it: correct its braces"
        )
    if len(bare) > LONGEST_NUMBER and bare.strip("+-").replace(".", "", 1).isdigit():
        raise RowFault(
            f"the answer is a number of {len(bare)} characters, but only numbers of at most {LONGEST_NUMBER} "
            "characters can be compared"
        )
    return bare
