"""Components as processes of the command line, which a test stops at a named point and wakes when it likes."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import psutil
from forked import Forked, headrace
from patience import PATIENCE_S

from headrace.infra.kafka.clients import KafkaAway, KafkaRefused


def until(condition: Callable[[], bool], what: str, pause_s: float = 0.05) -> None:
    """Wait for something to become true, whatever the machine does beside it."""
    end = time.monotonic() + PATIENCE_S
    while True:
        with suppress(KafkaAway, KafkaRefused):  # a broker that was stopped or has just started
            if condition():
                return
        assert time.monotonic() < end, f"not within {PATIENCE_S:.0f} s: {what}"
        time.sleep(pause_s)


class Component:
    """`headrace <words>` with failpoints of its own; its log lines are in `log`.

    Args:
        folder: Its own, made here.
        words: The command.
        client: librdkafka settings, for shorter time-outs.
        armed: What it does at which point, from its start on.
    """

    def __init__(
        self,
        folder: Path,
        *words: str,
        client: Mapping[str, str] | None = None,
        armed: Mapping[str, str] | None = None,
    ) -> None:
        self.words, self.log, self._points = words, folder / "log", folder / "points"
        self._points.mkdir(parents=True)
        for point, action in (armed or {}).items():
            self.arm(point, action)
        self._env = {
            "HEADRACE_FAILPOINTS": str(self._points),
            "HEADRACE_KAFKA_CLIENT": json.dumps(client or {}),
        }
        self.process = self._spawn()

    def _spawn(self) -> Forked:
        return headrace(self.words, self.log, self._env)

    def arm(self, point: str, action: str = "stop") -> None:
        """Let the process stop the next time that it comes by."""
        (self._points / f"{point}.hit").unlink(missing_ok=True)
        (self._points / point).write_text(action)

    def stopped_at(self, point: str) -> bool:
        """Tell whether the process stands at the point."""
        hit = self._points / f"{point}.hit"
        assert self.process.poll() is None, f"{self} ended with {self.process.returncode}"
        return hit.exists() and hit.read_text() == str(self.process.pid) and self.stands()

    def stands(self) -> bool:
        """Tell whether the process is stopped."""
        return psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED

    def wake(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Suspend it wherever it is."""
        self.process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        """End it as SIGKILL does."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def restarted(self) -> bool:
        """Start it again if it has ended, as a supervisor does; tell whether it had."""
        if self.process.poll() is None:
            return False
        self.process = self._spawn()
        return True

    def said(self, event: str) -> list[dict[str, object]]:
        """Return its log lines of an event."""
        lines = (json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{"))
        return [line for line in lines if line["event"] == event]

    def __str__(self) -> str:
        return f"`headrace {' '.join(self.words)}`"


Start = Callable[..., Component]


def starter(folder: Path) -> Iterator[Start]:
    """Yield what starts components; whatever still runs at the end is killed, and all logs are shown."""
    started: list[Component] = []

    def start(*words: str, **more: Mapping[str, str]) -> Component:
        started.append(Component(folder / f"{len(started)}-{words[0]}", *words, **more))
        return started[-1]

    yield start
    for component in started:
        component.kill()
        sys.stderr.write(f"---- {component}\n{component.log.read_text()}")
