"""The learning rate of a version: it depends only on the version's number, so a remade version has the same rate."""

from __future__ import annotations

import math

from headrace.infra.recipe.settings import TrainerSettings


def learning_rate(settings: TrainerSettings, version: int) -> float:
    """Return the rate for the steps that make `version` (1, 2, ...).

    Linear warm-up: version k of the first `warmup_versions` has k / warmup_versions of the full rate. Then the schedule
    goes from the full rate to `final_share` of it at version `steps` and later: constant; linear; or cosine (arXiv
    1608.03983, one cycle), final + (1 - final)(1 + cos(pi x)) / 2 with x from 0 to 1.
    """
    if version <= settings.warmup_versions:
        return settings.learning_rate * version / settings.warmup_versions
    if settings.schedule == "constant":
        return settings.learning_rate
    way = max(1, settings.steps - settings.warmup_versions)
    progress = min(1.0, (version - settings.warmup_versions) / way)
    left = 1 - progress if settings.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return settings.learning_rate * (settings.final_share + (1 - settings.final_share) * left)
