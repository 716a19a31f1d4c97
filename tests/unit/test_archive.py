"""Archives without a broker: what a file holds, who reads it, what a killed writer leaves, what a changed byte does."""

from __future__ import annotations

import errno
import hashlib
import io
import itertools
import json
import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import fastavro
import pytest
from made_groups import group as small_group

from headrace.infra.archive import writing
from headrace.infra.archive.locations import ArchiveBusy, InFolder, InStore
from headrace.infra.archive.manifest import ArchiveCorrupt, read_manifest
from headrace.infra.archive.reading import Archive
from headrace.infra.archive.writing import ArchiveWriter
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Message
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import ObjectCorrupt, ObjectMissing, StoreAddress
from headrace.ops.offline import archiver
from headrace.schemas import codec
from headrace.schemas.avro import Plain
from headrace.schemas.headers import Stamp
from headrace.schemas.records import ClaimCheck, Snapshot, Task, TrajectoryGroup

TOPIC = "t.trajectories.solver"
PARTITION_ID = (TOPIC, 0)
OBJECT = b"what lies behind a claim check"
CLAIM = ClaimCheck("main", "run-1/groups/" + hashlib.sha256(OBJECT).hexdigest(), hashlib.sha256(OBJECT).hexdigest(), 30)


def group(number: int, claim: ClaimCheck | None = None) -> TrajectoryGroup:
    made = small_group([0.0, 1.0], [38, 38], number=number)
    return replace(made, run_id="run-1", claim=claim)


def message(offset: int, value: bytes | None = None, **more: object) -> Message:
    stamp = Stamp("run-1", "sums", offset, policy="solver")
    made = Message(TOPIC, 0, offset, stamp.key, value or codec.encode(group(offset)), stamp.to_headers(), 1000 + offset)
    return replace(made, **more)  # type: ignore[arg-type]


def claims_of_group(name: str, fields: Plain) -> list[ClaimCheck]:
    return [ClaimCheck(**fields["claim"])] if fields.get("claim") else []


def fetch(claim: ClaimCheck, path: Path) -> None:
    if claim.key != CLAIM.key:
        raise ObjectMissing("there is none")
    path.write_bytes(OBJECT)


def writer(root: Path, run_id: str = "run-1") -> ArchiveWriter:
    made = ArchiveWriter(root, "t", run_id, fetch, claims_of_group)
    made.add_topic(TOPIC, 2, {"retention.ms": "-1"})
    return made


def archive(root: Path, messages: list[Message], end: int | None = None) -> Archive:
    with writer(root) as made:
        for one in messages:
            if one.offset >= made.next_offset((one.topic, one.partition)):
                made.write(one)
        made.save({} if end is None else {PARTITION_ID: end})
    return Archive(root)


def files_of(root: Path) -> list[Path]:
    return sorted((root / "topics").rglob("*.avro"))


ODD = {
    "no message at all": b"not Avro",
    "empty": b"",
    "a schema nobody knows": codec.AVRO_MAGIC + b"12345678" + b"body",
    "cut short": codec.encode(group(1))[:-3],
    "with bytes behind it": codec.encode(group(1)) + b"more",
}


def odd_messages() -> list[Message]:
    made = [message(offset, value) for offset, value in enumerate(ODD.values(), 10)]
    made[1] = replace(made[1], value=b"")
    return [*made, message(20, value=b"", is_null=True), message(21, key=b"", headers=[]), message(22, timestamp_ms=0)]


def test_every_message_comes_back_as_it_was(tmp_path: Path) -> None:
    there = [*(message(offset) for offset in range(5)), *odd_messages()]
    there[-3] = replace(there[-3], value=b"")

    found, other = (archive(tmp_path / name, there) for name in ("one", "other"))

    assert list(found.messages(PARTITION_ID)) == there
    assert list(found.messages((TOPIC, 1))) == []
    assert found.manifest == other.manifest, "the same records make the same files"


