"""What of boxes needs no namespace: limits, the stream of files, names, and what is refused before a box starts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.envs.sandbox import kinds, memory_group
from headrace.envs.sandbox.contract import BoxFailed, BoxUnavailable
from headrace.envs.sandbox.file_stream import (
    FILE,
    FOLDER,
    LEFT_OUT,
    BadStream,
    Entry,
    TooLarge,
    encode_entry,
    pack,
    read_entries,
    unpack,
)
from headrace.envs.sandbox.grading import grade_in_fresh_box
from headrace.envs.sandbox.hosts import read_hosts
from headrace.envs.sandbox.kinds import check_boxes, describe_boxes, make_box
from headrace.envs.sandbox.limits import Limits
from headrace.envs.sandbox.namespace_box import NamespaceBox, check_new_folder, check_path
from headrace.infra.errors import UsageError
from headrace.ops.preflight.table import examine_machine


class OwnBox:
    """Stands for a box of Docker, say."""

    def __init__(self, image: str = "") -> None:
        self.image = image


@pytest.fixture
def no_boxes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def fail(backend: str) -> None:
        raise BoxFailed(f"{backend}: Operation not permitted")

    monkeypatch.setattr(kinds, "try_backend", fail)
    kinds._probe.cache_clear()
    yield
    kinds._probe.cache_clear()


def test_limits_that_are_not_named_have_defaults_and_a_wrong_one_is_refused() -> None:
    assert Limits.from_settings({"memory_mb": 64}) == Limits(memory_mb=64)
    for given, said in (
        ({"memory": 64}, "no limit 'memory'; the limits are cpu_s, wall_s"),
        ({"wall_s": 1.5}, "wall_s of a box must be a whole number, 1 or more; got 1.5"),
        ({"processes": True}, "got True"),
        ({"memory_mb": 8}, "32 or more; got 8"),
    ):
        with pytest.raises(UsageError, match=said):
            Limits.from_settings(given)


def test_a_stream_gives_back_what_was_packed_and_no_link(tmp_path: Path) -> None:
    source = tmp_path / "in"
    (source / "a" / "b").mkdir(parents=True)
    (source / "a" / "one").write_bytes(bytes(200_000))
    (source / "a" / "link").symlink_to("one")
    (source / "loop").symlink_to(".")
    os.mkfifo(source / "pipe")

    stream = b"".join(pack(str(source), 1 << 20, 10))

    assert sorted(unpack(read_entries(stream, 10), str(tmp_path / "out"))) == ["loop", "pipe"]
    found = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*")}
    assert found == {"a", "a/b", "a/one", "a/link"}
    assert not (tmp_path / "out" / "a" / "link").is_symlink()
    for most_bytes, most_files in ((300_000, 10), (1 << 20, 3)):
        with pytest.raises(TooLarge):
            list(pack(str(source), most_bytes, most_files))


def test_a_name_that_leads_elsewhere_is_refused() -> None:
    for kind in (FILE, FOLDER, LEFT_OUT):
        for name in ("../x", "/x", "a/../../x", "a//b", ".", "a/.", "x\0", "y" * 5000):
            with pytest.raises(BadStream):
                list(read_entries(encode_entry((kind, name, b"")), 10))


def test_a_stream_that_was_cut_or_has_too_many_files_is_refused() -> None:
    entry: Entry = (FILE, "a", b"content")
    whole = encode_entry(entry)
    assert list(read_entries(whole, 1)) == [entry]
    for end in range(1, len(whole)):
        with pytest.raises(BadStream):
            list(read_entries(whole[:end], 1))
    with pytest.raises(BadStream):
        list(read_entries(b"\x09" + whole[1:], 1))
    with pytest.raises(TooLarge):
        list(read_entries(whole * 2, 1))


def test_a_path_in_a_box_is_absolute_and_a_new_folder_is_none_of_the_system() -> None:
    assert check_path("/app/x/") == "/app/x"
    for path in ("app", "/", "/app/../x", "/a\0"):
        with pytest.raises(UsageError, match="must be absolute"):
            check_path(path)
    for path in ("/usr/x", "/etc", "/proc/x"):
        with pytest.raises(UsageError, match="the system is read-only there"):
            check_new_folder(path)


@pytest.mark.usefixtures("no_boxes")
def test_a_machine_without_boxes_refuses_them_with_two_ways_to_get_one() -> None:
    with pytest.raises(BoxUnavailable, match=r"not permitted.*install bubblewrap.*allow user namespaces"):
        check_boxes()
    with pytest.raises(BoxUnavailable):
        make_box()
    [found] = [finding for finding in examine_machine() if finding.what == "sandbox"]
    assert found.ok
    assert found.is_note
    assert "install bubblewrap" in found.detail


def test_boxes_of_sandlock_are_made_by_name_alone_and_say_what_they_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_there, user, why in ((False, 1, "make install EXTRAS=sandbox"), (True, 0, "run Headrace as another user")):
        monkeypatch.setattr(kinds, "find_spec", lambda _, is_there=is_there: is_there)
        monkeypatch.setattr("os.geteuid", lambda user=user: user)
        kinds._probe.cache_clear()
        with pytest.raises(BoxUnavailable, match=rf"no boxes of sandlock .*{why}"):
            make_box("sandlock")
    monkeypatch.setattr(
        kinds, "_probe", lambda kind: ("sandlock", ()) if kind == "sandlock" else ("", ("no programs",))
    )
    with pytest.raises(BoxUnavailable, match="or name the kind `sandlock`"):
        make_box()
    assert isinstance(make_box("sandlock"), NamespaceBox)
    assert describe_boxes().startswith("sandlock alone makes boxes, only where its name is given")


def test_the_first_program_that_makes_a_box_is_taken_and_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def try_backend(backend: str) -> None:
        tried.append(backend)
        if backend == "bubblewrap":
            raise BoxUnavailable("bwrap is not on the PATH")

    monkeypatch.setattr(kinds, "try_backend", try_backend)
    kinds._probe.cache_clear()
    assert (check_boxes(), check_boxes()) == ("unshare", "unshare")
    assert tried == ["bubblewrap", "unshare"]
    assert describe_boxes().startswith("unshare makes boxes without a network")
    assert isinstance(make_box(), NamespaceBox)
    kinds._probe.cache_clear()


def test_a_box_of_another_kind_is_found_by_its_name() -> None:
    own = make_box(f"{__name__}:OwnBox", image="debian")
    assert isinstance(own, OwnBox)
    assert own.image == "debian"
    with pytest.raises(UsageError, match="unexpected keyword argument 'cpus'"):
        make_box(f"{__name__}:OwnBox", cpus=1)
    with pytest.raises(UsageError, match=r"take one of .*namespaces"):
        make_box("docker")
    with pytest.raises(UsageError, match="a box of sandlock reaches no hosts"):
        make_box("sandlock", backend="sandlock", hosts=["example.org"])
    with pytest.raises(UsageError, match="unexpected keyword argument 'hosts'"):
        make_box(f"{__name__}:OwnBox", hosts=["example.com"])


def test_hosts_are_names_or_addresses_with_a_port_or_without() -> None:
    listed = ["Example.org", "example.org:443", "10.0.0.7:8080", "localhost:1", "127.0.0.1:1", "a.b:65535"]
    assert read_hosts(listed) == [
        ("example.org", "127.120.0.1", 80),
        ("example.org", "127.120.0.1", 443),
        ("10.0.0.7", "10.0.0.7", 8080),
        ("localhost", "127.0.0.1", 1),
        ("127.0.0.1", "127.0.0.1", 1),
        ("a.b", "127.120.0.4", 65535),
    ]
    for wrong in ("", "*", "*.a.org", "https://a.org", "a:0", "a:65536", "a:", "a:b", "::1", "a b", "a\n::1 b"):
        with pytest.raises(UsageError, match="are names or IPv4 addresses"):
            read_hosts([wrong])
    with pytest.raises(UsageError, match="at most 250 ports together; got 300"):
        read_hosts([f"h{number}" for number in range(150)])


def test_a_grade_of_the_graders_own_folders_is_refused(tmp_path: Path) -> None:
    box: Any = OwnBox()
    for path in ("/tests/x", "/logs", "/"):
        with pytest.raises(UsageError, match="belong to the grader"):
            asyncio.run(grade_in_fresh_box(box, results=[path], tests=tmp_path))


def test_the_cgroup_of_this_process_is_found_in_both_versions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory_group, "ROOT", tmp_path)
    for own, folder, limit_file in (
        ({"memory": "/a", "": "/"}, tmp_path / "memory" / "a", "memory.limit_in_bytes"),
        ({"": "/user"}, tmp_path / "user", "memory.max"),
    ):
        monkeypatch.setattr(memory_group, "_read_own_groups", lambda own=own: own)
        monkeypatch.setattr(memory_group, "_can_hold_groups", lambda found, _, folder=folder: found == folder)
        memory_group.find_parent.cache_clear()
        assert memory_group.find_parent() == (folder, limit_file)
    memory_group.find_parent.cache_clear()
