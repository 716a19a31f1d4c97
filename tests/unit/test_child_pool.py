"""Code that hangs or crashes runs in child processes: its call fails by name and place, and others hardly notice."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest
from patience import PATIENCE_S

from headrace.infra.own_frames import describe_with_location
from headrace.infra.process.carried_errors import pack_error, unpack_error
from headrace.infra.process.child_handle import Call, ChildDied, Overdue
from headrace.infra.process.child_pool import ChildPool, Session
from headrace.infra.process.child_process import DIES_FIRST
from headrace.infra.unreachable import is_unreachable

LIMIT_S = 0.3


def wait_for_end(pid: int) -> None:
    end = time.monotonic() + PATIENCE_S
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < end, "the child lives on"
        time.sleep(0.02)


class Own:
    """What a child builds."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}


def count(own: Own, kept: list[int], name: str) -> tuple[int, int, list[int]]:
    """Change what the child keeps."""
    own.seen[name] = own.seen.get(name, 0) + 1
    kept.append(len(kept))
    return os.getpid(), own.seen[name], kept


def sleep(_own: Own, _kept: object, seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


async def sleep_soon(_own: Own, _kept: object, seconds: float) -> int:
    await asyncio.sleep(seconds)
    return os.getpid()


def hold_the_gil(_own: Own, _kept: object) -> None:
    re.match("(a+)+$", "a" * 64 + "b")


def crash(_own: Own, _kept: object) -> None:
    ctypes.string_at(0)


def leave(_own: Own, _kept: object) -> None:
    os._exit(3)


async def leave_soon(own: Own, kept: object) -> None:
    leave(own, kept)


def leave_from_a_thread(own: Own, kept: object) -> None:
    threading.Thread(target=leave, args=(own, kept)).start()
    time.sleep(PATIENCE_S)


def leave_a_fork(_own: Own, _kept: object) -> int:
    if not (pid := os.fork()):
        os._exit(3)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Odd(ConnectionError):
    """Cannot be made again from its arguments."""

    def __init__(self, code: int, *, where: str) -> None:
        super().__init__(f"{code} at {where}")
        self.lock = asyncio.Lock

    def __reduce__(self) -> Any:
        raise TypeError("no")


def fail(_own: Own, _kept: object) -> None:
    raise KeyError("ground_truth") from Odd(503, where="the judge")


def call(function: Callable[..., object], *arguments: object, limit_s: float = PATIENCE_S, **more: Any) -> Call:
    return Call(function.__name__, function, more.pop("kept", None), arguments, limit_s, "it took too long", **more)


def run(*steps: Callable[[Session], Coroutine[Any, Any, Any]], is_spread: bool = True) -> list[Any]:
    """Return what each step gives or raises in a session of its own, all at the same time."""

    async def play(pool: ChildPool, step: Callable[[Session], Coroutine[Any, Any, Any]]) -> Any:
        session = pool.open_session()
        try:
            return await step(session)
        finally:
            session.end()

    async def play_all() -> list[Any]:
        pool = ChildPool("it", Own, 2)
        if is_spread:
            pool.start()  # else all come while the first one starts, and share it
        async with asyncio.timeout(2 * PATIENCE_S):
            return await asyncio.gather(*(play(pool, step) for step in steps), return_exceptions=True)

    return asyncio.run(play_all())


def test_a_session_keeps_its_child_and_the_object_in_it_until_another_one_is_sent() -> None:
    async def step(session: Session) -> list[Any]:
        return [await session.call(call(count, "a", kept=kept)) for kept in ([7], [7], [8])]

    [[first, second, third]] = run(step)
    assert len({first[0], second[0], third[0]}) == 1
    assert [one[1:] for one in (first, second, third)] == [(1, [7, 1]), (2, [7, 1, 2]), (3, [8, 1])]


def test_calls_that_wait_share_a_child_and_calls_that_come_together_are_spread() -> None:
    async def step(session: Session) -> list[int]:
        return await asyncio.gather(*(session.call(call(one, 0.2)) for one in (sleep, sleep_soon) for _ in range(32)))

    began = time.monotonic()
    pids = run(step, step)
    assert len({pid for one in pids for pid in one}) == 2
    assert time.monotonic() - began < 64 * 0.2, "they wait one after the other"


def test_a_late_call_fails_with_its_place_and_its_child_gets_no_new_session_and_ends() -> None:
    async def play() -> None:
        pool = ChildPool("it", Own, 2)
        stuck, other = pool.open_session(), pool.open_session()
        pid, *_ = await stuck.call(call(count, "a", kept=[]))
        for one in (sleep, sleep_soon):
            with pytest.raises(Overdue, match="it took too long") as raised:
                await stuck.call(call(one, PATIENCE_S, limit_s=LIMIT_S))
            assert f"in {one.__name__}" in raised.value.at
        assert await other.call(call(sleep, 0)) != pid
        assert (await stuck.call(call(count, "a", kept=[])))[:2] == (pid, 2), "the episode goes on"
        stuck.end()
        await asyncio.to_thread(wait_for_end, pid)
        other.end()

    asyncio.run(play())


def test_a_child_that_holds_the_gil_is_killed_with_the_place_and_its_other_calls_run_again_or_say_so() -> None:
    async def hold(session: Session) -> None:
        await session.call(call(hold_the_gil, limit_s=1.0, may_repeat=True))

    async def score(session: Session) -> int:
        found: int = await session.call(call(sleep, 0.9, may_repeat=True))
        return found

    async def play_long(session: Session) -> int:
        await session.call(call(count, "a", kept=[]))
        return await score(session)

    held, scored, long = run(hold, score, play_long, is_spread=False)
    assert isinstance(held, Overdue)
    assert re.fullmatch(r".*test_child_pool\.py:\d+ in hold_the_gil", held.at)
    assert isinstance(scored, int)
    assert isinstance(long, ChildDied)
    assert "was killed because code in it holds the GIL" in str(long)


@pytest.mark.parametrize(
    ("function", "says"),
    [(crash, r"was ended by signal 11 \(SIGSEGV\)"), (leave_from_a_thread, "ended with exit status 3")],
)
def test_a_call_that_ends_its_child_fails_by_name_and_a_session_that_has_state_there_fails_too(
    function: Callable[..., object], says: str
) -> None:
    async def step(session: Session) -> None:
        with pytest.raises(ChildDied, match=rf"the child process of {function.__name__} {says}") as raised:
            await session.call(call(function))
        assert raised.value.is_own
        assert raised.value.at.endswith("in crash" if function is crash else "in leave")
        with pytest.raises(ChildDied, match=f"of this episode left is lost: their child process {says}"):
            await session.call(call(sleep, 0))

    assert run(step) == [None]


def test_an_exit_in_a_call_fails_this_call_alone_with_its_place_and_one_in_a_fork_of_it_ends_the_fork() -> None:
    async def step(session: Session) -> list[int]:
        before = await session.call(call(sleep, 0))
        for one in (leave, leave_soon):
            with pytest.raises(RuntimeError, match=rf"{one.__name__} raised SystemExit: os\._exit\(3\)") as raised:
                await session.call(call(one))
            assert describe_with_location(raised.value).endswith(" in leave")
        return [before - await session.call(call(sleep, 0)), await session.call(call(leave_a_fork))]

    assert run(step) == [[0, 3]]


def test_an_error_keeps_type_text_place_and_cause_and_one_that_cannot_be_sent_its_name() -> None:
    async def step(session: Session) -> None:
        await session.call(call(fail))

    [error] = run(step)
    assert isinstance(error, KeyError)
    assert re.fullmatch(r"KeyError: 'ground_truth' at .*test_child_pool\.py:\d+ in fail", describe_with_location(error))
    assert (type(error.__cause__).__name__, str(error.__cause__)) == ("Odd", "503 at the judge")
    assert is_unreachable(error)
    assert str(unpack_error(pack_error(UnicodeDecodeError("utf-8", b"x", 0, 1, "odd")))).endswith("odd")


def build_badly() -> None:
    raise ValueError("no such model")


def test_what_cannot_be_built_or_sent_is_an_error_of_its_own() -> None:
    async def play() -> None:
        session = ChildPool("it", build_badly).open_session()
        with pytest.raises(ValueError, match="no such model"):
            await session.wait_until_ready()
        with pytest.raises(TypeError, match=r"cannot be sent there .*: keep plain data in it"):
            await session.call(call(sleep, 0, kept=asyncio.current_task()))

    asyncio.run(play())
    with pytest.raises(TypeError, match="it cannot be sent to a child process"):
        ChildPool("it", threading.Lock().acquire)


PARENT = """
import asyncio, time
from test_child_pool import Own, call, hold_the_gil, sleep
from headrace.infra.process.child_pool import ChildPool

session = ChildPool("it", Own, 1).open_session()
print(session.call_and_wait(call(sleep, 0)), flush=True)
session.call_and_wait(call(hold_the_gil))
"""


def test_a_child_ends_with_its_parent_also_while_it_is_frozen() -> None:
    path = os.pathsep.join(sys.path)
    with Popen([sys.executable, "-c", PARENT], stdout=PIPE, env={**os.environ, "PYTHONPATH": path}) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    try:
        wait_for_end(child)
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def read_oom_score(_own: Own, _kept: object) -> int:
    return int(Path("/proc/self/oom_score_adj").read_text())


def test_a_child_dies_before_others_when_memory_runs_out() -> None:
    async def step(session: Session) -> int:
        return await session.call(call(read_oom_score))

    assert run(step)[0] >= int(DIES_FIRST)
