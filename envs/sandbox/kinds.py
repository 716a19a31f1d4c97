"""Which boxes this machine has, and boxes by the names that recipes give them."""

from __future__ import annotations

import asyncio
import shutil
import sys
import threading
from collections.abc import Callable, Collection
from functools import cache
from typing import Any, cast

from headrace.envs.sandbox.contract import Box, BoxFailed, BoxUnavailable
from headrace.envs.sandbox.inside.syscalls import ARCHITECTURES
from headrace.envs.sandbox.limits import Limits
from headrace.envs.sandbox.memory_group import find_parent
from headrace.envs.sandbox.namespace_box import NamespaceBox
from headrace.envs.sandbox.namespaces import PROGRAMS
from headrace.infra.errors import HeadraceError, UsageError
from headrace.infra.recipe.named import find_named

OWN = "namespaces"
"""Recipe name of the shipped kind of boxes."""
REMEDY = (
    "install bubblewrap (`apt-get install bubblewrap`, `dnf install bubblewrap`), or allow user namespaces, as "
    "docs/sandbox.md says for each system"
)
PROBE_LIMITS = Limits(wall_s=10, disk_mb=8)
_probing = threading.Lock()


def make_box(kind: str = OWN, *, hosts: Collection[str] = (), **settings: Any) -> Box:
    """Return a box that is not started yet: of namespaces, or the class that `package.module:Name` names.

    Raises BoxUnavailable where this machine has none, or for `hosts`, and UsageError for settings.
    """
    if hosts:
        raise BoxUnavailable(
            "boxes have no network, so a list of hosts cannot be allowed yet: leave it out, or name a kind of box that "
            "has one as `package.module:Name`"
        )
    if kind == OWN:
        settings.setdefault("backend", "")
        settings["backend"] = settings["backend"] or check_boxes()
    build = find_kind(kind)
    try:
        return build(**settings)
    except TypeError as error:
        raise UsageError(f"sandbox {kind}: {error}") from error


def find_kind(kind: str) -> Callable[..., Box]:
    """Return the class of boxes of a name, as in `make_box`. Raises UsageError if there is none."""
    return cast("Callable[..., Box]", find_named("sandbox", kind, {OWN: NamespaceBox}))


def check_boxes() -> str:
    """Return the back end of boxes on this machine, found by trying. Raises BoxUnavailable with what to do.

    The first call takes up to a second; later ones return the same answer.
    """
    with _probing:
        found, failures = _probe()
    if found:
        return found
    raise BoxUnavailable(f"this machine has no boxes to run code in ({'; '.join(failures)}): {REMEDY}")


def describe_boxes() -> str:
    """Return one line about the boxes of this machine. Raises BoxUnavailable."""
    backend = check_boxes()
    memory = "memory of a box as a whole" if find_parent() else "memory by process, since no cgroup is writable"
    return f"{backend} makes boxes without a network; limits hold for {memory}"


@cache
def _probe() -> tuple[str, tuple[str, ...]]:
    """Return the first back end that makes a box, or else nothing and why each of them does not."""
    import platform

    if not sys.platform.startswith("linux"):
        return "", (f"they need Linux, and this is {sys.platform}",)
    if platform.machine() not in ARCHITECTURES:
        return "", (f"they need one of {', '.join(ARCHITECTURES)}, and this is {platform.machine()}",)
    failures = []
    for backend in PROGRAMS:
        try:
            try_backend(backend)
        except HeadraceError as error:
            failures.append(str(error))
        else:
            return backend, ()
    return "", tuple(failures)


def try_backend(backend: str) -> None:
    """Run a command in a box of a back end. Raises BoxUnavailable or BoxFailed."""
    if not shutil.which(PROGRAMS[backend]):
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
