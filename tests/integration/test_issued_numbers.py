"""Groups of numbers that were never issued conclude nothing, now and whenever they are curated."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from made_records import played
from made_records import tasks as tasks_without_headers
from made_run import make_run, tiny_recipe
from said import say
from test_archive import curate_live, delete_topics

from headrace.consumers.curate.issued_numbers import IssuedNumbers
from headrace.infra.kafka.clients import Outgoing
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import ObjectStore
from headrace.ops.offline.archiver import archive
from headrace.ops.offline.offline_curator import curate_offline
from headrace.ops.offline.replayer import replay
from headrace.ops.plain_json import plain
from headrace.schemas import codec
from headrace.schemas.headers import Stamp, task_key, task_stamp
from headrace.schemas.records import DeadLetter, Outcome, Snapshot, Task, TrajectoryGroup

FAR = 50_000


def begun(bootstrap: str, store: ObjectStore, name: str, *, asks: bool = True) -> Run:
    where = {"endpoint": store.address.endpoint, "bucket": store.address.bucket, "cache_gib": 0}
    return make_run(bootstrap, store, tiny_recipe(name, store=where), asks_for_issued=asks)


def tasks(run: Run, numbers: Iterable[int]) -> list[Outgoing]:
    """Tasks as a feeder issues them."""
    found = []
    for one in tasks_without_headers(run, numbers):
        task = codec.decode(one.value, Task)
        found.append(replace(one, key=task_key("sums", task.number), headers=task_stamp(task).to_headers()))
    return found


def snapshot(run: Run, numbers: dict[str, int]) -> Outgoing:
    """What a feeder writes beside the tasks: the next number of every stream."""
    record = Snapshot(run_id=run.run_id, component="feed", body=json.dumps({"next": numbers}).encode())
    return Outgoing(run.topics.state, codec.encode(record), b"feed", partition=0)


def issue(run: Run, begin: int, end: int) -> None:
    """Issue numbers up to `end`, in one transaction, as a feeder does."""
    with closing(TransactionalWriter(run.connection, f"{run.address.run}.feed")) as writer:
        writer.begin()
        writer.produce([*tasks(run, range(begin, end)), snapshot(run, {"sums": end})])
        writer.commit()
    assert len(list(read_all(run.connection, [run.topics.tasks("sums")]))) == end, "workers see them"


def of_stream(stream: str, outgoing: Iterable[Outgoing]) -> list[Outgoing]:
    """The same groups as if they were of another stream."""
    found = []
    for one in outgoing:
        group, stamp = codec.decode(one.value, TrajectoryGroup), Stamp.from_headers(one.headers)
        stamp = replace(stamp, stream=stream)
        value = codec.encode(replace(group, stream=stream))
        found.append(replace(one, value=value, key=stamp.key, headers=stamp.to_headers()))
    return found


def verdicts(run: Run) -> dict[tuple[str, int], str]:
    outcomes = [codec.decode(m.value, Outcome) for m in read_all(run.connection, [run.topics.outcomes("solver")])]
    return {(one.stream, one.number): one.reason or one.verdict for one in outcomes}


def letters(run: Run) -> list[DeadLetter]:
    return [codec.decode(m.value, DeadLetter) for m in read_all(run.connection, [run.topics.dead_letters])]


def test_groups_of_numbers_that_were_never_issued_conclude_nothing_live_archived_and_replayed(
    bootstrap: str, store: ObjectStore, run_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_S3_ACCESS_KEY", store.address.access_key)
    monkeypatch.setenv("HEADRACE_S3_SECRET_KEY", store.address.secret_key)
    run = begun(bootstrap, store, run_name)
    issue(run, 0, 40)
    forged = [*of_stream("nosuch", played(run, range(4))), *played(run, [FAR, 41, 42])]
    say(run, *played(run, range(8)), *forged, *played(run, range(8, 40)))
    curate_live(run)
    assert [(one.reason, one.number, one.stream) for one in letters(run)] == [("not_issued", -1, "")] * 7
    assert verdicts(run).keys() == {("sums", number) for number in range(40)}

    issue(run, 40, 44)
    say(run, *played(run, range(40, 45)))
    live = curate_live(run)
    assert verdicts(run).keys() == {("sums", number) for number in range(44)}, "what was forged before is no repetition"

    archive(run, tmp_path / "a")
    offline = plain(curate_offline(tmp_path / "a", None, None, tmp_path / "curated"))
    assert offline["sha256"] == live["sha256"], "what was refused then is refused, though it is issued by now"
    assert offline["dead"] == {"not_issued": 8}
    delete_topics(run)
    replay(tmp_path / "a", str(run.address), None, ["trajectories.solver"])
    assert curate_live(run) == live


@pytest.mark.curation
def test_a_number_whose_transaction_is_open_when_the_curator_begins_counts_once_it_is_committed(
    bootstrap: str, store: ObjectStore, run_name: str
) -> None:
    run = begun(bootstrap, store, run_name)
    issue(run, 0, 3)
    feeder = TransactionalWriter(run.connection, f"{run.address.run}.feed")
    feeder.begin()
    feeder.produce(tasks(run, range(3, 6)))
    feeder.flush()
    with closing(IssuedNumbers(run)) as issued:
        assert issued.has_number("sums", 2)
        feeder.produce([snapshot(run, {"sums": 6})])
        feeder.commit()
        assert len(list(read_all(run.connection, [run.topics.tasks("sums")]))) == 6, "workers see them"
        assert issued.has_number("sums", 5)
    feeder.close()
