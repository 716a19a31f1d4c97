"""Workers and curators that join a run and leave it every few seconds, some with a word and some without.

`python tests/faults/rebalances.py --versions 400` is about two minutes of it on an idle machine.
"""

from __future__ import annotations

import argparse
import logging
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog
from launched import Launched, NotInTime, component
from matrix import ENDS_S, checked
from progress import POLICY, WORKFLOW, Progress
from rich.console import Console

JOIN_EVERY_S = 2.0
SHORTEST_S, LONGEST_S = 4.0, 15.0
"""How long a member stays from its start on, its imports included."""
AT_ONCE = 4
"""Most further members at one time."""
LEAVE_S = 120.0


@dataclass(slots=True)
class Guest:
    """A further member."""

    process: subprocess.Popen[bytes]
    leaves_at: float
    politely: bool


@dataclass(slots=True)
class Churn:
    """Lets members come and go. How long each stays is the seed's."""

    launched: Launched
    address: str
    draw: random.Random
    joined: int = 0
    left: int = 0
    killed: int = 0

    def go_on(self, lasts: Callable[[], bool]) -> None:
        """Let them come and go as long as `lasts` says, then let all leave."""
        guests: list[Guest] = []
        due = 0.0
        try:
            while lasts():
                now = time.monotonic()
                if now >= due and len(guests) < AT_ONCE:
                    guests.append(self._join(now))
                    due = now + JOIN_EVERY_S
                for guest in [guest for guest in guests if now >= guest.leaves_at]:
                    guests.remove(guest)
                    self._leave(guest)
                time.sleep(0.1)
        finally:
            for guest in guests:
                self._leave(guest)

    def _join(self, now: float) -> Guest:
        self.joined += 1
        kinds = (
            ("rollout", "--workflow", WORKFLOW, "--name", f"guest-{self.joined}"),
            ("curate", "--policy", POLICY),
        )
        words = (*kinds[self.joined % 2], "--run", self.address)
        process = component(words, self.launched.log(f"guest-{self.joined}"))
        # Two by two, so that members of both kinds leave in both ways.
        return Guest(process, now + self.draw.uniform(SHORTEST_S, LONGEST_S), politely=self.joined // 2 % 2 == 0)

    def _leave(self, guest: Guest) -> None:
        """End a member: SIGTERM, or SIGKILL. Raises NotInTime when the first does not end it."""
        self.left += guest.politely
        self.killed += not guest.politely
        guest.process.send_signal(signal.SIGTERM if guest.politely else signal.SIGKILL)
        try:
            guest.process.wait(LEAVE_S)
        except subprocess.TimeoutExpired as error:
            guest.process.kill()
            guest.process.wait()
            raise NotInTime(f"a guest does not leave within {LEAVE_S:.0f} s: {guest.process.args!r}") from error


def churn(launched: Launched, seed: int) -> tuple[Churn, str]:
    """Drive one run to its end; return what came and went, and what is wrong with the run."""
    launched.start()
    run = launched.joined()
    steps = run.recipe.trainer.steps
    coming = Churn(launched, str(run.address), random.Random(seed))  # noqa: S311 - a plan, not a secret
    end = time.monotonic() + ENDS_S
    with Progress(run) as progress:
        coming.go_on(lambda: progress.version < steps and launched.ended() is None and time.monotonic() < end)
    launched.await_end(ENDS_S)
    return coming, checked(launched, steps)


def main() -> int:
    """Churn once; return 1 when the run did not come out right."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    options.add_argument("--versions", type=int, default=400)
    options.add_argument("--folder", type=Path, help="where the run lies; a temporary one if not given")
    given = options.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    console, began = Console(width=200), time.monotonic()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="rebalances-"))
    launched = Launched(folder / "run", [f"trainer.steps={given.versions}"])
    try:
        coming, wrong = churn(launched, given.seed)
    finally:
        launched.leave_nothing()
    console.print(
        f"seed {given.seed}: {given.versions} versions in {time.monotonic() - began:.0f} s, {coming.joined} members "
        f"joined, {coming.left} left, {coming.killed} were killed: {wrong or 'audit closed'} ({launched.data})",
        highlight=False,
        soft_wrap=True,
    )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
