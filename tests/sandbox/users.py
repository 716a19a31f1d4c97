"""Who runs the attacks: this user, and nobody where this user is root."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path

import pytest

from headrace.envs.sandbox.kinds import try_backend
from headrace.envs.sandbox.namespaces import SANDLOCK
from headrace.infra.errors import HeadraceError

ROOT = Path(__file__).parents[2]
HERE = ROOT / "tests" / "sandbox"
USERS = ("root", "nobody") if os.geteuid() == 0 else ("this user",)
NOBODY = "65534"
FOLDERS = ("python", "clone", "packages", "home")
AS_NOBODY = f"""
mount -t tmpfs -o mode=755 tmpfs /mnt && cd /mnt && mkdir {" ".join(FOLDERS)} && chown {NOBODY} home || exit 1
mount --bind "$1" python && mount --bind "$2" clone && mount --bind "$3" packages || exit 1
program="python/bin/$4" && shift 4 && cd / || exit 1
exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups env -i PATH="$PATH" HOME=/mnt/home TMPDIR=/mnt/home \
    PYTHONPATH=/mnt/clone/src:/mnt/packages:/mnt/clone/tests/sandbox "/mnt/$program" "$@"
"""
"""Folders of root, which nobody else may enter, are shown elsewhere, in a mount namespace of their own."""


def skip_without(backend: str) -> None:
    """Skip a test where this machine cannot make boxes so; the reason says what it lacks."""
    try:
        try_backend(backend)
    except HeadraceError as error:
        pytest.skip(f"no boxes by {backend}: {error}")


def run_program(user: str, name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program of this folder as a user."""
    if user != "nobody":
        path = os.pathsep.join([str(ROOT / "src"), str(HERE)])
        command = [sys.executable, str(HERE / name), *words]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path}
        )
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    folders = [sys.base_prefix, str(ROOT), sysconfig.get_path("purelib")]
    command = ["unshare", "--mount", "sh", "-c", AS_NOBODY, "sh", *folders, version]
    command += [f"/mnt/clone/tests/sandbox/{name}", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@cache
def attack_all(user: str, backend: str) -> dict[str, list[str]]:
    """Return what each attack got."""
    if backend == SANDLOCK:  # this process may be root, which has no such boxes
        sandlock = pytest.importorskip("sandlock", reason="sandlock is missing: make install EXTRAS=sandbox")
        if (found := sandlock.landlock_abi_version()) < (least := sandlock.min_landlock_abi()):
            pytest.skip(f"sandlock needs Landlock {least} (Linux 6.12), and this kernel has {found}")
    else:
        skip_without(backend)
    done = run_program(user, "attacks.py", backend)
    assert done.returncode == 0, done.stderr[-4000:]
    answers: dict[str, list[str]] = json.loads(done.stdout)
    return answers
