"""Runs the HTTP server of an environment until a signal ends it. Needs the extra `serve`."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from headrace.envs.registry import EnvironmentSettingsError, UnknownEnvironment, check_first_problem, load_environment
from headrace.envs.tools.outcomes import Limits
from headrace.infra.errors import UsageError

GRACE_S = 5
"""Seconds that a request may still take once the server stops."""


def serve_until_signal(  # noqa: PLR0913 - settings, each given by its name
    name: str,
    settings: Mapping[str, Any],
    *,
    seed: int,
    host: str,
    port: int,
    sessions: int,
    step_limit_s: float,
    announce: Callable[[str], None],
) -> None:
    """Serve an environment over OpenEnv's wire.

    Args:
        name: As in a recipe.
        settings: Of the environment.
        seed: Of its training problems.
        host: Address to listen at.
        port: Port to listen at; 0 for a free one.
        sessions: Most sessions at once.
        step_limit_s: Seconds that an action or a problem may take.
        announce: Called with the server's address once it listens.

    Raises UsageError for an environment that cannot be served, and OSError for a port that is taken.
    """
    try:
        import uvicorn

        from headrace.envs.openenv.server import EnvironmentServer
    except ModuleNotFoundError as error:
        raise UsageError(f"serving needs the package {error.name}: make install EXTRAS=serve") from error
    build = partial(load_environment, name, seed, settings)
    try:
        environment = build()
        check_first_problem(environment)
        app = EnvironmentServer(environment, build, sessions, Limits(call_limit_s=step_limit_s)).build_app()
    except (UnknownEnvironment, EnvironmentSettingsError, ValueError) as error:
        raise UsageError(str(error)) from error
    with socket.create_server((host, port)) as listening:
        announce(f"http://{host}:{listening.getsockname()[1]}")
        config = uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=GRACE_S)
        uvicorn.Server(config).run(sockets=[listening])
