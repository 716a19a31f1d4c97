"""Whether memory and disk have room for what a recipe starts here: estimates from shapes alone.

Activations, logits, prompts, the reference policy of a KL term and the servers are not counted.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from headrace.infra.errors import HeadraceError
from headrace.infra.recipe.kinds import list_kinds
from headrace.infra.recipe.settings import Policy, Recipe
from headrace.infra.weights.model_config import EXPERT_COUNTS, read_config
from headrace.ops.preflight.contract import Asked, Fault
from headrace.ops.preflight.devices import CPU, TORCH, find_devices, probe_devices
from headrace.ops.preflight.machine import DISK_BYTES, GIB, find_existing_parent
from headrace.ops.preflight.models import read_tensors
from headrace.ops.preflight.usable_memory import measure_memory
from headrace.producers.engines.registry import MOST_BATCH_ROWS
from headrace.schemas.topics import policy_of

LEAST_DISK_BYTES = 256 << 20
"""With less free disk space, the embedded servers do not start, or stop within minutes."""
MASTERS_BYTES, MOMENTS_BYTES, FP32_BYTES, BF16_BYTES = 4, 8, 4, 2
"""Bytes for each weight: its fp32 master, AdamW's two moments, and the copy to compute with, on a CPU or a GPU."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The numbers of a model that decide how much memory it takes."""

    parameters: int
    is_exact: bool
    """Whether the parameters were counted in its files, and not derived from its config."""
    cache_values: int
    """Values of one token in the KV cache, over all layers."""


@dataclass(frozen=True, slots=True)
class Need:
    """Memory that a part of a process takes."""

    device: str
    who: str
    what: str
    size: float
    """Bytes."""
    is_sure: bool


@dataclass(frozen=True, slots=True)
class Room:
    """Memory of a device, in bytes."""

    free: int
    total: int


def measure_model(policy: Policy) -> ModelSize | None:
    """Return the size of a policy's model; None if config and files do not give it."""
    config = read_config(policy.folder) if policy.path else policy.model
    if config is None:
        return None
    text = config.get("text_config") or config
    try:
        tensors = read_tensors(policy.folder) if policy.path else None
        cache = 2 * int(text["num_hidden_layers"]) * _count_key_values(text)
        if tensors is not None:
            return ModelSize(sum(math.prod(one.shape) for one in tensors.values()), True, cache)
        return ModelSize(_derive_parameters({"vocab_size": len(policy.alphabet) + 2, **text}), False, cache)
    except (HeadraceError, OSError, KeyError, TypeError, ValueError, ZeroDivisionError):
        return None  # other checks report what is wrong with it


def _count_key_values(text: Mapping[str, Any]) -> int:
    heads = int(text["num_attention_heads"])
    return int(text.get("num_key_value_heads") or heads) * _find_head_size(text)


