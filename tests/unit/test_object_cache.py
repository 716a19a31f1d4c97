"""What the workers of a machine share of the store: fetched once, bounded, and never trusted blindly."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from patience import PATIENCE_S
from structlog.testing import capture_logs

from headrace.infra.store import object_cache
from headrace.infra.store.object_cache import ObjectCache
from headrace.infra.store.object_store import ObjectCorrupt, ObjectMissing, ObjectStore, StoreUnavailable
from headrace.schemas.records import ClaimCheck


class Store:
    def __init__(self, **objects: bytes) -> None:
        self.objects, self.away = objects, False
        self.fetched: Counter[str] = Counter()

    def get_to_file(self, key: str, _sha256: str, _size: int, path: Path) -> None:
        self.fetched[key] += 1
        if self.away:
            raise StoreUnavailable("no answer")
        if key not in self.objects:
            raise ObjectMissing(key)
        part = path.with_name(f"{path.name}.{threading.get_ident()}.part")
        part.write_bytes(self.objects[key])
        part.replace(path)

    def get(self, key: str, _sha256: str, _size: int) -> bytes:
        return self.objects[key]

    def claim(self, key: str) -> ClaimCheck:
        data = self.objects[key]
        return ClaimCheck("main", key, hashlib.sha256(data).hexdigest(), len(data))


def cache_of(store: Store, folder: Path, most_bytes: int = 1 << 30) -> ObjectCache:
    return ObjectCache(cast("ObjectStore", store), folder, most_bytes)


def file_of(folder: Path, claim: ClaimCheck) -> Path:
    return folder / claim.sha256[:2] / claim.sha256


def files_in(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("??/" + "?" * 64)}


def test_sixteen_who_ask_at_once_fetch_an_object_once(tmp_path: Path) -> None:
    store = Store(a=os.urandom(1 << 20), empty=b"")
    with ThreadPoolExecutor(16) as pool:
        got = list(pool.map(lambda _: bytes(cache_of(store, tmp_path).get(store.claim("a"))), range(16)))
    assert got == [store.objects["a"]] * 16
    assert store.fetched == {"a": 1}
    assert bytes(cache_of(store, tmp_path).get(store.claim("empty"))) == b""


def test_what_was_not_used_for_longest_goes_and_stays_readable_for_who_has_it(tmp_path: Path) -> None:
    store = Store(**{name: name.encode() * 100 for name in "abcd"})
    cache = cache_of(store, tmp_path, 300)
    held = {}
    for age, name in enumerate("abca"):
        held[name] = cache.get(store.claim(name))
        os.utime(file_of(tmp_path, store.claim(name)), ns=(age, age))
    cache.get(store.claim("d"))
    assert files_in(tmp_path) == {store.claim(name).sha256 for name in "cad"}
    assert bytes(held["b"]) == store.objects["b"]
    alone = cache_of(store, tmp_path, 10)
    assert bytes(alone.get(store.claim("b"))) == store.objects["b"]
    assert files_in(tmp_path) == {store.claim("b").sha256}


def test_a_file_that_is_short_or_was_dropped_is_fetched_anew(tmp_path: Path) -> None:
    store = Store(a=b"whole")
    cache = cache_of(store, tmp_path)
    cache.get(store.claim("a"))
    file_of(tmp_path, store.claim("a")).write_bytes(b"who")
    assert bytes(cache.get(store.claim("a"))) == b"whole"
    cache.drop(store.claim("a"))
    cache.drop(store.claim("a"))
    assert bytes(cache.get(store.claim("a"))) == b"whole"
    assert store.fetched == {"a": 3}


def test_errors_of_the_store_are_passed_on_and_leave_the_lock(tmp_path: Path) -> None:
    store = Store(a=b"whole")
    cache = cache_of(store, tmp_path)
    store.away = True
    with pytest.raises(StoreUnavailable):
        cache.get(store.claim("a"))
    store.away = False
    assert bytes(cache_of(store, tmp_path).get(store.claim("a"))) == b"whole"
    with pytest.raises(ObjectMissing):
        cache.get(ClaimCheck("main", "b", "0" * 64, 5))


def test_more_files_than_can_be_looked_through_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_cache, "MOST_FILES", 3)
    store = Store(**{name: name.encode() for name in "abcde"})
    cache = cache_of(store, tmp_path)
    for age, name in enumerate("abcd"):
        cache.get(store.claim(name))
        os.utime(file_of(tmp_path, store.claim(name)), ns=(age, age))
    cache.get(store.claim("e"))
    assert files_in(tmp_path) == {store.claim(name).sha256 for name in "cde"}


def test_what_a_killed_process_left_half_fetched_goes_after_a_day(tmp_path: Path) -> None:
    store = Store(a=b"whole")
    (tmp_path / "00").mkdir()
    old, young = tmp_path / "00" / "x.1.part", tmp_path / "00" / "y.2.part"
    for path in (old, young):
        path.write_bytes(b"wh")
    os.utime(old, (1, 1))
    cache_of(store, tmp_path).get(store.claim("a"))
    assert (old.exists(), young.exists()) == (False, True)


def test_a_claim_that_names_no_hash_becomes_no_path(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"whole")
    cache = cache_of(Store(a=b"whole"), tmp_path / "cache")
    for name in ("../secret", "", "0" * 63, "0" * 64 + "/../../secret", "G" * 64):
        with pytest.raises(ObjectCorrupt, match="must name a sha256"):
            cache.get(ClaimCheck("main", "a", name, 5))
        cache.drop(ClaimCheck("main", "a", name, 5))
    assert (tmp_path / "secret").exists()


def test_who_holds_the_lock_and_fetches_nothing_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_cache, "FETCH_STUCK_S", 0.05)
    store = Store(a=b"whole")
    claim = store.claim("a")
    path = file_of(tmp_path, claim)
    path.parent.mkdir()
    # The pool is left last: the lock is free by then, whatever became of who waits for it.
    with ThreadPoolExecutor(1) as pool, (path.parent / ".lock").open("ab") as held, capture_logs() as logs:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = pool.submit(lambda: bytes(cache_of(store, tmp_path).get(claim)))
        assert waiting.result(timeout=PATIENCE_S) == b"whole"
    assert "has fetched nothing" in logs[0]["why"]
    assert not path.exists(), "the folder is the other's"


def test_who_fetches_something_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(a=b"whole")
    claim = store.claim("a")
    path = file_of(tmp_path, claim)
    path.parent.mkdir()
    part = path.with_name(f"{claim.sha256}.1.part")
    now_s, pauses = 0.0, 0

    def sleep(_pause_s: float) -> None:
        """Let time pass. The other fetches a little at each second pause, which is in time, and all of it at last."""
        nonlocal now_s, pauses
        now_s, pauses = now_s + 0.4 * object_cache.FETCH_STUCK_S, pauses + 1
        if pauses % 2 == 0:
            with part.open("ab") as file:
                file.write(b"more")
        if now_s > 5 * object_cache.FETCH_STUCK_S:
            part.write_bytes(b"whole")
            part.rename(path)
            fcntl.flock(held, fcntl.LOCK_UN)

    clock = SimpleNamespace(monotonic=lambda: now_s, sleep=sleep, time=time.time)
    monkeypatch.setattr(object_cache, "time", clock)
    with (path.parent / ".lock").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert bytes(cache_of(store, tmp_path).get(claim)) == b"whole"
    assert now_s > 5 * object_cache.FETCH_STUCK_S, "it was not waited for"
    assert store.fetched == {}


class SmallDisk(Store):
    """The folder's disk has room for so many bytes."""

    folder: Path
    room: int

    def get_to_file(self, key: str, sha256: str, size: int, path: Path) -> None:
        if sum(one.stat().st_size for one in self.folder.glob("??/" + "?" * 64)) + size > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().get_to_file(key, sha256, size, path)


def test_on_a_full_disk_the_oldest_files_give_way_to_the_newest(tmp_path: Path) -> None:
    store = SmallDisk(**{name: name.encode() * 10 for name in "abcd"})
    store.folder, store.room = tmp_path, 25
    cache = cache_of(store, tmp_path)
    for at, name in enumerate("abcd"):
        cache.get(store.claim(name))
        os.utime(file_of(tmp_path, store.claim(name)), (at, at))
    assert files_in(tmp_path) == {store.claim(name).sha256 for name in "cd"}
    assert store.fetched == Counter("abcd")

    store.room = 5
    assert bytes(cache.get(store.claim("a"))) == b"a" * 10, "from the store, where all room is too little"
