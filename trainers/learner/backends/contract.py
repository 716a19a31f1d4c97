"""The interface between a learner and the processes that it runs on, and its form for a single process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from headrace.trainers.learner.logprobs import TokenScorer


class Backend(Protocol):
    """Distributes a model's weights and the micro-batches of a step over processes.

    All processes of one learner call the same methods in the same order with the same shapes; each method may wait for
    the others. `docs/trainer-backends.md` shows how to write one.
    """

    device: torch.device
    """Device on which this process computes."""
    share: tuple[int, int]
    """(i, n): this process takes the micro-batches i, i + n, i + 2n, ... of every step."""
    leads: bool
    """Whether this process keeps the weights to publish and to store."""
    fingerprint: Mapping[str, str]
    """All that bit-equality depends on besides the device's numerics; empty for one process."""

    def place(self, scorer: TokenScorer) -> None:
        """Place the compute copy on its devices, in place. It has its final dtype; its values come later."""

    def spread(self, whole: torch.Tensor, like: torch.Tensor | None) -> torch.Tensor:
        """Copy the first process's `whole` to the placement of `like`, a placed parameter; None: to every process.

        On the other processes `whole` only gives shape and dtype.
        """

    def gather(self, part: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return the whole of a tensor that is placed like a parameter or computed from such tensors.

        The result may be rounded to `dtype`.
        """

    def total(self, values: torch.Tensor, *, largest: bool = False) -> torch.Tensor:
        """Return the elementwise sum or maximum over the n processes of `share`."""


class SingleProcess:
    """The backend of a single process."""

    share = (0, 1)
    leads = True
    fingerprint: Mapping[str, str] = {}

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)

    def place(self, scorer: TokenScorer) -> None:
        """Move the model to the device."""
        scorer.to(self.device)

    def spread(self, whole: torch.Tensor, like: torch.Tensor | None) -> torch.Tensor:  # noqa: ARG002 - one process
        """Copy the tensor to the device."""
        return whole.to(self.device, copy=True)

    def gather(self, part: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:  # noqa: ARG002 - whole
        """Return the tensor unchanged."""
        return part

    def total(self, values: torch.Tensor, *, largest: bool = False) -> torch.Tensor:  # noqa: ARG002 - one process
        """Return the values unchanged."""
        return values
