"""Rows of Parquet files, of folders that `datasets` saved, and of the Hugging Face hub: Arrow tables on disk.

Parquet cannot be read row by row, so the used columns are unpacked to a temporary Arrow file that is mapped into
memory. Folders of `datasets` already are Arrow files. pyarrow is an extra (`headrace[data]`), imported when such a data
set is opened.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from headrace.envs.data.rows import MEDIA, Row, TaskFileError, Written, explain_media
from headrace.infra.git_lfs import describe_pointer

ARROW_ROWS_AT_ONCE = 1024
ARROW_CHUNK_BYTES = 1 << 20
MEDIA_ROWS_AT_ONCE = 16
"""Few, because the first filled row ends the reading, and a row may hold a film."""
SHORT_FLOATS = {"float": np.float32, "halffloat": np.float16}
"""Types by Arrow's names."""
SAVED = "state.json"
"""File of a folder that `Dataset.save_to_disk` wrote."""
SAVED_SPLITS = "dataset_dict.json"
"""File of a folder that `DatasetDict.save_to_disk` wrote: its splits are folders below it."""
_REVISION = re.compile(r"[@/\\]([0-9a-f]{40})[/\\]")
"""Matches a commit in the address of a downloaded file, and in the path of a cached one."""


class ArrowRows:
    """Rows of an Arrow table.

    Args:
        name: Name in errors.
        table: A `pyarrow.Table`, preferably mapped from a file.
        columns: Columns to read; `column.field` names a field within a column.
        hash_content: Returns the identity of the source data.

    Raises TaskFileError, with the existing columns, for a missing column, and for media in a column that is not read.
    """

    unit = "row"

    def __init__(self, name: str, table: Any, columns: Sequence[str], hash_content: Callable[[], str]) -> None:
        self._name = name
        used = table.select(_choose_columns(name, table.schema.names, columns))
        _refuse_media(name, _find_media_of_table(table, columns))
        self._batches = used.to_batches(ARROW_ROWS_AT_ONCE)
        self._short = {field.name: shorten for field in used.schema if (shorten := _build_shortener(field.type))}
        self._ends: list[int] = []
        for batch in self._batches:
            self._ends.append((self._ends[-1] if self._ends else 0) + batch.num_rows)
        self._hash_content = hash_content

    def scan(self) -> Iterator[Row]:
        """Yield all rows."""
        before = 0
        for batch in self._batches:
            try:
                found = batch.to_pylist()
            except UnicodeDecodeError:
                found = (self.read(before + index) for index in range(batch.num_rows))  # `read` names the row in errors
            for row in found:
                yield self._shorten_floats(row)
            before += batch.num_rows

    def read(self, number: int) -> Row:
        """Return one row."""
        index = bisect_right(self._ends, number)
        before = self._ends[index - 1] if index else 0
        try:
            [row] = self._batches[index].slice(number - before, 1).to_pylist()
        except UnicodeDecodeError as error:
            raise TaskFileError(f"{self.name_row(number)}: not UTF-8 ({error.reason})") from error
        return self._shorten_floats(row)

    def _shorten_floats(self, row: dict[str, Any]) -> Row:
        """Return a row with float32 values as written: as float64, 0.1 would become 0.10000000149011612."""
        return row | {name: shorten(row[name]) for name, shorten in self._short.items()}

    def name_row(self, number: int) -> str:
        """Return `file, row 7`, counted from 1."""
        return f"{self._name}, row {number + 1}"

    def hash_content(self) -> str:
        """Return the identity of the content."""
        return self._hash_content()


