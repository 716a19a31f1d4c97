"""What a command is told of a run whose folder another process holds."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.infra.embedded.data_folder import CLEANING, COMPARING, LOOKING, REPLAYING, UP, DataFolder, RunNotes
from headrace.ops import opened_run
from headrace.ops.opened_run import OpenedRun, open_run

RUN = cast("Any", SimpleNamespace(source="", ended=""))


def opened_while(holder: str, root: Path) -> OpenedRun:
    folder = DataFolder(root)
    folder.write(RunNotes("demo", "127.0.0.1:9092", embedded_kafka=True))
    with folder.hold(holder), open_run(None, root) as opened:
        return opened


@pytest.fixture(autouse=True)
def joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened_run, "_join", lambda *_: RUN)


@pytest.mark.parametrize("holder", [LOOKING, CLEANING, REPLAYING])
def test_a_stopped_run_rests_while_another_command_looks_at_it_but_its_servers_are_not_for_this_one(
    holder: str, tmp_path: Path
) -> None:
    assert opened_while(holder, tmp_path) == OpenedRun(RUN, True, 0, tmp_path / "ledger.sqlite", is_alone=False)


@pytest.mark.parametrize("holder", [UP, COMPARING, "`headrace servers`", ""])
def test_a_run_does_not_rest_while_a_launcher_or_any_other_process_holds_its_folder(
    holder: str, tmp_path: Path
) -> None:
    opened = opened_while(holder, tmp_path)
    assert (opened.rests, opened.is_alone) == (False, False)
    assert bool(opened.began_ms) == (holder in (UP, COMPARING)), "only a launcher begins a run"


@pytest.mark.parametrize(("ended", "rests"), [("", False), ("steps", True)])
def test_an_experiment_rests_once_the_command_that_writes_it_has_ended_it(
    ended: str, rests: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened_run, "_join", lambda *_: SimpleNamespace(source="demo", ended=ended))
    assert opened_while(LOOKING, tmp_path).rests == rests


def test_the_only_command_on_a_stopped_run_is_alone_with_it(tmp_path: Path) -> None:
    DataFolder(tmp_path).write(RunNotes("demo", "127.0.0.1:9092", embedded_kafka=False))
    with open_run(None, tmp_path) as opened:
        assert opened == OpenedRun(RUN, rests=True, ledger=tmp_path / "ledger.sqlite", is_alone=True)
