"""Engines by the names that recipes use, imported when they are asked for.

A function opens an engine. It takes the policies' model folders (config and tokenizer in Hugging Face layout, and for
an adapter its base and `adapter_config.json`) and the number of requests that it will get at once. It returns the
engine and its build: one line with all versions and settings that its numbers depend on.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.infra.errors import UsageError
from headrace.infra.recipe.named import check_settings, find_named
from headrace.infra.recipe.settings import Recipe, Rollout
from headrace.infra.recipe.table import Named
from headrace.infra.weights.files import ADAPTER_CONFIG
from headrace.producers.engines.contract import Engine, EngineError

if TYPE_CHECKING:
    from headrace.producers.engines.served.server_settings import ServerKind

Opened = tuple[Engine, str]
OpenEngine = Callable[[Mapping[str, Path], Rollout, int], Opened]

MOST_BATCH_ROWS = 128


def open_torch(folders: Mapping[str, Path], rollout: Rollout, concurrency: int) -> Opened:
    """Open the in-process engine."""
    import torch
    import transformers

    from headrace.infra.weights.policy_files import Tokenizer
    from headrace.producers.engines.torch.causal_lm import Adapted, ModelSource
    from headrace.producers.engines.torch.torch_engine import TorchEngine, TorchEngineSettings

    settings = TorchEngineSettings(
        max_batch=min(concurrency, MOST_BATCH_ROWS), device=rollout.device, record_routing=rollout.record_routing
    )
    sources: dict[str, ModelSource] = {}
    for policy, folder in folders.items():
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        sources[policy] = Adapted(config, folder) if (folder / ADAPTER_CONFIG).exists() else config
    build = (
        f"torch {torch.__version__} transformers {transformers.__version__} {settings.device} "
        f"{settings.compute_dtype} threads {torch.get_num_threads()}"
    )
    if any(isinstance(source, Adapted) for source in sources.values()):
        build += f" peft {version('peft')}"
    # Read now: the folders are gone when the first request has stop texts.
    codecs = {policy: Tokenizer(folder) for policy, folder in folders.items()}
    return TorchEngine(sources, settings, codecs), build


def open_scripted(folders: Mapping[str, Path], rollout: Rollout, _concurrency: int) -> Opened:
    """Open the engine without a model."""
    from headrace.infra.weights.policy_files import Tokenizer
    from headrace.producers.engines.scripted import ScriptedEngine, ScriptedPolicy, ScriptedSettings

    settings, policies = ScriptedSettings(**rollout.engine.settings), {}
    for policy, folder in folders.items():
        whole = json.loads((folder / "config.json").read_text())
        config = whole.get("text_config", whole)
        policies[policy] = ScriptedPolicy(Tokenizer(folder), config["vocab_size"], config["max_position_embeddings"])
    return ScriptedEngine(policies, settings), f"scripted {settings}"


def open_served(folders: Mapping[str, Path], rollout: Rollout, _concurrency: int) -> Opened:
    """Open the engine over generation servers; they start with the first weights."""
    from headrace.producers.engines.served.adapter_policy import AdapterPolicy
    from headrace.producers.engines.served.model_shapes import ModelShapes
    from headrace.producers.engines.served.served_engine import ServedEngine
    from headrace.producers.engines.served.served_policy import ServedPolicy
    from headrace.producers.engines.served.server_build import describe_build
    from headrace.producers.engines.served.server_settings import ServerFactory, find_folder, read_settings
    from headrace.producers.engines.served.weight_folders import WeightFolders

    kind = find_kind(rollout.engine.use)
    settings = read_settings(kind, rollout.engine.settings)
    factory = ServerFactory(kind, settings)
    shapes = {policy: ModelShapes(folder) for policy, folder in folders.items()}
    written = WeightFolders(find_folder(settings), folders)
    policies = []
    for policy, one in shapes.items():
        is_adapter = written.find_base(policy) is not None
        experts = one.experts if rollout.record_routing else None
        servers = factory.build_servers(policy, one.context, with_adapters=is_adapter, experts=experts)
        serve = AdapterPolicy if is_adapter else ServedPolicy
        policies.append(serve(policy, one, *servers, written, writes_ties=kind.writes_ties))
    return ServedEngine(policies, written, kind.logprob_convention, factory.logs), describe_build(kind, settings)


def find_kind(name: str) -> ServerKind:
    """Return the kind of servers that an engine uses. Raises KeyError for an engine without servers."""
    from headrace.producers.engines.served.sglang import SGLANG
    from headrace.producers.engines.served.vllm import VLLM

    return {"sglang": SGLANG, "vllm": VLLM}[name]


SERVED = ("sglang", "vllm")
"""Engines that use servers."""
WITHOUT_DEVICE = (*SERVED, "scripted")
"""Engines that do not compute on `rollout.device`."""
ENGINES: dict[str, OpenEngine] = {"torch": open_torch, "scripted": open_scripted, **dict.fromkeys(SERVED, open_served)}
"""Name to the function that opens it."""
READ_BY_SCRIPTED = ("scripted", "mixture")
"""Shipped environments whose questions the engine without a model may be able to read."""


def open_engine(folders: Mapping[str, Path], rollout: Rollout, concurrency: int) -> Opened:
    """Open the engine that the recipe names: a shipped one, or `package.module:function`.

    Raises UsageError for a name that is neither, and for settings that a shipped one does not take.
    """
    _check_settings(rollout.engine)
    opened: OpenEngine = find_named("rollout.engine", rollout.engine.use, ENGINES)
    return opened(folders, rollout, concurrency)


def check_engine(recipe: Recipe, workers: int | None = None) -> None:
    """Check the shipped engines that a recipe names, for all workers and for kinds of them, before anything is started.

    `workers` takes the place of the recipe's number of them.

    Raises UsageError for an unknown name, for settings that the engine does not take, and if the engine without a model
    would get questions that it cannot read.
    """
    if workers is not None:
        recipe = recipe.model_copy(update={"launch": recipe.launch.model_copy(update={"workers": workers})})
    _check_engine_of_rollout(recipe)
    for name, kind in recipe.kinds.items():
        if kind.engine is not None:
            try:
                _check_engine_of_rollout(recipe.model_copy(update={"rollout": recipe.rollout_of(name)}))
            except UsageError as error:
                raise UsageError(f"kinds.{name}: {error}") from error


def _check_engine_of_rollout(recipe: Recipe) -> None:
    engine = recipe.rollout.engine
    if ":" in engine.use:
        return
    find_named("rollout.engine", engine.use, ENGINES)
    _check_settings(engine)
    if engine.use in SERVED:
        from headrace.producers.engines.served.server_settings import check_recipe

        check_recipe(find_kind(engine.use), recipe)
    for name, workflow in recipe.workflows.items():
        env = workflow.env.use
        if engine.use == "scripted" and ":" not in env and env not in READ_BY_SCRIPTED:
            raise UsageError(
                f'workflows.{name} takes problems from the environment "{env}", but the engine "scripted" answers only '
                'problems of the environment "scripted": set env = "scripted", or use another engine'
            )


def _check_settings(engine: Named) -> None:
    where = f"rollout.engine, {engine.use}"
    if engine.use == "torch" and engine.settings:
        raise UsageError(f"{where}: this engine takes no settings; remove {', '.join(engine.settings)}")
    if engine.use == "scripted":
        from headrace.producers.engines.scripted import ScriptedSettings

        check_settings(where, ScriptedSettings, engine.settings)
        try:
            ScriptedSettings(**engine.settings)
        except EngineError as error:
            raise UsageError(f"{where}: {error}") from error


_importing = threading.Lock()


def import_engine(name: str) -> None:
    """Import the modules of an engine, which takes seconds: early, in a thread, while the worker waits for weights.

    A second call waits for the first: two threads cannot import transformers at once (seen).
    """
    with _importing:
        if name in SERVED:
            import headrace.producers.engines.served.served_engine
        if name == "torch":
            import transformers

            import headrace.producers.engines.torch.torch_engine  # noqa: F401 - for its imports

            transformers.AutoTokenizer  # noqa: B018 - resolves what transformers imports only when it is asked for
