"""Versions of a tiny model for many settings, on one process or under torchrun: what each version came to, as JSON.

torchrun --standalone --nproc-per-node 2 tests/unit/group_steps.py FOLDER [DEVICE]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

from group_checkpoints import Folder, leave_while_away, load, troubles
from test_learner import OBJECTIVES, SETTINGS
from test_routing import TINY as EXPERTS
from test_routing import batch as routed_batch
from tiny_models import SHAPE, TOKENIZER, batch

from headrace.infra.recipe.settings import Lora, TrainerSettings
from headrace.infra.weights.tensors import hash_weights
from headrace.trainers.batches.batch import TrainingSequence
from headrace.trainers.learner.backends.group import build_learner, lead_group
from headrace.trainers.learner.checkpoint import encode_checkpoint
from headrace.trainers.learner.learner import Learner
from headrace.trainers.learner.lora import Adapter
from headrace.trainers.learner.model import build_model

CASES: dict[str, dict[str, Any]] = {
    "ppo": {},
    "recomputed": {"activation_checkpointing": True},
    "logits in parts": {"logits_mib": 1, "micro_batch_tokens": 4096},
    "bounds of the whole minibatch": {"loss": "m2po"},
    "rejections in the denominator": {"correction": [{"use": "mis", "cap": 1.5}, "veto"]},
    "averaged reference": {"kl": {"use": "k3", "weight": 0.1}, "reference": {"decay": 0.5}},
    "sequences": {"loss": "gspo", "entropy": 0.01},
    "adapter": {"learning_rate": 2e-3},
    "experts": {"replay_routing": True, "router_aux": 0.1},
    "fused": {"fused_optimizer": True},
    "matrices cut": {"tensor_parallel": 2},
    "matrices cut, fused": {"tensor_parallel": 2, "fused_optimizer": True},
    "matrices cut, a reference": {"tensor_parallel": 2, "kl": {"use": "k3", "weight": 0.1}, "logits_mib": 1},
}
CASES |= {name: OBJECTIVES[name] for name in ("decoupled", "interpolated", "dppo")}
DEVICE = sys.argv[2] if sys.argv[0].endswith("group_steps.py") and sys.argv[2:] else "cpu"
TAKEN_OVER = ("averaged reference", "adapter", "matrices cut")


def parts_of(changed: dict[str, Any]) -> tuple[Any, TrainerSettings, int, Adapter | None]:
    """What a learner is made of."""
    settings = SETTINGS.model_dump() | {"micro_batch_tokens": 128, "device": DEVICE} | changed
    shape = EXPERTS if "router_aux" in changed else {**SHAPE, "num_key_value_heads": 2}
    if "logits_mib" in changed:
        shape = {**shape, "vocab_size": 30_000}  # of which one MiB holds the logits of eight tokens
    model = build_model(shape, TOKENIZER, seed=1)
    adapter = Adapter(model, Lora(rank=2), 1) if changed == CASES["adapter"] else None
    return model, TrainerSettings.model_validate(settings), 1, adapter


def made(changed: dict[str, Any]) -> Learner:
    return build_learner(*parts_of(changed))


def alone(changed: dict[str, Any]) -> dict[str, Any]:
    """Settings for one process."""
    return {name: value for name, value in changed.items() if name != "tensor_parallel"}


def encoded(learner: Learner) -> str:
    """The hash of the whole checkpoint of a learner of one process."""
    return sha256(b"".join(encode_checkpoint(learner.trained.copy()))).hexdigest()


def sequences_of(changed: dict[str, Any]) -> Callable[[int], list[TrainingSequence]]:
    return routed_batch if "router_aux" in changed else batch


def told(changed: dict[str, Any], folder: Folder) -> dict[str, Any]:
    """Two versions in one go; the second of them also from the checkpoint of the first, which is stored meanwhile."""
    straight, sequences = made(changed), sequences_of(changed)
    found = [straight.step(sequences(1), 1)]
    storing, first_hash = straight.checkpoint(folder.run), hash_weights(straight.snapshot_weights())
    found.append(straight.step(sequences(2), 2))
    first, end = storing(None), straight.checkpoint(folder.run)(None)
    published = hash_weights(straight.snapshot_weights())
    fingerprint = straight.fingerprint()
    resumed = made(changed)
    resumed.step(sequences(99), 1)  # what loading must replace
    for process in (0, 1):
        folder.bytes_read(process)
    load(resumed, folder, first)
    read = [folder.bytes_read(process) for process in (0, 1)]
    again, hash_again = resumed.step(sequences(2), 2), hash_weights(resumed.snapshot_weights())
    same_state = end == resumed.checkpoint(folder.run)(None)
    return {
        "metrics": found,
        "first": asdict(first),
        "first_hash": first_hash,
        "read": read,
        "hash": published,
        "again": again,
        "hash_again": hash_again,
        "same_state": same_state,
        "fingerprint": fingerprint,
    }


def taken_over(changed: dict[str, Any], folder: Folder) -> dict[str, Any]:
    """The checkpoint of one process, as two load it and store it again."""
    one, two = Learner(*parts_of(alone(changed))), made(changed)
    one.step(sequences_of(changed)(1), 1)
    two.load_state(one.trained.copy())
    return {"whole": encoded(one), "stored": asdict(two.checkpoint(folder.run)(None))}


def main() -> None:
    folder = Folder(sys.argv[1])
    with lead_group():
        found = {name: told(changed, folder) for name, changed in CASES.items()}
        found["taken over"] = {name: taken_over(CASES[name], folder) for name in TAKEN_OVER}
        found["troubles"] = troubles(folder, lambda: made({}), batch)
        Path(folder.path, "told.json").write_text(json.dumps(found))
        leave_while_away(folder, made({}))


if __name__ == "__main__":
    main()
