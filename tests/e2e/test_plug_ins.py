"""A user's own folder: packages called as our rooms, plug-ins of every kind beside the recipe, no PYTHONPATH."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from command import command

pytestmark = pytest.mark.packages
PROJECT = Path(__file__).parent / "own_project"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PROJECT, tmp_path / "project"))


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(where: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end in a folder."""
    where.mkdir(exist_ok=True)
    return subprocess.run(
        command(*words), capture_output=True, text=True, timeout=800, check=False, cwd=where, env=environment()
    )


def test_plug_ins_beside_the_recipe_are_tried_from_elsewhere_without_servers(project: Path, tmp_path: Path) -> None:
    done = run(tmp_path / "elsewhere", "try", project / "run.toml", "--json")

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    solver = found["policies"]["solver"]
    assert [group["verdict"] for group in solver["groups"]] == ["kept", "kept"]
    assert solver["step"]["has_advantages"]
    assert solver["step"]["grad_norm"] > 0
    assert not list((tmp_path / "elsewhere").iterdir()), "nothing is written"