def test_a_body_that_a_writer_could_have_encoded_otherwise_keeps_its_bytes(tmp_path: Path) -> None:
    """Avro lets an array be cut into blocks as one likes: here one block of two becomes a block with its size."""
    task = Task(run_id="run-1", stream="sums", number=3)
    plain = codec.encode(task)
    # A long may be padded with zero groups: 3 is 06, and as well 86 00.
    at = plain.index(b"\x08sums\x06") + 5
    padded = plain[:at] + b"\x86\x00" + plain[at + 1 :]
    assert codec.decode(padded, Task) == task

    [found] = archive(tmp_path, [message(0, padded)]).messages(PARTITION_ID)

    assert found.value == padded
    [file] = files_of(tmp_path)
    with file.open("rb") as stream:
        [row] = fastavro.reader(stream)
    assert row["value"]["number"] == 3  # type: ignore[call-overload,index]


def test_any_avro_tool_reads_the_fields(tmp_path: Path) -> None:
    archive(tmp_path, [message(offset) for offset in range(5)])

    [file] = files_of(tmp_path)
    with file.open("rb") as stream:
        reader = fastavro.reader(stream)
        rows = list(reader)
    assert reader.metadata["avro.codec"] == "zstandard"
    assert reader.metadata["headrace.topic"] == TOPIC
    for offset, row in enumerate(rows):
        assert isinstance(row, dict)
        there = message(offset)
        assert (row["offset"], row["timestamp_ms"], row["key"]) == (offset, there.timestamp_ms, there.key)
        assert [(one["name"], one["value"]) for one in row["headers"]] == there.headers
        assert row["value"] == codec.decode_plain(there.value, TrajectoryGroup)
        assert row["length"] == len(there.value)


def test_a_file_brings_the_schema_that_its_values_need(tmp_path: Path) -> None:
    newer = json.loads(codec.schema_texts()["Task"])
    newer["fields"].append({"name": "colour", "type": "string", "default": ""})
    body = io.BytesIO()
    plain = codec.decode_plain(codec.encode(Task(number=7)), Task)
    fastavro.schemaless_writer(body, newer, {**plain, "colour": "red"})
    value = codec.AVRO_MAGIC + codec.fingerprint_of(newer) + body.getvalue()
    codec.learn({"Task": json.dumps(newer)})
    found = archive(tmp_path, [message(0, value)])
    codec._load_past_schemas().pop(codec.fingerprint_of(newer))

    [there] = found.messages(PARTITION_ID)

    assert codec.decode(there.value, Task).number == 7


def test_a_second_time_adds_only_what_is_new(tmp_path: Path) -> None:
    archive(tmp_path, [message(offset) for offset in range(5)], end=7)
    before = {file: file.read_bytes() for file in files_of(tmp_path)}
    note = files_of(tmp_path)[0].with_name("notes.txt")
    note.write_text("mine")
    with writer(tmp_path) as made:
        assert made.next_offset(PARTITION_ID) == 7
        with pytest.raises(ArchiveBusy):
            writer(tmp_path)

    found = archive(tmp_path, [message(9)], end=10)

    assert [one.offset for one in found.messages(PARTITION_ID)] == [0, 1, 2, 3, 4, 9]
    assert {file: file.read_bytes() for file in before} == before
    assert archive(tmp_path, []).manifest == found.manifest
    assert note.read_text() == "mine", "what lies beside the files stays"


def test_a_file_is_cut_when_it_is_large_or_old_and_then_belongs_to_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit, value, most in (("FILE_BYTES", 12_000, 40), ("MANIFEST_EVERY_S", -1.0, 41)):
        with monkeypatch.context() as patch, writer(tmp_path / limit) as made:
            patch.setattr(writing, limit, value)
            for offset in range(41):
                made.write(message(offset))
            whole = [one.offset for one in Archive(tmp_path / limit).messages(PARTITION_ID)]
        assert len(files_of(tmp_path / limit)) > 3
        assert whole == list(range(whole[-1] + 1)), "without a last save nothing of the last file"
        assert 20 < len(whole) <= most


# ---------------------------------------------------------------------------------------------------------------- kills


