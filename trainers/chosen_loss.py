"""The objective that a recipe names, with its settings, tried before anything is trained."""

from __future__ import annotations

from typing import Any

from infra.errors import UsageError
from infra.settings import Recipe, Trainer, Use
from trainers.losses import Objective, objective_of


def objective_for(settings: Trainer) -> Objective:
    """Return what a trainer's table says is minimised. Raises UsageError that says what there is."""
    try:
        return objective_of(
            settings.loss.model_dump(),
            _table(settings.aggregation),
            correction=[use.model_dump() for use in settings.correction],
            kl=_table(settings.kl),
            entropy=settings.entropy,
            count_rejected=settings.count_rejected,
        )
    except UsageError as error:
        raise UsageError(f"[trainer] {error}") from error


def check_loss(recipe: Recipe, policy: str) -> None:
    """Raise UsageError for an objective that a policy's trainer cannot have."""
    objective_for(recipe.trainer_of(policy))


def _table(use: Use | None) -> dict[str, Any] | None:
    return None if use is None else use.model_dump()
