"""Writes Harbor tasks of five kinds, to try and to test with: `python examples/terminal_tasks.py FOLDER`.

They need bash, coreutils and Python. Their tests only look at files: they run nothing that the agent made.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from headrace.envs.harbor.writing import build_task, write_files

WORDS = ("amber", "basil", "cedar", "delta", "ember", "fjord", "grove", "heron", "iris", "larch", "maple", "onyx")


def _build(
    kind: str,
    instruction: str,
    given: Mapping[str, str],
    solve: str,
    wanted: Mapping[str, str],
    tests: Sequence[str] = (),
) -> dict[str, str]:
    """Return the files of a task; `wanted` is the right content of files, by name."""
    same = [f"cmp -s /tests/wanted/{name} {name}" for name in wanted]
    return {
        **build_task(kind, given, [*same, *tests]),
        **{f"tests/wanted/{name}": text for name, text in wanted.items()},
        "instruction.md": f"You are in the folder /app. {instruction}\n",
        "solution/solve.sh": f"set -e\n{solve}\n",
    }


def _make_replace(draw: Random) -> dict[str, str]:
    old, new, *names = draw.sample(WORDS, 5)
    given = {f"{name}.txt": f"{name} {old}\n{old}\n" for name in names}
    return _build(
        "replace",
        f"In every file that ends in .txt, replace the word {old} by {new}. Leave notes.md as it is.",
        {**given, "notes.md": f"{old}\n"},
        f"sed -i 's/{old}/{new}/g' *.txt",
        {name: text.replace(old, new) for name, text in given.items()},
        [f'[ "$(cat {names[0]}.txt notes.md)" = "$(cat /tests/wanted/{names[0]}.txt)\n{old}" ]'],
    )


def _make_transform(draw: Random) -> dict[str, str]:
    counts, least = {name: draw.randint(1, 99) for name in draw.sample(WORDS, 8)}, draw.randint(20, 60)
    code = (
        "import json\nrows = [line.split(',') for line in open('stock.csv')][1:]\n"
        f"print(json.dumps(sorted(name for name, count in rows if int(count) >= {least})))"
    )
    return _build(
        "transform",
        f"stock.csv has the columns name and count. Write the names whose count is {least} or more, in the order of "
        "the alphabet, to names.json: one line, as Python's json.dumps writes it. Write the sum of all counts to "
        "total.txt.",
        {"stock.csv": "name,count\n" + "".join(f"{name},{count}\n" for name, count in counts.items())},
        f"python3 -c \"{code}\" > names.json\nawk -F, '{{ sum += $2 }} END {{ print sum }}' stock.csv > total.txt",
        {
            "names.json": json.dumps(sorted(name for name in counts if counts[name] >= least)) + "\n",
            "total.txt": f"{sum(counts.values())}\n",
        },
    )


def _make_count(draw: Random) -> dict[str, str]:
    rows = [(draw.choice(WORDS[:4]), draw.choice(("INFO", "WARN", "ERROR"))) for _ in range(60)]
    errors = Counter(name for name, level in rows if level == "ERROR")
    return _build(
        "count",
        "Each line of app.log has a level and a service. Write to errors.txt, in the order of the alphabet, a line "
        "`SERVICE NUMBER` for each service with lines of the level ERROR: the number of these lines. Write the number "
        "of all lines of the log to lines.txt.",
        {"app.log": "".join(f"{level} {name}\n" for name, level in rows)},
        "grep ERROR app.log | cut -d' ' -f2 | sort | uniq -c | sed -E 's/ *([0-9]+) (.*)/\\2 \\1/' > errors.txt\n"
        "wc -l < app.log > lines.txt",
        {"errors.txt": "".join(f"{name} {count}\n" for name, count in sorted(errors.items())), "lines.txt": "60\n"},
    )


def _make_repair(draw: Random) -> dict[str, str]:
    numbers = [draw.randint(1, 99) for _ in range(9)]
    wrong, name = draw.choice((("sum(read)", "sum"), ("max(raed())", "max"), ("len(read(1))", "len")))
    found = {"sum": sum(numbers), "max": max(numbers), "len": len(numbers)}[name]
    script = f"def read():\n    return [int(line) for line in open('numbers.txt')]\n\n\nprint({wrong})\n"
    return _build(
        "repair",
        "The script report.py fails: its last line calls a function in a wrong way. Mend this line, change nothing "
        "else, and write what the script prints to report.txt.",
        {"report.py": script, "numbers.txt": "".join(f"{number}\n" for number in numbers)},
        f"sed -i 's/{wrong}/{name}(read())/' report.py\npython3 report.py > report.txt",
        {"report.txt": f"{found}\n", "report.py": script.replace(wrong, f"{name}(read())")},
    )


def _make_archive(draw: Random) -> dict[str, str]:
    first, second, third = sorted(draw.sample(WORDS, 3))
    return _build(
        "archive",
        "Put all files that end in .log into the archive logs.tar.gz, and make the file that ends in .sh executable.",
        {f"{first}.log": "1\n", f"{second}.log": "2\n", f"{third}.sh": "echo\n"},
        "tar -czf logs.tar.gz *.log\nchmod +x *.sh",
        {},
        [f'[ "$(tar -tzf logs.tar.gz | sort | tr -d "\\n")" = {first}.log{second}.log ]', f"[ -x {third}.sh ]"],
    )


MAKERS = (_make_replace, _make_transform, _make_count, _make_repair, _make_archive)


def write_tasks(folder: Path, count: int, seed: int) -> None:
    """Write tasks of all kinds in turn. Raises FileExistsError for a task that is there already."""
    for number in range(count):
        make = MAKERS[number % len(MAKERS)]
        name = f"{make.__name__.removeprefix('_make_')}-{number // len(MAKERS) + 1}"
        write_files(folder / name, make(Random(f"{name} {seed}")))  # noqa: S311


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m headrace.envs.harbor.generate", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    write_tasks(**vars(parser.parse_args()))
