"""Reads directories of Harbor tasks, schema 1.0 to 1.4, without the package `harbor`."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, PositiveFloat, PositiveInt, ValidationError

from headrace.envs.harbor.dockerfile import Image, TaskRefused, read_dockerfile
from headrace.envs.sandbox.limits import Limits

TIME_S = 600.0
"""Harbor's time of tests; also of agents, where Harbor has no limit."""
MOST_DISK_MB = 1024
"""A box has its files in memory, so it gets no more than this of `storage_mb`."""
UNITS = {"K": 1 / 1024, "M": 1.0, "G": 1024.0}
NO_NETWORK = "no-network"
ABSENT = {"environment/docker-compose.yaml": "several containers", "tests/Dockerfile": "an image of the tests' own"}
"""Files that a task must not have, and what they ask for."""


class _Phase(BaseModel):
    timeout_sec: PositiveFloat = TIME_S
    env: dict[str, str] = {}
    network_mode: str = ""
    allowed_hosts: list[str] = []


class _Verifier(_Phase):
    environment_mode: Literal["shared", "separate"] = "shared"


class _Environment(_Phase):
    allow_internet: bool = True
    memory_mb: PositiveInt = 2048
    storage_mb: PositiveInt = 256
    memory: str = ""
    storage: str = ""
    os: Literal["linux"] = "linux"
    gpus: Literal[0] = 0
    mcp_servers: list[Any] = Field([], max_length=0)
    healthcheck: None = None


class _Settings(BaseModel):
    metadata: dict[str, Any] = {}
    agent: _Phase = _Phase()
    verifier: _Verifier = _Verifier()
    environment: _Environment = _Environment()
    solution: _Phase = _Phase()
    steps: list[Any] = Field([], max_length=0)


@dataclass(frozen=True, slots=True)
class HarborTask:
    """A task that can be played here."""

    name: str
    """Its folder, below the folder of all tasks."""
    folder: Path
    instruction: str
    difficulty: str
    image: Image
    limits: Limits
    """Of the agent's box."""
    test_limits: Limits
    """Of the tests' box."""
    env: Mapping[str, str]
    test_env: Mapping[str, str]
    solution_env: Mapping[str, str]

    @property
    def solution(self) -> Path:
        """Return the folder of the solution, which may not exist."""
        return self.folder / "solution"


def find_tasks(path: Path) -> dict[str, Path]:
    """Return name to folder of all tasks in a folder, and in its sub-folders such as `train` and `test`."""
    if (path / "task.toml").exists():
        return {path.resolve().name: path}
    patterns = (f"{depth}{file}" for depth in ("*/", "*/*/") for file in ("task.toml", "instruction.md"))
    folders = sorted({found.parent for pattern in patterns for found in path.glob(pattern)})
    return {folder.relative_to(path).as_posix(): folder for folder in folders}


def read_task(name: str, folder: Path) -> HarborTask:
    """Read a task. Raises TaskRefused for what cannot be played in boxes."""
    for needed in ("task.toml", "instruction.md", "environment/Dockerfile", "tests/test.sh"):
        if not (folder / needed).is_file():
            raise TaskRefused(f"{folder / needed}: does not exist, and a task needs it")
    for file, what in ABSENT.items():
        if (folder / file).exists():
            raise TaskRefused(f"{folder / file}: asks for {what}, which boxes do not have: delete it if the task can")
    file = folder / "task.toml"
    settings = _read_settings(file)
    _refuse_network(file, settings)
    wanted, agent, verifier = settings.environment, settings.agent, settings.verifier
    for table, env in (("environment", wanted.env), ("verifier", verifier.env), ("solution", settings.solution.env)):
        if taken := next((name for name, value in env.items() if "${" in value), None):
            raise TaskRefused(f"{file}: {table}.env.{taken} is to be taken from this machine: write its value")
    image = read_dockerfile(folder / "environment" / "Dockerfile")
    env = {**image.env, **wanted.env}
    return HarborTask(
        name,
        folder,
        (folder / "instruction.md").read_text().strip(),
        str(settings.metadata.get("difficulty", "")),
        image,
        _build_limits(file, wanted, agent.timeout_sec),
        _build_limits(file, wanted, verifier.timeout_sec),
        env,
        {**env, **verifier.env},
        settings.solution.env,
    )


def _read_settings(file: Path) -> _Settings:
    try:
        read = tomllib.loads(file.read_text())
        if not str(version := read.get("schema_version", read.get("version", "1.0"))).startswith("1."):
            raise TaskRefused(f"{file}: schema version {version} is not known: versions 1.0 to 1.4 are")
        return _Settings.model_validate(read)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise TaskRefused(f"{file}: {key} = {first['input']!r:.60} cannot be played here: {first['msg']}") from error
    except (OSError, ValueError) as error:
        raise TaskRefused(f"{file}: {error}") from error


def _refuse_network(file: Path, settings: _Settings) -> None:
    wanted = settings.environment
    mode = wanted.network_mode or ("public" if wanted.allow_internet else NO_NETWORK)
    phases = {"environment": mode, "agent": settings.agent.network_mode, "verifier": settings.verifier.network_mode}
    for table, asked in phases.items():
        if asked not in ("", NO_NETWORK):
            raise TaskRefused(
                f'{file}: {table}.network_mode is "{asked}"{" (the default)" * (not wanted.network_mode)}, and boxes '
                f'have no network: if the task needs none, write network_mode = "{NO_NETWORK}" in [{table}]'
            )


def _build_limits(file: Path, wanted: _Environment, time_s: float) -> Limits:
    memory_mb = _read_size(file, wanted.memory) or wanted.memory_mb
    disk_mb = min(_read_size(file, wanted.storage) or wanted.storage_mb, MOST_DISK_MB)
    seconds = math.ceil(time_s)
    return Limits(cpu_s=seconds, wall_s=seconds, memory_mb=max(memory_mb, 32), file_mb=disk_mb, disk_mb=disk_mb)


def _read_size(file: Path, text: str) -> int:
    """Return MiB of a size such as `2G`, the older form; 0 for an empty one."""
    try:
        return int(float(text[:-1]) * UNITS[text[-1].upper()]) if text else 0
    except (KeyError, ValueError):
        raise TaskRefused(f"{file}: {text!r} is no size such as 512M or 2G") from None
