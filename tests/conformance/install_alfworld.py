"""Installs ALFWorld's engine beside Headrace, into `.venv/alfworld`, for its tests; 0.4 GB, and a build with cmake."""

import shutil
import subprocess
import sys
from pathlib import Path

ENGINE = Path(__file__).parents[2] / ".venv" / "alfworld"
PACKAGES = ("alfworld==0.4.2", "textworld[pddl]==1.7.0")


def main() -> int:
    """Install the packages with what they depend on; return the installer's exit status."""
    own_uv = ENGINE.parent / "uv" / "bin" / "uv"
    uv = shutil.which("uv") or (str(own_uv) if own_uv.exists() else None)
    pip = [uv, "pip", "install", "--python", sys.executable] if uv else [sys.executable, "-m", "pip", "install"]
    return subprocess.run([*pip, "--quiet", "--target", str(ENGINE), *PACKAGES], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
