"""Installs TRL, verl and the Kubernetes client beside Headrace, into `.venv/libraries`, for their tests; 0.6 GB."""

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
LIBRARIES = HERE.parents[1] / ".venv" / "libraries"


def main() -> int:
    """Install what `libraries.txt` lists, and nothing that this depends on; return the installer's exit status."""
    own_uv = LIBRARIES.parent / "uv" / "bin" / "uv"
    uv = shutil.which("uv") or (str(own_uv) if own_uv.exists() else None)
    pip = [uv, "pip", "install", "--python", sys.executable] if uv else [sys.executable, "-m", "pip", "install"]
    words = ["--quiet", "--no-deps", "--target", str(LIBRARIES), "-r", str(HERE / "libraries.txt")]
    return subprocess.run([*pip, *words], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
