"""What a process shares in /dev/shm, and what may be removed of it."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.infra.process import shared_memory
from headrace.infra.process.shared_memory import SharedFile, list_named, list_shared_memory, remove_shared_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /dev/shm and /proc")


@pytest.fixture(params=[b"headrace-test-plain", b"headrace-test-\xff", b"headrace-test-\xc2\x85-end"])
def shared(request: pytest.FixtureRequest) -> Iterator[SharedFile]:
    """A file of shared memory that this process has mapped, with a name that may be odd."""
    path = shared_memory.FOLDER / os.fsdecode(request.param + b"-%d" % os.getpid())
    path.write_bytes(b"x" * mmap.PAGESIZE)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        yield SharedFile(path, path.stat().st_ino)
    path.unlink(missing_ok=True)


def test_what_a_process_shares_is_found_by_any_name_and_removed(shared: SharedFile) -> None:
    assert shared in list_named()
    assert shared in list_shared_memory([os.getpid()])
    remove_shared_memory([shared])
    assert not shared.path.exists()
    assert shared not in list_shared_memory([os.getpid()])


def test_a_later_file_of_the_same_name_stays_and_so_does_what_may_not_be_removed(
    shared: SharedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove_shared_memory([SharedFile(shared.path, shared.inode + 1)])
    assert shared.path.exists()

    def refuse(_path: Path) -> None:
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        remove_shared_memory([shared])
    assert shared.path.exists()
