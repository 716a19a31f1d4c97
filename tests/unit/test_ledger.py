"""The ledger's file is shared, killed, damaged and refused, and never gives a wrong figure."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_recipes import sums_recipe
from structlog.testing import capture_logs

from headrace.infra.kafka.clients import KafkaAway, Message
from headrace.infra.recipe.settings import Recipe
from headrace.ledger.ledger import Ledger, LedgerRemade
from headrace.ledger.rows import Rows
from headrace.ledger.run_streams import RunStreams
from headrace.ops.audit.fold import AuditFold
from headrace.ops.figures.group_counts import Issued, count_policies
from headrace.schemas import codec
from headrace.schemas.records import BatchTrained, DeadLetter, Eviction, GroupUse, Outcome

RECIPE = sums_recipe(shadows={"free": {}})
TOPICS = RECIPE.topics
OUTCOMES = TOPICS.outcomes("solver")


def outcome(offset: int) -> Message:
    made = Outcome("r", "sums", offset, policy="solver", verdict="kept", component="curate", rewards=(1.0, 0.0))
    return Message(OUTCOMES, 0, offset, b"", codec.encode(made))


FIRST, SECOND = [outcome(offset) for offset in range(5)], [outcome(offset) for offset in range(5, 9)]


def opened(path: Path | None, run_id: str = "r", recipe: Recipe = RECIPE) -> Ledger:
    return Ledger(path, run_id, RunStreams(recipe))


def count(ledger: Ledger) -> int:
    [(rows, groups)] = ledger.query("SELECT count(*), (SELECT sum(groups) FROM decided) FROM outcome")
    assert rows == (groups or 0)
    return int(rows)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger of five groups."""
    ledger = opened(tmp_path / "ledger.sqlite")
    ledger.add(FIRST)
    ledger.close()
    return tmp_path / "ledger.sqlite"


def test_a_ledger_that_is_opened_again_goes_on_where_it_ended(path: Path) -> None:
    ledger = opened(path)
    assert ledger.positions == {(OUTCOMES, 0): 5}
    ledger.advance({(OUTCOMES, 0): 7, (OUTCOMES, 1): 3})
    assert opened(path).positions == {(OUTCOMES, 0): 7}, "marks of transactions; a partition without a record waits"
    ledger.add([*FIRST, *SECOND[2:]])
    assert count(ledger) == 7


def test_two_commands_at_once_write_every_record_once(path: Path) -> None:
    one, other = opened(path), opened(path)
    one.add([*FIRST, *SECOND[:2]])
    other.add([*FIRST, *SECOND])
    one.add(SECOND)
    assert (count(one), count(other), one.positions) == (9, 9, other.positions)


def test_a_writer_that_is_killed_leaves_what_it_wrote_before(path: Path) -> None:
    killed = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_ledger import SECOND, Path, opened
