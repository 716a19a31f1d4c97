"""Which boxes this machine has, and boxes by the names that recipes give them."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from typing import Any, cast

from headrace.envs.sandbox.contract import Box, BoxFailed, BoxUnavailable
from headrace.envs.sandbox.inside.syscalls import ARCHITECTURES
from headrace.envs.sandbox.limits import Limits
from headrace.envs.sandbox.memory_group import find_parent
from headrace.envs.sandbox.namespace_box import NamespaceBox
from headrace.envs.sandbox.namespaces import PROGRAMS, SANDLOCK
from headrace.infra.errors import HeadraceError, UsageError
from headrace.infra.recipe.named import find_named

OWN = "namespaces"
"""Recipe name of the kind of boxes that is taken where none is named; the other shipped kind is `sandlock`."""
REMEDY = (
    "install bubblewrap (`apt-get install bubblewrap`, `dnf install bubblewrap`), or allow user namespaces, as "
    "docs/sandbox.md says for each system, or name the kind `sandlock` for boxes that hold less"
)
PROBE_LIMITS = Limits(wall_s=10, disk_mb=8)
_probing = threading.Lock()


def make_box(kind: str = OWN, *, hosts: Collection[str] = (), **settings: Any) -> Box:
    """Return a box that is not started yet: of namespaces, or the class that `package.module:Name` names.

    `hosts` is what code in it can connect to by TCP, such as `example.org` or `127.0.0.1:8080`; nothing if it is empty.
    Raises BoxUnavailable where this machine has none, and UsageError for settings.
    """
    if hosts:
        settings["hosts"] = hosts
    if kind in (OWN, SANDLOCK):
        settings["backend"] = settings.get("backend") or check_boxes(kind)
    build = find_kind(kind)
    try:
        return build(**settings)
    except TypeError as error:
        raise UsageError(f"sandbox {kind}: {error}") from error


def find_kind(kind: str) -> Callable[..., Box]:
    """Return the class of boxes of a name, as in `make_box`. Raises UsageError if there is none."""
    return cast("Callable[..., Box]", find_named("sandbox", kind, {OWN: NamespaceBox, SANDLOCK: NamespaceBox}))


def check_boxes(kind: str = OWN) -> str:
    """Return the back end of a shipped kind of boxes, found by trying. Raises BoxUnavailable with what to do.

    The first call takes up to a second; later ones return the same answer.
    """
    with _probing:
        found, failures = _probe(kind)
    if found:
        return found
    why = f"this machine has no boxes of {kind} to run code in ({'; '.join(failures)})"
    raise BoxUnavailable(f"{why}: {REMEDY}" if kind == OWN else why)


def describe_boxes() -> str:
    """Return one line about the boxes of this machine. Raises BoxUnavailable."""
    try:
        backend = check_boxes()
    except BoxUnavailable:
        with suppress(BoxUnavailable):
            return f"{check_boxes(SANDLOCK)} alone makes boxes, only where its name is given: it holds less"
        raise
    memory = "memory of a box as a whole" if find_parent() else "memory by process, since no cgroup is writable"
    return f"{backend} makes boxes without a network; limits hold for {memory}"


@cache
def _probe(kind: str) -> tuple[str, tuple[str, ...]]:
    """Return the first back end that makes a box, or else nothing and why each of them does not."""
    import platform

    if not sys.platform.startswith("linux"):
        return "", (f"they need Linux, and this is {sys.platform}",)
    if platform.machine() not in ARCHITECTURES:
        return "", (f"they need one of {', '.join(ARCHITECTURES)}, and this is {platform.machine()}",)
    failures = []
    for backend in PROGRAMS if kind == OWN else (SANDLOCK,):
        try:
            try_backend(backend)
        except HeadraceError as error:
            failures.append(str(error))
        else:
            return backend, ()
    return "", tuple(failures)


def try_backend(backend: str) -> None:
    """Run a command in a box of a back end. Raises BoxUnavailable or BoxFailed."""
    if backend == SANDLOCK:
        if not find_spec("sandlock"):
            raise BoxUnavailable("the package sandlock is missing: make install EXTRAS=sandbox")
        if os.geteuid() == 0:
            raise BoxUnavailable("code in a box of sandlock would be root, too: run Headrace as another user")
    elif not shutil.which(PROGRAMS[backend]):
        raise BoxUnavailable(f"{PROGRAMS[backend]} is not on the PATH")
    failed: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(_run_probe(backend))
        except BaseException as error:  # noqa: BLE001 - it is raised again in the caller's thread
            failed.append(error)

    thread = threading.Thread(target=run)  # the caller may be in an event loop
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


async def _run_probe(backend: str) -> None:
    async with NamespaceBox(backend=backend, limits=PROBE_LIMITS) as box:
        done = await box.exec(["true"])
    if done.return_code:
        raise BoxFailed(f"a box of {backend} cannot run `true`: {done.stderr.strip()}")
