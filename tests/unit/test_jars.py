"""The jars of the embedded Kafka, without a network: a stand-in for the resolver writes what each test wants."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import PATIENCE_S

from headrace.infra.embedded import jars
from headrace.infra.embedded.jars import FIXED_MTIME, JarUnavailable, fetch_class_path, jar_path
from headrace.infra.environment import cache_folder
from headrace.infra.errors import UsageError

COORDINATE = "org.example:thing:1.0"
CONTENT = b"a jar"
PINS = {COORDINATE: hashlib.sha256(CONTENT).hexdigest()}


class Resolver:
    """Stands in for jgo: `project().at_version().artifact().resolve()` writes a file, or raises."""

    def __init__(self, cache: Path, write: Callable[[Path], None]) -> None:
        self.cache, self.write, self.n_calls = cache, write, 0

    def project(self, _group: str, _artifact: str) -> Resolver:
        return self

    def at_version(self, _version: str) -> Resolver:
        return self

    def artifact(self) -> Resolver:
        return self

    def resolve(self) -> None:
        self.n_calls += 1
        path = jar_path(self.cache, COORDINATE)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.write(path)


def resolver(
    monkeypatch: pytest.MonkeyPatch,
    cache: Path,
    write: Callable[[Path], object] = lambda path: path.write_bytes(CONTENT),
) -> Resolver:
    stand_in = Resolver(cache, lambda path: (write(path), None)[1])
    monkeypatch.setattr(jars, "_maven", lambda _cache: stand_in)
    return stand_in


def test_a_missing_jar_is_fetched_once_and_then_nothing_is_asked_of_the_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in = resolver(monkeypatch, tmp_path)
    told: list[str] = []
    first = fetch_class_path(tmp_path, told.append, pins=PINS)
    again = fetch_class_path(tmp_path, told.append, pins=PINS)
    assert first == again == [str(jar_path(tmp_path, COORDINATE))]
    assert stand_in.n_calls == 1
    assert any("1 of 1" in words for words in told)


def test_every_jar_has_the_fixed_time_that_the_start_cache_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    resolver(monkeypatch, tmp_path)
    (jar,) = fetch_class_path(tmp_path, pins=PINS)
    assert Path(jar).stat().st_mtime == FIXED_MTIME


def test_a_broken_jar_heals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in = resolver(monkeypatch, tmp_path)
    (jar,) = fetch_class_path(tmp_path, pins=PINS)
    Path(jar).write_bytes(CONTENT[:2])
    fetch_class_path(tmp_path, pins=PINS)
    assert Path(jar).read_bytes() == CONTENT
    assert stand_in.n_calls == 2


def test_a_jar_of_another_content_is_refused_and_not_left_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    resolver(monkeypatch, tmp_path, lambda path: path.write_bytes(b"something else"))
    with pytest.raises(JarUnavailable, match=r"org\.example:thing:1\.0 .* sha256") as caught:
        fetch_class_path(tmp_path, pins=PINS)
    assert "connect this machine" not in str(caught.value), "a network is there"
    assert not jar_path(tmp_path, COORDINATE).exists()


def test_without_a_network_the_error_says_what_where_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def no_network(_path: Path) -> None:
        raise ConnectionError("name resolution failed")

    resolver(monkeypatch, tmp_path, no_network)
    with pytest.raises(JarUnavailable) as caught:
        fetch_class_path(tmp_path, pins=PINS)
    for word in (COORDINATE, str(tmp_path), "name resolution failed", "connect", "HEADRACE_CACHE"):
        assert word in str(caught.value)


def test_a_jar_serves_whose_time_cannot_be_set_and_a_cache_that_cannot_be_written_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr(jars.os, "utime", refuse)
    jar = jar_path(tmp_path, COORDINATE)
    jar.parent.mkdir(parents=True)
    jar.write_bytes(CONTENT)
    assert fetch_class_path(tmp_path, pins=PINS) == [str(jar)]
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=rf"cache folder {tmp_path}/file: .*set HEADRACE_CACHE to another folder"):
        fetch_class_path(tmp_path / "file", pins=PINS)


def test_two_runs_that_start_at_once_fetch_a_jar_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slowly(path: Path) -> None:
        path.write_bytes(CONTENT[:1])
        begun.set()
        assert go_on.wait(PATIENCE_S)
        path.write_bytes(CONTENT)

    stand_in = resolver(monkeypatch, tmp_path, slowly)
    paths: list[list[str]] = []
    runs = [threading.Thread(target=lambda: paths.append(fetch_class_path(tmp_path, pins=PINS))) for _ in range(2)]
    runs[0].start()
    assert begun.wait(PATIENCE_S)
    runs[1].start()  # sees half a jar, and has to wait for the other
    go_on.set()
    for run in runs:
        run.join(PATIENCE_S)
    assert len(paths) == 2
    assert stand_in.n_calls == 1


def test_the_cache_folder_follows_its_names_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HEADRACE_CACHE", raising=False)
    assert cache_folder() == tmp_path / "home" / ".cache" / "headrace"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "headrace"
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