def test_an_archive_may_have_more_partitions_than_a_process_may_have_files_open(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    there = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only how many
    with ArchiveWriter(tmp_path, "t", "run-1", fetch, claims_of_group) as made:
        made.add_topic(TOPIC, 40, {})
        resource.setrlimit(resource.RLIMIT_NOFILE, (there + 20, hard))
        try:
            for partition in range(40):
                made.write(message(0, partition=partition))
            made.save()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(files_of(tmp_path)) == 40


def many() -> list[Message]:
    """Both partitions in turn, some behind a claim check, some in another schema."""
    made = []
    for offset, partition in itertools.product(range(30), range(2)):
        value = codec.encode(group(offset, CLAIM if offset == 4 else None))
        if offset % 11 == 10:
            value = codec.encode(Snapshot(component="feed", partition=offset))
        made.append(message(offset, value, partition=partition))
    return made


def assert_completed(root: Path) -> None:
    found = archive(root, many())
    for partition in range(2):
        wanted = [one for one in many() if one.partition == partition]
        assert list(found.messages((TOPIC, partition))) == wanted
    assert found.get(CLAIM) == OBJECT
    listed = {file.name for topic in found.manifest.topics.values() for one in topic.partitions for file in one.files}
    assert {str(file.relative_to(root)) for file in (root / "topics").rglob("*") if file.is_file()} == listed


class Broken(BaseException):
    """The process ends here."""


def test_at_whatever_moment_a_writer_ends_the_next_one_completes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "FILE_BYTES", 12_000)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    for last in range(1, 90, 9):
        moments = iter(range(last))

        def reach(_: str, moments: Iterator[int] = moments) -> None:
            if next(moments, None) is None:
                raise Broken

        root, made = tmp_path / str(last), writer(tmp_path / str(last))
        with monkeypatch.context() as patch, suppress(Broken):
            patch.setattr(writing, "reach", reach)
            for one in many():
                made.write(one)
            made.save()
        made.location.release()  # all that a process's end does
        assert_completed(root)


# -------------------------------------------------------------------------------------------------------------- damage


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    archive(tmp_path, [message(offset, codec.encode(group(offset, CLAIM))) for offset in range(20)])
    return tmp_path


