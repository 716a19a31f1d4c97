"""The first process of a box: builds it, then runs one command after the other until its owner goes.

When it ends, the kernel kills everything that runs in the box. It ends when the socket to the owner closes.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from typing import Any

from headrace.envs.sandbox.frames import END, REQUEST, encode_frame, encode_request
from headrace.envs.sandbox.inside import kernel
from headrace.envs.sandbox.inside.commands import Command, OwnerGone
from headrace.envs.sandbox.inside.identity import enter_user_namespace
from headrace.envs.sandbox.inside.syscalls import build_filter
from headrace.envs.sandbox.inside.tree import build_tree


def main() -> None:
    """Build a box as the first request says, say so, and serve it."""
    control = socket.socket(fileno=0)
    plan, content = _read_request(control)
    try:
        program = _build(plan, content)
    except (OSError, KeyError, ValueError) as error:
        control.sendall(encode_frame(END, encode_request({"error": f"{type(error).__name__}: {error}"})))
        return
    control.sendall(encode_frame(END, encode_request({"error": ""})))
    try:
        _serve(control, program)
    except OwnerGone:
        return


def _build(plan: dict[str, Any], content: memoryview) -> bytes:
    if os.getpid() != 1:
        raise OSError("the box has no process namespace of its own")
    program = build_filter(is_memory_counted=plan["is_memory_counted"])
    os.umask(0o022)
    hidden = build_tree(plan, content)
    socket.sethostname("box")
    kernel.bring_up_loopback()
    enter_user_namespace(plan, *hidden)
    return program


def _serve(control: socket.socket, program: bytes) -> None:
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

    command = Command(control, wakes, reap)
    while True:
        _wait_for_request(control, wakes, reap)
        request, content = _read_request(control)
        stdin = os.memfd_create("stdin")
        try:
            while content:
                content = content[os.write(stdin, content) :]
            os.lseek(stdin, 0, os.SEEK_SET)
            command.run(request, stdin, program)
        finally:
            os.close(stdin)


def _wait_for_request(control: socket.socket, wakes: int, reap: Any) -> None:
    """Wait for the owner; meanwhile, what has ended in the box must not stay as a dead process."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(wakes, select.POLLIN)
    while control.fileno() not in [descriptor for descriptor, _ in poll.poll()]:
        reap()


def _reap_ended() -> dict[int, int]:
    ended = {}
    while True:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if not process:
            return ended
        ended[process] = status


def _read_request(control: socket.socket) -> tuple[dict[str, Any], memoryview]:
    text_length, data_length = REQUEST.unpack(_read(control, REQUEST.size))
    request: dict[str, Any] = json.loads(bytes(_read(control, text_length)))
    return request, _read(control, data_length)


def _read(control: socket.socket, length: int) -> memoryview:
    data = bytearray(length)
    view = memoryview(data)
    at = 0
    while at < length:
        count = control.recv_into(view[at:])
        if not count:
            raise OwnerGone
        at += count
    return view
