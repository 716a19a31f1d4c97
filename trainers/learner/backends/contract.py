"""What a learner asks of the processes that it runs on, and the answer of a single one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from headrace.trainers.learner.logprobs import TokenScorer


class Backend(Protocol):
    """How a model's weights, and the micro-batches of a step, lie on processes.

    All processes of one learner call the same methods in the same order with the same shapes; each method may wait for
    the others. `docs/trainer-backends.md` shows how to write one.
    """

    device: torch.device
    """Device on which this process computes."""
    share: tuple[int, int]
    """(i, n): this process takes the micro-batches i, i + n, i + 2n, ... of every step."""
    leads: bool
    """Whether this is the process that keeps what is published and stored."""
    fingerprint: Mapping[str, str]
    """What bit-equality depends on beside the device's numerics; empty for one process."""

    def place(self, scorer: TokenScorer) -> None:
        """Put the compute copy where it belongs, in place. It has its final dtype; its values are given afterwards."""

    def spread(self, whole: torch.Tensor, like: torch.Tensor | None) -> torch.Tensor:
        """Copy the first process's `whole` to where `like`, one of the placed parameters, is; None: to everyone.

        On the other processes `whole` gives shape and dtype alone.
        """

    def gather(self, part: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return the whole of a tensor that is placed like a parameter, or was computed from such ones.

        It may be rounded to `dtype`: that is all the caller wants of it.
        """

    def total(self, values: torch.Tensor, *, largest: bool = False) -> torch.Tensor:
        """Return the sum, or the largest, of every element over the n that `share` counts."""


class SingleProcess:
    """All of it here."""

    share = (0, 1)
    leads = True
    fingerprint: Mapping[str, str] = {}

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)

    def place(self, scorer: TokenScorer) -> None:
        """Move it to the device."""
        scorer.to(self.device)

    def spread(self, whole: torch.Tensor, like: torch.Tensor | None) -> torch.Tensor:  # noqa: ARG002 - all lie alike
        """Copy it to the device."""
        return whole.to(self.device, copy=True)

    def gather(self, part: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:  # noqa: ARG002 - it is here
        """Return it as it is."""
        return part

    def total(self, values: torch.Tensor, *, largest: bool = False) -> torch.Tensor:  # noqa: ARG002 - of one
        """Return them as they are."""
        return values
