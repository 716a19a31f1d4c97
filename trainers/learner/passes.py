"""Forward passes of the compute copy over the micro-batches of a minibatch, shared by all processes of a trainer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import structlog
import torch
import transformers

from headrace.infra.recipe.settings import TrainerSettings
from headrace.trainers.batches.batch import MicroBatch, Minibatch
from headrace.trainers.learner.backends.contract import Backend
from headrace.trainers.learner.layers import wrap_layers
from headrace.trainers.learner.logprobs import TokenScorer
from headrace.trainers.learner.masters import Masters
from headrace.trainers.learner.reference import ReferencePolicy
from headrace.trainers.learner.routing import Routers
from headrace.trainers.losses import TrainedTokens

log = structlog.get_logger()


class Passes:
    """Evaluates tokens under a model; `apply_settings` must be called before the first pass."""

    def __init__(self, model: transformers.PreTrainedModel, backend: Backend) -> None:
        self._model, self._backend, self._device = model, backend, backend.device
        self.scorer = TokenScorer(model)
        self.routers = Routers(model)
        self.is_packed = False
        """Whether micro-batches are packed rather than padded."""
        self.has_entropy_gradient = False
        """Whether the loss depends on the tokens' entropies."""
        self._arrangement = (False, False, False)

    def apply_settings(self, settings: TrainerSettings) -> None:
        """Use other settings: set up packing, activation checkpointing and compilation of the model.

        If the model cannot be packed, this is logged and micro-batches are padded. Raises UsageError for settings that
        this model's routers do not support.
        """
        self.routers.apply_settings(settings)
        self._settings = settings
        arrangement = settings.packing, settings.activation_checkpointing, settings.compile
        if arrangement == self._arrangement:
            return
        self._arrangement, self.is_packed = arrangement, settings.packing
        wrap_layers(self._model, checkpointing=False, compiled=False)
        if settings.packing and (reason := self.scorer.try_packing()):
            self.is_packed = False
            # The model cannot take packed sequences.
            log.warning("learner.pads", reason=reason)
        wrap_layers(self._model, checkpointing=settings.activation_checkpointing, compiled=settings.compile)

    @torch.no_grad()
    def score_fixed_logprobs(
        self,
        steps: Sequence[Minibatch],
        sampling_version: int,
        masters: Masters,
        reference: ReferencePolicy | None,
        *,
        proximal: bool,
    ) -> list[TrainedTokens]:
        """Return all trained tokens of each minibatch, with the log-probabilities that stay fixed during the version.

        Args:
            steps: The minibatches of a version.
            sampling_version: The newest version that the tokens can have.
            masters: Masters of the model's weights.
            reference: Policy whose log-probabilities are computed too; None for none.
            proximal: Whether log-probabilities under the weights before the first step are computed too.
        """
        known = [self._gather_tokens(step.micro_batches, sampling_version) for step in steps]
        if proximal:
            before = [self.score_logprobs(step.micro_batches) for step in steps]
            known = [replace(tokens, proximal=one) for tokens, one in zip(known, before, strict=True)]
        if reference is not None:
            with reference.stand_in_for(masters):
                referred = [self.score_logprobs(step.micro_batches) for step in steps]
            known = [replace(tokens, reference=one) for tokens, one in zip(known, referred, strict=True)]
        return known

    def _gather_tokens(self, micro_batches: Sequence[MicroBatch], sampling_version: int) -> TrainedTokens:
        def concatenate(parts: Iterable[npt.NDArray[Any]]) -> torch.Tensor:
            return torch.from_numpy(np.concatenate(list(parts))).to(self._device)

        firsts = np.cumsum([0, *(micro.sequences[-1] + 1 for micro in micro_batches)])
        behaviour = concatenate(micro.behaviour_logprobs for micro in micro_batches)
        return TrainedTokens(
            logprobs=behaviour,  # until they are evaluated, as the entropies
            entropies=torch.zeros_like(behaviour),
            behaviour_logprobs=behaviour,
            advantages=concatenate(micro.advantages for micro in micro_batches),
            sequences=concatenate(micro.sequences + first for micro, first in zip(micro_batches, firsts, strict=False)),
            versions=concatenate(micro.versions for micro in micro_batches),
            version=sampling_version,
        )

    @torch.no_grad()
    def score_logprobs(self, micro_batches: Sequence[MicroBatch]) -> torch.Tensor:
        """Return log-probabilities, float32[N], of all trained tokens, collected from all processes."""
        logprobs = torch.zeros(sum(micro.targets.size for micro in micro_batches), device=self._device)
        for part, micro, counts in self.local_micro_batches(micro_batches):
            evaluated, _ = self.score_tokens(micro, counts=counts)
            if counts:
                logprobs[part] = evaluated
        return self._backend.total(logprobs)

    def score_tokens(self, micro: MicroBatch, *, counts: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probabilities and entropies, float32[N] each, of a micro-batch's trained tokens."""
        with self.routers.follow_engine(micro, self._device, counts=counts):
            scores: tuple[torch.Tensor, torch.Tensor] = self.scorer(
                micro, self._settings.logits_mib, self.has_entropy_gradient
            )
        return scores

    def local_micro_batches(self, micro_batches: Sequence[MicroBatch]) -> Iterator[tuple[slice, MicroBatch, bool]]:
        """Yield this process's micro-batches, the slice of their tokens among all, and whether they count.

        Every pass needs all processes, so each takes the same number of micro-batches: a process with too few repeats
        another's, which does not count.
        """
        rank, ranks = self._backend.share
        ends = np.cumsum([micro.targets.size for micro in micro_batches]).tolist()
        for first in range(0, len(micro_batches), ranks):
            index = min(first + rank, len(micro_batches) - 1)
            micro = micro_batches[index]
            yield slice(ends[index] - micro.targets.size, ends[index]), micro, first + rank == index

    def reduce_metrics(self, sums: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the metrics of all processes' micro-batches, combined as in `add_metrics`."""
        pooled: dict[str, torch.Tensor] = {}
        for largest in (False, True):
            names = [name for name in sums if name.endswith("_max") == largest]
            values = self._backend.total(torch.stack([sums[name].double() for name in names]), largest=largest)
            pooled |= dict(zip(names, values.unbind(), strict=True))
        return pooled
