"""The reference policy of a KL term: frozen, refreshed at intervals, or a moving average."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from headrace.infra.recipe.settings import Reference
from headrace.trainers.learner.masters import Masters


class ReferencePolicy:
    """Weights by name, float32 on the masters' devices; at first those of the policy.

    As for published weights, values are rounded to bf16 for evaluation.
    """

    def __init__(self, values: Mapping[str, torch.Tensor]) -> None:
        self.values = {name: value.detach().clone() for name, value in values.items()}

    @torch.no_grad()
    def follow(self, masters: Mapping[str, torch.Tensor], version: int, settings: Reference) -> None:
        """Update the reference after a new version.

        Every `refresh_every` versions the policy's weights are copied; otherwise theta_ref <- d theta_ref + (1 - d)
        theta with d = `decay`, where 1 freezes it.
        """
        if settings.refresh_every and version % settings.refresh_every == 0:
            for name, master in masters.items():
                self.values[name].copy_(master)
        elif settings.decay < 1:
            for name, master in masters.items():
                self.values[name].lerp_(master, 1 - settings.decay)

    @contextmanager
    def stand_in_for(self, masters: Masters) -> Iterator[None]:
        """Let the masters' model compute with the reference's weights in the block."""
        masters.round(self.values)
        try:
            yield
        finally:
            masters.round()
