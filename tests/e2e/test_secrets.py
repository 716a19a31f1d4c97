"""The secrets of a run: its Kafka client's password, its embedded store's keys, those of the environment.

They are on no topic, in no log, archive, summary or report, and in no list of processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from command import command, headrace, words_of

pytestmark = pytest.mark.runs

ELSEWHERE = "of-a-store-that-archives-are-put-into"
PASSWORD, USER = "correct-horse-battery-staple", "a-user-who-may-be-seen"


def files_with(text: str, *folders: Path) -> Iterator[str]:
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and text.encode() in path.read_bytes():
                yield path.name


def test_a_secret_is_nowhere_that_a_run_writes_or_is_seen(tmp_path: Path) -> None:
    data, away, given = tmp_path / "run", tmp_path / "archive", tmp_path / "given.json"
    given.write_text(f'{{"sasl.password": "{PASSWORD}"}}')
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        'extends = "efficient-data/fifo"\nname = "kept"\n[trainer]\nsteps = 6\n[evaluate]\nevery = 3\n'
        f'[kafka]\ncompression = "none"\n[kafka.client]\n"sasl.username" = "{USER}"\n'
    )
    env = {"HEADRACE_KAFKA_CLIENT": str(given), "HEADRACE_LOG": "debug"}
    env |= {"HEADRACE_S3_ACCESS_KEY": "elsewhere", "HEADRACE_S3_SECRET_KEY": ELSEWHERE}
    words = ("up", recipe, "--data", data, "--summary", tmp_path / "run.json", "--plain")
    with (tmp_path / "said.txt").open("w") as said:
        up = subprocess.Popen(
            command(*words), stdout=said, stderr=subprocess.STDOUT, env={**os.environ, **env}, cwd=tmp_path
        )
        seen = set()
        while up.poll() is None:
            for process in psutil.Process(up.pid).children(recursive=True):
                try:
                    seen.add(" ".join(words_of(process)))
                except psutil.Error:
                    continue
            time.sleep(0.2)
    done = headrace("archive", "--data", data, "--out", away, **env)
    reports = [headrace(words, "--data", data, "--json", **env) for words in ("audit", "status")]

    assert up.returncode == 0, (tmp_path / "said.txt").read_text()
    assert [one.returncode for one in (done, *reports)] == [0, 0, 0], [one.stderr for one in (done, *reports)]
    assert len(seen) > 5
    keys = data / "store" / "store.json"
    assert keys.stat().st_mode & 0o077 == 0, "for its owner alone"
    secrets = (PASSWORD, ELSEWHERE, json.loads(keys.read_text())["secret_key"])
    said_by_tools = "".join(one.stdout + one.stderr for one in (done, *reports))
    given.unlink()
    keys.unlink()
    assert any(name.endswith(".log") for name in files_with(USER, data)), "what is on a topic is found by this"
    for secret in secrets:
        assert not [one for one in seen if secret in one]
        assert secret not in said_by_tools
        assert not list(files_with(secret, tmp_path))
