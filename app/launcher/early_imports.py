"""The fork server of `headrace up`, started before the command line has read the recipe."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from headrace.app.launcher.fork_imports import ALL
from headrace.infra.process.child_process import build_child_environment
from headrace.infra.process.fork_client import ForkServer


def make_fork_server() -> ForkServer:
    """Return a fork server that is not started. Its threads and its log are set when the recipe is known."""
    return ForkServer(build_child_environment(os.environ, 1), Path(os.devnull))


def begin_imports() -> ForkServer:
    """Start a fork server, and have it import what every component needs, on another core than this process.

    If it cannot be started, it has no pid. The launcher then tries again, and reports why.
    """
    forks = make_fork_server()
    if sys.platform == "linux":
        with suppress(OSError):
            forks.start()
            forks.import_early(ALL)
    return forks
