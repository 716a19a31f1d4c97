"""Recipe settings of any kind of generation server, and the factory that makes the servers."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from headrace.infra.environment import expand_user, temporary_folder
from headrace.infra.errors import UsageError
from headrace.infra.recipe.named import refuse_unknown_options
from headrace.infra.recipe.recipe_paths import find_path
from headrace.infra.recipe.settings import Recipe
from headrace.infra.weights.experts import ExpertLayers
from headrace.producers.engines.contract import LOGPROB_CONVENTION, EngineError, LogprobConvention
from headrace.producers.engines.owned_folder import OwnedFolder
from headrace.producers.engines.served.generation_server import (
    EngineProcess,
    GenerationServer,
    ServedWeights,
    ServerLaunch,
)
from headrace.producers.engines.served.server_api import AdapterServerApi, HttpConnections, ServerApi

EXAMPLES = {"arguments": '["--tp", "2"]', "devices": '["0", "1"]'}
"""Values of settings that are lists, for messages; the other lists are of URLs."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings beside `use = "sglang"` or another kind. Raises EngineError for a value outside its range."""

    python: str = "python"
    """Python of the environment in which the servers are installed, separate from Headrace's."""
    servers: int = 1
    """Servers of each policy that training uses."""
    evaluation_servers: int = 1
    """Servers of each policy for the exact versions of evaluations; each is started when one is asked for."""
    devices: Sequence[str] = ()
    """CUDA_VISIBLE_DEVICES of the servers in turn, evaluation servers last; empty: the variable is not changed."""
    arguments: Sequence[str] = ()
    """Further arguments of the command that starts a server, such as `--dtype float32`."""
    urls: Sequence[str] = ()
    """Running servers to use instead of starting some; each must serve this worker alone."""
    evaluation_urls: Sequence[str] = ()
    """Running servers to use for evaluations."""
    key: str = ""
    """Name of the environment variable that holds the API key of such servers."""
    folder: str = "/dev/shm"  # noqa: S108 - it must be in memory
    """Folder in memory where weights are written for the servers to read."""
    most_requests: int = 0
    """Requests that a server has at once; 0: found from its queue, KV cache and retractions."""
    start_limit_s: float = 1800.0
    """Seconds for a server to start and read its weights."""

    def __post_init__(self) -> None:
        for one in fields(self):
            _check_kind(one.name, getattr(self, one.name), one.default)
        bounds = {
            "servers": (self.servers >= 1, "1 or more"),
            "evaluation_servers": (self.evaluation_servers >= 0, "0 or more"),
            "most_requests": (self.most_requests >= 0, "0 or more"),
            "start_limit_s": (self.start_limit_s > 0, "above 0"),
        }
        for name, (is_right, allowed) in bounds.items():
            if not is_right:
                raise EngineError(f"{name} must be {allowed}; got {getattr(self, name)}")
        if self.evaluation_urls and not self.urls:
            raise EngineError("evaluation_urls has no effect without urls: set urls too")
        for url in (*self.urls, *self.evaluation_urls):
            if not url.startswith(("http://", "https://")):
                raise EngineError(
                    f"urls and evaluation_urls must be http://HOST:PORT or https://HOST:PORT; got {url!r}"
                )

    @property
    def holds(self) -> int:
        """Exact versions of a policy that can be held at once."""
        return len(self.evaluation_urls) if self.urls else self.evaluation_servers


@dataclass(frozen=True, slots=True)
class ServerKind:
    """What differs between kinds of servers."""

    engine: str
    """Its name in recipes, which is also that of its Python package."""
    what: str
    """Its name in messages, such as `SGLang`."""
    build_words: Callable[[ServedWeights, int, int], Sequence[str]]
    """Returns the words after `python` that start a server, from weights, port and longest sequence in tokens."""
    build_api: Callable[[HttpConnections], ServerApi]
    """For servers of whole weights."""
    build_adapter_api: Callable[[HttpConnections], AdapterServerApi]
    """For servers of adapters beside their base."""
    environment: Mapping[str, str]
    """Variables that its servers need."""
    version_path: str
    """Path at which a server says its version, as the key `version`."""
    build_experts_api: Callable[[HttpConnections, ExpertLayers], ServerApi] | None = None
    """For servers that return the experts of every token; None where they cannot do that."""
    experts_words: Sequence[str] = ()
    """Further words of the command that make a server return experts."""
    logprob_convention: LogprobConvention = LOGPROB_CONVENTION
    writes_ties: bool = False
    """Whether a server has to read tied parameters under each of their names."""
    sockets_variable: str = ""
    """Variable that names the folder of its Unix sockets, which it does not remove; empty if it has none."""


