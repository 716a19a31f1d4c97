"""The program of a child process that runs calls of its parent; `child_pool.py` starts, limits and kills it.

A frame is a length and a pickle. The first one says how to build an object. From then on functions are called with it:
sync ones in threads, async ones on the event loop. Calls of one session share the objects that were sent last, each
under a name. The child ends when its channel is closed.
"""

from __future__ import annotations

import asyncio
import faulthandler
import inspect
import os
import pickle
import signal
import socket
import struct
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, BinaryIO, NoReturn

from headrace.infra.log import configure_logging, warn_in_sentences
from headrace.infra.own_frames import locate_thread, locate_wait
from headrace.infra.process.carried_errors import pack_error
from headrace.infra.process.child_process import die_first, die_with_parent

EXIT = os._exit
LENGTH = struct.Struct("<Q")
MOST_THREADS = 1024


def pack_frame(*message: Any) -> bytes:
    """Return a message as a frame."""
    packed = pickle.dumps(message)
    return LENGTH.pack(len(packed)) + packed


def _read_frame(stream: BinaryIO) -> Any:
    """Return the next message; None at the end."""
    head = stream.read(LENGTH.size)
    return pickle.loads(stream.read(LENGTH.unpack(head)[0])) if len(head) == LENGTH.size else None


class Child:
    """Runs calls. A frame to it begins with a number and a kind.

    `call` begins a call; `cancel` cancels it if it is async; `locate` asks where it is, and cancels it; `end` ends a
    session.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel, self._stream, self._sending = channel, channel.makefile("rb"), threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._threads = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="call")
        self._kept: dict[int, dict[str, object]] = {}
        """By session and name."""
        self._running: dict[int, int | asyncio.Task[Any]] = {}
        """The thread or the asyncio task of each call that runs."""
        self._built: Any = None

    def serve(self) -> None:
        """Build the object, then run calls until the parent closes the channel."""
        if (first := _read_frame(self._stream)) is None:  # the parent has ended already
            return
        sys.path[:], bound, recipe = first
        if bound:
            configure_logging(**bound)
        else:
            warn_in_sentences()
        try:
            self._built = pickle.loads(recipe)()
        except BaseException as error:  # noqa: BLE001 - the parent raises it
            self._send(0, "error", pack_error(error))
            return
        self._send(0, "result", b"")
        threading.Thread(target=self._take_frames, daemon=True).start()
        self._loop.run_forever()

    def _take_frames(self) -> None:
        while (message := _read_frame(self._stream)) is not None:
            number, kind, *rest = message
            if kind == "call":
                self._begin(number, *rest)
            elif kind == "end":
                self._kept.pop(number, None)
            else:
                if kind == "locate":
                    self._send(number, "at", self._locate(number).encode())
                if isinstance(running := self._running.get(number), asyncio.Task):
                    self._loop.call_soon_threadsafe(running.cancel)
        EXIT(0)  # a usual exit would wait for calls that never end

    def _begin(self, number: int, session: int, name: str, kept: bytes | None, what: bytes) -> None:
        try:
            of_session = self._kept.setdefault(session, {})
            if kept is not None:
                of_session[name] = pickle.loads(kept)
        except Exception as error:  # noqa: BLE001 - the caller raises it
            self._answer(number, "error", pack_error(error))
        else:
            self._threads.submit(self._run, number, of_session[name], what)

    def _run(self, number: int, kept: object, what: bytes) -> None:
        self._running[number] = threading.get_ident()
        try:
            function, arguments = pickle.loads(what)
            found = function(self._built, kept, *arguments)
            if inspect.iscoroutine(found):
                self._loop.call_soon_threadsafe(self._start_task, number, found)
                return
            packed = pickle.dumps(found)
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            self._answer(number, "error", pack_error(error))
        else:
            self._answer(number, "result", packed)

    def _start_task(self, number: int, coroutine: Any) -> None:
        async def run() -> None:
            try:
                packed = pickle.dumps(await coroutine)
            except BaseException as error:  # noqa: BLE001 - the caller raises it; SystemExit would end the event loop
                self._answer(number, "error", pack_error(error))
            else:
                self._answer(number, "result", packed)

        self._running[number] = task = self._loop.create_task(run())
        task.add_done_callback(partial(self._answer_cancelled, number))

    def _answer_cancelled(self, number: int, task: asyncio.Task[None]) -> None:
        if task.cancelled():  # before it began
            self._answer(number, "error", pack_error(asyncio.CancelledError()))

    def guard_exit(self, stacks: int) -> None:
        """Let `os._exit` fail only the call that it is in; from another thread it ends this process, with its line."""
        own = os.getpid()

        def leave(status: int) -> NoReturn:
            if os.getpid() == own:
                if self._is_in_call():
                    raise SystemExit(f"os._exit({status}) was called")
                faulthandler.dump_traceback(stacks, all_threads=False)
            EXIT(status)

        os._exit = leave

    def _is_in_call(self) -> bool:
        """Return whether the code that asks is that of a call."""
        here: object = threading.get_ident()
        if here == threading.main_thread().ident:
            here = asyncio.current_task(self._loop)
        return here in list(self._running.values())

    def _locate(self, number: int) -> str:
        running = self._running.get(number)
        if isinstance(running, asyncio.Task):
            if running is not asyncio.current_task(self._loop):
                return locate_wait(running)
            running = threading.main_thread().ident  # it computes, or blocks
        return locate_thread(running or 0)

    def _answer(self, number: int, kind: str, payload: bytes) -> None:
        self._running.pop(number, None)
        self._send(number, kind, payload)

    def _send(self, *message: Any) -> None:
        frame = pack_frame(*message)
        with self._sending, suppress(OSError):  # the parent has gone
            self._channel.sendall(frame)


def main() -> None:
    """Serve the channel of the first number; crashes and SIGUSR1 write stacks to the file of the second."""
    channel, stacks = map(int, sys.argv[1:])
    die_with_parent()  # also while no thread can see that the channel is closed
    die_first()
    faulthandler.enable(stacks)
    faulthandler.register(signal.SIGUSR1, stacks)
    child = Child(socket.socket(fileno=channel))
    child.guard_exit(stacks)
    child.serve()


if __name__ == "__main__":
    main()
