"""`headrace export --to FILE.jsonl`: an archive's trajectories as documents of ATIF, one a line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path

from headrace.infra.archive.reading import Archive
from headrace.infra.errors import UsageError
from headrace.infra.progress import open_progress
from headrace.ops.offline.atif import build_document
from headrace.ops.offline.exporter import (
    Exported,
    TrajectoryTable,
    build_table,
    choose_topic,
    iterate_groups,
    load_tokenizer,
)


def export_atif(source: str | Path, policy: str | None, file: Path) -> TrajectoryTable:
    """Write the trajectories of an archive as documents, whole or not at all. Raises as `exporter.export` does."""
    archive = Archive(source)
    name, topic = choose_topic(archive, policy)
    done, tokenizer = Exported(), load_tokenizer(archive, name)
    decode = partial(tokenizer.decode, skip_special_tokens=False) if tokenizer is not None else lambda _ids: ""
    release = version("headrace")
    with _open_new(file) as write, open_progress("exporting") as tell:
        for group, find_fate in iterate_groups(archive, name, topic, done, tell):
            for trajectory in group.trajectories:
                if not trajectory.sequences:
                    done.skipped["empty"] += 1
                    continue
                outcome, reason, _ = find_fate(trajectory.id)
                document = build_document(group, trajectory, decode, release)
                document["extra"] |= {"outcome": outcome, "reason": reason}
                write(json.dumps(document, ensure_ascii=False) + "\n")
                done.rows, done.trajectories = done.rows + 1, done.trajectories + 1
                done.outcomes[outcome] += 1
    return build_table(archive, str(source), file, (name, topic), done, has_texts=tokenizer is not None)


@contextmanager
def _open_new(path: Path) -> Iterator[Callable[[str], None]]:
    """Give what writes into a new file, which appears only when complete. Raises UsageError."""
    if path.exists():
        raise UsageError(f"{path} already exists: give another file by --to, or remove it")
    growing = path.with_name(f".{path.name}.part")
    try:
        with _tell_unwritable(path):
            file = growing.open("w", encoding="utf-8")

        def write(text: str) -> None:
            with _tell_unwritable(path):
                file.write(text)

        with file:
            yield write
            with _tell_unwritable(path):
                file.flush()
        with _tell_unwritable(path):
            growing.rename(path)
    finally:
        growing.unlink(missing_ok=True)


@contextmanager
def _tell_unwritable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error}") from error