def read_settings(kind: ServerKind, given: Mapping[str, Any]) -> ServerSettings:
    """Return the settings of a recipe. Raises UsageError; for an unknown setting its message lists the known ones."""
    where = f"rollout.engine, {kind.engine}"
    refuse_unknown_options(where, given, [one.name for one in fields(ServerSettings)])
    try:
        return ServerSettings(**given)
    except EngineError as error:
        raise UsageError(f"{where}: {error}") from error


def check_recipe(kind: ServerKind, recipe: Recipe) -> None:
    """Raise UsageError for a recipe that servers of this kind cannot serve."""
    settings = read_settings(kind, recipe.rollout.engine.settings)
    if recipe.rollout.record_routing and kind.build_experts_api is None:
        raise UsageError(
            f"rollout.record_routing: engine {kind.engine} does not record which experts a token went to; remove this "
            "key, or use engine torch or sglang"
        )
    lora = [name for name, policy in recipe.policies.items() if policy.lora and policy.lora.publish == "adapter"]
    if recipe.rollout.record_routing and lora:
        raise UsageError(
            f"rollout.record_routing: engine {kind.engine} cannot record experts for adapters, as policy "
            f'{lora[0]} has: set policies.{lora[0]}.lora.publish = "merged", or use engine torch'
        )
    if lora and settings.urls:
        raise UsageError(
            f"policies.{lora[0]}.lora: servers in rollout.engine.urls can only serve whole models: "
            'set publish = "merged", or remove urls, so that each worker starts its own servers'
        )
    if recipe.evaluate.every and not settings.holds and len(lora) < len(recipe.policies):
        raise UsageError(
            f"rollout.engine: evaluations need a {kind.what} server of their own, because the other servers go on to "
            f"newer versions: {'list one in evaluation_urls' if settings.urls else 'set evaluation_servers = 1'}, or "
            "set evaluate.every = 0"
        )
    if settings.urls and len(recipe.policies) > 1:
        raise UsageError(
            "rollout.engine.urls: servers given by URL can serve only one policy, but the recipe has "
            f"{len(recipe.policies)}: remove urls, so that each worker starts its own servers"
        )
    workers = recipe.launch.workers * len(recipe.workflows)
    if settings.urls and workers > 1:
        raise UsageError(
            f"rollout.engine.urls: a server given by URL serves only one worker, but `up` would start {workers}: "
            f"launch.workers is {recipe.launch.workers} for each workflow (workflows: {len(recipe.workflows)}). Use "
            "one worker and one workflow, or remove urls, so that each worker starts its own servers"
        )
    if recipe.launch.workers and not settings.urls:
        _check_python(kind, settings)


