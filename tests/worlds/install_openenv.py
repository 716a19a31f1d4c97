"""Installs OpenEnv into `.venv/openenv`, an environment of its own without its page: 0.2 GB, half a minute with pip."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
ENVIRONMENT = HERE.parents[1] / ".venv" / "openenv"
PYTHON = ENVIRONMENT / "bin" / "python"


def main() -> int:
    """Install what `openenv.txt` lists, and nothing that this depends on; return the installer's exit status."""
    done, wanted = ENVIRONMENT / "installed", (HERE / "openenv.txt").read_text()
    if done.exists() and done.read_text() == wanted:
        return 0
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    venv.create(ENVIRONMENT, with_pip=True)
    words = ["install", "--quiet", "--no-deps", "-r", str(HERE / "openenv.txt")]
    if code := subprocess.run([PYTHON, "-m", "pip", *words], check=False).returncode:
        return code
    done.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
