"""The objective that a recipe names, with its settings, tried before anything is trained."""

from __future__ import annotations

from typing import Any

from headrace.infra.errors import UsageError
from headrace.infra.recipe.settings import Named, Recipe, Reference, TrainerSettings
from headrace.trainers.losses import LOSSES, Objective, objective_of

PER_TOKEN = frozenset({"gae", "reinforce_pp", "reinforce_pp_baseline"})
"""Advantages that give every token its own, or whiten them."""
REJECTING = frozenset({"decoupled_ppo", "m2po"})
"""Losses that may reject tokens."""


def objective_for(settings: TrainerSettings) -> Objective:
    """Return what a trainer's table has minimised. Raises UsageError that lists the choices."""
    if settings.kl is None and settings.reference != Reference():
        raise UsageError("trainer.reference has no effect without a kl term")
    if settings.schedule == "constant" and settings.final_share != TrainerSettings.model_fields["final_share"].default:
        raise UsageError("trainer.final_share has no effect on the schedule constant")
    rejects = bool(settings.correction) or settings.loss.use not in LOSSES or settings.loss.use in REJECTING
    if settings.count_rejected and not rejects:
        raise UsageError(
            "trainer.count_rejected has no effect: nothing here rejects tokens; remove it, or add a correction that "
            "rejects"
        )
    in_reward = settings.kl is not None and settings.kl.settings.get("place") == "reward"
    if in_reward and (settings.batch_norm or settings.advantage.use in PER_TOKEN):
        raise UsageError(
            "trainer.kl: in the reward it is taken from finished advantages: it does not go with batch_norm or with "
            f"the advantages {', '.join(sorted(PER_TOKEN))}, which would discount or whiten it; put it in the loss"
        )
    return objective_of(
        settings.loss.model_dump(),
        _table(settings.aggregation),
        correction=[one.model_dump() for one in settings.correction],
        kl=_table(settings.kl),
        entropy=settings.entropy,
        count_rejected=settings.count_rejected,
    )


def check_loss(recipe: Recipe, policy_variant: str) -> None:
    """Raise UsageError for an objective that a policy's trainer cannot have."""
    objective_for(recipe.trainer_of(policy_variant))


def _table(named: Named | None) -> dict[str, Any] | None:
    return None if named is None else named.model_dump()
