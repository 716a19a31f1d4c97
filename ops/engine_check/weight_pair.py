"""Two sets of weights of one model, and the log-probabilities that a plain forward pass gives with each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headrace.ops.offline.archived_start import Start
from headrace.producers.engines.contract import Generation
from headrace.trainers.learner.logprobs import compute_answer_logprobs

NOISE = 0.25
"""Noise of the second set, in standard deviations of each matrix: it changes tokens, and all numbers stay finite."""
LEAST_NOISE = 0.02
"""Noise for a matrix of zeros, such as the B of a new adapter."""


class WeightPair:
    """Even versions have a model's own weights, odd versions have the same weights with noise.

    So the log-probability of a token shows if it names the version before or after the true one. Only two sets are in
    memory, for any number of versions.
    """

    def __init__(self, start: Start, seed: int) -> None:
        self._learner = start.learner
        masters = self._learner.masters.values
        own = {name: master.clone() for name, master in masters.items()}
        generator = torch.Generator().manual_seed(seed)
        self._masters = [own, {name: _add_noise(master, generator) for name, master in own.items()}]
        self._current = 0
        self._published: list[Mapping[str, Any]] = []
        for parity in (0, 1):
            self._switch_weights(parity)
            self._published.append(self._learner.snapshot_weights())

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        return self._learner.limits.vocabulary

    @property
    def context(self) -> int | None:
        """Largest number of tokens of a sequence; None if there is no limit."""
        return self._learner.limits.positions

    def weights_of(self, version: int) -> Mapping[str, Any]:
        """Return a version's weights in the form in which a worker passes them to its engine."""
        return self._published[version % 2]

    def compute_gaps(
        self, prompt: Sequence[int], made: Generation, temperature: float
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Return how much log-probabilities differ from those of plain forward passes, twice float32[T].

        The first pass uses the version that each token names, the second the other set of weights.

        Args:
            prompt: Token ids before the generation.
            made: T tokens.
            temperature: Temperature of the sampling; logits are divided by it.
        """
        names_odd = np.repeat(
            [version % 2 == 1 for version, _ in made.version_runs], [length for _, length in made.version_runs]
        )
        by_even, by_odd = (self._compute(prompt, made, temperature, parity) for parity in (0, 1))
        own, other = np.where(names_odd, by_odd, by_even), np.where(names_odd, by_even, by_odd)
        return np.abs(own - made.logprobs), np.abs(other - made.logprobs)

    def _compute(
        self, prompt: Sequence[int], made: Generation, temperature: float, parity: int
    ) -> npt.NDArray[np.float32]:
        self._switch_weights(parity)
        return compute_answer_logprobs(self._learner.model, prompt, made.ids, temperature)

    @torch.no_grad()
    def _switch_weights(self, parity: int) -> None:
        if parity != self._current:
            for name, master in self._learner.masters.values.items():
                master.copy_(self._masters[parity][name])
            self._learner.masters.round()
            self._current = parity


def _add_noise(master: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if master.ndim < 2:
        return master.clone()  # a norm's scale or a bias: noise there takes numbers out of their range
    noise = torch.randn(master.shape, generator=generator).to(master.device)
    scale = NOISE * float(master.std()) or LEAST_NOISE
    return master + scale * noise
