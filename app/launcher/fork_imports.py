"""Modules that the fork server imports before it forks a component, because the import takes long.

User code is not imported here: only components import a user's environments, engines and algorithms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line asks for ALL before it has imported anything that takes time
    from headrace.infra.recipe.settings import Rollout, TrainerSettings

FORKED_DEVICE = "cpu"
"""The only device of components that may be forked: a fork may inherit CUDA state, which would not work."""

ALL = (
    "headrace.app.cli.main",
    "headrace.infra.run.revisions",
    "headrace.infra.store.access",
    "headrace.infra.kafka.run_loop",
)
"""Imports that every component needs, for any recipe."""
_MODELS = ("transformers.models.auto.modeling_auto", "transformers.generation.utils")
FEED = (*ALL, "headrace.producers.feed.feeder")
CURATE = (*ALL, "headrace.consumers.curate.curator")
EVALUATE = (*ALL, "headrace.consumers.evaluate.evaluator")
ROLLOUT = (*ALL, "headrace.producers.rollout.worker")
ROLLOUT_WITH_TORCH = (*ROLLOUT, *_MODELS, "headrace.producers.engines.torch.torch_engine")
TRAIN = (*ALL, "headrace.trainers.train", "headrace.trainers.start", "headrace.trainers.trainer", *_MODELS)


def list_trainer_imports(trainer: TrainerSettings) -> tuple[str, ...]:
    """Return a trainer's imports; none if it is not forked: on CUDA, or as several processes, started by torchrun."""
    return TRAIN if trainer.processes == 1 and trainer.device == FORKED_DEVICE else ()


def list_worker_imports(rollout: Rollout) -> tuple[str, ...]:
    """Return a rollout worker's imports; none if it is not forked: on CUDA. A user's engine has its own imports."""
    if rollout.device != FORKED_DEVICE:
        return ()
    return ROLLOUT_WITH_TORCH if rollout.engine.use == "torch" else ROLLOUT
