"""Versions of a tiny model for many settings, on one process or under torchrun: what each version came to, as JSON.

torchrun --standalone --nproc-per-node 2 -m tests.unit.group_steps FILE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from test_learner import SETTINGS, batch, tiny

from infra.settings import Trainer
from infra.weights.tensors import weights_hash
from trainers.backends.group import leading, new_learner
from trainers.checkpoint import encode_checkpoint
from trainers.learner import Learner

CASES: dict[str, dict[str, Any]] = {
    "ppo": {},
    "recomputed": {"activation_checkpointing": True},
    "logits in parts": {"logits_mib": 1, "micro_batch_tokens": 4096},
    "one micro-batch a step": {"micro_batch_tokens": 4096},
    "bounds of the whole minibatch": {"loss": "m2po"},
    "rejections in the denominator": {"correction": [{"use": "mis", "cap": 1.5}, "veto"]},
    "averaged reference": {"kl": {"use": "k3", "weight": 0.1}, "reference": {"decay": 0.5}},
    "sequences": {"loss": "gspo", "entropy": 0.01},
}


def made(changed: dict[str, Any]) -> Learner:
    settings = SETTINGS.model_dump() | {"micro_batch_tokens": 128} | changed
    return new_learner(tiny(), Trainer.model_validate(settings), 1)


def told(changed: dict[str, Any]) -> dict[str, Any]:
    """Two versions in one go; the second of them also from the checkpoint of the first."""
    straight = made(changed)
    found = [straight.step(batch(1), 1)]
    state = straight.state()
    found.append(straight.step(batch(2), 2))
    published, end = weights_hash(straight.published()), b"".join(encode_checkpoint(straight.state()))
    fingerprint = straight.fingerprint()
    resumed = made(changed)
    resumed.step(batch(99), 1)  # what loading must replace
    resumed.load_state(state)
    return {
        "metrics": found,
        "hash": published,
        "again": resumed.step(batch(2), 2),
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