def _find_head_size(text: Mapping[str, Any]) -> int:
    return int(text.get("head_dim") or int(text["hidden_size"]) // int(text["num_attention_heads"]))


def _derive_parameters(text: Mapping[str, Any]) -> int:
    """Return the number of parameters of a decoder with gated MLPs, such as Llama and Qwen."""
    hidden, layers = int(text["hidden_size"]), int(text["num_hidden_layers"])
    queries = int(text["num_attention_heads"]) * _find_head_size(text)
    attention = 2 * hidden * (queries + _count_key_values(text))
    experts = next((int(text[key]) for key in EXPERT_COUNTS if text.get(key)), 0)
    width = experts * int(text["moe_intermediate_size"]) if experts else int(text["intermediate_size"])
    embeddings = int(text["vocab_size"]) * hidden * (1 if text.get("tie_word_embeddings") else 2)
    return layers * (attention + 3 * hidden * width) + embeddings


def list_memory_needs(recipe: Recipe, sizes: Mapping[str, ModelSize]) -> list[Need]:
    """Return the least memory of the trainers and rollout workers that `headrace up` starts, by device."""
    needs = [need for one in recipe.policy_variants for need in _list_trainer_needs(recipe, one, sizes)]
    if recipe.launch.workers:
        for workflow in recipe.workflows:
            known = [sizes[policy] for policy in recipe.policies_of(workflow) if policy in sizes]
            needs += _list_engine_needs(recipe, workflow, known)
    return needs


def _list_trainer_needs(recipe: Recipe, policy_variant: str, sizes: Mapping[str, ModelSize]) -> Iterator[Need]:
    trainer, policy = recipe.trainer_of(policy_variant), policy_of(policy_variant)
    size = sizes.get(policy)
    if size is None or not trainer.processes:
        return
    is_gpu = trainer.device != CPU
    computed = BF16_BYTES if is_gpu else FP32_BYTES
    per_weight = {"weights": computed + MASTERS_BYTES, "gradients": computed + FP32_BYTES, "optimizer": MOMENTS_BYTES}
    if recipe.policies[policy].lora is not None:  # the adapter itself is small
        per_weight = {"weights": computed}
    shared = trainer.processes if is_gpu else 1
    devices = [f"cuda:{rank}" for rank in range(shared)] if shared > 1 else [_name_device(trainer.device)]
    for device in devices:
        for what, weight in per_weight.items():
            yield Need(device, f"trainer of {policy_variant}", what, size.parameters * weight / shared, size.is_exact)


def _list_engine_needs(recipe: Recipe, workflow: str, sizes: Sequence[ModelSize]) -> Iterator[Need]:
    rollout, workers = recipe.rollout_of(list_kinds(recipe, workflow)[0]), recipe.launch.workers
    if rollout.engine.use != TORCH:
        return
    device, who = _name_device(rollout.device), f"rollout of {workflow}"
    weights = sum(size.parameters for size in sizes) * FP32_BYTES * workers
    yield Need(device, who, "weights", weights, all(size.is_exact for size in sizes))
    if recipe.evaluate.every:
        yield Need(device, who, "weights of an evaluation", weights, is_sure=False)
    rows = min(rollout.concurrency, MOST_BATCH_ROWS)
    cache = sum(size.cache_values for size in sizes) * FP32_BYTES * rows * rollout.max_tokens * workers
    yield Need(device, who, f"KV cache of {rows} sequences of {rollout.max_tokens:,} tokens", cache, is_sure=False)


def _name_device(device: str) -> str:
    return "cuda:0" if device == "cuda" else device


def judge_memory(needs: Sequence[Need], rooms: Mapping[str, Room]) -> list[Fault]:
    """Return what does not fit: a fault if it is certain and the device could never hold it, else a doubt."""
    faults = []
    for device, room in rooms.items():
        here = [need for need in needs if need.device == device]
        least, wanted = (sum(need.size for need in some) for some in ([n for n in here if n.is_sure], here))
        if wanted <= room.free:
            continue
        parts = "; ".join(
            f"{who}: " + ", ".join(f"{need.what} {_format_gib(need.size)}" for need in some)
            for who, some in groupby(here, key=lambda need: need.who)
        )
        is_doubt = least <= room.total
        faults.append(
            Fault(
                f"memory of {device}: about {_format_gib(wanted)} GiB are needed ({parts} GiB; activations and prompts "
                f"come on top), but {_format_gib(room.free)} of {_format_gib(room.total)} GiB are free: lower "
                "rollout.concurrency or rollout.max_tokens, train a lora, or use a smaller model",
                is_doubt=is_doubt,
            )
        )
    return faults


def examine_memory(asked: Asked) -> list[Fault]:
    """Compare what a recipe starts here with the memory of this machine and of its GPUs."""
    recipe = asked.recipe
    sizes = _measure_models(recipe)
    memory = measure_memory()
    rooms = {CPU: Room(memory.free + memory.swap_free, memory.total + memory.swap_total)}
    if wanted := find_devices(recipe):
        for name, seen in (probe_devices(wanted).devices or {}).items():
            if seen.total:
                rooms[_name_device(name)] = Room(seen.free, seen.total)
    return judge_memory(list_memory_needs(recipe, sizes), rooms)


# ---------------------------------------------------------------------------------------------------------------- disk


def estimate_objects(recipe: Recipe, sizes: Mapping[str, ModelSize]) -> float:
    """Return the bytes of all checkpoints and whole weights of a run, if `headrace gc` deletes none."""
    found = 0.0
    for policy_variant in recipe.policy_variants:
        size, trainer = sizes.get(policy_of(policy_variant)), recipe.trainer_of(policy_variant)
        if size is None or recipe.policies[policy_of(policy_variant)].lora is not None:
            continue
        checkpoints, anchors = (
            1 + trainer.steps // every for every in (trainer.checkpoint_every, trainer.anchor_every)
        )
        found += size.parameters * (checkpoints * (MASTERS_BYTES + MOMENTS_BYTES) + anchors * BF16_BYTES)
    return found


def judge_disk(recipe: Recipe, folder: Path, free: int, objects: float) -> list[Fault]:
    """Return the faults of the disk of the embedded servers."""
    if free < LEAST_DISK_BYTES:
        return [
            Fault(
                f"{folder} has {free / (1 << 20):.0f} MiB of free disk space, but embedded servers need "
                f"{LEAST_DISK_BYTES >> 20} MiB: delete files there, or give another folder by --data"
            )
        ]
    held = 0.0 if recipe.store.endpoint else objects
    if free >= DISK_BYTES + held:
        return []
    parts = (
        f" ({_format_gib(held)} GiB for checkpoints and whole weights over all versions)" if held >= GIB / 10 else ""
    )
    return [
        Fault(
            f"{folder} has {_format_gib(free)} GiB of free disk space, but this run may need "
            f"{_format_gib(DISK_BYTES + held)} GiB{parts}: delete files there, give another folder by --data, or "
            "delete old checkpoints while it runs (`headrace gc --keep-checkpoints`)",
            is_doubt=True,
        )
    ]


def examine_disk(asked: Asked) -> list[Fault]:
    """Compare what the embedded servers keep of a run with the disk of their folder, which may not exist yet.

    For a run that has begun, this does not count the files that are there already.
    """
    recipe, folder = asked.recipe, asked.folder
    if folder is None:
        return []
    is_counted = not (asked.has_begun or recipe.store.endpoint)
    objects = estimate_objects(recipe, _measure_models(recipe)) if is_counted else 0.0
    return judge_disk(recipe, folder, shutil.disk_usage(find_existing_parent(folder.absolute())).free, objects)


def _measure_models(recipe: Recipe) -> dict[str, ModelSize]:
    """Return policy to the size of its model, if this machine can find it out."""
    return {name: size for name, policy in recipe.policies.items() if (size := measure_model(policy)) is not None}


def _format_gib(size: float) -> str:
    return f"{size / GIB:.1f}"
