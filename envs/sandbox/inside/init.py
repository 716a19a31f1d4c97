"""The first process of a box: builds it, then runs one command after the other until its owner goes.

When it ends, the kernel kills everything that runs in the box. It ends when the socket to the owner closes.
"""

from __future__ import annotations

import marshal
import os
import select
import signal
import struct

from headrace.envs.sandbox.frames import END, REQUEST, encode_frame
from headrace.envs.sandbox.inside import kernel
from headrace.envs.sandbox.inside.commands import Command, OwnerGone, send
from headrace.envs.sandbox.inside.identity import enter_user_namespace
from headrace.envs.sandbox.inside.syscalls import build_filter
from headrace.envs.sandbox.inside.tree import build_tree

TYPE_CHECKING = False
if TYPE_CHECKING:  # it takes longer to import than a box takes to build
    from collections.abc import Callable
    from typing import Any

CONTROL, SIDE = 0, 1
"""Descriptors of the sockets to the owner: for requests, and to hand over sockets."""


def main() -> None:
    """Build a box as the first request says, say so, and serve it."""
    plan, content = read_request()
    try:
        program = _build(plan, content)
    except (OSError, KeyError, ValueError) as error:
        send(CONTROL, encode_frame(END, f"{type(error).__name__}: {error}".encode()))
        return
    serve(program)


def serve(program: bytes = b"") -> None:
    """Serve a box that is built; without a filter's program where sandlock holds it."""
    try:
        send(CONTROL, encode_frame(END, b""))
        _serve(program or build_filter(is_memory_counted=False))
    except OwnerGone:
        return


def _build(plan: dict[str, Any], content: memoryview) -> bytes:
    if os.getpid() != 1:
        raise OSError("the box has no process namespace of its own")
    program = build_filter(is_memory_counted=plan["is_memory_counted"])
    os.umask(0o022)
    hidden = build_tree(plan, content)
    kernel.call("sethostname", b"box", 3)
    kernel.bring_up_loopback()
    if plan["hosts"]:
        _listen_for_hosts(plan["hosts"])
    enter_user_namespace(plan, *hidden)
    return program


def _listen_for_hosts(hosts: list[tuple[str, str, int]]) -> None:
    """Listen at the addresses of listed hosts, and leave the sockets to the owner. Raises OSError."""
    import _socket  # `socket` takes long to import

    listeners = []
    for number, address in enumerate(dict.fromkeys(address for _, address, _ in hosts)):
        if not address.startswith("127."):
            kernel.add_loopback_address(number, _socket.inet_aton(address))
    for _, address, port in hosts:
        listeners.append(_socket.socket(_socket.AF_INET, _socket.SOCK_STREAM))
        listeners[-1].bind((address, port))
        listeners[-1].listen(64)
    handed = struct.pack(f"{len(listeners)}i", *[one.fileno() for one in listeners])
    side = _socket.socket(fileno=SIDE)
    side.sendmsg([b"."], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, handed)])
    side.detach()
    nowhere = os.open("/dev/null", os.O_RDWR)
    os.dup2(nowhere, SIDE, inheritable=False)
    os.close(nowhere)
    for one in listeners:
        one.close()


def _serve(program: bytes) -> None:
    wakes, wake = os.pipe()
    os.set_blocking(wakes, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # what is not handled does not reach the first process

    def reap() -> dict[int, int]:
        try:
            os.read(wakes, 4096)
        except BlockingIOError:
            return {}
        return _reap_ended()

    command = Command(CONTROL, wakes, reap)
    while True:
        _wait_for_request(wakes, reap)
        request, content = read_request()
        stdin = os.memfd_create("stdin")
        try:
            while content:
                content = content[os.write(stdin, content) :]
            os.lseek(stdin, 0, os.SEEK_SET)
            command.run(request, stdin, program)
        finally:
            os.close(stdin)


def _wait_for_request(wakes: int, reap: Callable[[], object]) -> None:
    """Wait for the owner; meanwhile, what has ended in the box must not stay as a dead process."""
    poll = select.poll()
    poll.register(CONTROL, select.POLLIN)
    poll.register(wakes, select.POLLIN)
    while CONTROL not in [descriptor for descriptor, _ in poll.poll()]:
        reap()


def _reap_ended() -> dict[int, int]:
    ended: dict[int, int] = {}
    while True:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if not process:
            return ended
        ended[process] = status


def read_request() -> tuple[dict[str, Any], memoryview]:
    """Return a request of the owner: its table, and the bytes after it. Raises OwnerGone."""
    text_length, data_length = REQUEST.unpack(_read(REQUEST.size))
    request: dict[str, Any] = marshal.loads(_read(text_length))  # noqa: S302 - from the owner
    return request, _read(data_length)


def _read(length: int) -> memoryview:
    data = bytearray(length)
    view = memoryview(data)
    at = 0
    while at < length:
        count = os.readv(CONTROL, [view[at:]])
        if not count:
            raise OwnerGone
        at += count
    return view