def test_a_changed_byte_is_told_with_the_file_and_nothing_of_it_is_handed_out(whole: Path) -> None:
    [file] = files_of(whole)
    data = file.read_bytes()
    for at in (0, 5, len(data) // 3, len(data) // 2, len(data) - 1):
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(ArchiveCorrupt, match=file.name):
            next(Archive(whole).messages(PARTITION_ID))


def test_a_file_that_is_gone_or_cut_is_told_by_reader_and_writer(whole: Path) -> None:
    [file] = files_of(whole)
    for act in (lambda: file.write_bytes(file.read_bytes()[:-1]), file.unlink):
        act()
        with pytest.raises(ArchiveCorrupt, match=file.name):
            list(Archive(whole).messages(PARTITION_ID))
        with pytest.raises(ArchiveCorrupt, match=file.name):
            writer(whole)


def test_a_machine_that_cannot_open_a_file_says_nothing_about_the_archive(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_self: Path, *_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    found = Archive(whole)
    for read in (lambda: list(found.messages(PARTITION_ID)), lambda: found.get(CLAIM)):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", refuse)
            with pytest.raises(OSError, match="Too many open files"):
                read()


def test_a_full_temporary_folder_is_named_and_no_damage_of_the_archive_in_a_store(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_up(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = InStore(StoreAddress("127.0.0.1:9", "archives", "key", "secret", prefix="sums/"))
    monkeypatch.setattr(store._store, "get_to_file", fill_up)
    monkeypatch.setattr(store, "read_manifest", (whole / "manifest.json").read_bytes)
    with pytest.raises(OSError, match=r"No space left on device: '.*headrace-archive-"):
        list(Archive(store).messages(PARTITION_ID))


def test_a_changed_manifest_is_told(whole: Path) -> None:
    path = whole / "manifest.json"
    text = path.read_text()
    for old, new in (
        ('"next_offset": 20', '"next_offset": 21'),
        ('"records": 20', '"records": 19'),
        ('"sha256"', '"x"'),
    ):
        assert old in text
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(ArchiveCorrupt, match=r"manifest\.json"):
            read_manifest(InFolder(whole))


def test_a_file_that_lacks_records_is_told_even_when_its_hash_is_right(whole: Path) -> None:
    manifest = read_manifest(InFolder(whole))
    manifest.topics[TOPIC].partitions[0].files[0].records += 1
    (whole / "manifest.json").write_bytes(manifest.to_bytes())

    with pytest.raises(ArchiveCorrupt, match="has 20 records"):
        list(Archive(whole).messages(PARTITION_ID))


def test_an_object_that_changed_is_told_and_is_no_missing_one(whole: Path) -> None:
    path = whole / "objects" / CLAIM.key
    path.write_bytes(OBJECT[:-1] + b"!")
    found = Archive(whole)

    with pytest.raises(ArchiveCorrupt, match=CLAIM.sha256):
        found.get(CLAIM)
    with pytest.raises(ObjectMissing):
        found.get(replace(CLAIM, key="run-1/groups/other"))
    with pytest.raises(ObjectCorrupt):
        found.get(replace(CLAIM, sha256="0" * 64))


# ------------------------------------------------------------------------------------------------------------- objects


def test_an_object_that_cannot_be_had_is_noted_and_nothing_is_written_elsewhere(tmp_path: Path) -> None:
    for at, key in enumerate(
        ("run-1/groups/none", "../../etc/passwd", "/etc/passwd", "run-1/../../x", f"run-1/{'a' * 300}/b")
    ):
        there, root = message(0, codec.encode(group(0, replace(CLAIM, key=key)))), tmp_path / str(at)
        found = archive(root / "a" / "b", [there])
        assert list(found.messages(PARTITION_ID)) == [there]
        assert list(found.manifest.missing) == [key]
        [file] = files_of(root / "a" / "b")
        everything = {path.name for path in root.rglob("*") if path.is_file()}
        assert everything == {"archive.lock", "manifest.json", file.name}


def test_an_object_of_the_archive_that_is_gone_or_cut_is_fetched_anew(whole: Path) -> None:
    path = whole / "objects" / CLAIM.key
    for act in (lambda: path.write_bytes(OBJECT[:-1]), path.unlink):
        act()
        with writer(whole) as made:
            assert list(made.manifest.missing) == [CLAIM.key]
            made.retry_missing_objects()
            made.save()
            assert made.new_objects == 1
        assert Archive(whole).get(CLAIM) == OBJECT
        assert not Archive(whole).manifest.missing


# ------------------------------------------------------------------------------------------------------------- refusals


def test_a_writer_that_adds_weights_goes_by_the_manifest_that_it_began_with(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a store, reading the newest one would let it take the place of what another writer has added meanwhile."""
    with writer(whole) as made:
        monkeypatch.setattr(made.location, "read_manifest", pytest.fail)
        archiver._agree_on_weights(made, with_weights=True)
    monkeypatch.undo()
    assert Archive(whole).manifest.with_weights


def test_a_folder_of_another_run_or_of_other_things_is_left_alone(whole: Path, tmp_path_factory: Any) -> None:
    before = (whole / "manifest.json").read_bytes()
    with pytest.raises(UsageError, match=r"id run-1.*id run-2"):
        writer(whole, "run-2")
    assert (whole / "manifest.json").read_bytes() == before
    (other := tmp_path_factory.mktemp("other") / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match=r"thesis\.tex"):
        writer(other.parent)
    with pytest.raises(UsageError, match=r"not an archive"):
        Archive(other.parent)


def test_a_topic_of_other_partitions_or_another_id_is_another_topic(whole: Path) -> None:
    with writer(whole) as made, pytest.raises(UsageError, match="has 3 partitions instead of 2"):
        made.add_topic(TOPIC, 3, {})
    said = r"topic has id another id instead of none\. Its records cannot be added to this archive"
    with writer(whole) as made, pytest.raises(UsageError, match=said):
        made.add_topic(TOPIC, 2, {}, "another id")


# ---------------------------------------------------------------------------------------------------------- its topics


def test_topics_of_a_policy_that_a_later_revision_dropped_are_archived_too(monkeypatch: pytest.MonkeyPatch) -> None:
    two = load_recipe("arithmetic-verifier")
    one = load_recipe("arithmetic", ["name=arithmetic-verifier"])
    there = [spec.name for spec in two.topic_specs]
    monkeypatch.setattr(archiver, "list_topics", lambda _: there)
    address = SimpleNamespace(run=two.name)
    run = SimpleNamespace(revisions=(two, one), topics=two.topics, state_partitions=1, address=address, connection=None)
    chosen = {spec.name: spec for spec in archiver.choose_topics(cast("Run", run), [])}
    assert two.topics.trajectories("verifier") in chosen
    assert two.topics.state not in chosen
    assert chosen[two.topics.recipe].partitions