def open_parquet(paths: Sequence[Path], name: str, columns: Sequence[str]) -> ArrowRows:
    """Unpack the used columns of Parquet files with equal columns. Raises TaskFileError."""
    pa = _import_pyarrow(name)
    from pyarrow import parquet

    try:
        with tempfile.TemporaryDirectory(prefix="headrace-data-") as folder:
            file = Path(folder) / "rows.arrow"
            opened = [parquet.ParquetFile(path, memory_map=True) for path in paths]
            for path, one in zip(paths, opened, strict=True):
                wanted = _choose_columns(str(path), one.schema_arrow.names, columns)
                _refuse_media(str(path), _find_media_of_file(one, columns))
            schema = _unify_schemas(dict(zip(paths, (one.schema_arrow for one in opened), strict=True)), wanted)
            with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
                for path, one in zip(paths, opened, strict=True):
                    for batch in one.iter_batches(ARROW_ROWS_AT_ONCE, columns=wanted):
                        writer.write_batch(_cast_batch(path, batch, schema))
            for one in opened:
                one.close()
            # The mapping stays valid after the file is deleted.
            table = pa.ipc.open_stream(pa.memory_map(str(file))).read_all()
    except (pa.ArrowException, OSError) as error:
        pointers = [one for path in paths if (one := describe_pointer(path))]
        raise TaskFileError(
            pointers[0] if pointers else f"cannot read tasks from {name}: {_read_first_line(error)}"
        ) from error
    return ArrowRows(name, table, columns, lambda: _hash_files(paths))


def _unify_schemas(schemas: Mapping[Path, Any], wanted: Sequence[str]) -> Any:
    """Return the schema that the columns of all files fit into, such as float64 for int64 and float64.

    Raises TaskFileError for types that do not go together, with both files.
    """
    import pyarrow as pa

    [first, *_] = schemas
    found = pa.schema([schemas[first].field(one) for one in wanted])
    for path, schema in schemas.items():
        for column in wanted:
            one = pa.schema([schema.field(column)])
            try:
                unified = pa.unify_schemas([pa.schema([found.field(column)]), one], promote_options="permissive")
            except pa.ArrowException as error:
                there, here = found.field(column).type, schema.field(column).type
                raise TaskFileError(
                    f"{path}: column {column!r} is {here}, but in {first} it is {there}: write all files with one type"
                ) from error
            found = found.set(found.get_field_index(column), unified.field(0))
    return found


def _cast_batch(path: Path, batch: Any, schema: Any) -> Any:
    """Return a batch in a schema. Raises TaskFileError, with file and column, for a value that does not fit."""
    import pyarrow as pa

    columns = []
    for field in schema:
        column = batch.column(field.name)
        try:
            columns.append(column.cast(field.type))
        except pa.ArrowException as error:
            why = f"a value of it does not fit {field.type}, the type of all files together"
            raise TaskFileError(
                f"{path}: column {field.name!r} is {column.type}, and {why}: {_read_first_line(error)}"
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def open_saved(folder: Path, split: str, columns: Sequence[str]) -> ArrowRows:
    """Map a folder saved by `datasets`, or one split of it. Raises TaskFileError."""
    pa = _import_pyarrow(str(folder))
    try:
        if (folder / SAVED_SPLITS).is_file():
            there = json.loads((folder / SAVED_SPLITS).read_text())["splits"]
            if split not in there:
                raise TaskFileError(f"{folder}: no split {split!r}; it has {', '.join(map(repr, there))}")
            folder /= split
        files = [folder / one["filename"] for one in json.loads((folder / SAVED).read_text())["_data_files"]]
        if not files:
            raise TaskFileError(f"{folder}: its {SAVED} lists no data file: write the folder again by save_to_disk")
        table = pa.concat_tables([pa.ipc.open_stream(pa.memory_map(str(file))).read_all() for file in files])
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, TaskFileError):
            raise
        raise TaskFileError(
            f"{folder} cannot be read as a folder written by save_to_disk of `datasets`: {type(error).__name__}: "
            f"{_read_first_line(error)}. Write it again by save_to_disk"
        ) from error
    return ArrowRows(str(folder), table, columns, lambda: _hash_files(files))


