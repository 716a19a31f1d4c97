"""Calls of the kernel that Python 3.11 has no functions for."""

from __future__ import annotations

import ctypes
import os
import struct

NUMBERS = {"x86_64": {"pivot_root": 155, "keyctl": 250}, "aarch64": {"pivot_root": 41, "keyctl": 219}}
SAME_NUMBERS = {"mount_setattr": 442, "landlock_create_ruleset": 444, "landlock_restrict_self": 446}
MS_BIND, MS_REC, MS_PRIVATE, MS_NOSUID, MS_NODEV, MS_NOEXEC = 0x1000, 0x4000, 0x40000, 2, 4, 8
MNT_DETACH = 2
CLONE_NEWUSER = 0x10000000
ATTRIBUTE_READ_ONLY, ATTRIBUTE_NOSUID, ATTRIBUTE_NODEV = 1, 2, 4
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCSIFADDR, _UP = 0x8913, 0x8914, 0x8916, 1
_AF_INET, _SOCK_DGRAM = 2, 2
_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 4, 24, 38
_CAPABILITIES_VERSION_3 = 0x20080522
_SCOPE_SIGNAL = 2

_libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    """Call a function of the C library. Raises OSError, with the function's name."""
    given = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    result = int(getattr(_libc, name)(*given))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def call_kernel(name: str, *arguments: int | bytes | None) -> int:
    """Make a system call that the C library has no function for. Raises OSError."""
    try:
        return call("syscall", (NUMBERS[os.uname().machine] | SAME_NUMBERS)[name], *arguments)
    except OSError as error:
        raise OSError(error.errno, f"{name}: {os.strerror(error.errno or 0)}") from None


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    """Mount. Raises OSError, with the target."""
    try:
        call("mount", source.encode(), target.encode(), kind.encode(), flags, options.encode())
    except OSError as error:
        raise OSError(
            error.errno, f"cannot mount {kind or source} at {target}: {os.strerror(error.errno or 0)}"
        ) from error


def set_attributes(target: str, attributes: int, *, recursive: bool) -> None:
    """Set attributes of a mount, such as read-only. Raises OSError; Linux before 5.12 cannot do it."""
    wanted = struct.pack("QQQQ", attributes, 0, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    call_kernel("mount_setattr", _AT_FDCWD, target.encode(), flags, wanted, len(wanted))


def bring_up_loopback() -> None:
    """Let programs in a network namespace reach one another by 127.0.0.1."""
    one = call("socket", _AF_INET, _SOCK_DGRAM, 0)
    request = ctypes.create_string_buffer(struct.pack("16sH22x", b"lo", 0), 40)
    call("ioctl", one, _SIOCGIFFLAGS, request)
    flags = struct.unpack_from("16sH", request.raw)[1] | _UP
    call("ioctl", one, _SIOCSIFFLAGS, ctypes.create_string_buffer(struct.pack("16sH22x", b"lo", flags), 40))
    os.close(one)


def add_loopback_address(number: int, address: bytes) -> None:
    """Let an IPv4 address lead to this network namespace itself."""
    one = call("socket", _AF_INET, _SOCK_DGRAM, 0)
    request = struct.pack("16sHH4s16x", f"lo:{number}".encode(), _AF_INET, 0, address)
    call("ioctl", one, _SIOCSIFADDR, ctypes.create_string_buffer(request, 40))
    os.close(one)


def hide_memory(*, hide: bool = True) -> None:
    """Let no process of the same user read this process, by /proc or as a debugger; or let them again."""
    call("prctl", _PR_SET_DUMPABLE, int(not hide), 0, 0, 0)


def spare_others() -> None:
    """Let this process, and all that it starts, signal nothing else, as the first process. Raises OSError."""
    scopes = struct.pack("QQQ", 0, 0, _SCOPE_SIGNAL)
    rules = call_kernel("landlock_create_ruleset", scopes, len(scopes), 0)
    call_kernel("landlock_restrict_self", rules, 0)
    os.close(rules)


def forbid_capabilities() -> None:
    """Let no program that is started from now on get a right of a superuser."""
    for number in range(64):
        try:
            call("prctl", _PR_CAPBSET_DROP, number, 0, 0, 0)
        except OSError:
            break
    call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def give_up_capabilities() -> None:
    """Give up all rights of a superuser."""
    call("capset", struct.pack("Ii", _CAPABILITIES_VERSION_3, 0), bytes(24))
