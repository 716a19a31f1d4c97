"""Runs the first process of a box by sandlock, where there are no namespaces, and ends all that it left.

Sandlock keeps programs in a folder, and from the network, by Landlock and seccomp. What it does not do is done here:
the folder, and the end of daemons, which are descendants of this process until they end.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from headrace.envs.sandbox.file_stream import read_entries, unpack
from headrace.envs.sandbox.inside.init import CONTROL, read_request
from headrace.envs.sandbox.inside.tree import DEVICES, ETC, SYSTEM, WRITABLE

PACKAGE = "/headrace"
LOADERS = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1")
"""The kernel itself looks for it, so it must be in the folder."""
_SET_CHILD_SUBREAPER = 36
_SERVE = f"import sys; sys.path.insert(0, {PACKAGE!r}); from headrace.envs.sandbox.inside.init import serve; serve()"


def main() -> None:
    """Run the first process of a box in a new folder; this process is started as `main(python)`."""
    from sandlock import Sandbox

    plan, content = read_request()
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    folder = tempfile.mkdtemp(prefix="headrace-box-")
    try:
        shown = _build_folder(folder, plan, content)
        threading.Thread(target=_end_with_owner, daemon=True).start()
        box = Sandbox(
            chroot=folder,
            cwd="/",
            fs_mount_ro=shown,
            fs_mount={"/dev": "/dev", "/dev/shm": f"{folder}/dev/shm"},  # noqa: S108 - of the box
            fs_readable=[*shown, "/etc", *[path for path, _ in plan["read_only"]], *[f"/dev/{one}" for one in DEVICES]],
            fs_writable=[*WRITABLE, *plan["folders"], "/dev/null"],
            clean_env=True,
            max_memory=plan["memory_bytes"],
            max_processes=plan["processes"],
        )
        with box.popen([sys.argv[1], "-I", "-S", "-c", _SERVE]) as process:
            process.wait()
    finally:
        _kill_descendants()
        delete = ["sh", "-c", 'chmod -R u+rwX "$0"; rm -rf "$0"', folder]
        subprocess.run(delete, start_new_session=True, check=False)  # it goes on if the owner kills this process


def _build_folder(folder: str, plan: dict[str, Any], content: memoryview) -> dict[str, str]:
    """Fill the folder of a box; return what of the machine is shown there, read-only."""
    system = [f"/{name}" for name in SYSTEM if Path("/", name).is_dir()]
    shown = {path: os.path.realpath(path) for path in (*system, *plan["programs"], "/proc")}
    shown[f"{PACKAGE}/headrace/envs/sandbox"] = str(Path(__file__).resolve().parent)
    for path in (*shown, *WRITABLE, *plan["folders"], "/etc"):
        Path(folder + path).mkdir(parents=True, exist_ok=True)
    for path in filter(os.path.exists, LOADERS):
        shutil.copy(path, folder + path)
    for name, text in ETC.items():
        Path(folder, "etc", name).write_text(text)
    shutil.copy("/etc/ld.so.cache", f"{folder}/etc")
    at = 0
    for path, length in plan["read_only"]:
        unpack(read_entries(content[at : at + length], plan["files"]), folder + path)
        at += length
    return shown


def _end_with_owner() -> None:
    gone = select.poll()
    gone.register(CONTROL, select.POLLRDHUP)
    gone.poll()
    _kill_descendants()


def _kill_descendants() -> None:
    """Kill all that comes from this process, until nothing is left: orphans become its children."""
    own = psutil.Process()
    while found := own.children(recursive=True):
        for process in found:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=1)
