"""Installs sandlock, the extra `sandbox`, beside Headrace, unless it is there; tests that need it skip without it."""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Install the version of constraints.txt."""
    if find_spec("sandlock"):
        return
    own_uv = ROOT / ".venv" / "uv" / "bin" / "uv"
    uv = shutil.which("uv") or (str(own_uv) if own_uv.exists() else None)
    pip = [uv, "pip", "install", "--python", sys.executable] if uv else [sys.executable, "-m", "pip", "install"]
    subprocess.run([*pip, "--quiet", "-c", str(ROOT / "constraints.txt"), "sandlock"], check=False)


if __name__ == "__main__":
    main()
