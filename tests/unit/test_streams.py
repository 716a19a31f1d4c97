"""A command's standard output: what cannot be encoded, and a reader that goes away."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LONG_WORK = """
import sys
from headrace.app.cli.options import open_console

console = open_console(outlives_reader=True)
for turn in range(200):
    console.print(f"turn {turn} " + "x" * 200)
print("done", file=sys.stderr)
"""


@pytest.mark.parametrize("reader", ["head -n 1", "cat >/dev/full"])
def test_long_work_outlives_its_reader_and_ends_well(reader: str, tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(LONG_WORK)
    if "full" in reader:
        words = f"{sys.executable} work.py >/dev/full"
    else:
        words = f"set -o pipefail; {sys.executable} work.py | {reader}"
    done = subprocess.run(["bash", "-c", words], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.rstrip().endswith("done")
    assert "Traceback" not in done.stderr


def test_what_an_encoding_lacks_is_replaced() -> None:
    code = (
        "from headrace.app.cli.options import open_console; from headrace.app.cli.streams import *; "
        "replace_what_cannot_be_encoded(); open_console().print('a \\u2212 b')"
    )
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "a ? b\n", "")
