"""The escape table: `python attacks.py BACKEND` tries everything as the user that it runs as, and prints JSON.

Each attack is code that runs in a box. It says `ESCAPED` where it got what it must not get; what only the outside can
see is looked at here. The answer maps an attack's name to what it got: nothing, if the box holds.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from in_box import SNIPPETS

from headrace.envs.sandbox.contract import Result, TransferRefused
from headrace.envs.sandbox.grading import grade_in_fresh_box
from headrace.envs.sandbox.kinds import OWN, make_box
from headrace.envs.sandbox.limits import Limits
from headrace.envs.sandbox.memory_group import OWN_MIB, find_parent
from headrace.envs.sandbox.namespace_box import NamespaceBox
from headrace.envs.sandbox.namespaces import SANDLOCK

LIMITS = Limits(cpu_s=20, wall_s=20, memory_mb=256, processes=32, file_mb=8, disk_mb=32, output_kb=64)
SECRET = "the-secret-of-this-machine"
VARIABLE = "HEADRACE_TEST_SECRET"
ATTACKS: dict[str, Callable[[World], Awaitable[list[str]]]] = {}


class World:
    """What there is outside of boxes, that nothing in a box may reach."""

    def __init__(self, backend: str, folder: Path) -> None:
        self.backend, self.folder = backend, folder
        self.secret = folder / "secret.txt"
        self.secret.write_text(SECRET)
        os.environ[VARIABLE] = SECRET
        self.tcp, self.udp = socket.create_server(("0.0.0.0", 0)), socket.socket(type=socket.SOCK_DGRAM)
        self.udp.bind(("0.0.0.0", 0))
        self.path_socket, self.abstract = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        self.path_socket.bind(str(folder / "s"))
        self.abstract.bind("\0headrace-test-" + str(os.getpid()))
        for server in (self.path_socket, self.abstract):
            server.listen()
        for one in (self.tcp, self.udp, self.path_socket, self.abstract):
            one.setblocking(False)
        self.victim = subprocess.Popen(["sleep", "600"])

    @property
    def kind(self) -> str:
        return SANDLOCK if self.backend == SANDLOCK else OWN

    def words(self) -> dict[str, Any]:
        """Return what an attacker could know."""
        return {
            "tcp": self.tcp.getsockname()[1],
            "udp": self.udp.getsockname()[1],
            "path_socket": str(self.folder / "s"),
            "abstract": "\0headrace-test-" + str(os.getpid()),
            "victim": self.victim.pid,
            "owner": os.getpid(),
            "secret_path": str(self.secret),
            "secret": SECRET,
            "processes": LIMITS.processes,
            "disk": LIMITS.disk_mb << 20,
            "file": LIMITS.file_mb << 20,
            "files": LIMITS.most_files,
        }

    def box(self, limits: Limits = LIMITS, **settings: Any) -> NamespaceBox:
        return NamespaceBox(backend=self.backend, limits=limits, **settings)

    @asynccontextmanager
    async def after(self, name: str, limits: Limits = LIMITS) -> AsyncIterator[tuple[NamespaceBox, Result]]:
        """Yield a box in which a snippet has run."""
        async with self.box(limits) as box:
            yield box, await run_snippet(box, name, self.words())


async def run_snippet(box: NamespaceBox, name: str, words: dict[str, Any], timeout_s: float = 20) -> Result:
    code = (
        f"import json, os, sys, socket, errno, ctypes, signal, time\nW = json.loads(sys.stdin.read())\n{SNIPPETS[name]}"
    )
    return await box.exec(["python3", "-I", "-S", "-c", code], stdin=json.dumps(words), timeout_s=timeout_s)


def escapes(result: Result) -> list[str]:
    """Return what a snippet got, or that it did not come to its end: then it has shown nothing."""
    found = [line for line in (result.stdout + result.stderr).splitlines() if "ESCAPED" in line]
    done = "DONE" in result.stdout
    return found + ([] if done else [f"not done: {result.return_code} {result.stdout[-300:]} {result.stderr[-600:]}"])


async def serves(box: NamespaceBox) -> list[str]:
    """Return a complaint unless a box still works."""
    result = await box.exec("echo fine")
    return [] if result.stdout == "fine\n" else [f"the box is broken: {result}"]


def attack(run: Callable[[World], Awaitable[list[str]]]) -> Callable[[World], Awaitable[list[str]]]:
    ATTACKS[run.__name__] = run
    return run


def plain(name: str) -> None:
    """Add an attack that is a snippet alone, after which the box still works."""

    async def run(world: World) -> list[str]:
        async with world.after(name) as (box, result):
            return escapes(result) + await serves(box)

    ATTACKS[name] = run


for _name in (
    "tcp", "dns", "abstract_socket", "path_socket", "virtual_machine_socket", "signals_outside", "first_process",
    "files_outside", "environment_outside", "system_files", "proc_tricks", "own_program", "more_rights",
    "new_namespaces", "keyrings", "open_files", "terminal", "one_large_file", "many_files", "many_empty_files",
    "memory_of_one", "fork_bomb_counted", "hidden_system_calls", "devices",
):  # fmt: skip
    plain(_name)


@attack
async def udp(world: World) -> list[str]:
    async with world.after("udp") as (_, result):
        try:
            return [f"ESCAPED: {world.udp.recv(100)!r}"]
        except BlockingIOError:
            return escapes(result)


@attack
async def shell_fork_bomb(world: World) -> list[str]:
    async with world.box() as box:
        result = await box.exec("b() { b | b & }; b; sleep 60", timeout_s=1.5)
        again = await box.exec("ps -e | wc -l")
        found = [] if result.timed_out else [f"the bomb was not killed: {result}"]
        return found + ([] if int(again.stdout) <= 5 else [f"{again.stdout} processes go on"]) + await serves(box)


@attack
async def memory_of_all(world: World) -> list[str]:
    """All processes together, and memory that belongs to none of them."""
    async with world.after("memory_of_all") as (box, result):
        most = LIMITS.memory_mb + LIMITS.disk_mb + OWN_MIB
        if not find_parent():
            most = LIMITS.memory_mb * LIMITS.processes  # as docs/sandbox.md says
        got = int(result.stdout.split()[0]) if result.stdout.strip() else 0
        return ([] if got <= most else [f"ESCAPED: {got} MiB"]) + await serves(box)


@attack
async def hidden_memory(world: World) -> list[str]:
    async with world.after("hidden_memory") as (box, result):
        got = max((int(word) for word in result.stdout.split() if word.isdigit()), default=0)
        most = LIMITS.memory_mb + LIMITS.disk_mb + OWN_MIB
        return ([] if got <= most else [f"ESCAPED: {got} MiB"]) + await serves(box)


@attack
async def output_flood(world: World) -> list[str]:
    async with world.box() as box:
        result = await box.exec("yes & yes >&2", timeout_s=1.0)
        kept = max(len(result.stdout), len(result.stderr))
        ok = kept <= LIMITS.output_kb << 10 and result.stdout_truncated and result.stderr_truncated and result.timed_out
        return ([] if ok else [f"ESCAPED: {kept} bytes, {result.timed_out}"]) + await serves(box)


@attack
async def kill_all_inside(world: World) -> list[str]:
    async with world.box() as box:
        await box.exec("kill -9 -1; kill -9 1; kill -STOP 1; kill -INT 1; kill -TERM 1; kill -CHLD 1; true")
        return ([] if world.victim.poll() is None else ["ESCAPED: the victim is dead"]) + await serves(box)


@attack
async def other_boxes(world: World) -> list[str]:
    async with world.box() as one, world.box() as two:
        await one.exec(f"echo {SECRET} | tee /tmp/a ~/a /dev/shm/a >/dev/null; sleep 500 & echo")
        return escapes(await run_snippet(two, "other_boxes", world.words())) + await serves(one)


@attack
async def daemon(world: World) -> list[str]:
    """A process in a session of its own, deaf to signals, must end with its box."""
    mark = f"4{os.getpid()}{time.monotonic_ns() % 10**6}"
    async with world.box() as box:
        await box.exec(f"trap '' HUP TERM INT; setsid nohup sleep {mark} >/dev/null 2>&1 & sleep 0.1")
        inside = await box.exec(f"pgrep -f 'sleep {mark}' | wc -l")
    found = [] if int(inside.stdout) else ["no daemon was started"]
    return found + [f"ESCAPED: it is process {pid}" for pid in processes_with(mark)]


def processes_with(mark: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


@attack
async def owner_is_killed(world: World) -> list[str]:
    """A box whose owner dies without a word goes, too."""
    mark = f"5{os.getpid()}{time.monotonic_ns() % 10**6}"
    code = (
        "import asyncio, os, signal\nfrom headrace.envs.sandbox.namespace_box import NamespaceBox\n"
        f"async def main():\n box = NamespaceBox(backend={world.backend!r})\n await box.start()\n"
        f" await box.exec('setsid sleep {mark} >/dev/null 2>&1 & sleep 0.1')\n print('up', flush=True)\n"
        f" asyncio.ensure_future(box.exec('sleep {mark}'))\n await asyncio.sleep(0.2)\n"
        " os.kill(os.getpid(), signal.SIGKILL)\nasyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    for _ in range(100):
        if not (left := processes_with(mark)):
            break
        await asyncio.sleep(0.05)
    return ([] if done.stdout == "up\n" else [done.stderr]) + [f"ESCAPED: process {pid}" for pid in left]


@attack
async def next_box_is_clean(world: World) -> list[str]:
    async with world.box() as box:
        await box.exec("echo x > ~/x; echo x > /tmp/x; echo x > /var/tmp/x; echo x > /dev/shm/x; sleep 500 &")
    async with world.box() as box:
        result = await box.exec("find ~ /tmp /var/tmp /dev/shm -xdev -name x; ps -e --no-headers | wc -l")
    return [] if result.stdout.split() == ["3"] else [f"ESCAPED: {result.stdout}"]


@attack
async def bombs_to_download(world: World) -> list[str]:
    """What unpacks to more than it looks like, or never ends, is refused or left out."""
    found = []
    async with world.after("bombs") as (box, result):
        found += escapes(result)
        for path, refused in (("/tmp/many", True), ("/tmp/sparse", True), ("/tmp/nothing", True), ("/tmp/odd", False)):
            target = world.folder / f"down{path.replace('/', '-')}"
            try:
                left_out = await box.download(path, target)
            except TransferRefused:
                found += [] if refused else [f"{path} was refused"]
                continue
            files = sorted(one.name for one in target.rglob("*") if not one.is_dir())
            found += [f"ESCAPED: {path} came out"] if refused else []
            found += [f"ESCAPED: {one} is a link" for one in target.rglob("*") if one.is_symlink()]
            if files != ["file", "link-to-file", "passwd"] or "root:" not in (target / "passwd").read_text():
                found.append(f"{files}")
            if sorted(left_out) != ["dangling", "device", "loop", "pipe", "secret", "socket"]:
                found.append(f"left out: {left_out}")
            if "/home/user:" not in (target / "passwd").read_text():
                found.append("ESCAPED: the passwd of this machine")
        return found + await serves(box)


@attack
async def forged_grade(world: World) -> list[str]:
    """An agent that writes what the grader writes, links to what the grader has, or changes its tests gets nothing."""
    tests = world.folder / "tests"
    tests.mkdir()
    (tests / "expected").write_text("42")
    (tests / "test.sh").write_text(
        'echo "$1" >/dev/null; cmp -s /app/answer /tests/expected && echo 1 > /logs/reward || echo 0 > /logs/reward\n'
        "touch /tests/x 2>/dev/null && echo ESCAPED; echo 42 > /tests/expected 2>/dev/null && echo ESCAPED\n"
        "mv /tests /tmp/t 2>/dev/null && echo ESCAPED; chmod 777 /tests 2>/dev/null && echo ESCAPED; ls -A /logs\n"
    )
    found = []
    for how, reward in (
        ("ln -s /tests/expected /app/answer", b"0\n"),
        ("ln -s / /app/root; ln -s root/tests/expected /app/answer", b"0\n"),
        ("echo 41 > /app/answer; (while :; do echo 1 > /logs/reward; done) & mkdir /tmp/logs", b"0\n"),
        ("mkfifo /app/answer", b"0\n"),
        ("printf 42 > /app/answer", b"1\n"),
    ):
        async with world.box(folders=["/app", "/logs"]) as box:
            await box.exec(how)
            graded = await grade_in_fresh_box(box, results=["/app"], tests=tests, limits=LIMITS, kind=world.kind)
        if graded.logs.get("reward") != reward or graded.result is None or graded.result.stdout != "reward\n":
            found.append(f"ESCAPED by {how}: {graded}")
    return found


@attack
async def upload_through_links(world: World) -> list[str]:
    async with world.box(folders=["/app"]) as box:
        await box.exec(f"ln -s {world.secret} /app/a; ln -s {world.folder} /app/b; ln -s /etc/passwd /app/c")
        (world.folder / "new").write_text("new")
        for target in ("/app/a", "/app/b/secret.txt", "/app/c"):
            try:
                await box.upload(world.folder / "new", target)
            except Exception as error:  # noqa: BLE001 - the box may refuse it in any way
                print(target, error, file=sys.stderr)
    return [] if world.secret.read_text() == SECRET else ["ESCAPED: the secret was written"]


@attack
async def useful(world: World) -> list[str]:
    """A box that refuses everything would pass all of the above."""
    async with world.after("useful") as (_, result):
        found = escapes(result)
    box = make_box(world.kind, limits=LIMITS)
    await box.start()
    await box.stop()
    await box.stop()
    return found


async def main(backend: str, only: list[str]) -> dict[str, list[str]]:
    answers = {}
    with tempfile.TemporaryDirectory() as name:
        world = World(backend, Path(name))
        try:
            for attack_name in only or list(ATTACKS):
                begin = time.monotonic()
                try:
                    answers[attack_name] = await ATTACKS[attack_name](world)
                except Exception as error:  # noqa: BLE001 - the table goes on
                    answers[attack_name] = [f"{type(error).__name__}: {error}"]
                print(f"{attack_name} {time.monotonic() - begin:.2f} s", file=sys.stderr)
            try:
                world.tcp.accept()
                answers["tcp"].append("ESCAPED: a connection arrived")
            except BlockingIOError:
                pass
            if world.victim.poll() is not None:
                answers["signals_outside"].append("ESCAPED: the victim is dead")
        finally:
            world.victim.kill()
    return answers


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], sys.argv[2:]))))
