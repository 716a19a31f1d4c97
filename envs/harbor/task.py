"""Reads directories of Harbor tasks, schema 1.0 to 1.4, without the package `harbor`."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, PositiveFloat, PositiveInt, ValidationError

from headrace.envs.harbor.dockerfile import Image, TaskRefused, read_dockerfile
from headrace.envs.sandbox.hosts import read_hosts
from headrace.envs.sandbox.limits import Limits
from headrace.infra.errors import UsageError

NEEDED = ("task.toml", "instruction.md", "environment/Dockerfile", "tests/test.sh")
ABSENT = {"environment/docker-compose.yaml": "several containers", "tests/Dockerfile": "an image of the tests' own"}
"""Files that a task must not have, and what they ask for."""
MOST_DISK_MB = 1024
"""A box has its files in memory, so it gets no more than this of `storage_mb`."""
NO_NETWORK, ALLOWLIST = "no-network", "allowlist"


class Phase(BaseModel):
    """A table of task.toml. Keys that change nothing here are not read."""

    timeout_sec: PositiveFloat = 600
    """Harbor's default for tests; for agents Harbor has no limit."""
    env: dict[str, str] = {}
    network_mode: str = ""
    allowed_hosts: list[str] = []


class _Verifier(Phase):
    environment_mode: Literal["shared", "separate"] = "shared"


class _Environment(Phase):
    allow_internet: bool = True
    memory_mb: PositiveInt = 2048
    storage_mb: PositiveInt = 256
    os: Literal["linux"] = "linux"
    gpus: Literal[0] = 0
    mcp_servers: list[Any] = Field([], max_length=0)
    healthcheck: None = None


class Settings(BaseModel):
    """What is read of task.toml."""

    metadata: dict[str, Any] = {}
    agent: Phase = Phase()
    verifier: _Verifier = _Verifier()
    environment: _Environment = _Environment()
    solution: Phase = Phase()
    steps: list[Any] = Field([], max_length=0)


@dataclass(frozen=True, slots=True)
class HarborTask:
    """A task that can be played here."""

    name: str
    """Its folder, below the folder of all tasks."""
    folder: Path
    instruction: str
    image: Image
    settings: Settings

    @property
    def env(self) -> dict[str, str]:
        """Return the environment variables of agent, tests and solution."""
        return {**self.image.env, **self.settings.environment.env}

    def list_hosts(self, phase: Literal["agent", "verifier"]) -> list[str]:
        """Return what a box of a phase can reach: what its table says, else what that of the environment says."""
        own: Phase = getattr(self.settings, phase)
        table = own if own.network_mode else self.settings.environment
        return table.allowed_hosts if table.network_mode == ALLOWLIST else []

    def build_limits(self, time_s: float) -> Limits:
        """Return the limits of a box."""
        wanted, seconds = self.settings.environment, math.ceil(time_s)
        disk_mb = min(wanted.storage_mb, MOST_DISK_MB)
        memory_mb = max(wanted.memory_mb, 32)
        return Limits(cpu_s=seconds, wall_s=seconds, memory_mb=memory_mb, file_mb=disk_mb, disk_mb=disk_mb)


def find_tasks(path: Path) -> dict[str, Path]:
    """Return name to folder of all tasks in a folder, and in its sub-folders such as `train` and `test`."""
    if (path / "task.toml").exists():
        return {path.resolve().name: path}
    patterns = (f"{depth}{file}" for depth in ("*/", "*/*/") for file in ("task.toml", "instruction.md"))
    folders = sorted({found.parent for pattern in patterns for found in path.glob(pattern)})
    return {folder.relative_to(path).as_posix(): folder for folder in folders}


def read_task(name: str, folder: Path) -> HarborTask:
    """Read a task. Raises TaskRefused for what cannot be played in boxes."""
    if missing := next((needed for needed in NEEDED if not (folder / needed).is_file()), None):
        raise TaskRefused(f"{folder / missing} does not exist, and a task needs it")
    for absent, what in ABSENT.items():
        if (folder / absent).exists():
            raise TaskRefused(f"{folder / absent} asks for {what}, which a box has not: delete it if the task can")
    settings = _read_settings(folder / "task.toml")
    instruction = (folder / "instruction.md").read_text(errors="replace").strip()
    return HarborTask(name, folder, instruction, read_dockerfile(folder / "environment" / "Dockerfile"), settings)


def _read_settings(file: Path) -> Settings:
    try:
        read = tomllib.loads(file.read_text())
        found = Settings.model_validate(read)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise TaskRefused(f"{file}: {key} = {first['input']!r:.60} cannot be played here: {first['msg']}") from error
    except ValueError as error:
        raise TaskRefused(f"{file}: {error}") from error
    if not str(version := read.get("schema_version", read.get("version", "1.0"))).startswith("1."):
        raise TaskRefused(f"{file}: the schema version {version} is not known; 1.0 to 1.4 are")
    wanted = found.environment
    wanted.network_mode = wanted.network_mode or ("public" if wanted.allow_internet else NO_NETWORK)
    for table in ("environment", "agent", "verifier", "solution"):
        phase: Phase = getattr(found, table)
        if phase.network_mode not in ("", NO_NETWORK, ALLOWLIST):
            is_default = " (the default)" if phase.network_mode == "public" else ""
            raise TaskRefused(
                f'{file}: [{table}] network_mode is "{phase.network_mode}"{is_default}, and a box has no '
                f'network: if the task needs none, write network_mode = "{NO_NETWORK}" there, or "{ALLOWLIST}" with a '
                "list allowed_hosts"
            )
        try:
            read_hosts(phase.allowed_hosts)
        except UsageError as error:
            raise TaskRefused(f"{file}: [{table}] allowed_hosts: {error}") from error
        if taken := next((name for name, value in phase.env.items() if "${" in value), None):
            raise TaskRefused(f"{file}: {table}.env.{taken} asks for a variable of this machine: write its value")
    return found