def open_hub(repository: str, config: str, split: str, revision: str, columns: Sequence[str]) -> ArrowRows:
    """Load a data set of the hub by `datasets`, without a network from its cache. Raises TaskFileError."""
    name = f"hub:{repository}"
    _import_pyarrow(name)
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise TaskFileError(f"{name} needs the library datasets: make install EXTRAS=data") from error
    try:
        found = datasets.load_dataset(repository, config or None, split=split, revision=revision or None)
    except Exception as error:
        raise TaskFileError(
            f"cannot load {name}, split {split!r}: {type(error).__name__}: {_read_first_line(error)}. Without a "
            "network, the data set must be in the cache of `datasets` (HF_HOME) on this machine; or save it with "
            "save_to_disk on another machine, copy the folder here, and give it as `path`"
        ) from error
    if found._indices is not None:  # noqa: SLF001 - a selection is not a table
        found = found.flatten_indices()
    # Versions of `datasets` differ in what they keep of a download: its addresses, or only its place in the cache.
    downloaded = [*(found.info.download_checksums or ()), *(one["filename"] for one in found.cache_files)]
    commits = _REVISION.findall(" ".join(downloaded))
    identity = commits[-1] if commits else str(found._fingerprint)  # noqa: SLF001 - has no other name
    return ArrowRows(f"{name}/{split}", found.data.table, columns, lambda: identity)


def _import_pyarrow(name: str) -> Any:
    try:
        import pyarrow as pa
    except ModuleNotFoundError as error:
        raise TaskFileError(f"{name} needs pyarrow: make install EXTRAS=data") from error
    return pa


def _build_shortener(kind: Any) -> Callable[[Any], Any] | None:
    """Return what makes decimals numbers, and short floats as they were written; None for types without both."""
    from pyarrow import types

    if types.is_decimal(kind):
        return lambda value: None if value is None else Written(value)
    if short := SHORT_FLOATS.get(str(kind)):
        return lambda value: None if value is None else float(str(short(value)))
    if types.is_struct(kind):
        fields = {one.name: shorten for one in kind if (shorten := _build_shortener(one.type))}
        return partial(_shorten_fields, fields) if fields else None
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if is_list and (item := _build_shortener(kind.value_type)):
        return lambda values: None if values is None else [item(value) for value in values]
    return None


def _shorten_fields(fields: dict[str, Callable[[Any], Any]], value: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if value is None else value | {name: shorten(value[name]) for name, shorten in fields.items()}


def _choose_columns(name: str, there: Sequence[str], columns: Sequence[str]) -> list[str]:
    """Return the used columns of a table; `column.field` names a field within a column."""
    tops = {column: column if column in there else column.partition(".")[0] for column in columns}
    for column, top in tops.items():
        if top not in there:
            listed = ", ".join(map(repr, there)) or "none"
            remedy = "name the right column in `columns` or `keep`"
            raise TaskFileError(f"{name}: no column {column!r}; it has {listed}: {remedy}")
        if there.count(top) > 1:
            raise TaskFileError(f"{name}: several columns are called {top!r}: rename all but one")
    return list(dict.fromkeys(tops.values()))


def _refuse_media(name: str, filled: Iterator[str]) -> None:
    if media := next(filled, None):
        raise TaskFileError(f"{name}: {explain_media(media)}")


def _find_media_of_table(table: Any, columns: Sequence[str]) -> Iterator[str]:
    """Yield the filled columns of media that are not read."""
    for name in _list_unread_media(table.schema.names, columns):
        if _is_filled(table.select([name]).to_batches(MEDIA_ROWS_AT_ONCE)):
            yield name


def _find_media_of_file(file: Any, columns: Sequence[str]) -> Iterator[str]:
    """Yield those of a Parquet file; the metadata of most empty columns saves reading them."""
    groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
    leaves = [group.column(index) for group in groups for index in range(file.metadata.num_columns)]
    for name in _list_unread_media(file.schema_arrow.names, columns):
        is_empty = all(_is_null(leaf) for leaf in leaves if leaf.path_in_schema.partition(".")[0] == name)
        if not is_empty and _is_filled(file.iter_batches(MEDIA_ROWS_AT_ONCE, columns=[name])):
            yield name


def _list_unread_media(there: Sequence[str], columns: Sequence[str]) -> list[str]:
    return [name for name in MEDIA if name in there and name not in columns]


def _is_null(leaf: Any) -> bool:
    known = leaf.statistics if leaf.is_stats_set else None
    return known is not None and known.has_null_count and known.null_count == leaf.num_values


def _is_filled(batches: Iterable[Any]) -> bool:
    """Return whether a row holds anything but null, an empty text or list, 0 or false: as for a line of JSONL."""
    return any(any(batch.column(0).to_pylist()) for batch in batches)


def _hash_files(paths: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(ARROW_CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()


def _read_first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
