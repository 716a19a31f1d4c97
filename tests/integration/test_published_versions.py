"""A curator's clock goes by published versions: groups that name others are dead, now and whenever they are curated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_run import make_run, tiny_recipe
from said import say
from test_archive import curate_live, delete_topics
from test_archive import played as played_at_zero

from headrace.infra.kafka.clients import Outgoing
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import ObjectStore
from headrace.ops.offline.archiver import archive
from headrace.ops.offline.offline_curator import curate_offline
from headrace.ops.offline.replayer import replay
from headrace.ops.plain_json import plain
from headrace.schemas import codec
from headrace.schemas.field_types import Int32s
from headrace.schemas.headers import Stamp
from headrace.schemas.records import DeadLetter, Outcome, TrajectoryGroup, WeightsPublished

FAR = 904


def begun(bootstrap: str, store: ObjectStore, name: str, *, asks: bool = True) -> Run:
    where = {"endpoint": store.address.endpoint, "bucket": store.address.bucket, "cache_gib": 0}
    return make_run(bootstrap, store, tiny_recipe(name, store=where), asks_for_published=asks)


def announce(run: Run, *versions: int) -> None:
    topic = run.topics.weights("solver")
    events = [WeightsPublished(run_id=run.run_id, policy="solver", version=version) for version in versions]
    say(run, *(Outgoing(topic, codec.encode(event), partition=0) for event in events))


def played(run: Run, numbers: range, version: int) -> list[Outgoing]:
    """Groups of a worker that knows this version, and has played with it."""
    return [_of_version(one, version) for one in played_at_zero(run, numbers)]


def _of_version(one: Outgoing, version: int) -> Outgoing:
    group, stamp = codec.decode(one.value, TrajectoryGroup), Stamp.from_headers(one.headers)
    stamp = replace(stamp, min_version=version, max_version=version, head_version=version)
    members = [
        replace(t, sequences=tuple(replace(s, version_runs=_runs(s.version_runs, version)) for s in t.sequences))
        for t in group.trajectories
    ]
    made = replace(group, head_version=version, trajectories=tuple(members))
    return replace(one, value=codec.encode(made), headers=stamp.to_headers())


def _runs(runs: Int32s, version: int) -> Int32s:
    return np.array([*runs[:2], version, *runs[3:]], np.int32)


def verdicts(run: Run) -> dict[int, str]:
    outcomes = [codec.decode(m.value, Outcome) for m in read_all(run.connection, [run.topics.outcomes("solver")])]
    letters = [codec.decode(m.value, DeadLetter) for m in read_all(run.connection, [run.topics.dead_letters])]
    concluded: list[Outcome | DeadLetter] = [*outcomes, *letters]
    return {one.number: one.reason or one.verdict for one in concluded}


def poisoned(run: Run) -> None:
    """Groups of version 4, then one on each partition of a version far ahead, then more of version 4."""
    announce(run, *range(5))
    say(run, *played(run, range(8), 4), *played(run, range(8, 12), FAR), *played(run, range(12, 40), 4))


@pytest.mark.curation
def test_groups_of_unpublished_versions_are_dead_and_those_after_them_are_trained_on_live_archived_and_replayed(
    bootstrap: str, store: ObjectStore, run_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_S3_ACCESS_KEY", store.address.access_key)
    monkeypatch.setenv("HEADRACE_S3_SECRET_KEY", store.address.secret_key)
    run = begun(bootstrap, store, run_name)
    poisoned(run)
    live = curate_live(run)
    found = verdicts(run)
    assert {number for number, verdict in found.items() if verdict == "time_travel"} == set(range(8, 12))
    assert set(found.values()) == {"kept", "zero_variance", "time_travel"}, "nothing is stale"

    announce(run, FAR)
    say(run, *played(run, range(40, 44), FAR), *played(run, range(44, 48), FAR))
    live = curate_live(run)
    assert {verdicts(run)[number] for number in range(40, 48)} == {"kept", "zero_variance"}

    archive(run, tmp_path / "a")
    offline = plain(curate_offline(tmp_path / "a", None, None, tmp_path / "curated"))
    assert offline["sha256"] == live["sha256"], "what was refused then is refused, though it is published by now"
    assert offline["dead"] == {"time_travel": 4}
    delete_topics(run)
    replay(tmp_path / "a", str(run.address), None, ["trajectories.solver"])
    assert curate_live(run) == live


@pytest.mark.curation
def test_a_run_that_began_before_the_rule_keeps_its_clock(bootstrap: str, store: ObjectStore, run_name: str) -> None:
    run = begun(bootstrap, store, run_name, asks=False)
    poisoned(run)
    curate_live(run)
    found = verdicts(run)
    assert "time_travel" not in found.values()
    assert {found[number] for number in range(12, 40)} <= {"stale", "zero_variance"}
