"""What a worker records about its servers: their engine's version, and the settings of the recipe."""

from __future__ import annotations

import subprocess

import structlog

from headrace.producers.engines.served.server_api import ServerAway
from headrace.producers.engines.served.server_settings import ServerKind, ServerSettings, find_python, open_connections

log = structlog.get_logger()
PYTHON_LIMIT_S, SERVER_LIMIT_S = 60.0, 10.0
"""For an answer. A Python in an environment on a network disk needs seconds."""
UNKNOWN = "of unknown version"
ASK = """
from importlib.metadata import packages_distributions, version
found = packages_distributions()
print(*(f"{name} {version(found[name][0])}" for name in ("ENGINE", "torch", "transformers") if name in found))
"""


def describe_build(kind: ServerKind, settings: ServerSettings) -> str:
    """Return the engine's version and the settings, such as `sglang 0.5.19 torch 2.9.1 ServerSettings(…)`.

    Started servers have the versions of packages beside the settings' Python; servers given by URL say theirs. One
    whose version cannot be found is `of unknown version`, and a warning says why: it may still be starting.
    """
    try:
        found = _ask_servers(kind, settings) if settings.urls else _ask_python(kind, settings)
    except (ServerAway, OSError, subprocess.SubprocessError, ValueError) as error:
        # `engine_build` in the groups lacks the version of the servers.
        log.warning("engine.version_unknown", engine=kind.engine, why=str(error))
        found = f"{kind.engine} {UNKNOWN}"
    return f"{found} {settings}"


def _ask_python(kind: ServerKind, settings: ServerSettings) -> str:
    """Ask the settings' Python. Raises OSError, SubprocessError, and ValueError if the engine is not installed."""
    command = [find_python(settings), "-c", ASK.replace("ENGINE", kind.engine)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PYTHON_LIMIT_S)
    if not done.stdout.startswith(kind.engine):
        raise ValueError(f"{kind.engine} is not installed in the environment of {command[0]}")
    return done.stdout.strip()


def _ask_servers(kind: ServerKind, settings: ServerSettings) -> str:
    """Ask every server. Raises ServerAway, and ValueError for an answer without a version."""
    versions = set[str]()
    for url in (*settings.urls, *settings.evaluation_urls):
        connections = open_connections(settings, url)
        try:
            answer = connections.call("GET", kind.version_path, limit_s=SERVER_LIMIT_S)
        finally:
            connections.close()
        found = answer.json() if answer.is_success else None
        version = found.get("version") if isinstance(found, dict) else None
        if not version:
            raise ValueError(f"{url}{kind.version_path} answers HTTP {answer.status_code} without a version")
        versions.add(str(version))
    return " ".join([kind.engine, *sorted(versions)])
