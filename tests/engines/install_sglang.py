"""Installs SGLang without CUDA into `.venv/engines/sglang`, an environment of its own: 1.7 GB, a minute with pip.

Without a GPU it needs stand-ins for what is compiled for one (`without_gpu/`, `cuda_libraries.py`); the product has
nothing of them. gcc and binutils are needed. On a machine with a GPU install SGLang as its documentation says, and name
its Python by HEADRACE_SGLANG.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from cuda_libraries import write_stand_ins

HERE = Path(__file__).parent
ENVIRONMENT = HERE.parents[1] / ".venv" / "engines" / "sglang"
VARIABLE = "HEADRACE_SGLANG"


def find_python() -> Path:
    """Return the Python of the environment that the tests use."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else ENVIRONMENT / "bin" / "python"


def main() -> int:
    """Install what `sglang.txt` lists, and nothing that this depends on, unless it is there; return an exit status."""
    done = ENVIRONMENT / "installed"
    if os.environ.get(VARIABLE) or (done.exists() and done.read_text() == (HERE / "sglang.txt").read_text()):
        return 0
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    venv.create(ENVIRONMENT, with_pip=True)
    python = ENVIRONMENT / "bin" / "python"
    words = ["install", "--quiet", "--no-compile", "--no-deps", "-r", str(HERE / "sglang.txt")]
    if code := subprocess.run([python, "-m", "pip", *words], check=False).returncode:
        return code
    [packages] = (ENVIRONMENT / "lib").glob("python3*/site-packages")
    for stand_in in ("sgl_kernel", "triton"):
        shutil.copytree(HERE / "without_gpu" / stand_in, packages / stand_in, dirs_exist_ok=True)
    write_stand_ins(packages)
    done.write_text((HERE / "sglang.txt").read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
