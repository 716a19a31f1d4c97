"""An archive below a prefix of a real object store: the same records, whoever is killed and whoever else writes."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from made_records import played, tasks
from made_run import make_run, tiny_recipe
from said import say
from test_archive import archived, behind_claims, delete_topics, headrace, roll_out, there, without_offsets

from headrace.infra.archive import locations
from headrace.infra.archive.locations import MOST_MANIFESTS, ArchiveBusy, InStore, location_of
from headrace.infra.archive.reading import Archive, is_archive
from headrace.infra.archive.writing import ArchiveWriter
from headrace.infra.errors import UsageError
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import ObjectStore
from headrace.ops.offline.archiver import archive
from headrace.ops.offline.offline_curator import curate_offline
from headrace.ops.offline.replayer import replay
from headrace.ops.plain_json import plain

GROUPS = 24


@pytest.fixture
def run(bootstrap: str, store: ObjectStore, run_name: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run on a store that its recipe names, as archives in it are named."""
    address = store.address
    for name, value in {"ACCESS_KEY": address.access_key, "SECRET_KEY": address.secret_key}.items():
        monkeypatch.setenv(f"HEADRACE_S3_{name}", value)
    monkeypatch.setenv("HEADRACE_S3_ENDPOINT", f"{'https' if address.secure else 'http'}://{address.endpoint}")
    where = {"endpoint": address.endpoint, "bucket": address.bucket, "secure": address.secure, "cache_gib": 0}
    return make_run(bootstrap, store, tiny_recipe(run_name, store=where))


@pytest.fixture
def location(run: Run) -> str:
    return f"s3://{run.store_address.bucket}/archives/{run.address.run}"


def keys(location: str) -> list[str]:
    """Names below the archive's prefix, but the probe that tells whether a bucket can be used."""
    location = location_of(location)
    assert isinstance(location, InStore)
    names = (one.key.removeprefix(location.address.prefix) for one in location._store.list_objects())
    return sorted(name for name in names if not name.startswith("probe/"))


def names(run: Run) -> list[str]:
    return [run.topics.trajectories("solver"), run.topics.tasks("sums"), run.topics.recipe]


