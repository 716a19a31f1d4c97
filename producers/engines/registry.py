"""Engines by the names that recipes use, imported when they are asked for.

An engine is opened by a function of the policies' model folders (config and tokenizer in Hugging Face layout; no
weights yet but the base of an adapter, beside its `adapter_config.json`) and of how many episodes will run at
once. It returns the engine and its build: all versions and settings that its numbers depend on, in one line.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

from infra.named import named
from infra.settings import Rollout
from infra.weights.files import ADAPTER_CONFIG
from producers.engines.contract import Engine

Opened = tuple[Engine, str]
OpenEngine = Callable[[Mapping[str, Path], Rollout, int], Opened]

MOST_ROWS = 128


def open_torch(folders: Mapping[str, Path], rollout: Rollout, concurrency: int) -> Opened:
    """Open the in-process engine."""
    import torch
    import transformers

    from producers.engines.causal_lm import Adapted, ModelSource
    from producers.engines.torch_engine import TorchEngine, TorchEngineSettings

    settings = TorchEngineSettings(
        max_batch=min(concurrency, MOST_ROWS), device=rollout.device, record_routing=rollout.record_routing
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
    return TorchEngine(sources, settings), build


ENGINES: dict[str, OpenEngine] = {"torch": open_torch}
"""Name to the function that opens it."""


def open_engine(folders: Mapping[str, Path], rollout: Rollout, concurrency: int) -> Opened:
    """Open the engine that the recipe names: a shipped one, or `package.module:function`.

    Raises UsageError for a name that is neither.
    """
    opened: OpenEngine = named("rollout.engine", rollout.engine, ENGINES)
    return opened(folders, rollout, concurrency)


_importing = threading.Lock()


def import_engine(name: str) -> None:
    """Import what an engine is made of, which takes seconds: early, in a thread, while the worker waits for weights.

    Called again it waits until that is done: transformers cannot be imported by two threads at once (seen).
    """
    with _importing:
        if name == "torch":
            import transformers

            import producers.engines.torch_engine  # noqa: F401 - for its imports

            transformers.AutoTokenizer  # noqa: B018 - resolves what transformers imports only when it is asked for