ledger = opened(Path({str(path)!r}))
ledger.add(SECOND[:2])
ledger._write_places = lambda: os.kill(os.getpid(), signal.SIGKILL)
ledger.add(SECOND[2:])
"""
    done = subprocess.run(
        [sys.executable, "-c", killed], check=False, env={**os.environ, "PYTHONPATH": ":".join(sys.path)}
    )
    assert done.returncode == -signal.SIGKILL
    ledger = opened(path)
    assert (count(ledger), ledger.positions) == (7, {(OUTCOMES, 0): 7})


def test_a_defect_in_the_rows_of_one_record_loses_no_other(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, real = opened(path), Rows.add_outcome

    def fail(self: Rows, message: Message, *more: Any) -> None:
        if message.offset == 6:
            raise TypeError("odd")
        real(self, message, *more)

    monkeypatch.setattr(Rows, "add_outcome", fail)
    with pytest.raises(TypeError, match="odd"):
        ledger.add(SECOND)
    assert (count(ledger), ledger.positions) == (8, {(OUTCOMES, 0): 9})
    monkeypatch.setattr(Ledger, "_write_rows", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ledger.add([outcome(9)])
    monkeypatch.undo()
    ledger.add([outcome(9)])
    assert count(ledger) == 9, "a transaction that was rolled back moved no position"


@pytest.mark.parametrize("given", [{"run_id": "another"}, {"recipe": sums_recipe()}])
def test_the_ledger_of_another_run_or_of_other_policies_is_made_anew(path: Path, given: dict[str, Any]) -> None:
    with capture_logs() as lines:
        ledger = opened(path, **given)
    assert (count(ledger), ledger.positions, ledger.path) == (0, {}, path)
    assert [(line["event"], line["in_memory"]) for line in lines] == [("ledger.made_anew", False)]


def test_the_ledger_of_another_build_is_made_anew(path: Path) -> None:
    ledger = opened(path)
    with ledger.writing() as db:
        db.execute("UPDATE about SET value = 'older' WHERE name = 'build'")
    assert count(opened(path)) == 0


@pytest.mark.parametrize(("begin", "length"), [(0, 64), (4096, 4096), (8192, 60_000)])
def test_a_damaged_ledger_is_made_anew_and_filled_again(path: Path, begin: int, length: int) -> None:
    data = bytearray(path.read_bytes())
    data[begin : begin + length] = os.urandom(min(length, len(data) - begin))
    path.write_bytes(data)
    with capture_logs() as lines:
        ledger = opened(path)
        for _ in range(2):
            with suppress(LedgerRemade):
                ledger.add([*FIRST, *SECOND])
        assert (count(ledger), ledger.path) == (9, path)
    assert [line["event"] for line in lines] == ["ledger.made_anew"]


def test_a_ledger_in_memory_that_is_emptied_removes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "None").touch()
    ledger = opened(None)
    ledger.add(FIRST)
    ledger.empty("its topics end earlier")
    assert (count(ledger), ledger.positions) == (0, {})
    assert (tmp_path / "None").exists()


def test_a_query_that_is_wrong_is_no_damage_and_a_server_that_is_away_loses_no_record(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = opened(path)
    with pytest.raises(sqlite3.OperationalError, match="no such column"):
        ledger.query("SELECT odd FROM outcome")
    monkeypatch.setattr(Rows, "add_outcome", lambda *_: (_ for _ in ()).throw(KafkaAway("it is away")))
    with pytest.raises(KafkaAway):
        ledger.add(SECOND)
    monkeypatch.undo()
    ledger.add(SECOND)
    assert count(ledger) == 9


def test_a_ledger_whose_file_cannot_be_written_is_kept_in_memory(path: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for refused in (tmp_path / "file" / "ledger.sqlite", tmp_path):
        ledger = opened(refused)
        ledger.add(FIRST)
        assert (count(ledger), ledger.path) == (5, None)
    ledger = opened(path)
    ledger.query("PRAGMA max_page_count = 1")
    many = [replace(outcome(offset), headers=[]) for offset in range(5, 2000)]
    with pytest.raises(LedgerRemade, match="full"):
        ledger.add(many)
    ledger.add([*FIRST, *many])
    assert (count(ledger), ledger.path) == (2000, None)
    assert count(opened(path)) == 5, "the file is as it was"


def made_up(rng: random.Random, offset: int) -> Message:
    """A record that concludes, doubles, sends back or replays one of a few numbers."""
    number, use, variant = rng.randrange(40), rng.choice((0, 0, 0, 1)), rng.choice(("", "", "free"))
    owner = "solver.free" if variant else "solver"
    kind, record, topic = rng.randrange(4), None, ""
    if kind == 0:
        verdict, component = rng.choice(("kept", "dropped", "expired")), rng.choice(("curate", "train"))
        level, reason = rng.choice(("group", "group", "trajectory")), rng.choice(("", "stale", "long"))
        record = Outcome("r", "sums", number, use, "solver", level, "", verdict, reason, component)
        topic = TOPICS.outcomes(owner)
    elif kind == 1:
        groups = tuple(GroupUse("sums", rng.randrange(40), use) for _ in range(rng.randrange(3)))
        evictions = (Eviction(GroupUse("sums", number), "expired"),)
        record = BatchTrained("r", "solver", variant, version=offset, groups=groups, evictions=evictions)
        topic = TOPICS.batches(owner)
    else:
        about = rng.choice((TOPICS.tasks("sums"), TOPICS.trajectories("solver"), TOPICS.curated("solver")))
        reason = rng.choice(("poison", "poison", "redriven"))
        record = DeadLetter("r", "c", about, 0, offset, reason, policy=rng.choice(("", "solver")), stream="sums")
        record = replace(record, number=rng.choice((number, number, -1)), use=use, redrives=rng.randrange(40))
        topic = TOPICS.dead_letters
    return Message(topic, 0, offset, b"", codec.encode(record))


@pytest.mark.parametrize("seed", range(12))
def test_the_counts_of_numbers_are_those_of_the_audit(seed: int) -> None:
    rng, ledger, fold = random.Random(seed), opened(None), AuditFold("r", RECIPE)  # noqa: S311
    for offset in range(120):
        message = made_up(rng, offset)
        ledger.add([message])
        fold.fold_message(message)
        if offset % 30 == 29:
            fold.account.issued = {"sums": 35}
            found = count_policies(ledger, Issued({"sums": 35}))
            expected = {**fold.account.policies(drained=False), **fold.account.shadows()}
            for variant, counts in expected.items():
                assert found[variant] == replace(counts, produced=0, duplicates=0), (variant, offset)
