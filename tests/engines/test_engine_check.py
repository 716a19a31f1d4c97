"""`headrace check-engine` over real servers."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from command import command
from cpu_servers import ARGUMENTS, ENVIRONMENT
from install_servers import KINDS, find_python


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_real_servers_keep_every_promise_that_the_command_checks(kind: str, tmp_path: Path) -> None:
    recipe = tmp_path / "run.toml"
    recipe.write_text(
        f"""extends = "arithmetic"
name = "served"
[rollout]
engine = {{ use = "{kind}", python = "{find_python(kind)}", arguments = {json.dumps(ARGUMENTS[kind])} }}
"""
    )
    environment = {**os.environ, **ENVIRONMENT}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    asked = command("check-engine", recipe, "--json", "--tolerance", "0.0001")
    done = subprocess.run(asked, check=False, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    verdicts = {one["what"]: one["verdict"] for one in json.loads(done.stdout)}
    assert verdicts.pop("seeds") == "skipped"
    assert verdicts.pop("deadline") in {"kept", "skipped"}  # a context of 64 tokens may be full before an order is read
    assert set(verdicts.values()) == {"kept"}
