"""A broker that freezes for a minute in the middle of a run, and continues: `make faults`, or this file by itself.

`python tests/faults/freezes.py --runs 10` takes some twenty minutes. Each run is a fresh one, and is frozen at another
version. A frozen broker answers nothing and keeps its connections, so no client sees an error: only limits help.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import structlog
from launched import Launched, NotInTime, until
from rich.console import Console

STEPS = 40
FIRST, LAST = 4, 16
"""Versions at which a run may be frozen."""
FROZEN_S = 60.0, 70.0
"""A client gives up a request after 60 s (socket.timeout.ms): shorter freezes show less."""
GOES_ON_S, GOES_ON_VERSIONS = 120.0, 5
"""How long after the freeze so many versions may take: the first may be of groups that were there before it."""
BEGINS_S, ENDS_S = 240.0, 300.0
SETS = (f"trainer.steps={STEPS}", "trainer.checkpoint_every=5")


def count_versions(launched: Launched) -> int:
    """Return how many versions the trainer's log tells of."""
    return launched.count_events("train-solver", "version.trained")


def freeze_and_go_on(launched: Launched, at_version: int, frozen_s: float) -> tuple[float, str]:
    """Drive one run with a frozen broker to its end; return how long the next versions took, and what is wrong."""
    launched.start()
    took_s = 0.0
    try:
        until(lambda: count_versions(launched) >= at_version, f"version {at_version}", BEGINS_S)
        broker = launched.processes()["broker"]
        os.kill(broker, signal.SIGSTOP)
        time.sleep(frozen_s)  # the freeze itself
        before, thawed = count_versions(launched), time.monotonic()
        os.kill(broker, signal.SIGCONT)
        wanted = before + GOES_ON_VERSIONS
        until(lambda: count_versions(launched) >= wanted, f"versions after {before}", GOES_ON_S)
        took_s = time.monotonic() - thawed
        launched.await_end(ENDS_S)
    except NotInTime as error:
        return took_s, str(error)
    if launched.ended() != 0:
        return took_s, f"`headrace up` ended with {launched.ended()}: {launched.data}.up.txt"
    audit = launched.asked("audit")
    return took_s, "" if audit.code == 0 and audit.said.get("ok") else f"the audit does not close: {audit}"


def main() -> int:
    """Freeze the broker of several runs; return 1 when one did not come out right."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    options.add_argument("--runs", type=int, default=10)
    options.add_argument("--folder", type=Path, help="where the runs lie; a temporary one if not given")
    given = options.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    console, draw, red = Console(width=200), random.Random(given.seed), 0  # noqa: S311 - a plan, not a secret
    folder = given.folder or Path(tempfile.mkdtemp(prefix="freezes-"))
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(given.runs):
        at_version, frozen_s = draw.randint(FIRST, LAST), draw.uniform(*FROZEN_S)
        launched = Launched(folder / f"run-{number}", SETS, "arithmetic")
        try:
            took_s, wrong = freeze_and_go_on(launched, at_version, frozen_s)
        finally:
            launched.leave_nothing()
        red += bool(wrong)
        verdict = (
            f"RED {wrong} ({launched.data})"
            if wrong
            else f"{GOES_ON_VERSIONS} versions in {took_s:.1f} s, audit closed"
        )
        frozen = f"run {number}: frozen at version {at_version} for {frozen_s:.0f} s"
        console.print(f"{frozen}: {verdict}", highlight=False, soft_wrap=True)
    if not red and not given.folder:
        shutil.rmtree(folder)
    console.print(f"seed {given.seed}: {given.runs} freezes, {red} red", highlight=False)
    return int(bool(red))


if __name__ == "__main__":
    sys.exit(main())
