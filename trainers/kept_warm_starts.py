"""Cache of warm starts on this machine: the same warm start gives the same bits, so it is not run twice.

Each result is a file in the user's cache folder, named by a hash of all that it depends on. A missing or damaged result
is computed again. Models of more than `MOST_MODEL_BYTES` are not kept, and at most `MOST_KEPT` results.

Another file of the same name holds the progress of a running warm start, so that a run reaches its first version even
if its processes are killed repeatedly. The end of the warm start removes it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import structlog
import torch
import transformers
from blake3 import blake3
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from headrace.infra.atomic_files import write_atomically
from headrace.infra.environment import cache_folder
from headrace.trainers.learner.model import encode_completion
from headrace.trainers.learner.numerics import fingerprint_numerics
from headrace.trainers.learner.warm_start import (
    Follower,
    ModelState,
    PromptAndCompletion,
    SearchProgress,
    WarmStartResult,
    WarmStartSettings,
)

MOST_MODEL_BYTES = 64 << 20
MOST_KEPT = 16
MOST_UNDER_WAY_BYTES = 4 << 30
"""Largest model whose progress is kept; progress takes some six times the model's size."""
MOST_UNDER_WAY = 2
ROOMS = ("schemas", "infra", "envs", "producers", "trainers")
"""Top-level packages whose source can change a result."""

UNDER_WAY = ".part"
NOW, KEPT, WEIGHT, MOMENT = "now", "kept", "weight", "moment"
"""Parts of the tensor names in a progress file."""

log = structlog.get_logger()


class KeptWarmStart(Follower):
    """The cached result and progress of one warm start: of this model, with these examples and settings.

    Args:
        model: The model before its first step.
        tokenizer: Its tokenizer.
        examples: Examples for training and for measuring.
        settings: Settings of the warm start.
        folder: Where results are kept, instead of the cache folder.
    """

    def __init__(
        self,
        model: transformers.PreTrainedModel,
        tokenizer: transformers.PreTrainedTokenizerBase,
        examples: tuple[Sequence[PromptAndCompletion], Sequence[PromptAndCompletion]],
        settings: WarmStartSettings,
        folder: Path | None = None,
    ) -> None:
        self._weights = {name: weight.detach() for name, weight in model.named_parameters()}
        self._folder = folder or cache_folder() / "warm-starts"
        self._path: Path | None = None
        self._under_way: Path | None = None
        size = sum(weight.nbytes for weight in self._weights.values())
        if size > MOST_UNDER_WAY_BYTES:
            return
        rules = {
            "examples": [[asdict(example) for example in some] for some in examples],
            "settings": asdict(settings),
            "config": model.config.to_json_string(),
            "tokenizer": [type(tokenizer).__name__, tokenizer.get_vocab(), tokenizer.eos_token_id],
            "ids": [
                [[one.encode_prompt(tokenizer), encode_completion(tokenizer, one.completion)] for one in some]
                for some in examples
            ],
            "numerics": fingerprint_numerics(str(model.device)),
            "source": _hash_own_code(),
        }
        key = blake3(json.dumps(rules, sort_keys=True).encode())
        for name, weight in self._weights.items():
            key.update(name.encode()).update(weight.cpu().contiguous().view(torch.uint8).numpy().tobytes())
        name = key.hexdigest()[:32]
        self._under_way = self._folder / f"{name}{UNDER_WAY}"
        self._path = self._folder / f"{name}.safetensors" if size <= MOST_MODEL_BYTES else None

    def load_into_model(self) -> WarmStartResult | None:
        """Load the cached weights into the model and return the result; None if it is missing or damaged."""
        if self._path is None:
            return None
        try:
            with safe_open(self._path, framework="pt") as file:
                found = json.loads(file.metadata()["result"])
                weights = {name: file.get_tensor(name) for name in self._weights}
                result = WarmStartResult(
                    found["steps"], found["reward"], tuple((s, reward) for s, reward in found["curve"])
                )
        except (OSError, SafetensorError, ValueError, KeyError, TypeError):
            return None
        for name, weight in self._weights.items():
            weight.copy_(weights[name])
        with suppress(OSError):
            self._path.touch()  # the newest use is kept longest
        return result

    def keep(self, result: WarmStartResult) -> None:
        """Keep the model's weights; remove its progress and the least recently used results."""
        if self._under_way is not None:
            with suppress(OSError):
                self._under_way.unlink(missing_ok=True)
        if self._path is None:
            return
        weights = {name: weight.cpu().contiguous() for name, weight in self._weights.items()}
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, save(weights, {"result": json.dumps(asdict(result))}))
            kept = sorted(self._folder.glob("*.safetensors"), key=lambda path: path.stat().st_mtime)
            for path in kept[:-MOST_KEPT]:
                path.unlink(missing_ok=True)
        except OSError as error:  # nothing but time is lost
            # The cache folder cannot be written, which costs time only.
            log.debug("warm_start.not_kept", why=str(error))

    def save(self, progress: SearchProgress) -> None:
        """Store the progress of the warm start."""
        if self._under_way is None:
            return
        states = {KEPT: progress.kept} | ({NOW: progress.now} if progress.now is not None else {})
        tensors = {
            f"{which}.{kind}.{name}": value.cpu().contiguous()
            for which, state in states.items()
            for kind, some in ((WEIGHT, state.weights), (MOMENT, state.moments))
            for name, value in some.items()
        }
        figures = {name: getattr(progress, name) for name in FIGURES}
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._under_way, save(tensors, {"progress": json.dumps(figures)}))
            others = sorted(self._folder.glob(f"*{UNDER_WAY}"), key=lambda path: path.stat().st_mtime)
            for path in others[:-MOST_UNDER_WAY]:
                path.unlink(missing_ok=True)
        except OSError as error:  # nothing but time is lost
            log.debug("warm_start.not_kept", why=str(error))

    def resume(self) -> SearchProgress | None:
        """Return the stored progress of the same warm start; None if it is missing or damaged."""
        if self._under_way is None:
            return None
        try:
            with safe_open(self._under_way, framework="pt") as file:
                figures = json.loads(file.metadata()["progress"])
                found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            figures["curve"] = [(step, reward) for step, reward in figures["curve"]]
            kept = _state(found, KEPT)
            if kept.weights.keys() != self._weights.keys():
                return None
            return SearchProgress(kept=kept, now=_state(found, NOW) if figures["done"] else None, **figures)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError):
            return None


FIGURES = ("stride", "rate", "reward", "curve", "steps", "taken", "done")


def _state(tensors: Mapping[str, torch.Tensor], which: str) -> ModelState:
    """Return the state named `which` from the tensors."""

    def part(kind: str) -> dict[str, torch.Tensor]:
        begin = f"{which}.{kind}."
        return {name.removeprefix(begin): value for name, value in tensors.items() if name.startswith(begin)}

    return ModelState(part(WEIGHT), part(MOMENT))


def _hash_own_code() -> str:
    """Return a hash of Headrace's code, because other code may give another result."""
    found, top = blake3(), Path(__file__).parents[1]
    for room in ROOMS:
        for folder, _, files in sorted(os.walk(top / room)):
            for name in sorted(name for name in files if name.endswith(".py")):
                found.update(name.encode()).update((Path(folder) / name).read_bytes())
    return found.hexdigest()
