"""Reads all rows of one source, and finds its distinct problems."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.envs.answers import is_same_answer
from headrace.envs.data.layout import Layout, Record, RowFault
from headrace.envs.data.rows import Rows, TaskFileError
from headrace.envs.data.sources import Source
from headrace.envs.data.split_rows import Digests, Numbers, find_distinct, hash_text, stack_digests
from headrace.infra.inflection import inflect
from headrace.schemas.records import ReadData


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """The distinct problems of one source."""

    source: Source
    layout: Layout
    rows: Rows
    firsts: Numbers
    """Row numbers, in the order of the digests, int64[D]."""
    digests: Digests
    """uint64[D, 2]."""
    count: int

    @property
    def doubles(self) -> int:
        """Rows that hold the problem of an earlier row."""
        return self.count - len(self.firsts)

    def read_row(self, number: int) -> Record:
        """Return the contents of a row. Raises TaskFileError."""
        try:
            return self.layout.read_record(self.rows.read(number), self.rows.unit)
        except RowFault as fault:
            raise TaskFileError(f"{self.rows.name_row(number)}: {fault}") from None

    def identify(self) -> ReadData:
        """Return the description of the data for the run's record."""
        return ReadData(str(self.source), self.count, self.rows.hash_content())

    def describe_left_out(self, held_out: int) -> str:
        """Return which rows no problem comes from, `held_out` of them for being held out; an empty text if none."""
        unit, left_out = self.rows.unit, self.doubles + held_out
        if not left_out:
            return ""
        why = [f"{self.doubles:,} {inflect(self.doubles, 'repeats', 'repeat')} the problem of an earlier {unit}"]
        if held_out:
            why.append(f"{held_out:,} {inflect(held_out, 'holds', 'hold')} a problem of held_out")
        counted = f"of {self.count:,} {unit}s {left_out:,} {inflect(left_out, 'is', 'are')} left out"
        return f"{self.source}: {counted}: {', '.join(why[not self.doubles :])}"


def read_pool(source: Source, layout: Layout) -> Pool:
    """Read all rows once. Raises TaskFileError for a malformed row, or a problem with two different answers."""
    rows = source.open_rows(layout.columns_to_read)
    digests, count = bytearray(), 0
    try:
        for row in rows.scan():
            digests += hash_text(layout.read_record(row, rows.unit).identity)
            count += 1
    except RowFault as fault:
        raise TaskFileError(f"{rows.name_row(count)}: {fault}") from None
    stacked = stack_digests(digests)
    firsts, further, owners = find_distinct(stacked)
    pool = Pool(source, layout, rows, firsts, stacked[firsts], count)
    for number, owner in zip(further.tolist(), owners.tolist(), strict=True):
        _refuse_other_answer(pool, number, owner)
    return pool


def find_shared(pool: Pool, own: Pool) -> npt.NDArray[np.bool_]:
    """Return bool[D]: which problems of a pool are also in the other pool."""
    pair = np.dtype([("first", np.uint64), ("last", np.uint64)])
    left, right = (np.ascontiguousarray(one.digests).view(pair).ravel() for one in (pool, own))
    return np.isin(left, right)


def _refuse_other_answer(pool: Pool, number: int, owner: int) -> None:
    """Raise TaskFileError if two rows with the same problem differ in their answers."""
    again, first = (pool.read_row(one) for one in (number, owner))
    what, both = "answers", (again.answer, first.answer)
    if both == ("", "") and again.extra != first.extra:  # the answer is in the kept columns
        what = "columns"
        both = str(dict(again.extra)), str(dict(first.extra))
    elif is_same_answer(*both):
        return
    rows = pool.rows
    raise TaskFileError(
        f"{rows.name_row(number)} and {rows.name_row(owner)} hold the same problem with different {what}, "
        f"{both[0]!r:.60} and {both[1]!r:.60}: delete the wrong {rows.unit}"
    )
