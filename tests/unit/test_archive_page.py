"""What the commands over archives show."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from headrace.app.views.offline_page import archive_page
from headrace.ops.offline.archiver import Archived, ArchivedObjects, Gone

NO_OBJECTS = ArchivedObjects(0, 0, 0, {})


def told(page: Any) -> str:
    file = io.StringIO()
    Console(file=file, width=120).print(page)
    return file.getvalue()


def test_what_was_deleted_before_it_was_archived_is_told_by_topic() -> None:
    gone = [Gone("tasks.sums", partition, 4, 10) for partition in range(8)]
    gone += [Gone("outcomes.solver", 1, 0, 3)]
    said = told(archive_page(Archived("a", "t", "t-1", {}, NO_OBJECTS, 0, tuple(gone), 1.0)))
    by_topic = "the records at 48 offsets had been deleted before the topic was archived (finished tasks are deleted)"
    assert f"tasks.sums: {by_topic}" in said
    assert "outcomes.solver: the records at 3 offsets had been deleted before the topic was archived.\n" in said
    assert said.count("had been deleted") == 2
