"""The reference policy, that a KL term holds the policy near to: frozen, refreshed now and then, or an average."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from infra.settings import Reference


class ReferencePolicy:
    """Weights by name, float32 on the parameters' device; at first those of the policy.

    Held to what is published: every value that is evaluated is rounded to bf16.
    """

    def __init__(self, masters: Mapping[str, torch.Tensor], device: torch.device) -> None:
        self.values = {name: master.detach().to(device, copy=True) for name, master in masters.items()}

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
    def in_place_of(self, parameters: Mapping[str, torch.nn.Parameter]) -> Iterator[None]:
        """Let a model compute with these weights for a while; its own come back as they were."""
        own = {name: parameter.data for name, parameter in parameters.items()}
        try:
            for name, parameter in parameters.items():
                parameter.data = self.values[name].to(torch.bfloat16).to(parameter.dtype)
            yield
        finally:
            for name, parameter in parameters.items():
                parameter.data = own[name]
