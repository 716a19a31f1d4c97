"""Runs the tests by subject: `make test` takes the gate, `make test-SUBJECT` one subject, `make test-all` all of them.

A test without the mark of a subject is in the gate; a test with one is in that subject alone. Tests that were red are
run once more, alone and in one lane. What is green then is green, and is named by a last line `FLAKY`: a defect of the
test or of the product, to be mended before anything else.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).parents[1]
GATE = "gate"
SUBJECTS = {
    "fuzz": "altered inputs of every reader",
    "libraries": "losses and corrections beside those of TRL and verl, the Kubernetes client; all are installed for it",
    "alfworld": "household tasks beside ALFWorld's engine, which is installed for it",
    "servers": "embedded servers, supervisor and fork server",
    "curation": "what curators decide on a real broker, dead letters sent back",
    "weights": "versions, anchors and deltas in a real store; gc",
    "tools": "audit, lineage and archive over a real log",
    "numerics": "every case of losses, advantages, engines and learners",
    "rollout": "feeder and rollout workers on a real broker",
    "kafka": "run loop, transactions, readers and producers on a real broker",
    "audit": "every tampering with a run, and the audit's own checks of each",
    "builds": "runs that another build began or goes on with",
    "training": "trainers, shadows, replays and retraining on real servers",
    "sandbox": "attacks on boxes, as root and as an unprivileged user",
    "packages": "wheel and sdist, own projects and plug-ins, a worker in Go, benchmarks at their smallest",
    "containers": "Kafka and MinIO in containers, with faults on the way; needs Docker",
    "runs": "whole runs of other kinds: swaps, comparisons, two policies, separate processes",
    "worlds": "worlds of OpenEnv's own package and classes, and its client; the package is installed for it",
    "regions": "a run over two Kafkas and two stores, with cuts between them",
    "model": "a small world of the protocol, explored exhaustively",
    "mutants": "the protection of every promise taken out, to see that tests turn red",
    "faults": "kills, freezes and pauses of every component at every moment",
    "sglang": "the engine over real SGLang servers, which are installed for it",
    "vllm": "the engine over real vLLM servers, which are installed for it",
}
"""What each subject shows. `make test-all` runs the quick ones first."""
PREPARED_BY = {
    "alfworld": ([sys.executable, "tests/conformance/install_alfworld.py"],),
    "containers": ([".ci/docker"], [sys.executable, "tests/containers/build_images.py"]),
    "libraries": ([sys.executable, "tests/conformance/install_libraries.py"],),
    "sandbox": ([sys.executable, "tests/sandbox/install_sandlock.py"],),
    "sglang": ([sys.executable, "tests/engines/install_servers.py", "sglang"],),
    "worlds": ([sys.executable, "tests/worlds/install_openenv.py"],),
    "vllm": ([sys.executable, "tests/engines/install_servers.py", "vllm"],),
}
"""What is run before a subject."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
"""Lanes fill the cores: threads of torch that wait for one another by spinning would take them from the other lanes."""
FILL_THE_CORES = ("sglang", "vllm")
"""Subjects whose servers take all cores: they run in one lane, others in two, where `make … LANES=n` does not say."""
SECOND_LOOK = 3
"""So many red tests at most are run once more: more of them are no accident."""
SLOWEST = 20


@dataclass(frozen=True, slots=True)
class Counted:
    """What became of a subject's tests, and what they cost."""

    subject: str
    passed: int
    skipped: int
    failed: int
    flaky: tuple[str, ...]
    wall_s: float
    cpu_s: float

    def __str__(self) -> str:
        minutes = f"{self.wall_s / 60:6.1f} min {self.cpu_s / 60:6.1f} core min"
        return f"{self.subject:<12}{self.passed:6} passed {self.failed:4} failed {self.skipped:4} skipped {minutes}"


