"""`python -m headrace.envs.harbor.generate FOLDER`: writes Harbor tasks, to try and to test with."""

from __future__ import annotations

import argparse
from pathlib import Path

from headrace.envs.harbor.made_tasks import write_tasks


def main() -> None:
    """Write the tasks that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m headrace.envs.harbor.generate", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    write_tasks(asked.folder, asked.count, asked.seed)


if __name__ == "__main__":
    main()
