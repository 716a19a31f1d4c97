"""What the commands over archives show."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from headrace.app.views.archive_page import archive_page, offline_page

ARCHIVED: dict[str, Any] = {"run": "t", "archive": "a", "seconds": 1.0, "topics": {}, "raw": 0}
ARCHIVED["objects"] = {"count": 0, "bytes": 0, "new": 0, "missing": {}}


def told(page: Any) -> str:
    file = io.StringIO()
    Console(file=file, width=120).print(page)
    return file.getvalue()


def test_what_was_deleted_before_it_was_archived_is_told_by_topic() -> None:
    gone = [{"topic": "tasks.sums", "partition": partition, "begin": 4, "end": 10} for partition in range(8)]
    gone += [{"topic": "outcomes.solver", "partition": 1, "begin": 0, "end": 3}]
    said = told(archive_page({**ARCHIVED, "gone": gone}))
    assert "tasks.sums: what stood at 48 offsets had been deleted before it was archived, as tasks are that" in said
    assert "outcomes.solver: what stood at 3 offsets had been deleted before it was archived.\n" in said
    assert said.count("deleted") == 2


def test_single_trajectories_that_a_chain_left_out_of_kept_groups_are_shown() -> None:
    counts = {"dropped": {"zero_variance": 9}, "dropped_trajectories": {"pods": 1200}, "dead": {}}
    done = {"policy": "solver", "archive": "a", "out": "o", "chain": None, "sha256": "ab", **counts}
    said = told(offline_page({**done, "read": 309, "kept": 300, "again": 0}))
    assert "of those kept" in said
    assert "9 zero_variance" in said
    assert "1,200 pods" in said