def subject_of(item: pytest.Item) -> str:
    """Return the one subject that a test is of, or the gate."""
    if item.path.parent == ROOT / "tests" / "containers":
        return "containers"  # also what it imports from other folders, with their marks
    marked = {mark.name for mark in item.iter_markers() if mark.name in SUBJECTS}
    if len(marked) > 1:
        raise pytest.UsageError(f"{item.nodeid} is of more than one subject: {', '.join(sorted(marked))}")
    return marked.pop() if marked else GATE


def main(words: Sequence[str]) -> int:
    """Run what is named, with pytest's own words after it; return 0 when all is green."""
    asked, *more = words
    names = [GATE, *SUBJECTS] if asked == "all" else [asked]
    if unknown := set(names) - {GATE, *SUBJECTS}:
        print(f"no subject {' '.join(unknown)!r}: choose gate, all, {', '.join(SUBJECTS)}", file=sys.stderr)
        return 2
    results = [run(name, more) for name in names]
    print(*results, sep="\n")
    for name in dict.fromkeys(name for result in results for name in result.flaky):
        print("FLAKY", name)
    return int(any(result.failed for result in results))


def run(subject: str, more: Sequence[str]) -> Counted:
    """Run the tests of a subject, and those that were red once more."""
    begin, before = time.monotonic(), _cpu_s()
    for command in PREPARED_BY.get(subject, ()):
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            return Counted(subject, 0, 0, 1, (), time.monotonic() - begin, _cpu_s() - before)
    lanes = ["-n", os.environ.get("LANES", "1" if subject in FILL_THE_CORES else "2"), "--no-loadscope-reorder"]
    flaky: tuple[str, ...] = ()
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        code = _pytest(subject, [*lanes, f"--durations={SLOWEST}", f"--junitxml={report}", "--cache-clear", *more])
        counts = _counts(report)
        print(_cost_by_folder(report))
    red = _red() if code == 1 else []
    if 0 < len(red) <= SECOND_LOOK:
        print(f"a second look at {len(red)} red tests, alone", flush=True)
        if _pytest(subject, ["-n", "0", *red]) == 0:
            flaky, code = tuple(red), 0
    failed = 0 if code == 0 else max(counts["failed"], 1)
    cost = time.monotonic() - begin, _cpu_s() - before
    return Counted(subject, counts["passed"] + len(flaky), counts["skipped"], failed, flaky, *cost)


def _pytest(subject: str, words: Sequence[str]) -> int:
    command = [sys.executable, "-m", "pytest", "-q", f"--subject={subject}", *words]
    return subprocess.run(command, cwd=ROOT, check=False, env={**ONE_THREAD, **os.environ}).returncode


def _red() -> list[str]:
    """Return the tests that failed, as pytest's cache has them."""
    found = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
    return list(json.loads(found.read_text())) if found.exists() else []


def _counts(report: Path) -> dict[str, int]:
    if not report.exists():
        return {"passed": 0, "skipped": 0, "failed": 1}
    total = {"tests": 0, "skipped": 0, "failures": 0, "errors": 0}
    for suite in ET.parse(report).iter("testsuite"):  # noqa: S314 - pytest wrote it just now
        total = {key: value + int(suite.attrib[key]) for key, value in total.items()}
    failed = total["failures"] + total["errors"]
    return {"passed": total["tests"] - total["skipped"] - failed, "skipped": total["skipped"], "failed": failed}


def _cost_by_folder(report: Path) -> str:
    """Return a line: how many tests each folder has, and how long they took, one after another."""
    if not report.exists():
        return ""
    counts, seconds = Counter[str](), Counter[str]()
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest wrote it just now
        folder = "/".join(case.attrib.get("classname", "no test").split(".")[:2])  # an internal error has none
        counts[folder] += 1
        seconds[folder] += float(case.attrib["time"])
    return ", ".join(f"{name}: {count} tests {seconds[name]:.0f} s" for name, count in sorted(counts.items()))


def _cpu_s() -> float:
    """Return the seconds of CPU of all processes that ended here."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
