"""The programs that can give a process namespaces of its own: bubblewrap, else unshare."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from pathlib import Path

import headrace

BUBBLEWRAP, UNSHARE, SANDLOCK = "bubblewrap", "unshare", "sandlock"
PROGRAMS = {BUBBLEWRAP: "bwrap", UNSHARE: "unshare"}
"""Back end to its program, the preferred one first."""
SEVERAL_USERS = 1 << 31
"""Users of a machine; a container may have fewer."""
_ENTRY = "import sys; sys.path.insert(0, sys.argv[1]); from headrace.envs.sandbox.inside.init import main; main()"

_ALONE = "import sys; sys.path[:0] = sys.argv[2:]; from headrace.envs.sandbox.confined import main; main()"


def build_command(backend: str) -> list[str]:
    """Return the command that starts the first process of a box, in namespaces of its own."""
    if backend == SANDLOCK:
        return [sys.executable, "-c", _ALONE, find_python(), *sys.path]
    program = shutil.which(PROGRAMS[backend]) or PROGRAMS[backend]
    is_root = os.geteuid() == 0
    if backend == BUBBLEWRAP:
        users = [] if is_root else ["--unshare-user", "--uid", "0", "--gid", "0"]
        spaces = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
        words = [*users, *spaces, "--cap-add", "ALL", "--as-pid-1", "--dev-bind", "/", "/", "--"]
    else:
        users = [] if is_root else ["--user", "--map-root-user"]
        words = [*users, "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child", "--"]
    package = Path(headrace.__file__).parents[1].absolute()
    return [program, *words, find_python(), "-I", "-S", "-c", _ENTRY, str(package)]


def find_python() -> str:
    """Return the path of the interpreter itself, not of a virtual environment's link to it."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    own = Path(sys.base_prefix) / "bin" / version
    return str(own if own.exists() else Path(sys.executable).resolve())


def find_programs() -> list[str]:
    """Return the folders of Python's own installation that a box shows besides the system's."""
    prefixes = {str(Path(path).resolve()) for path in (sys.base_prefix, sys.base_exec_prefix)}
    return sorted(path for path in prefixes if not path.startswith("/usr/") and path not in {"/", "/usr"})


def choose_users() -> tuple[int, int] | None:
    """Return two numbers of users that nobody has, if this process is root; else None."""
    if os.geteuid() != 0:
        return None
    ranges = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    begin, _, count = max(ranges, key=lambda one: one[2])
    if count > SEVERAL_USERS:
        chosen = 0x60000000 + secrets.randbelow(1 << 27) * 2
        return chosen, chosen + 1
    chosen = begin + count - 4 - secrets.randbelow(max(count // 8, 1)) * 2
    return chosen, chosen + 1
