"""What a box does for its owner, by each program that makes one."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from users import ROOT, skip_without

from headrace.envs.sandbox import first_process, namespace_box
from headrace.envs.sandbox.contract import BoxFailed, TransferRefused
from headrace.envs.sandbox.grading import grade_in_fresh_box
from headrace.envs.sandbox.kinds import check_boxes, describe_boxes, make_box
from headrace.envs.sandbox.limits import Limits
from headrace.envs.sandbox.namespace_box import NamespaceBox
from headrace.envs.sandbox.namespaces import PROGRAMS
from headrace.infra.errors import UsageError

pytestmark = pytest.mark.sandbox
SMALL = Limits(wall_s=10, disk_mb=16, file_mb=8, output_kb=4)


@pytest.fixture(params=PROGRAMS)
def backend(request: pytest.FixtureRequest) -> str:
    skip_without(request.param)
    return str(request.param)


def play(backend: str, act: Callable[[NamespaceBox], Awaitable[Any]], limits: Limits = SMALL, **settings: Any) -> Any:
    async def run() -> Any:
        async with NamespaceBox(backend=backend, limits=limits, **settings) as box:
            return await act(box)

    return asyncio.run(run())


def test_a_command_gets_stdin_variables_and_a_folder_and_its_result_is_told(backend: str) -> None:
    async def act(box: NamespaceBox) -> None:
        done = await box.exec("cat; echo $A; pwd; echo no >&2; exit 3", stdin="in ", env={"A": "é"}, cwd="/tmp")
        assert (done.stdout, done.stderr, done.return_code) == ("in é\n/tmp\n", "no\n", 3)
        assert (done.timed_out, done.stdout_truncated, done.stderr_truncated) == (False, False, False)
        assert (await box.exec(["printf", "%s", "$A b"])).stdout == "$A b"
        assert (await box.exec(["no-such-program"])).return_code == 127
        assert (await box.exec("kill -9 $$")).return_code == 137
        assert (await box.exec("python3 -c 'print(6 * 7)'")).stdout == "42\n"

    play(backend, act)


def test_files_and_processes_stay_until_the_box_goes(backend: str) -> None:
    async def act(box: NamespaceBox) -> None:
        await box.exec("echo one > file; (while :; do sleep 0.05; echo . >> ticks; done) &")
        await box.exec("while ! test -s ticks; do sleep 0.05; done")
        assert (await box.exec("cat file")).stdout == "one\n"

    play(backend, act)


def test_output_beyond_the_limit_is_dropped_and_the_command_goes_on(backend: str) -> None:
    async def act(box: NamespaceBox) -> None:
        done = await box.exec("head -c 100000 /dev/zero | tr '\\0' x; echo end >&2")
        assert (done.stdout, done.stderr, done.stdout_truncated) == ("x" * 4096, "end\n", True)
        done = await box.exec("head -c 4096 /dev/zero")
        assert (len(done.stdout), done.stdout_truncated) == (4096, False)

    play(backend, act)


def test_a_command_whose_time_is_over_takes_all_processes_with_it(backend: str) -> None:
    async def act(box: NamespaceBox) -> None:
        done = await box.exec("setsid sleep 60 & echo said; sleep 60", timeout_s=0.2)
        assert (done.timed_out, done.stdout, done.return_code) == (True, "said\n", 137)
        assert (await box.exec("ps -e | grep -c sleep")).stdout == "0\n"
        with pytest.raises(UsageError, match="at most the limit wall_s, 10"):
            await box.exec("true", timeout_s=11)

    play(backend, act)


def test_files_and_folders_go_in_and_out(backend: str, tmp_path: Path) -> None:
    source = tmp_path / "in"
    (source / "deep" / "empty").mkdir(parents=True)
    (source / "deep" / "é.txt").write_bytes(b"\0\xff")
    (source / "run").write_text("#!/bin/sh\necho ran\n")
    (source / "run").chmod(0o755)

    async def act(box: NamespaceBox) -> None:
        await box.upload(source, "/app")
        await box.upload(source / "run", "/app/deep/again")
        assert (await box.exec("./run; deep/again", cwd="/app")).stdout == "ran\nran\n"
        assert await box.download("/app", tmp_path / "out") == []
        assert (tmp_path / "out" / "deep" / "é.txt").read_bytes() == b"\0\xff"
        assert (tmp_path / "out" / "deep" / "empty").is_dir()
        assert os.access(tmp_path / "out" / "run", os.X_OK)
        await box.download("/app/run", tmp_path / "file")
        assert (tmp_path / "file").read_text() == (source / "run").read_text()
        with pytest.raises(UsageError, match="there already"):
            await box.download("/app", tmp_path / "out")
        with pytest.raises(TransferRefused, match="No such file"):
            await box.download("/nowhere", tmp_path / "no")
        with pytest.raises(UsageError, match=r"cannot copy .*nothing into a box"):
            await box.upload(tmp_path / "nothing", "/app/x")
        (tmp_path / "large").write_bytes(bytes(10 << 20))
        await box.upload(tmp_path / "large", "/app/large")
        with pytest.raises(TransferRefused, match="No space left"):
            await box.upload(tmp_path / "large", "/app/larger")

    play(backend, act, folders=["/app"])


def test_files_that_come_with_a_box_cannot_be_changed(backend: str, tmp_path: Path) -> None:
    (tmp_path / "expected").write_text("42")

    async def act(box: NamespaceBox) -> None:
        assert (await box.exec("cat /tests/expected")).stdout == "42"
        done = await box.exec("echo 41 > /tests/expected; rm -f /tests/expected; touch /tests/x; cat /tests/*")
        assert done.stdout == "42"

    play(backend, act, read_only={"/tests": tmp_path})


def test_a_python_that_is_installed_below_a_writable_folder_is_seen(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "program").write_text("echo ran")
    monkeypatch.setattr(namespace_box, "find_programs", lambda: [str(tmp_path)])

    async def act(box: NamespaceBox) -> None:
        done = await box.exec(
            f"sh {tmp_path}/program; echo x 2>/dev/null > {tmp_path}/program || sh {tmp_path}/program"
        )
        assert done.stdout == "ran\nran\n"

    play(backend, act)


def test_commands_of_one_box_wait_for_one_another(backend: str) -> None:
    async def act(box: NamespaceBox) -> None:
        commands = [box.exec(f"echo {number} >> order; sleep 0.02; cat order") for number in range(5)]
        assert [len(done.stdout.split()) for done in await asyncio.gather(*commands)] == [1, 2, 3, 4, 5]

    play(backend, act)


def test_a_box_that_is_killed_from_outside_or_was_stopped_is_a_failure_and_no_result(backend: str) -> None:
    async def kill(box: NamespaceBox) -> None:
        assert box._first is not None
        asyncio.get_running_loop().call_later(0.2, box._first.kill)
        with pytest.raises(BoxFailed, match="ended by itself"):
            await box.exec("sleep 60")
        with pytest.raises(BoxFailed, match="does not run"):
            await box.exec("true")

    async def cancel(box: NamespaceBox) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await box.exec("sleep 60")
        with pytest.raises(BoxFailed, match="does not run"):
            await box.exec("true")

    play(backend, kill)
    play(backend, cancel)


def test_a_box_that_cannot_start_says_why(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(**settings: Any) -> None:
        async with NamespaceBox(backend=backend, limits=SMALL, **settings):
            pass

    monkeypatch.setattr(namespace_box, "find_programs", lambda: ["/no/such/folder"])
    with pytest.raises(BoxFailed, match=r"cannot start with .*No such file"):
        asyncio.run(start())
    monkeypatch.setattr(first_process, "build_command", lambda _: ["sh", "-c", "echo no namespaces here >&2"])
    with pytest.raises(BoxFailed, match="no namespaces here"):
        asyncio.run(start())


def test_a_hundred_boxes_at_a_time_leave_nothing(backend: str) -> None:
    async def one(number: int) -> str:
        async with NamespaceBox(backend=backend, limits=SMALL) as box:
            return (await box.exec(f"echo {number} > n; cat n")).stdout

    async def run() -> list[str]:
        return await asyncio.gather(*map(one, range(100)))

    before = len(list(Path("/proc/self/fd").iterdir()))
    assert asyncio.run(run()) == [f"{number}\n" for number in range(100)]
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_tests_see_what_was_made_and_what_cannot_be_graded_is_refused(backend: str, tmp_path: Path) -> None:
    (tmp_path / "test.sh").write_text("cat /app/made ~/too > /logs/found; test -s /logs/found")

    async def act(box: NamespaceBox) -> None:
        await box.exec("echo a > /app/made; echo b > too")
        graded = await grade_in_fresh_box(box, results=["/app", "/home/user/too"], tests=tmp_path, limits=SMALL)
        assert graded.result is not None
        assert (graded.result.return_code, graded.logs, graded.refused) == (0, {"found": b"a\nb\n"}, "")
        graded = await grade_in_fresh_box(box, results=["/app", "/app/none"], tests=tmp_path, limits=SMALL)
        assert graded.result is None
        assert "No such file" in graded.refused
        with pytest.raises(UsageError, match="belong to the grader"):
            await grade_in_fresh_box(box, results=["/tests/x"], tests=tmp_path)

    play(backend, act, folders=["/app"])


def test_this_machine_says_what_boxes_it_has() -> None:
    skip_without("unshare")

    async def run() -> str:
        box = make_box(limits=SMALL)
        await box.start()
        try:
            return (await box.exec("echo in a loop")).stdout
        finally:
            await box.stop()

    assert asyncio.run(run()) == "in a loop\n"
    assert check_boxes() in PROGRAMS
    assert describe_boxes().startswith(check_boxes())


def test_the_program_of_the_page_runs(tmp_path: Path) -> None:
    skip_without("unshare")
    [code, *_] = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs" / "sandbox.md").read_text(), re.DOTALL | re.MULTILINE
    )
    (tmp_path / "numbers.txt").write_text("40\n2\n")

    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert (done.stdout, done.stderr) == ("42\n 0\n", "")
    assert (tmp_path / "sum.txt").read_text() == "42\n"


def test_a_command_that_is_none_and_a_machine_that_has_no_descriptors_are_told_apart(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(box: NamespaceBox) -> None:
        for command in ("", [], ["a", 1]):
            with pytest.raises(UsageError, match="must be a string, or a list of strings"):
                await box.exec(command)
        assert (await box.exec("echo \0")).return_code == 126
        assert (await box.exec("true")).return_code == 0

    play(backend, act)

    def refuse() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(first_process.tempfile, "TemporaryFile", refuse)
    with pytest.raises(BoxFailed, match=r"cannot start with .*Too many open files"):
        play(backend, act)
