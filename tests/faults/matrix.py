"""The kill matrix: `make faults SEED=n`, or `python tests/faults/matrix.py --help`.

A run of several hundred versions is driven through a shuffled list of cells, one after the other; when it comes to its
end before the list does, the rest goes through another run. After each run: it reached its last version by itself, the
audit closes with nothing lost and nothing doubled, and training again from version 0 gives the same hashes.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from cells import MOMENTS, PAIRS, SINGLES, Cell, plan
from drive import Drive, Row, RunOver
from launched import Launched, NotInTime, until
from progress import Progress
from rich.console import Console

STEPS = 400
VERSIONS_PER_CELL = 25
"""Roughly how far a run gets during one cell; the last run is made no longer than its cells need."""
ENDS_S = 600.0
"""How long a run that is left alone may take to its end."""
RETRAINS_S = 600.0


@dataclass(slots=True)
class Report:
    """What a matrix found."""

    rows: list[Row] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    """One sentence for each."""
    red: list[str] = field(default_factory=list)
    """What is wrong with whole runs."""

    @property
    def ok(self) -> bool:
        """Whether nothing is red."""
        return not self.red and not any(row.red for row in self.rows)


def run_matrix(cells: Sequence[Cell], folder: Path, console: Console, steps: int = STEPS) -> Report:
    """Drive all cells through as many runs as they need."""
    report, left = Report(), deque(cells)
    while left and len(report.red) < 3:
        data = folder / f"run-{len(report.runs)}"
        wanted = min(steps, 60 + VERSIONS_PER_CELL * len(left))
        console.print(f"run {len(report.runs)}: {wanted} versions, {len(left)} cells left, {data}", highlight=False)
        driven = Launched(data, [f"trainer.steps={wanted}"])
        try:
            red = _drive(driven, left, report, console)
        finally:
            driven.leave_nothing()
        report.runs.append(red or "reached its end by itself, audit closed, equal hashes")
        console.print(f"run {len(report.runs) - 1}: {report.runs[-1]}", highlight=False)
        if red:
            report.red.append(f"{data}: {red}")
        elif not any(row.red for row in report.rows):
            shutil.rmtree(data)
    return report


def _drive(launched: Launched, left: deque[Cell], report: Report, console: Console) -> str:
    """Drive one run to its end; return what is wrong with it."""
    launched.start()
    try:
        run = launched.joined()
        with Progress(run) as progress:
            drive = Drive(launched, progress, run.recipe)
            until(lambda: progress.version >= 1 or launched.ended() is not None, "the first version", ENDS_S)
            while left and not drive.nearly_over and launched.ended() is None:
                cell = left.popleft()
                try:
                    row = drive.cell(cell)
                except RunOver:
                    left.append(cell)
                    break
                report.rows.append(row)
                console.print(f"{len(report.rows):4}  {line(row)}", highlight=False, soft_wrap=True)
                if row.red:
                    break
        launched.await_end(ENDS_S)
    except NotInTime as error:
        return str(error)
    return checked(launched, run.recipe.trainer.steps)


def checked(launched: Launched, steps: int) -> str:
    """Look at what a finished run has left; return what is wrong with it."""
    if launched.ended() != 0:
        return f"`headrace up` ended with {launched.ended()}: {launched.data}.up.txt"
    if deaths := launched.deaths():
        return f"components died by themselves: {', '.join(deaths)}"
    audit = launched.asked("audit")
    if audit.code or not audit.said.get("ok"):
        return f"the audit does not close: {audit.said or audit.errors}"
    status = launched.asked("status")
    if set(status.said.get("versions", {}).values()) != {steps}:
        return f"not at version {steps}: {status.said or status.errors}"
    retrained = launched.asked("retrain", timeout_s=RETRAINS_S)
    if retrained.code or len(retrained.said.get("versions", ())) != steps:
        return f"training again does not give equal hashes: {retrained.said or retrained.errors}"
    return ""


def line(row: Row) -> str:
    """Return a row for people, on one line."""
    verdict = f"RED {row.red}" if row.red else f"recovered in {row.recovered_s:.1f} s"
    pids = ",".join(map(str, row.pids[:3])) + ("…" if len(row.pids) > 3 else "")
    at = f"{row.before} → {row.died_at} → {row.after}"
    return f"{row.cell.who:<17} {row.cell.moment:<28} pid {pids:<22} {at:<22} {verdict}"


def subset(seed: int) -> list[Cell]:
    """Return one cell of every kind and pair, as many at a named moment as can: what CI has time for."""
    found: dict[tuple[str, ...], Cell] = {}
    for cell in sorted(plan(seed), key=lambda cell: not cell.point):
        found.setdefault(cell.kinds, cell)
    return list(found.values())


def main() -> int:
    """Run the matrix; return 1 when a cell or a run is red."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    options.add_argument("--moments", type=int, default=MOMENTS, help="of each kind and pair")
    options.add_argument("--kind", choices=[*SINGLES, "pairs"], help="only these cells")
    options.add_argument("--steps", type=int, default=STEPS, help="versions of a run")
    options.add_argument("--folder", type=Path, help="where the runs lie; a temporary one if not given")
    given = options.parse_args()
    # Standard output is the table's: our own clients' words about a broker that is away would bury it.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    console = Console(width=200)
    cells = plan(given.seed, given.moments)
    if given.kind:
        wanted = PAIRS if given.kind == "pairs" else ((given.kind,),)
        cells = [cell for cell in cells if cell.kinds in wanted]
    folder = given.folder or Path(tempfile.mkdtemp(prefix="faults-"))
    folder.mkdir(parents=True, exist_ok=True)
    console.print(f"seed {given.seed}: {len(cells)} cells, runs in {folder}", highlight=False)
    began = time.monotonic()
    report = run_matrix(cells, folder, console, given.steps)
    wrong = [f"{row.cell.who} at {row.cell.moment}: {row.red}" for row in report.rows if row.red] + report.red
    verdict = f"{len(wrong)} red" if wrong else "no red cell"
    console.print(
        f"seed {given.seed}: {len(report.rows)} cells in {len(report.runs)} runs, {verdict}, "
        f"{(time.monotonic() - began) / 60:.1f} minutes",
        highlight=False,
    )
    for sentence in wrong:
        console.print(f"RED  {sentence}", highlight=False, soft_wrap=True)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
