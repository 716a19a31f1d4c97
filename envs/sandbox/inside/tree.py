"""The files that programs in a box see: the system, read-only, and a home and a /tmp in memory of limited size."""

from __future__ import annotations

import os

from headrace.envs.sandbox.file_stream import read_entries, unpack
from headrace.envs.sandbox.inside import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OLD = "/.old"
HOLD = "/.hold"
SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
DEVICES = ("null", "zero", "full", "random", "urandom")
DEVICE_LINKS = {
    "fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx",
}  # fmt: skip
HOME = "/home/user"
WRITABLE = {HOME: 0o755, "/tmp": 0o1777, "/var/tmp": 0o1777, "/dev/shm": 0o1777}
HIDDEN = ("/proc/keys", "/proc/key-users", "/proc/timer_list")
"""What tells of the owner's keys, and of processes outside."""
ETC = {
    "passwd": f"root:x:0:0::/:/bin/false\nuser:x:1000:1000::{HOME}:/bin/sh\n",
    "group": "root:x:0:\nuser:x:1000:\n",
    "hosts": "127.0.0.1 localhost box\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "hostname": "box\n",
}
ETC_COPIED = ("ld.so.cache", "ld.so.conf", "mime.types", "services", "protocols")
ETC_SHOWN = ("alternatives", "ld.so.conf.d", "ssl/certs", "pki/tls/certs", "pki/ca-trust/extracted")
READ_ONLY = kernel.ATTRIBUTE_READ_ONLY | kernel.ATTRIBUTE_NOSUID | kernel.ATTRIBUTE_NODEV
NO_RIGHTS = kernel.MS_NOSUID | kernel.MS_NODEV


def build_tree(plan: dict[str, Any], read_only: memoryview) -> tuple[int, int]:
    """Replace the machine's files by those of a box, and let go of the machine's. Raises OSError.

    Returns descriptors of two folders of /proc that nobody can open any more, as `_make_proc` says.

    `plan` has the sizes, `programs` (folders shown besides the system's), `folders` (further writable ones), and
    `read_only`: folders of the box with the length of their part of the stream.
    """
    kernel.mount("", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", "/tmp", "tmpfs", NO_RIGHTS, "size=8m,nr_inodes=4096,mode=755")
    os.chdir("/tmp")
    os.mkdir(OLD[1:])
    kernel.call_kernel("pivot_root", b".", OLD[1:].encode())
    os.chdir("/")
    _show_system()
    _make_etc(plan)
    _make_devices()
    hidden = _make_proc()
    _make_writable(plan)
    for path in plan["programs"]:  # they may be below what is writable
        if not os.path.isdir(path):
            _show(path)
    _put_read_only(plan, read_only)
    kernel.call("umount2", OLD.encode(), kernel.MNT_DETACH)
    os.rmdir(OLD)
    kernel.set_attributes("/dev", kernel.ATTRIBUTE_READ_ONLY, recursive=False)
    kernel.set_attributes("/", READ_ONLY, recursive=False)
    return hidden


def _show_system() -> None:
    for name in SYSTEM:
        if os.path.islink(f"{OLD}/{name}"):
            os.symlink(os.readlink(f"{OLD}/{name}"), f"/{name}")
        elif os.path.isdir(f"{OLD}/{name}"):
            _show(f"/{name}")


def _show(path: str) -> None:
    os.makedirs(path)
    kernel.mount(OLD + path, path, "", kernel.MS_BIND | kernel.MS_REC)
    kernel.set_attributes(path, READ_ONLY, recursive=True)


def _make_etc(plan: dict[str, Any]) -> None:
    os.mkdir("/etc")
    names = {host: address for host, address, _ in plan["hosts"] if host not in (address, "localhost")}
    hosts = "".join(f"{address} {host}\n" for host, address in names.items())
    for name, text in {**ETC, "hosts": ETC["hosts"] + hosts}.items():
        _write(f"/etc/{name}", text.encode())
    for name in ETC_COPIED:
        if os.path.isfile(f"{OLD}/etc/{name}"):
            with open(f"{OLD}/etc/{name}", "rb") as file:
                _write(f"/etc/{name}", file.read())
    for name in ETC_SHOWN:
        if os.path.isdir(f"{OLD}/etc/{name}"):
            _show(f"/etc/{name}")


def _write(path: str, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
    os.chmod(path, 0o644)


def _make_devices() -> None:
    os.mkdir("/dev")
    kernel.mount("tmpfs", "/dev", "tmpfs", kernel.MS_NOSUID, "size=64k,nr_inodes=64,mode=755")
    for name in DEVICES:
        _write(f"/dev/{name}", b"")
        kernel.mount(f"{OLD}/dev/{name}", f"/dev/{name}", "", kernel.MS_BIND)
    for name, leads_to in DEVICE_LINKS.items():
        os.symlink(leads_to, f"/dev/{name}")
    os.mkdir("/dev/pts")
    kernel.mount(
        "devpts", "/dev/pts", "devpts", kernel.MS_NOSUID | kernel.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620"
    )
    os.mkdir("/dev/shm")


def _make_proc() -> tuple[int, int]:
    """Mount /proc without what is about this process and without a way to change a setting of the kernel.

    Returns descriptors of the two: /proc/1 and /proc/sys/user.
    """
    os.mkdir("/proc")
    kernel.mount("proc", "/proc", "proc", NO_RIGHTS | kernel.MS_NOEXEC)
    found = os.open("/proc/1", os.O_RDONLY), os.open("/proc/sys/user", os.O_RDONLY)
    kernel.mount("tmpfs", "/proc/1", "tmpfs", NO_RIGHTS, "size=4k,nr_inodes=2,mode=555")
    kernel.set_attributes("/proc/1", READ_ONLY, recursive=False)
    for path in HIDDEN:
        if os.path.exists(path):
            kernel.mount(f"{OLD}/dev/null", path, "", kernel.MS_BIND)
    kernel.mount("/proc/sys", "/proc/sys", "", kernel.MS_BIND)
    kernel.set_attributes("/proc/sys", READ_ONLY, recursive=False)
    return found


def _make_writable(plan: dict[str, Any]) -> None:
    """Mount one file system of limited size, and show folders of it where programs write."""
    os.mkdir(HOLD)
    size = f"size={plan['disk_bytes']},nr_inodes={plan['files']},mode=755"
    kernel.mount("tmpfs", HOLD, "tmpfs", NO_RIGHTS, size)
    for number, (path, mode) in enumerate({**WRITABLE, **dict.fromkeys(plan["folders"], 0o755)}.items()):
        held = f"{HOLD}/{number}"
        os.mkdir(held)
        os.chmod(held, mode)
        if plan["uid"] is not None:
            os.chown(held, plan["uid"], plan["uid"])
        os.makedirs(path, exist_ok=True)
        kernel.mount(held, path, "", kernel.MS_BIND)
    kernel.call("umount2", HOLD.encode(), kernel.MNT_DETACH)
    os.rmdir(HOLD)


def _put_read_only(plan: dict[str, Any], content: memoryview) -> None:
    """Write files that come with the box, then forbid that they are written."""
    at = 0
    for path, length in plan["read_only"]:
        os.makedirs(path)
        size = f"size={plan['disk_bytes']},nr_inodes={plan['files']},mode=755"
        kernel.mount("tmpfs", path, "tmpfs", NO_RIGHTS, size)
        unpack(read_entries(content[at : at + length], plan["files"]), path)
        kernel.set_attributes(path, READ_ONLY, recursive=False)
        at += length
