"""`python -m forked_toy`: stands for a component that is forked. It says what it finds, then does as it is told."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path


def say() -> None:
    import numpy as np

    told = {
        "argv": sys.argv[1:],
        "is_main": __name__ == "__main__",
        "parent": os.getppid(),
        "session": os.getsid(0),
        "pid": os.getpid(),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "comm": Path("/proc/self/comm").read_text().strip(),
        "was_imported": "colorsys" in sys.modules,
        "draws": [random.random(), float(np.random.rand())],  # noqa: S311, NPY002 - the states that a fork inherits
        "stdin": sys.stdin.read(),
        "prepared": os.environ.get("PREPARED", ""),
    }
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    say()
    if "exit" in sys.argv:
        raise SystemExit(int(sys.argv[-1]))
    if "raise" in sys.argv:
        raise ValueError("no spoon")
    while True:
        time.sleep(60)
