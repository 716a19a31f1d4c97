"""A Parquet file of sequences, which appears only when complete. It needs the extra `parquet`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace.infra.errors import UsageError

ROWS_OF_GROUP = 1_000
TOKENS = 4_000_000
"""Number of rows, and of tokens in them, that are written at once."""
TEXT, INT, FLOAT = "string", "int64", "float64"
PARQUET_COLUMNS: Mapping[str, str] = {
    "run": TEXT,
    "run_id": TEXT,
    "policy": TEXT,
    "trajectory": TEXT,
    "stream": TEXT,
    "number": INT,
    "attempt": INT,
    "sequence": INT,
    "sequences": INT,
    "role": TEXT,
    "agent_id": TEXT,
    "task_id": TEXT,
    "tier": TEXT,
    "env": TEXT,
    "reward": FLOAT,
    "sequence_reward": FLOAT,
    "reward_parts": TEXT,
    "prompt_ids": "list<int32>",
    "completion_ids": "list<int32>",
    "completion_mask": "list<bool>",
    "completion_logprobs": "list<float>",
    "completion_versions": "list<int32>",
    "finish_reason": TEXT,
    "prompt": TEXT,
    "completion": TEXT,
    "outcome": TEXT,
    "reason": TEXT,
    "trained_versions": "list<int32>",
    "revision": INT,
    "head_version": INT,
    "engine": TEXT,
    "worker": TEXT,
    "logprob_convention": TEXT,
    "started_ms": INT,
    "finished_ms": INT,
}
"""Column to its Arrow type."""


class ParquetFile:
    """A new file that takes rows; a context manager.

    Raises UsageError without pyarrow, for a file that exists already, and for a folder that cannot be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow as pa
            from pyarrow import parquet
        except ImportError as error:
            raise UsageError("a Parquet file needs pyarrow: make install EXTRAS=parquet") from error
        if path.exists():
            raise UsageError(f"{path} already exists: give another file by --to, or remove it")
        self.path, self._growing = path, path.with_name(f".{path.name}.part")
        self._arrow = pa
        lists = {"int32": pa.int32(), "bool": pa.bool_(), "float": pa.float32()}
        plain = {TEXT: pa.string(), INT: pa.int64(), FLOAT: pa.float64()}
        types = {**plain, **{f"list<{name}>": pa.list_(inner) for name, inner in lists.items()}}
        self._schema = pa.schema([(name, types[kind]) for name, kind in PARQUET_COLUMNS.items()])
        try:
            self._writer = parquet.ParquetWriter(self._growing, self._schema, compression="zstd")
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error}") from error
        self._rows: list[Mapping[str, Any]] = []
        self._tokens = 0

    def write(self, row: Mapping[str, Any]) -> None:
        """Add a row, a value for every column."""
        self._rows.append(row)
        self._tokens += len(row["prompt_ids"]) + len(row["completion_ids"])
        if len(self._rows) >= ROWS_OF_GROUP or self._tokens >= TOKENS:
            self._flush()

    def _flush(self) -> None:
        columns = [
            self._arrow.array([row[field.name] for row in self._rows], type=field.type) for field in self._schema
        ]
        self._writer.write_table(self._arrow.Table.from_arrays(columns, schema=self._schema))
        self._rows, self._tokens = [], 0

    def __enter__(self) -> Self:
        """Return the file."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the file its final name, or remove it after an error."""
        try:
            if kind is None and self._rows:
                self._flush()
            self._writer.close()
            if kind is None:
                with self._growing.open("rb") as file:
                    os.fsync(file.fileno())
                self._growing.replace(self.path)
        finally:
            with suppress(FileNotFoundError):
                self._growing.unlink()
