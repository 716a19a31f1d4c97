"""One `headrace up` that is killed in parts or as a whole, and started again by the same command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from headrace.infra.environment import FAILPOINTS_VARIABLE
from headrace.infra.kafka.run_address import parse_run
from headrace.infra.run.run import Run, join

HERE = Path(__file__).parent
RECIPE = HERE / "flips.toml"
SERVERS = {"broker": "kafka", "store": "store"}
"""Process name to its folder in the data folder."""
FORGIVEN = {-signal.SIGKILL, os.EX_TEMPFAIL}
START_S = 180.0
PAUSE_S = 0.05


class NotInTime(AssertionError):
    """What was waited for did not come."""


def until(condition: Callable[[], Any], what: str, limit_s: float) -> None:
    """Wait until a condition holds. Raises NotInTime."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise NotInTime(f"not within {limit_s:.0f} s: {what}")
        time.sleep(PAUSE_S)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command of ours said as JSON, and its exit code."""

    code: int
    said: dict[str, Any]
    errors: str


class Launched:
    """`headrace up` on a data folder, its processes by name, and the failpoints armed in them."""

    def __init__(self, data: Path, sets: Iterable[str] = (), recipe: str | Path = RECIPE) -> None:
        self.data = data
        self.points = data.with_name(f"{data.name}.points")
        self.points.mkdir(parents=True, exist_ok=True)
        changes = [word for change in sets for word in ("--set", change)]
        self._words = ["up", str(recipe), *changes, "--data", str(data), "--plain"]
        self._up: subprocess.Popen[bytes] | None = None

    # --------------------------------------------------------------------------------------------------- life and death

    def start(self) -> None:
        """Start, or go on."""
        with self.data.with_name(f"{self.data.name}.up.txt").open("ab") as said:
            self._up = subprocess.Popen(_command(*self._words), stdout=said, stderr=said, env=self._environment())

    def ended(self) -> int | None:
        """Return the exit code of `headrace up`; None while it runs."""
        assert self._up is not None, "start it first"
        return self._up.poll()

    def await_end(self, limit_s: float) -> None:
        """Wait until `headrace up` has ended by itself. Raises NotInTime."""
        until(lambda: self.ended() is not None, "the run reaches its end by itself", limit_s)

    def interrupt(self) -> None:
        """Do what Ctrl-C does."""
        assert self._up is not None, "start it first"
        self._up.send_signal(signal.SIGINT)

    def kill_all(self) -> dict[str, int]:
        """SIGKILL to everything at once, children first, so that nobody sees another die; return who there was."""
        assert self._up is not None, "start it first"
        victims = self.everybody()
        for process in (*_descendants(self._up.pid), psutil.Process(self._up.pid)):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._up.wait()
        until(lambda: not any(map(alive, victims.values())), "all killed processes are gone", 120)
        return victims

    def kill_alone(self) -> dict[str, int]:
        """SIGKILL to `headrace up` alone, whose children must not outlive it; return who there was."""
        assert self._up is not None, "start it first"
        victims = self.everybody()
        self._up.kill()
        self._up.wait()
        return victims

    def deaths(self) -> list[str]:
        """Return what the launcher said of children that died neither of SIGKILL nor because a server was away."""
        found = []
        for line in self.log("up").read_text().splitlines():
            with suppress(ValueError):  # the last line of a life that was killed may be torn
                said = json.loads(line)
                if said["event"] == "child.died" and said["exit_code"] not in FORGIVEN:
                    found.append(f"{said['child']} exited with {said['exit_code']}")
        return found

    def leave_nothing(self) -> None:
        """Kill what still runs, at the end of a test."""
        if self._up is not None and self._up.poll() is None:
            self.kill_all()

    # -------------------------------------------------------------------------------------------------------- processes

    def processes(self) -> dict[str, int]:
        """Return the pid of every server and component that runs now, by the launcher's names."""
        assert self._up is not None, "start it first"
        named = {}
        for child in _descendants(self._up.pid, recursive=False):
            with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                # The words of a forked component are one text.
                if name := _name(" ".join(child.cmdline()).split()):
                    named[name] = child.pid
        for name, folder in SERVERS.items():
            with suppress(OSError, ValueError, KeyError):
                pid = int(json.loads((self.data / folder / "server.json").read_bytes())["pid"])
                if alive(pid):
                    named[name] = pid
        return named

    def everybody(self) -> dict[str, int]:
        """Return `processes` and `headrace up` itself."""
        assert self._up is not None, "start it first"
        return {**self.processes(), "up": self._up.pid}

    def log(self, name: str) -> Path:
        """Return the log of a component."""
        return self.data / "logs" / f"{name}.log"

    # ------------------------------------------------------------------------------------------------------- failpoints

    def arm(self, point: str, action: str, nth: int) -> None:
        """Let the next process that passes the point for the nth time be killed or stopped there."""
        (self.points / f"{point}.hit").unlink(missing_ok=True)
        (self.points / f"{point}.new").write_text(f"{action} {nth}")
        (self.points / f"{point}.new").rename(self.points / point)

    def disarm(self, point: str) -> None:
        """Take an armed point back."""
        (self.points / point).unlink(missing_ok=True)

    def hit(self, point: str) -> int | None:
        """Return the pid that was killed or stopped at the point; None while nobody was."""
        with suppress(OSError, ValueError):
            return int((self.points / f"{point}.hit").read_text())
        return None

    # -------------------------------------------------------------------------------------------------------- questions

    def count_events(self, name: str, event: str) -> int:
        """Return how often the log of a component tells of an event."""
        log = self.log(name)
        return log.read_text().count(f'"event": "{event}"') if log.exists() else 0

    def joined(self) -> Run:
        """Join the run as soon as it can be joined."""
        notes = self.data / "run.json"
        until(lambda: notes.exists() or self.ended() is not None, "run.json is written", START_S)
        told = json.loads(notes.read_text())
        return join(parse_run(f"kafka://{told['bootstrap']}/{told['run']}"), START_S)

    def asked(self, *words: str, timeout_s: float = 300) -> Answer:
        """Ask a command about the data folder, as JSON."""
        command = _command(*words, "--data", str(self.data), "--json")
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=timeout_s, env=self._environment()
        )
        try:
            said = json.loads(done.stdout)
        except ValueError:
            said = {}
        return Answer(done.returncode, said, done.stderr[-2000:])

    def _environment(self) -> dict[str, str]:
        return {**_environment(), FAILPOINTS_VARIABLE: str(self.points)}


def alive(pid: int) -> bool:
    """Tell whether a process lives; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def stopped(pid: int) -> bool:
    """Tell whether a process is suspended, all its threads."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


def component(words: Iterable[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a component beside those of `headrace up`."""
    with log.open("ab") as said:
        return subprocess.Popen(_command(*words), stdout=said, stderr=said, env=_environment())


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path}


def _command(*words: str) -> list[str]:
    return [sys.executable, "-m", "headrace", *words]


def _descendants(pid: int, *, recursive: bool = True) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=recursive)
    except psutil.NoSuchProcess:
        return []


def _name(command: list[str]) -> str:
    """Return the launcher's name of a component, by its command line; empty for anything else."""
    if "headrace" not in command:
        return ""
    what, *options = command[command.index("headrace") + 1 :]
    given = dict(zip(options[::2], options[1::2], strict=False))
    if what == "train":
        return f"train-{given['--policy']}"
    if what == "curate":
        return f"curate-{given['--policy']}-{given['--slot']}"
    return given["--name"] if what == "rollout" else what
