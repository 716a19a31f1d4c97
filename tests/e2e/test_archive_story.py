"""What docs/archive.md tells, by its commands: a run becomes files, is curated and trained again, and is exported."""

from __future__ import annotations

import json
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
from command import Finished, headrace

pytestmark = pytest.mark.runs
PAGE = (Path(__file__).parents[2] / "docs" / "archive.md").read_text()


def follow(command: str, where: Path, *more: str) -> str:
    """Run a command that the page shows, in a folder; return what it printed."""
    assert command in PAGE, "the page shows it"
    done = headrace(*shlex.split(command.removeprefix("headrace ")), *more, where=where)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_run_is_archived_curated_trained_and_exported_by_the_commands_of_the_page(
    finished: Finished, rested: Path, tmp_path: Path
) -> None:
    rested.rename(tmp_path / "run")

    archived = json.loads(follow("headrace archive --data run --out sums.archive", tmp_path, "--json"))
    assert "state" in archived["topics"], "complete, as it is small"
    again = json.loads(follow("headrace archive --data run --out sums.archive", tmp_path, "--json"))
    assert {topic["new_records"] for topic in again["topics"].values()} == {0}

    curated = json.loads(follow("headrace offline curate --from sums.archive --out own.archive", tmp_path, "--json"))
    audit = json.loads(headrace("audit", "--data", "run", "--json", where=tmp_path).stdout)
    assert curated["sha256"] == audit["curated"]["solver"]["sha256"]

    trained = headrace("offline", "train", "--from", "sums.archive", "--out", "tried", where=tmp_path)
    assert trained.returncode == 0, trained.stdout + trained.stderr
    assert (tmp_path / "tried" / "model.safetensors").exists()

    if find_spec("pyarrow") is not None:
        exported = json.loads(follow("headrace export sums.archive --to sums.parquet", tmp_path, "--json"))
        assert exported["texts"]
