"""The training objective of a recipe, with its settings; it is tried out before training."""

from __future__ import annotations

from typing import Any

from headrace.infra.errors import UsageError
from headrace.infra.recipe.settings import Recipe, Reference, TrainerSettings
from headrace.infra.recipe.table import Named
from headrace.trainers.losses import LOSSES, Objective, objective_of

PER_TOKEN = frozenset({"gae", "reinforce_pp", "reinforce_pp_baseline"})
"""Advantage estimators with one advantage per token, or with whitening."""
REJECTING = frozenset({"decoupled_ppo", "m2po"})
"""Losses that may reject tokens."""


def load_objective(settings: TrainerSettings) -> Objective:
    """Return the objective of a trainer's settings. Raises UsageError with the choices."""
    if settings.schedule == "constant" and settings.final_share != TrainerSettings.model_fields["final_share"].default:
        raise UsageError(
            'trainer.final_share has no effect with trainer.schedule = "constant": remove trainer.final_share'
        )
    rejects = bool(settings.correction) or settings.loss.use not in LOSSES or settings.loss.use in REJECTING
    if settings.count_rejected and not rejects:
        raise UsageError(
            "trainer.count_rejected has no effect: neither trainer.loss nor trainer.correction rejects tokens. Remove "
            'it, or add a correction that rejects tokens, as in trainer.correction = ["rejection"]'
        )
    in_reward = settings.kl is not None and settings.kl.settings.get("place") == "reward"
    if in_reward and (settings.batch_norm or settings.advantage.use in PER_TOKEN):
        raise UsageError(
            'trainer.kl with place = "reward" cannot be combined with trainer.batch_norm or with the advantages '
            f'{", ".join(sorted(PER_TOKEN))}: set place = "loss"'
        )
    objective = objective_of(
        settings.loss.model_dump(),
        _table(settings.aggregation),
        correction=[one.model_dump() for one in settings.correction],
        kl=_table(settings.kl),
        entropy=settings.entropy,
        count_rejected=settings.count_rejected,
    )
    if settings.reference != Reference() and "reference" not in objective.needs:
        raise UsageError(
            "trainer.reference has no effect, because nothing uses the reference policy: set trainer.kl, or remove "
            "trainer.reference"
        )
    return objective


def check_loss(recipe: Recipe, policy_variant: str) -> None:
    """Raise UsageError for an objective that a policy's trainer cannot use."""
    load_objective(recipe.trainer_of(policy_variant))


def _table(named: Named | None) -> dict[str, Any] | None:
    return None if named is None else named.model_dump()
