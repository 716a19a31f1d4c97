"""Warm starts that this machine has done: the same one is not done twice, as it would end with the same bits.

Each is a file in the cache folder of this user, named by a hash of all that its result depends on. One that is missing
or damaged is done again. Models of more than `MOST_MODEL_BYTES` are not kept, and no more than `MOST_KEPT` of the
others.

Beside it a file of the same name holds how far one under way is, so that a run whose processes are killed again and
again comes to its first version. It goes with the end of the warm start.
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
"""Largest model whose progress is kept; the progress takes some six times as much."""
MOST_UNDER_WAY = 2
ROOMS = ("schemas", "infra", "envs", "producers", "trainers")
"""Rooms whose source may decide over a result."""

UNDER_WAY = ".part"
NOW, KEPT, WEIGHT, MOMENT = "now", "kept", "weight", "moment"
"""Parts of the names of tensors there."""

log = structlog.get_logger()


class KeptWarmStart(Follower):
    """The folder of one warm start's result: of a model as it is now, with these examples and settings.

    Args:
        model: Before its first step.
        tokenizer: Its own.
        examples: What is learnt from, and what is measured on.
        settings: How.
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
        """Give the model the weights of its result, and return that; None where none is kept, or it is damaged."""
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
        """Keep the model's weights, and drop those that were not used for the longest time, and its progress."""
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
            log.debug("warm_start.not_kept", why=str(error))

    def save(self, progress: SearchProgress) -> None:
        """Keep how far the warm start is."""
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
        """Return how far the same warm start was; None where that is not known, or damaged."""
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
    """Return a state from the tensors that are named by it."""

    def part(kind: str) -> dict[str, torch.Tensor]:
        begin = f"{which}.{kind}."
        return {name.removeprefix(begin): value for name, value in tensors.items() if name.startswith(begin)}

    return ModelState(part(WEIGHT), part(MOMENT))


def _hash_own_code() -> str:
    """Return a hash of our code: other code may learn otherwise."""
    found, top = blake3(), Path(__file__).parents[1]
    for room in ROOMS:
        for folder, _, files in sorted(os.walk(top / room)):
            for name in sorted(name for name in files if name.endswith(".py")):
                found.update(name.encode()).update((Path(folder) / name).read_bytes())
    return found.hexdigest()
