"""One short run of the shipped recipe, made as a user makes it; several tests look at what it left."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from command import ARITHMETIC, Finished, headrace

from infra.opened_run import opened_run
from infra.run import Run


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("finished")
    data, summary = folder / "data", folder / "summary.json"
    done = headrace(*ARITHMETIC, "--data", data, "--summary", summary)
    assert done.returncode == 0, done.stdout + done.stderr
    return Finished(data, ARITHMETIC, done.stdout, json.loads(summary.read_text()))


@pytest.fixture
def run(finished: Finished) -> Iterator[Run]:
    """The finished run, its broker and store started again for the test."""
    with opened_run(None, finished.data, store=True) as opened:
        yield opened.run
