"""The reference policy, that a KL term holds the policy near to: frozen, refreshed now and then, or an average."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from headrace.infra.recipe.settings import Reference
from headrace.trainers.learner.masters import Masters


class ReferencePolicy:
    """Weights by name, float32 where the masters lie; at first those of the policy.

    Held to what is published: every value that is evaluated is rounded to bf16.
    """

    def __init__(self, values: Mapping[str, torch.Tensor]) -> None:
        self.values = {name: value.detach().clone() for name, value in values.items()}

    @torch.no_grad()
    def follow(self, masters: Mapping[str, torch.Tensor], version: int, settings: Reference) -> None:
        """Go along with a version that was made.

        Every `refresh_every` versions it becomes the policy; else theta_ref <- d theta_ref + (1 - d) theta with
        d = `decay`, where 1 freezes it.
        """
        if settings.refresh_every and version % settings.refresh_every == 0:
            for name, master in masters.items():
                self.values[name].copy_(master)
        elif settings.decay < 1:
            for name, master in masters.items():
                self.values[name].lerp_(master, 1 - settings.decay)

    @contextmanager
    def stand_in_for(self, masters: Masters) -> Iterator[None]:
        """Let the model of these masters compute with the reference's weights for a while."""
        masters.round(self.values)
        try:
            yield
        finally:
            masters.round()
