"""Versions of a tiny model for many settings, on one process or under torchrun: what each version came to, as JSON.

torchrun --standalone --nproc-per-node 2 -m tests.unit.group_steps FILE
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from test_learner import SETTINGS, SHAPE, TOKENIZER, batch
from test_routing import TINY as EXPERTS
from test_routing import batch as routed_batch

from infra.settings import Lora, Trainer
from infra.weights.tensors import weights_hash
from trainers.backends.group import leading, new_learner
from trainers.batch import TrainingSequence
from trainers.checkpoint import encode_checkpoint
from trainers.learner import Learner
from trainers.lora import Adapter
from trainers.model import build_model

CASES: dict[str, dict[str, Any]] = {
    "ppo": {},
    "recomputed": {"activation_checkpointing": True},
    "logits in parts": {"logits_mib": 1, "micro_batch_tokens": 4096},
    "one micro-batch a step": {"micro_batch_tokens": 4096},
    "bounds of the whole minibatch": {"loss": "m2po"},
    "rejections in the denominator": {"correction": [{"use": "mis", "cap": 1.5}, "veto"]},
    "averaged reference": {"kl": {"use": "k3", "weight": 0.1}, "reference": {"decay": 0.5}},
    "sequences": {"loss": "gspo", "entropy": 0.01},
    "adapter": {"learning_rate": 2e-3},
    "experts": {"replay_routing": True, "router_aux": 0.1},
    "matrices cut": {"tensor_parallel": 2},
    "matrices cut, a reference": {"tensor_parallel": 2, "kl": {"use": "k3", "weight": 0.1}, "logits_mib": 1},
}


def made(changed: dict[str, Any]) -> Learner:
    settings = SETTINGS.model_dump() | {"micro_batch_tokens": 128} | changed
    shape = EXPERTS if "router_aux" in changed else {**SHAPE, "num_key_value_heads": 2}
    model = build_model(shape, TOKENIZER, seed=1)
    adapter = Adapter(model, Lora(rank=2), 1) if changed == CASES["adapter"] else None
    return new_learner(model, Trainer.model_validate(settings), 1, adapter)


def sequences_of(changed: dict[str, Any]) -> Callable[[int], list[TrainingSequence]]:
    return routed_batch if "router_aux" in changed else batch


def told(changed: dict[str, Any]) -> dict[str, Any]:
    """Two versions in one go; the second of them also from the checkpoint of the first."""
    straight, sequences = made(changed), sequences_of(changed)
    found = [straight.step(sequences(1), 1)]
    state = straight.state()
    found.append(straight.step(sequences(2), 2))
    published, end = weights_hash(straight.published()), b"".join(encode_checkpoint(straight.state()))
    fingerprint = straight.fingerprint()
    resumed = made(changed)
    resumed.step(sequences(99), 1)  # what loading must replace
    resumed.load_state(state)
    return {
        "metrics": found,
        "hash": published,
        "again": resumed.step(sequences(2), 2),
        "hash_again": weights_hash(resumed.published()),
        "state": len(end),
        "same_state": end == b"".join(encode_checkpoint(resumed.state())),
        "fingerprint": fingerprint,
    }


def main() -> None:
    with leading():
        found = {name: told(changed) for name, changed in CASES.items()}
        Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
