"""Takes out one protection of a promise after the other, and sees that a test turns red.

The list is short: it holds the promises of docs/promises.md and docs/design.md, each broken in ways of its own. It is
in `mutants/`, a file for each room and a paragraph for each mutant: its name and the protection, the file, the lines
that go (`-`) and those that come for them (`+`), and the test that must notice. What goes stands in the file exactly
once, and may begin and end within a line. Only that test runs, in a copy of this tree, on one Kafka and one store for
all mutants. That it passes in the tree as it is, is what every other run of the tests shows.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from xml.etree import ElementTree as ET

from warm_python import WarmPython

from headrace.infra.embedded.kafka_server import EmbeddedKafka
from headrace.infra.embedded.store_server import EmbeddedStore
from headrace.infra.store.object_store import ObjectStore

ROOT = Path(__file__).parents[2]
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".headrace", ".*_cache", ".hypothesis", ".*cache")
AT_ONCE = 3
"""More than cores: they wait more than they compute."""
LIMIT_S = 240
SLOWEST_S = 30
"""A mutant may make a test wait in vain: it then waits so long."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One protection taken out."""

    name: str
    protection: str
    file: str
    old: str
    new: str
    caught_by: str


class MutantUnfit(Exception):
    """A mutant's text is not in the tree as it says: the list needs to follow the code."""


def read_mutant(paragraph: str) -> Mutant:
    """Read one of the list."""
    title, *lines = paragraph.splitlines()
    name, _, protection = title.partition(": ")
    parts: dict[str, list[str]] = {"in": [], "-": [], "+": [], "by": []}
    for line in lines:
        kind, _, rest = line.partition(" ")
        parts[kind].append(rest)
    [file], [test] = parts["in"], parts["by"]
    return Mutant(name, protection, file, "\n".join(parts["-"]), "\n".join(parts["+"]), test)


MUTANTS = tuple(
    read_mutant(paragraph)
    for room in sorted((Path(__file__).parent / "mutants").glob("*.txt"))
    for paragraph in room.read_text().strip().split("\n\n")
)


def mutate(text: str, mutant: Mutant) -> str:
    """Take the protection out of a file's text. Raises MutantUnfit, or SyntaxError for what is no Python then."""
    if (count := text.count(mutant.old)) != 1:
        raise MutantUnfit(f"{mutant.name}: {mutant.file} holds {mutant.old!r} {count} times, not once")
    changed = text.replace(mutant.old, mutant.new)
    compile(changed, mutant.file, "exec")
    return changed


@contextmanager
def short_folder() -> Iterator[Path]:
    """Make a folder for a judged pytest, wherever temporary folders are otherwise: no socket's path in it is too long.

    A Unix socket's path has 107 bytes at most, and a judged pytest is a pytest within the folders of a pytest.
    """
    with TemporaryDirectory(prefix="mutants-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def servers() -> Iterator[Path]:
    """Run a Kafka and a store for all mutants; the file names them for `pytest --servers`."""
    with short_folder() as here, EmbeddedKafka(here / "kafka") as kafka, EmbeddedStore(here / "store") as store:
        address = store.address("headrace-tests")
        with ObjectStore(address) as opened:
            opened.ensure_bucket()
        named = here / "servers.json"
        named.write_text(json.dumps({"bootstrap": kafka.bootstrap, "store": asdict(address)}))
        yield named


@contextmanager
def judges(named: Path) -> Iterator[Callable[[Mutant], str]]:
    """Return what AT_ONCE threads may call at a time; it says why a mutant counts as not caught, or nothing."""
    with ExitStack() as entered:
        free = SimpleQueue[Judge]()
        for _ in range(AT_ONCE):
            free.put(Judge(named, entered.enter_context(short_folder()), entered.enter_context(WarmPython())))

        def judged(mutant: Mutant) -> str:
            judge = free.get()
            try:
                return judge(mutant)
            finally:
                free.put(judge)

        yield judged


class Judge:
    """A copy of the tree, with the bytecode of what ran in it before, and a warm Python.

    Args:
        named: The file that names the servers.
        folder: Where the copy and all that its tests leave lie.
        python: What runs pytest.
    """

    def __init__(self, named: Path, folder: Path, python: WarmPython) -> None:
        self._tree, self._report, self._said = folder / "tree", folder / "report.xml", folder / "said.txt"
        self._python = python
        shutil.copytree(ROOT, self._tree, symlinks=True, ignore=LEFT_OUT)
        self._words = ["-q", "-x", "-p", "no:cacheprovider", f"--junitxml={self._report}", f"--basetemp={folder / 't'}"]
        self._words += [f"--servers={named}", f"--timeout={LIMIT_S}"]
        self._environment = {**os.environ, "PYTHONPATH": str(self._tree / "src"), "TMPDIR": str(folder)}
        self._environment["HEADRACE_TEST_PATIENCE"] = str(SLOWEST_S)
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def __call__(self, mutant: Mutant) -> str:
        """Run the test that must catch a mutant; return why it counts as not caught, or nothing."""
        self._report.unlink(missing_ok=True)
        with mutated(self._tree, mutant):
            ended = self._python.pytest([*self._words, mutant.caught_by], self._tree, self._environment, self._said)
        if ended not in {0, 1} or not self._report.exists():
            return f"pytest ended with {ended}: {self._said.read_text()[-1500:]}"
        # An error of a fixture is no catch.
        cases = ET.parse(self._report).iter("testcase")  # noqa: S314 - pytest wrote it just now
        caught = any(case.find("failure") is not None for case in cases)
        return "" if caught else f"not caught by {mutant.caught_by}: {self._said.read_text()[-800:]}"


@contextmanager
def mutated(tree: Path, mutant: Mutant) -> Iterator[None]:
    """Take the protection out of a copy of the tree, and put it back."""
    file = tree / mutant.file
    text = file.read_text()
    file.write_text(mutate(text, mutant))
    try:
        yield
    finally:
        file.write_text(text)
        # Two texts of one second and one length are the same to Python.
        Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)
