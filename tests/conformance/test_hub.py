"""Data sets of the hub by the real library `datasets`, from a hub on this machine, and then from the cache alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from install_libraries import LIBRARIES
from local_hub import COMMIT, NAME, serve_hub

pytestmark = pytest.mark.libraries
READ = f"""
import sys
from headrace.envs.data.rows import TaskFileError
from headrace.envs.dataset import Dataset
env = Dataset(1, "hub:{NAME}", held_out={{"split": "test"}})
try:
    sizes = env.size("train"), env.size("held_out")
except TaskFileError as error:
    sys.exit(str(error))
print(*sizes, env.problem("train", 0).answer, *[one.content for one in env.read_data()])
"""


def read_from_hub(cache: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Read the data set in a process of its own, because `datasets` reads its variables when it is imported."""
    path = os.pathsep.join([*sys.path, str(LIBRARIES)])
    known = {**os.environ, "PYTHONPATH": path, "HF_HOME": str(cache), **variables}
    return subprocess.run([sys.executable, "-c", READ], env=known, capture_output=True, text=True, check=False)


def test_a_dataset_of_the_hub_is_the_same_from_the_cache_and_a_missing_one_is_an_error(tmp_path: Path) -> None:
    with serve_hub() as address:
        loaded = read_from_hub(tmp_path / "cache", HF_ENDPOINT=address)
    assert loaded.returncode == 0, loaded.stderr
    train, held_out, _, *contents = loaded.stdout.splitlines()[-1].split()
    assert (train, held_out, contents) == ("50", "10", [COMMIT, COMMIT]), "the identity is the commit"
    cached = read_from_hub(tmp_path / "cache", HF_HUB_OFFLINE="1")
    assert cached.stdout.splitlines()[-1] == loaded.stdout.splitlines()[-1], cached.stderr
    missing = read_from_hub(tmp_path / "empty", HF_HUB_OFFLINE="1")
    assert missing.returncode == 1
    assert f"cannot load hub:{NAME}, split 'train': ConnectionError: Couldn't reach" in missing.stderr
    assert "Without a network, the data set must be in the cache of `datasets`" in missing.stderr