def test_an_archive_in_a_store_is_the_one_in_a_folder_and_all_read_it(run: Run, location: str, tmp_path: Path) -> None:
    roll_out(run, range(GROUPS))
    say(run, *behind_claims(run))

    in_folder, in_store = plain(archive(run, tmp_path / "a")), plain(archive(run, location))

    assert archived(location, *names(run)) == archived(tmp_path / "a", *names(run)) == there(run, *names(run))
    assert in_store["topics"] == in_folder["topics"]
    assert in_store["objects"]["count"] == in_folder["objects"]["count"] == 1
    files = {name for name in keys(location) if not name.startswith("manifests/")}
    ours = (path.relative_to(tmp_path / "a").as_posix() for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert files == {name for name in ours if name.startswith(("topics/", "objects/"))}

    roll_out(run, range(GROUPS, 2 * GROUPS))
    second, third = plain(archive(run, location)), plain(archive(run, location))
    assert second["topics"]["trajectories.solver"]["new_records"] == GROUPS + 2
    assert {topic["new_records"] for topic in third["topics"].values()} == {0}
    assert archived(location, *names(run)) == there(run, *names(run))

    archive(run, tmp_path / "a")
    of_folder = plain(curate_offline(tmp_path / "a", None, None, tmp_path / "x"))
    of_store = plain(curate_offline(location, None, None, tmp_path / "y"))
    assert of_store["sha256"] == of_folder["sha256"]

    before = there(run, *names(run))
    delete_topics(run)
    assert plain(replay(location, str(run.address), None))["objects"] == 1
    assert without_offsets(there(run, *names(run))) == without_offsets(before)


KILLED = """
import sys
from headrace.infra.archive import writing
writing.FILE_BYTES = 2_000
from headrace.ops.offline.archiver import archive
from headrace.infra.kafka.run_address import parse_run
from headrace.infra.run.run import join
archive(join(parse_run(sys.argv[1])), sys.argv[2])
"""


@pytest.mark.tools
@pytest.mark.parametrize("point", ["archive.object 1", "archive.cut 2", "archive.manifest 2", "archive.saved 1"])
def test_a_killed_writer_leaves_what_the_next_one_completes(
    run: Run, location: str, tmp_path: Path, point: str
) -> None:
    roll_out(run, range(GROUPS))
    say(run, *behind_claims(run))
    (tmp_path / "points").mkdir()
    name, _, count = point.partition(" ")
    (tmp_path / "points" / name).write_text(f"kill {count}")
    environment = {**os.environ, "HEADRACE_FAILPOINTS": str(tmp_path / "points")}

    line = [sys.executable, "-c", KILLED, str(run.address), location]
    killed = subprocess.run(line, env=environment, check=False, timeout=120, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    archive(run, location)

    assert archived(location, *names(run)) == there(run, *names(run))
    assert Archive(location).manifest.objects.keys()


@pytest.mark.tools
def test_of_two_writers_at_once_one_is_told_and_nothing_is_mixed(run: Run, location: str) -> None:
    roll_out(run, range(GROUPS))

    def writer() -> ArchiveWriter:
        found = ArchiveWriter(location_of(location), run.address.run, run.run_id, lambda *_: None, lambda *_: [])
        found.add_topic(topic, run.recipe.kafka.partitions, {})
        return found

    topic = run.topics.tasks("sums")
    whole = there(run, topic)
    with writer() as one, writer() as other:
        for number, messages in enumerate(whole.values()):
            for message in messages:
                one.write(message)
                if number == 0:
                    other.write(message)
        one.save()
        with pytest.raises(ArchiveBusy, match="another process has archived into"):
            other.save()
        assert archived(location, topic) == whole

    with writer() as last:
        assert [last.next_offset(location) for location in whole] == [
            messages[-1].offset + 1 for messages in whole.values()
        ]


@pytest.mark.tools
@pytest.mark.parametrize("later_name", ["ours", "theirs"])
def test_who_puts_a_manifest_beside_another_of_its_number_takes_it_back_and_is_told(
    run: Run, location: str, monkeypatch: pytest.MonkeyPatch, later_name: str
) -> None:
    """Both looked before either put: the other may have ended as the newest there was, and its records must count."""
    first, second = location_of(location), location_of(location)
    assert isinstance(first, InStore)
    assert isinstance(second, InStore)
    low, high = sorted((b"one", b"another"), key=lambda data: hashlib.sha256(data).hexdigest())
    ours, theirs = (high, low) if later_name == "ours" else (low, high)
    monkeypatch.setattr(locations, "reach", lambda _: second._store.put_named(_named(second, theirs), theirs))
    with pytest.raises(ArchiveBusy):
        first.replace_manifest(ours)
    assert location_of(location).read_manifest() == theirs


def _named(location: InStore, data: bytes) -> locations.StoredObject:
    sha256 = hashlib.sha256(data).hexdigest()
    key = f"{location.address.prefix}manifests/{1:010}-{sha256}.json"
    return locations.StoredObject(key, sha256, len(data))


@pytest.mark.tools
def test_old_manifests_go_and_so_does_what_a_killed_writer_left_long_ago(
    run: Run, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        say(run, *tasks(run, [number]))
        archive(run, location)
    assert len([name for name in keys(location) if name.startswith("manifests/")]) == MOST_MANIFESTS

    location = location_of(location)
    assert isinstance(location, InStore)
    left = f"topics/{run.topics.tasks('sums')}/0/{7:020}-{8:020}-{'0' * 16}.avro"
    location._store.put_named(locations.StoredObject(f"{location.address.prefix}{left}", "", 4), b"left")
    archive(run, location)
    assert left in keys(location), "somebody may be writing it"
    monkeypatch.setattr(locations, "SPARED_BY_GC", timedelta(0))
    archive(run, location)
    assert left not in keys(location)
    assert archived(location, *names(run)) == there(run, *names(run))


@pytest.mark.tools
def test_an_address_needs_its_endpoint_and_a_copy_in_a_folder_is_read_as_well(
    run: Run, location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(run, *tasks(run, range(5)), *played(run, range(5)))
    done = headrace("archive", "--run", str(run.address), "--out", f"store:archives/{run.address.run}")
    assert done.returncode == 0, done.stderr
    found = location_of(location)
    assert isinstance(found, InStore)
    for name in keys(found):
        path = tmp_path / "copy" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with found._store._bucket.open_object(f"{found.address.prefix}{name}", 0, 0) as response:
            path.write_bytes(response.read())
    assert archived(tmp_path / "copy", *names(run)) == there(run, *names(run))
    assert is_archive(str(tmp_path / "copy"))

    monkeypatch.delenv("HEADRACE_S3_ENDPOINT")
    with pytest.raises(UsageError, match="set HEADRACE_S3_ENDPOINT"):
        Archive(location)
    with pytest.raises(UsageError, match="means the store of the run, but this command names no run"):
        Archive("store:archives")
