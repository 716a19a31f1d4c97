"""System calls that programs in a box must not make: what no namespace covers, and what no limit counts.

A filter (seccomp) of the kernel refuses them. This is not a list of all that is dangerous: namespaces and the missing
rights keep a box closed. The filter closes the ways around them: sockets of virtual machines (vsock), which belong to
no network namespace, the owner's keyrings, the kernel's log, the limits of the first process.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from headrace.envs.sandbox.inside import kernel

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
FORBIDDEN = {
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "syslog": (103, 116),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "setns": (308, 268), "unshare": (272, 97),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265), "kexec_load": (246, 104), "init_module": (175, 105), "memfd_secret": (447, 447),
}  # fmt: skip
"""Numbers on x86-64 and on arm64."""
UNCOUNTED_MEMORY = {"memfd_create": (319, 279), "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190)}
"""They take memory that only a cgroup counts."""
SOCKET, PRLIMIT = (41, 198), (302, 261)
FAMILIES = (1, 2, 10, 16)
"""Unix, IPv4, IPv6, netlink: each of them belongs to the network namespace."""
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_X32 = 0x40000000
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2


def build_filter(*, is_memory_counted: bool) -> bytes:
    """Return the filter's program for this machine. Raises KeyError on machines other than x86-64 and arm64."""
    machine = os.uname().machine
    column = list(ARCHITECTURES).index(machine)
    forbidden = [*FORBIDDEN.values(), *(() if is_memory_counted else UNCOUNTED_MEMORY.values())]
    program = [
        _step(_LOAD, _ARCHITECTURE_AT),
        _step(_EQUAL, ARCHITECTURES[machine], 1, 0),
        _refuse(errno.ENOSYS),
        _step(_LOAD, _NUMBER_AT),
        _step(_AT_LEAST, _X32, 0, 1),
        _refuse(errno.ENOSYS),
    ]
    for numbers in forbidden:
        program += [_step(_EQUAL, numbers[column], 0, 1), _refuse(errno.EPERM)]
    program += _with_first_argument(SOCKET[column], FAMILIES, errno.EAFNOSUPPORT)
    program += _with_first_argument(PRLIMIT[column], (0,), errno.EPERM)
    return b"".join([*program, _step(_RETURN, _ALLOW)])


def forbid_calls(program: bytes) -> None:
    """Let a filter hold for this process and all that it starts. Raises OSError."""
    steps = ctypes.create_string_buffer(program, len(program))
    given = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(steps)), 16)
    kernel.call("prctl", _PR_SET_SECCOMP, _MODE_FILTER, given, 0, 0)


def _with_first_argument(number: int, allowed: tuple[int, ...], refusal: int) -> list[bytes]:
    """Return steps that allow a call only with some first arguments."""
    looks = [_step(_EQUAL, value, len(allowed) - at, 0) for at, value in enumerate(allowed)]
    tail = [_step(_LOAD, _FIRST_ARGUMENT_AT), *looks, _refuse(refusal), _step(_RETURN, _ALLOW)]
    return [_step(_EQUAL, number, 0, len(tail)), *tail]


def _refuse(number: int) -> bytes:
    return _step(_RETURN, _REFUSE | number)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
