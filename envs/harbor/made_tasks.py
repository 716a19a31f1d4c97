"""Makes Harbor tasks of five kinds, with solutions. They need bash, coreutils and Python."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

Files = dict[str, str]
"""Path in a task's folder to content."""

TASK = """\
version = "1.4"

[metadata]
difficulty = "{kind}"

[agent]
timeout_sec = 60

[verifier]
timeout_sec = 60

[environment]
network_mode = "no-network"
memory_mb = 512
storage_mb = 32
"""
TEST = "python3 /tests/check.py\n"
CHECK = '''\
"""Writes the share of right checks as reward. It only reads files: it runs nothing that the agent made."""

import json
import os
import tarfile


def read(path):
    try:
        with open(path) as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return None


def list_archive(path):
    try:
        with tarfile.open(path) as archive:
            return sorted(os.path.basename(member.name) for member in archive if member.isfile())
    except (OSError, tarfile.TarError):
        return None


wanted = json.loads(read("/tests/expected.json"))
checks = [read(path) == text for path, text in wanted.get("files", {}).items()]
checks += [list_archive(path) == names for path, names in wanted.get("archives", {}).items()]
checks += [os.access(path, os.X_OK) for path in wanted.get("programs", ())]
with open("/logs/verifier/reward.txt", "w") as file:
    file.write(str(sum(checks) / len(checks)))
'''
WORDS = "amber basil cedar delta ember fjord grove heron iris juniper kelp larch maple north onyx poppy".split()


def build_task(kind: str, instruction: str, given: Mapping[str, str], solve: str, expected: Mapping[str, Any]) -> Files:
    """Return the files of a task: what is given lies in /app."""
    return {
        "task.toml": TASK.format(kind=kind),
        "instruction.md": instruction + "\n",
        "environment/Dockerfile": "FROM debian:12-slim\nWORKDIR /app\nCOPY given/ ./\n",
        **{f"environment/given/{name}": text for name, text in given.items()},
        "tests/test.sh": TEST,
        "tests/check.py": CHECK,
        "tests/expected.json": json.dumps(expected, indent=1),
        "solution/solve.sh": f"set -e\n{solve}\n",
    }


def _make_replace(draw: Random) -> Files:
    old, new, *others = draw.sample(WORDS, 8)
    texts = {f"{name}.txt": f"{draw.choice(others)} {old}\n{old} {name}\n" for name in others[:3]}
    notes = f"keep {old}\n"
    expected = {f"/app/{name}": text.replace(old, new) for name, text in texts.items()}
    return build_task(
        "replace",
        f"In every file of /app that ends in .txt, replace the word {old} by {new}. Leave other files as they are.",
        {**texts, "notes.md": notes},
        f"sed -i 's/{old}/{new}/g' *.txt",
        {"files": {**expected, "/app/notes.md": notes}},
    )


def _make_transform(draw: Random) -> Files:
    rows = [(name, draw.randint(1, 99)) for name in draw.sample(WORDS, 8)]
    least = draw.randint(20, 60)
    kept = sorted(name for name, count in rows if count >= least)
    total = sum(count for _, count in rows)
    code = (
        "import csv, json\nrows = list(csv.DictReader(open('stock.csv')))\n"
        f"names = sorted(row['name'] for row in rows if int(row['count']) >= {least})\n"
        "open('names.json', 'w').write(json.dumps(names))\n"
        "open('total.txt', 'w').write(str(sum(int(row['count']) for row in rows)))"
    )
    return build_task(
        "transform",
        f"/app/stock.csv has the columns name and count. Write the names whose count is {least} or more, in the order "
        "of the alphabet, to /app/names.json, as a JSON list in one line, in the form of Python's json.dumps, without "
        "a newline at its end. Write the sum of all counts to /app/total.txt, without a newline.",
        {"stock.csv": "name,count\n" + "".join(f"{name},{count}\n" for name, count in rows)},
        f"python3 - <<'END'\n{code}\nEND",
        {"files": {"/app/names.json": json.dumps(kept), "/app/total.txt": str(total)}},
    )


def _make_count(draw: Random) -> Files:
    services = draw.sample(WORDS, 4)
    levels = [(draw.choice(services), draw.choice(("INFO", "WARN", "ERROR"))) for _ in range(60)]
    errors = Counter(service for service, level in levels if level == "ERROR")
    lines = [f"{service} {count}\n" for service, count in sorted(errors.items())]
    logs = "".join(f"2026-01-01T00:{at:02}:00 {level} {service} says\n" for at, (service, level) in enumerate(levels))
    return build_task(
        "count",
        "Each line of /app/app.log has a time, a level and a service. For each service with a line of the level ERROR, "
        "write a line `SERVICE NUMBER` to /app/errors.txt: the number of such lines. Order the lines by service. Write "
        "the number of all lines of the log, with a newline, to /app/lines.txt.",
        {"app.log": logs},
        "awk '$2 == \"ERROR\" { count[$3]++ } END { for (one in count) print one, count[one] }' app.log "
        "| LC_ALL=C sort > errors.txt\nwc -l < app.log > lines.txt",
        {"files": {"/app/errors.txt": "".join(lines), "/app/lines.txt": "60\n"}},
    )


def _make_repair(draw: Random) -> Files:
    numbers = [draw.randint(1, 99) for _ in range(9)]
    wrong, right = draw.choice((("sum(read)", "sum(read())"), ("max(read(  )", "max(read())"), ("len(raed())", "len(read())")))
    script = (
        "def read():\n    return [int(line) for line in open('/app/numbers.txt')]\n\n\n"
        f"open('/app/report.txt', 'w').write(f'{{{wrong}}}\\n')\n"
    )
    found = {"sum": sum(numbers), "max": max(numbers), "len": len(numbers)}[right[:3]]
    return build_task(
        "repair",
        "The script /app/report.py fails. Its last line has an error in the name or the call of a function. Mend this, "
        "change nothing else, and run the script with python3: it writes /app/report.txt.",
        {"report.py": script, "numbers.txt": "".join(f"{number}\n" for number in numbers)},
        f"sed -i 's/{wrong}/{right}/' report.py\npython3 report.py",
        {"files": {"/app/report.txt": f"{found}\n", "/app/report.py": script.replace(wrong, right)}},
    )


def _make_archive(draw: Random) -> Files:
    logs, others = (sorted(draw.sample(WORDS, count)) for count in (4, 2))
    given = {**{f"{name}.log": f"{name}\n" for name in logs}, **{f"{name}.sh": f"echo {name}\n" for name in others}}
    return build_task(
        "archive",
        "Put all files of /app that end in .log into the archive /app/logs.tar.gz, and make the files of /app that end "
        "in .sh executable.",
        given,
        "tar -czf logs.tar.gz *.log\nchmod +x *.sh",
        {
            "archives": {"/app/logs.tar.gz": [f"{name}.log" for name in logs]},
            "programs": [f"/app/{name}.sh" for name in others],
        },
    )


KINDS: Mapping[str, Callable[[Random], Files]] = {
    "replace": _make_replace,
    "transform": _make_transform,
    "count": _make_count,
    "repair": _make_repair,
    "archive": _make_archive,
}


def write_tasks(path: Path, count: int, seed: int) -> None:
    """Write tasks of all kinds in turn into a new folder. Raises FileExistsError for a task that is there already."""
    for number in range(count):
        kind = list(KINDS)[number % len(KINDS)]
        write_files(path / f"{kind}-{number // len(KINDS) + 1}", KINDS[kind](Random(f"{kind} {seed} {number}")))  # noqa: S311


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write files into a new folder."""
    folder.mkdir(parents=True)
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
