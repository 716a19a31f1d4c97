"""Sets up the process that forks the components of a run."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from headrace.infra.process.child_life import Child
from headrace.infra.process.child_process import build_child_environment
from headrace.infra.process.fork_client import ForkServer

log = structlog.get_logger()


def start_fork_server(
    forks: ForkServer, children: Sequence[Child], environment: Mapping[str, str], logs: Path, *, wanted: bool
) -> ForkServer | None:
    """Start the process that forks components; None if no component is forked, or if it cannot be started.

    Args:
        forks: The fork server; it may be importing already, and is stopped if it is not used.
        children: The components of the run.
        environment: Their environment, without numbers of threads.
        logs: Folder of logs.
        wanted: Whether the recipe lets components be forked.
    """
    if sys.platform != "linux" or not wanted or not any(child.imports for child in children):
        forks.stop()
        return None
    if forks.pid is None:
        try:
            forks.start()
        except OSError as error:
            # Every process is started anew, which is slower.
            log.warning("forks.not_started", why=str(error))
            return None
    logs.mkdir(parents=True, exist_ok=True)
    threads = sum(child.torch_processes for child in children)
    forks.prepare(build_child_environment(environment, threads), logs / "forks.log")
    return forks
