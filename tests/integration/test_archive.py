"""A run into an archive and back, on a real broker and store: each record once, and the same curated bytes each way."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from made_records import played, tasks
from made_run import make_run, tiny_recipe
from patience import PATIENCE_S
from said import say
from test_redrive import curating

from headrace.infra.archive.reading import Archive
from headrace.infra.errors import UsageError
from headrace.infra.kafka import topic_reader
from headrace.infra.kafka.clients import Message, Outgoing, get_admin, translate_kafka_errors
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import ObjectStore
from headrace.ops.audit.report import report
from headrace.ops.offline import archiver
from headrace.ops.offline.archiver import archive
from headrace.ops.offline.offline_curator import curate_offline
from headrace.ops.offline.replayer import replay
from headrace.ops.plain_json import plain
from headrace.schemas import codec
from headrace.schemas.headers import Stamp
from headrace.schemas.records import TrajectoryGroup, WeightsPublished

GROUPS = 60
LARGE, LOST = 61, 62
"""Numbers of a group behind a claim check, and of one whose object is not in the store."""


@pytest.fixture
def run(bootstrap: str, store: ObjectStore, run_name: str) -> Run:
    # A store that the recipe names: a replay into another cluster finds it.
    where = {"endpoint": store.address.endpoint, "bucket": store.address.bucket, "cache_gib": 0}
    return make_run(bootstrap, store, tiny_recipe(run_name, store=where))


@pytest.fixture
def keys(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_S3_ACCESS_KEY", store.address.access_key)
    monkeypatch.setenv("HEADRACE_S3_SECRET_KEY", store.address.secret_key)


def behind_claims(run: Run) -> list[Outgoing]:
    [whole, lost] = played(run, [LARGE, LOST])
    claim = run.put(whole.value, "groups")
    held = TrajectoryGroup(run.run_id, "sums", LARGE, policy="solver", claim=claim)
    gone = replace(held, number=LOST, claim=replace(claim, key=f"{claim.key}0"))
    return [replace(whole, value=codec.encode(held)), replace(lost, value=codec.encode(gone))]


def roll_out(run: Run, numbers: range) -> None:
    """What workers leave: groups, one of them twice, an aborted one, and bytes that are no group."""
    say(run, *tasks(run, numbers), *played(run, numbers), *played(run, [numbers[0]], attempt=1))
    stamp = Stamp(run.run_id, "sums", numbers[-1] + 1000, policy="solver")
    junk = Outgoing(run.topics.trajectories("solver"), b"junk", stamp.key, stamp.to_headers(), (numbers[-1] + 1000) % 4)
    with closing(TransactionalWriter(run.connection, f"{run.address.run}.test")) as writer:
        writer.begin()
        writer.produce(played(run, [5000]))
        writer.flush()
        writer.abort()
        writer.begin()
        writer.produce([junk])
        writer.commit()


def curate_live(run: Run) -> dict[str, Any]:
    """Curate all that there is; return what the audit says of it."""
    wanted = sum(1 for m in read_all(run.connection, [run.topics.trajectories("solver")])) - 1  # one came twice
    end = time.monotonic() + PATIENCE_S
    with curating(run):
        while concluded(run) < wanted:
            assert time.monotonic() < end, "not all is curated in time"
            time.sleep(0.2)
    found: dict[str, Any] = plain(report(run, use_store=False))["curated"]["solver"]
    return found


def concluded(run: Run) -> int:
    return sum(1 for _ in read_all(run.connection, [run.topics.outcomes("solver"), run.topics.dead_letters]))


def there(run: Run, *topics: str) -> dict[tuple[str, int], list[Message]]:
    found: dict[tuple[str, int], list[Message]] = {}
    for message in read_all(run.connection, topics):
        found.setdefault((message.topic, message.partition), []).append(message)
    return found


def archived(root: Path | str, *topics: str) -> dict[tuple[str, int], list[Message]]:
    found = Archive(root)
    read = {
        partition_id: list(found.messages(partition_id)) for topic in topics for partition_id in found.partitions(topic)
    }
    return {partition_id: messages for partition_id, messages in read.items() if messages}


def without_offsets(found: dict[tuple[str, int], list[Message]]) -> dict[tuple[str, int], list[Message]]:
    return {partition_id: [replace(one, offset=0) for one in messages] for partition_id, messages in found.items()}


def delete_topics(run: Run) -> None:
    """As good as another cluster: what is replayed meets none of the run's topics."""
    admin = get_admin(run.connection)
    names = [name for name in admin.list_topics(timeout=60).topics if name.startswith(f"{run.address.run}.")]
    for name, future in admin.delete_topics(names).items():
        with translate_kafka_errors(f"deleting topic {name}"):
            future.result()
    end = time.monotonic() + PATIENCE_S
    while set(names) & admin.list_topics(timeout=60).topics.keys():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_live_archived_and_replayed_runs_give_the_same_curated_bytes(run: Run, keys: None, tmp_path: Path) -> None:
    roll_out(run, range(GROUPS))
    say(run, *behind_claims(run))
    live = curate_live(run)
    assert live["n"] > 20

    done = plain(archive(run, tmp_path / "a"))
    offline = plain(curate_offline(tmp_path / "a", None, None, tmp_path / "curated"))

    assert (offline["kept"], offline["again"], offline["sha256"]) == (live["n"], live["again"], live["sha256"])
    assert offline["read"] == GROUPS + 4
    assert offline["repeated"] == 1
    assert offline["dead"] == {"missing_object": 1, "undecodable": 1}
    assert offline["kept"] + sum(offline["dropped"].values()) + 3 == offline["read"]
    assert done["objects"]["count"] == 1
    assert len(done["objects"]["missing"]) == 1

    by_partition = there(run, run.topics.curated("solver"))
    values = [one.value for _, messages in sorted(by_partition.items()) for one in messages]
    assert hashlib.sha256(b"".join(values)).hexdigest() == live["sha256"]
    curated = archived(tmp_path / "curated", run.topics.curated("solver"))
    for partition_id, messages in by_partition.items():
        assert [(m.key, m.value, m.headers) for m in curated[partition_id]] == [
            (m.key, m.value, m.headers) for m in messages
        ]
    assert Archive(tmp_path / "curated").manifest.objects == Archive(tmp_path / "a").manifest.objects

    delete_topics(run)
    replay(tmp_path / "a", str(run.address), None, ["trajectories.solver"])
    assert curate_live(run) == live