def _check_python(kind: ServerKind, settings: ServerSettings) -> None:
    """Check that a worker on this machine can start a server. Raises UsageError."""
    python = find_python(settings)
    asks = [python, "-c", f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{kind.engine}') is None)"]
    if shutil.which(python) is None:
        found = f"there is no program {python!r}"
    elif subprocess.run(asks, check=False, capture_output=True, timeout=60).returncode:
        found = f"{kind.what} is not installed in the environment of {python!r}"
    else:
        return
    raise UsageError(
        f"rollout.engine.python: {found}; give the Python of an environment in which {kind.what} is installed (`pip "
        f"install {kind.engine}`)"
    )


def find_python(settings: ServerSettings) -> str:
    """Return the program that starts servers. Raises UsageError for a `~` without a home folder."""
    if len(Path(settings.python).parts) == 1:
        return settings.python
    return str(find_path(settings.python, "rollout.engine.python"))  # absolute: servers run in folders of their own


def find_folder(settings: ServerSettings) -> Path:
    """Return the folder for weights. Raises UsageError for a `~` without a home folder."""
    return expand_user(Path(settings.folder), "rollout.engine.folder")


def _check_kind(name: str, value: Any, default: Any) -> None:
    """Raise EngineError for a value whose type differs from the default's."""
    if isinstance(default, tuple):
        if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
            example = EXAMPLES.get(name, '["http://host:30000"]')
            raise EngineError(f"{name} must be a list of strings, as in {example}; got {value!r}")
    elif isinstance(value, bool) or not isinstance(
        value, (int, float) if isinstance(default, float) else type(default)
    ):
        kind = {int: "a whole number", float: "a number", str: "a string"}[type(default)]
        raise EngineError(f"{name} must be {kind}, got {value!r}")


LOGS_PREFIX = "headrace-servers-"
LOGS_KEPT_S = 24 * 3600.0
"""Seconds for which the logs of a dead worker are kept: until the next day."""
LONGEST_SOCKET_PATH, SOCKET_NAME = 107, 36
"""Bytes in the path of a Unix socket (unix(7)), and in the name of a socket."""


@dataclass(slots=True)
class ServerFactory:
    """Makes the servers of an engine."""

    kind: ServerKind
    settings: ServerSettings
    logs: OwnedFolder | None = None
    """Folder of the processes' logs and ports; None for servers given by URL."""
    made: int = 0

    def build_servers(
        self, policy: str, context: int, *, with_adapters: bool = False, experts: ExpertLayers | None = None
    ) -> tuple[list[GenerationServer], list[GenerationServer]]:
        """Return the servers for training and those for exact versions, not yet started.

        Args:
            policy: Its name.
            context: Most tokens of one of its sequences.
            with_adapters: Whether its weights are an adapter on a base. Then exact versions need no servers.
            experts: Expert layers of its model, if experts are recorded.
        """
        settings = self.settings
        build = partial(self._build_command, context, self.kind.experts_words if experts else ())
        open_api = partial(self._open_api, self._choose_api(experts, with_adapters=with_adapters))
        launch = ServerLaunch(f"{self.kind.what} server", build, open_api, settings.start_limit_s)
        if settings.urls:
            training, exact = (
                [GenerationServer(url, launch, None, url, settings.most_requests) for url in urls]
                for urls in (settings.urls, settings.evaluation_urls)
            )
            return training, exact
        self.logs = self.logs or OwnedFolder(temporary_folder(), LOGS_PREFIX, keep_s=LOGS_KEPT_S)
        names = [f"{policy}-{number}" for number in range(settings.servers)]
        evaluators = 0 if with_adapters else settings.evaluation_servers
        # A dot, which no policy's name has: another policy may be named `solver-evaluation`.
        exact_names = [f"{policy}.evaluation-{number}" for number in range(evaluators)]
        made = {name: self._build_server(self.logs.path / name, launch) for name in (*names, *exact_names)}
        return [made[name] for name in names], [made[name] for name in exact_names]

    def _build_server(self, folder: Path, launch: ServerLaunch) -> GenerationServer:
        devices = self.settings.devices
        environment = dict(self.kind.environment)
        variable, sockets = self.kind.sockets_variable, folder.parent
        fits = len(os.fsencode(sockets)) + 1 + SOCKET_NAME <= LONGEST_SOCKET_PATH
        if variable and variable not in os.environ and fits:
            environment[variable] = str(sockets)
        if devices:
            environment["CUDA_VISIBLE_DEVICES"] = devices[self.made % len(devices)]
        self.made += 1
        process = EngineProcess(folder, launch, environment)
        return GenerationServer(folder.name, launch, process, most_requests=self.settings.most_requests)

    def _build_command(self, context: int, further: Sequence[str], weights: ServedWeights, port: int) -> list[str]:
        words = self.kind.build_words(weights, port, context)
        return [find_python(self.settings), *words, *further, *self.settings.arguments]

    def _choose_api(
        self, experts: ExpertLayers | None, *, with_adapters: bool
    ) -> Callable[[HttpConnections], ServerApi]:
        if with_adapters:
            return self.kind.build_adapter_api
        build = self.kind.build_experts_api
        if experts is not None and build is not None:
            return lambda connections: build(connections, experts)
        return self.kind.build_api

    def _open_api(self, build: Callable[[HttpConnections], ServerApi], url: str) -> ServerApi:
        return build(open_connections(self.settings, url))


def open_connections(settings: ServerSettings, url: str) -> HttpConnections:
    """Return connections to a server, with the API key that the settings name."""
    return HttpConnections(url, os.environ.get(settings.key, "") if settings.key else "")
