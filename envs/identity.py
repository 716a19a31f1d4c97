"""Describes a workflow's environment and data for the run's record."""

from __future__ import annotations

import json
from importlib import metadata

from blake3 import blake3

from headrace.envs.contract import Environment
from headrace.envs.data.rows import read_data_of
from headrace.envs.messages import refuse_lone_surrogates
from headrace.infra.errors import UsageError
from headrace.infra.own_frames import locate_error, read_error_text
from headrace.infra.recipe.table import Named
from headrace.infra.unreachable import is_unreachable
from headrace.schemas.records import UsedEnvironment

SETTINGS_DIGITS = 16
LIBRARY = "reasoning_gym"
"""Package whose generators make the problems of a shipped environment."""


def identify_environment(workflow: str, environment: Environment, named: Named) -> UsedEnvironment:
    """Return name, version, data and settings of an environment; read the data now if needed. Raises TaskFileError.

    Args:
        workflow: Its workflow.
        environment: The environment.
        named: Its name and settings in the recipe.
    """
    data = read_data_of(environment)
    settings = json.dumps([named.use, named.settings], sort_keys=True, default=str)
    digest = blake3(settings.encode()).hexdigest()[:SETTINGS_DIGITS]
    return UsedEnvironment(workflow, str(environment.name), find_version(environment), data, digest)


def find_version(environment: Environment) -> str:
    """Return an environment's package with its version; empty if it is not from an installed package.

    The environment's attribute `version`, if it has one, takes precedence; it is empty if its server is away. Raises
    UsageError if reading it fails otherwise.
    """
    try:
        own = getattr(environment, "version", "")
        refuse_lone_surrogates("it", own if isinstance(own, str) else "")
    except Exception as error:
        if is_unreachable(error):
            return ""
        raise UsageError(
            f"environment {environment.name}: its `version` cannot be recorded ({type(error).__name__}: "
            f"{read_error_text(error)} at {locate_error(error)}): make it a string, or leave it out"
        ) from error
    if isinstance(own, str) and own:
        return own
    top = type(environment).__module__.partition(".")[0]
    for package in (LIBRARY if str(environment.name).startswith(LIBRARY) else top, top):
        try:
            return f"{package} {metadata.version(package)}"
        except (metadata.PackageNotFoundError, ValueError):
            continue
    return ""