@pytest.mark.tools
def test_weights_are_copied_with_the_records_that_name_them_unless_they_are_large_or_not_wanted(
    run: Run, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = run.put(b"weights", "weights")
    event = WeightsPublished(run_id=run.run_id, policy="solver", version=0, weights=weights)
    say(run, Outgoing(run.topics.weights("solver"), codec.encode(event), partition=0))

    without = plain(archive(run, tmp_path / "plain", with_weights=False))
    whole = plain(archive(run, tmp_path / "whole"))

    assert (without["objects"]["count"], whole["objects"]["count"]) == (0, 1)
    assert ("state" in without["topics"], "state" in whole["topics"]) == (False, True)
    assert Archive(tmp_path / "whole").get(weights) == b"weights"
    mended = plain(archive(run, tmp_path / "plain", with_weights=True))
    assert (mended["objects"]["new"], mended["objects"]["missing"], "state" in mended["topics"]) == (1, {}, True)
    assert Archive(tmp_path / "plain").get(weights) == b"weights"
    with pytest.raises(UsageError, match="holds weights: leave out --without-weights"):
        archive(run, tmp_path / "plain", with_weights=False)
    monkeypatch.setattr("headrace.ops.offline.archiver.WHOLE_BELOW_BYTES", 1)
    with pytest.raises(UsageError, match=r"are 0\.0 GB: give --with-weights"):
        archive(run, tmp_path / "large")
    asked = plain(archive(run, tmp_path / "large", ask=lambda size_bytes: size_bytes == len(b"weights")))
    assert asked["objects"]["count"] == 1
    more = run.put(b"more", "weights")
    say(run, Outgoing(run.topics.weights("solver"), codec.encode(replace(event, weights=more)), partition=0))
    assert plain(archive(run, tmp_path / "whole"))["objects"]["new"] == 1


@pytest.mark.tools
def test_what_was_deleted_before_it_was_archived_is_told(run: Run, tmp_path: Path) -> None:
    roll_out(run, range(GROUPS))
    admin = get_admin(run.connection)
    cut = admin.delete_records([TopicPartition(run.topics.tasks("sums"), 2, 4)])
    for future in cut.values():
        future.result()

    done = plain(archive(run, tmp_path))

    assert done["gone"] == [{"topic": "tasks.sums", "partition": 2, "begin": 0, "end": 4}]
    assert plain(archive(run, tmp_path))["gone"] == []


@pytest.mark.tools
def test_a_topic_that_is_not_there_and_one_that_was_made_anew_are_refused(run: Run, keys: None, tmp_path: Path) -> None:
    roll_out(run, range(GROUPS))
    with pytest.raises(UsageError, match=r"no topic .*\.trajectories\.other: choose from .*trajectories\.solver"):
        archive(run, tmp_path / "a", ["trajectories.other"])
    archive(run, tmp_path / "a")
    archive(run, tmp_path / "other", ["recipe"])
    before = archived(tmp_path / "a", run.topics.trajectories("solver"))
    delete_topics(run)
    replay(tmp_path / "other", str(run.address), None)

    roll_out(run, range(2 * GROUPS))  # beyond what was archived

    with pytest.raises(UsageError, match="Its records cannot be added to this archive"):
        archive(run, tmp_path / "a")
    assert archived(tmp_path / "a", run.topics.trajectories("solver")) == before


# --------------------------------------------------------------------------------------------------------------- replay


KILLED = """
import sys
from pathlib import Path
from headrace.ops.offline import replayer
replayer.MOST_REPLAYED_RECORDS = 10
replayer.replay(Path(sys.argv[1]), sys.argv[2], None)
"""


@pytest.mark.tools
@pytest.mark.parametrize("point", ["replay.produced", "replay.committing 3", "replay.committed 2"])
def test_a_killed_replay_goes_on_where_it_stopped(run: Run, keys: None, tmp_path: Path, point: str) -> None:
    roll_out(run, range(GROUPS))
    archive(run, tmp_path / "a")
    names = [run.topics.trajectories("solver"), run.topics.tasks("sums"), run.topics.recipe]
    before = there(run, *names)
    delete_topics(run)
    (tmp_path / "points").mkdir()
    name, _, count = point.partition(" ")
    (tmp_path / "points" / name).write_text(f"kill {count}")
    environment = {**os.environ, "HEADRACE_FAILPOINTS": str(tmp_path / "points")}

    killed = [sys.executable, "-c", KILLED, str(tmp_path / "a"), str(run.address)]
    assert subprocess.run(killed, env=environment, check=False, timeout=120).returncode == -signal.SIGKILL
    replay(tmp_path / "a", str(run.address), None)

    assert without_offsets(there(run, *names)) == without_offsets(before)


@pytest.mark.tools
def test_a_replay_refuses_topics_that_hold_anything_else(run: Run, keys: None, tmp_path: Path) -> None:
    roll_out(run, range(GROUPS))
    archive(run, tmp_path, ["trajectories.solver"])
    delete_topics(run)
    replay(tmp_path, str(run.address), None)
    say(run, *played(run, [3]))

    with pytest.raises(UsageError, match="differs from the archive: replay"):
        replay(tmp_path, str(run.address), None)
    with pytest.raises(UsageError, match=f"a replay keeps the name of its run, {run.address.run}"):
        replay(tmp_path, "kafka://127.0.0.1:1/other", None)
    with pytest.raises(UsageError, match="has no topic"):
        replay(tmp_path, str(run.address), None, ["tasks.sums"])


# --------------------------------------------------------------------------------------------------------- command line


def headrace(*words: str | Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "headrace", *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.tools
def test_a_false_end_does_not_make_a_topic_look_empty_to_the_archiver(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that has just started was seen to give one."""
    say(run, *played(run, range(3)))
    for module in (archiver, topic_reader):
        monkeypatch.setattr(module, "fetch_end_offsets", lambda _, partition_ids: dict.fromkeys(partition_ids, 0))

    done = archive(run, tmp_path / "a", ["trajectories.solver"])

    assert done.topics["trajectories.solver"].records == 3
