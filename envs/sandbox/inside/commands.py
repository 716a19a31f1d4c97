"""One command of a box: it is started as the box's user, its output is passed on, and it ends in time."""

from __future__ import annotations

import os
import resource
import select
import signal
import time

from headrace.envs.sandbox.file_stream import pack, read_entries, unpack
from headrace.envs.sandbox.frames import END, ENDED, LARGEST_FRAME, STDERR, STDOUT, encode_frame
from headrace.envs.sandbox.inside import kernel
from headrace.envs.sandbox.inside.identity import become_user
from headrace.envs.sandbox.inside.syscalls import forbid_calls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

RESTORED = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT)
"""Python, or its owner, ignores these signals; programs must not."""
MOST_DESCRIPTORS = 64
"""The first process has fewer."""
REST_READS = 16
"""Reads of what a command left in a pipe when it ended."""
CANNOT_RUN, NOT_FOUND = 126, 127


class OwnerGone(Exception):
    """The process outside the box has closed the socket."""


class Command:
    """Runs one request and says by frames what comes of it.

    Args:
        control: Descriptor of the socket to the owner.
        wakes: Pipe that has bytes when a child has ended.
        reap: Waits for the children that have ended; returns process to status.
    """

    def __init__(self, control: int, wakes: int, reap: Callable[[], dict[int, int]]) -> None:
        self._control, self._wakes, self._reap = control, wakes, reap

    def run(self, request: dict[str, Any], stdin: int, program: bytes) -> None:
        """Run a request to its end, or to its time's. Raises OwnerGone."""
        pipes = os.pipe(), os.pipe()
        child = os.fork()
        if not child:
            _become_command(request, stdin, (pipes[0][1], pipes[1][1]), program)
        for read_end, write_end in pipes:
            os.close(write_end)
            os.set_blocking(read_end, False)
        outputs = {pipes[0][0]: STDOUT, pipes[1][0]: STDERR}
        left = {STDOUT: request["most_stdout"], STDERR: request["most_stderr"]}
        try:
            status, timed_out = self._follow(child, outputs, left, time.monotonic() + request["timeout_s"])
        finally:
            for read_end, _ in pipes:
                os.close(read_end)
        code = os.waitstatus_to_exitcode(status)
        end = ENDED.pack(code if code >= 0 else 128 - code, timed_out, left[STDOUT] < 0, left[STDERR] < 0)
        send(self._control, encode_frame(END, end))

    def _follow(self, child: int, outputs: dict[int, int], left: dict[int, int], deadline: float) -> tuple[int, bool]:
        """Return a child's status, and whether its time was over."""
        poll = select.poll()
        for descriptor in (*outputs, self._wakes):
            poll.register(descriptor, select.POLLIN)
        poll.register(self._control, select.POLLRDHUP)
        timed_out, open_ends = False, set(outputs)
        while True:
            rest_s = deadline - time.monotonic()
            if rest_s <= 0 and not timed_out:
                timed_out = True
                kill_all()
            for descriptor, _ in poll.poll(max(rest_s, 0) * 1000 + 1 if not timed_out else 1000):
                if descriptor == self._control:
                    raise OwnerGone
                if descriptor in open_ends and not self._take_some(descriptor, outputs, left):
                    poll.unregister(descriptor)
                    open_ends.discard(descriptor)
            ended = self._reap()
            if child in ended:
                for descriptor in open_ends:
                    self._take_rest(descriptor, outputs, left)
                return ended[child], timed_out

    def _take_rest(self, descriptor: int, outputs: dict[int, int], left: dict[int, int]) -> None:
        for _ in range(REST_READS):
            if not self._take_some(descriptor, outputs, left):
                return

    def _take_some(self, descriptor: int, outputs: dict[int, int], left: dict[int, int]) -> bool:
        """Read once, and pass on what may still be kept; return whether there may be more."""
        try:
            data = os.read(descriptor, LARGEST_FRAME)
        except BlockingIOError:
            return False
        kind = outputs[descriptor]
        if kept := data[: max(left[kind], 0)]:
            send(self._control, encode_frame(kind, kept))
        left[kind] = max(left[kind], 0) - len(data) if left[kind] >= 0 else -1
        return bool(data)


def send(control: int, data: bytes) -> None:
    """Send all of some bytes to the owner. Raises OwnerGone."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(control, view) :]
    except OSError as error:
        raise OwnerGone from error


def kill_all() -> None:
    """Kill every process of the box but its first."""
    try:  # noqa: SIM105 - contextlib takes long to import
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _become_command(request: dict[str, Any], stdin: int, outputs: tuple[int, int], program: bytes) -> NoReturn:
    code = CANNOT_RUN
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for restored in RESTORED:
            signal.signal(restored, signal.SIG_DFL)
        for number, descriptor in enumerate((stdin, *outputs)):
            os.dup2(descriptor, number)
        os.closerange(3, MOST_DESCRIPTORS)
        for name, value in request["limits"].items():
            resource.setrlimit(getattr(resource, name), (value, value))
        if request["is_alone"]:
            kernel.spare_others()
        else:
            become_user()
            _be_killed_first()
        forbid_calls(program)
        os.chdir(request["cwd"])
        if own := request.get("own"):
            OWN[own](request)
            code = 0
        else:
            argv = request["argv"] or [
                "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh",
                "-c",
                request["shell"],
            ]
            _replace_by_program(argv, request["env"])
    except FileNotFoundError as error:
        code = NOT_FOUND
        _complain(error)
    except BaseException as error:  # noqa: BLE001 - it must not return into the loop of the first process
        _complain(error)
    finally:
        os._exit(code)


def _be_killed_first() -> None:
    """Let the kernel kill this process, not the first one, when memory is short. It holds nothing to hide any more."""
    kernel.hide_memory(hide=False)
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def _replace_by_program(argv: list[str], env: dict[str, str]) -> None:
    """Become a program, as `os.execvpe` does, which imports a module each time. Raises OSError."""
    places = [""] if "/" in argv[0] else [f"{folder}/" for folder in env.get("PATH", "").split(":")]
    for place in places:
        try:
            os.execve(place + argv[0], argv, env)  # noqa: S606 - it runs in a box
        except (FileNotFoundError, NotADirectoryError):
            continue
    raise FileNotFoundError(f"there is no program {argv[0]!r}")


def _complain(error: BaseException) -> None:
    os.write(2, f"{type(error).__name__}: {error}\n".encode(errors="replace"))


def _pack_here(request: dict[str, Any]) -> None:
    """Write a file or folder to stdout."""
    for chunk in pack(request["path"], request["most_stdout"], request["files"]):
        view = memoryview(chunk)
        while view:
            view = view[os.write(1, view) :]


def _unpack_here(request: dict[str, Any]) -> None:
    """Write what comes by stdin to a file or folder."""
    with open(0, "rb", closefd=False) as file:
        unpack(read_entries(file.read(), request["files"]), request["path"])


OWN = {"pack": _pack_here, "unpack": _unpack_here}
"""Requests that this program answers itself, in a child that is the box's user."""
