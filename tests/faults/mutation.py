"""Takes out one protection after the other, and sees that tests turn red: no protection is untested.

The list is in `mutants/`, a file for each room. A mutant is one replacement in one file of a copy of this tree, in
which only the tests named by the mutant run, on one Kafka and one store for all of them. That those tests pass in the
tree as it is, is what every other run of the tests shows. By hand: `make test-mutants`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from xml.etree import ElementTree as ET

from mutants import MUTANTS
from mutants.mutant import Mutant
from rich.console import Console
from rich.table import Table
from rich.text import Text
from warm_python import WarmPython

from headrace.infra.embedded.kafka_server import EmbeddedKafka
from headrace.infra.embedded.store_server import EmbeddedStore
from headrace.infra.store.object_store import ObjectStore

ROOT = Path(__file__).parents[2]
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".headrace", ".*_cache", ".hypothesis", ".*cache")
AT_ONCE = 2
LIMIT_S = 240
SLOWEST_S = 30
"""A mutant may make a test wait in vain: it then waits so long."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant."""

    mutant: Mutant
    wrong: str
    """Why it counts as not caught; empty when it was."""
    seconds: float


class MutantUnfit(Exception):
    """A mutant's text is not in the tree as it says: the list needs to follow the code."""


def mutate(tree: Path, mutant: Mutant) -> None:
    """Take the protection out of a copy. Raises MutantUnfit, or SyntaxError for a replacement that is no Python."""
    file = tree / mutant.file
    text = file.read_text()
    if text.count(mutant.old) != 1:
        raise MutantUnfit(f"{mutant.name}: {mutant.file} holds {mutant.old!r} {text.count(mutant.old)} times, not once")
    changed = text.replace(mutant.old, mutant.new)
    compile(changed, mutant.file, "exec")
    file.write_text(changed)


@contextmanager
def servers() -> Iterator[Path]:
    """Run a Kafka and a store for all mutants; the file names them for `pytest --servers`."""
    with TemporaryDirectory(prefix="mutants-") as folder:
        here = Path(folder)
        with EmbeddedKafka(here / "kafka") as kafka, EmbeddedStore(here / "store") as store:
            address = store.address("headrace-tests")
            with ObjectStore(address) as opened:
                opened.ensure_bucket()
            named = here / "servers.json"
            named.write_text(json.dumps({"bootstrap": kafka.bootstrap, "store": asdict(address)}))
            yield named


@contextmanager
def judges(named: Path) -> Iterator[Callable[[Mutant], Verdict]]:
    """Return a `judge` that AT_ONCE threads may call at a time, each with a warm Python."""
    free = SimpleQueue[WarmPython]()
    with ExitStack() as pythons:
        for _ in range(AT_ONCE):
            free.put(pythons.enter_context(WarmPython()))

        def judged(mutant: Mutant) -> Verdict:
            python = free.get()
            try:
                return judge(mutant, named, python)
            finally:
                free.put(python)

        yield judged


def judge(mutant: Mutant, named: Path, python: WarmPython) -> Verdict:
    """Run the tests that must catch a mutant, in a copy of the tree that holds it, on the servers that are named."""
    begin = time.monotonic()
    with TemporaryDirectory(prefix=f"mutant-{mutant.name}-") as folder:
        tree, report, said = (Path(folder) / name for name in ("tree", "report.xml", "said.txt"))
        shutil.copytree(ROOT, tree, symlinks=True, ignore=LEFT_OUT)
        mutate(tree, mutant)
        words = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        words += [f"--servers={named}", f"--timeout={LIMIT_S}", *mutant.caught_by]
        env = {
            **os.environ,
            "PYTHONPATH": str(tree / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HEADRACE_TEST_PATIENCE": str(SLOWEST_S),
        }
        ended = python.pytest(words, tree, env, said)
        failed = _failed(report) if report.exists() else set()
        wanted = {test.rpartition("::")[2] for test in mutant.caught_by}
        wrong = ""
        if ended not in {0, 1}:
            wrong = f"pytest ended with {ended}: {said.read_text()[-1500:]}"
        elif missed := wanted - failed:
            wrong = f"not caught by {', '.join(sorted(missed))}: {said.read_text()[-800:]}"
    return Verdict(mutant, wrong, time.monotonic() - begin)


def _failed(report: Path) -> set[str]:
    """Return the functions that failed by themselves; an error of a fixture is no catch."""
    cases = ET.parse(report).iter("testcase")  # noqa: S314 - pytest wrote it just now
    return {re.sub(r"\[.*", "", case.attrib["name"]) for case in cases if case.find("failure") is not None}


def table(verdicts: list[Verdict]) -> Table:
    """Return what became of every mutant."""
    shown = Table("mutant", "takes out", "caught by", "s", title="a protection each")
    for verdict in verdicts:
        by = ", ".join(test.rpartition("::")[2].removeprefix("test_") for test in verdict.mutant.caught_by)
        said = Text(verdict.wrong, "red") if verdict.wrong else Text(by.replace("_", " "))
        shown.add_row(verdict.mutant.name, verdict.mutant.protection, said, f"{verdict.seconds:.0f}")
    return shown


def main(names: list[str]) -> int:
    """Judge the mutants named, or all; print the table."""
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    console, verdicts = Console(width=160), []
    with servers() as named, judges(named) as judged, ThreadPoolExecutor(AT_ONCE) as pool:
        for verdict in pool.map(judged, chosen):
            verdicts.append(verdict)
            console.print(
                f"{len(verdicts)}/{len(chosen)}", verdict.mutant.name, "missed" if verdict.wrong else "caught"
            )
    console.print(table(verdicts))
    return int(any(verdict.wrong for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
