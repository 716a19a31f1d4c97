"""Limits of the sequences that a model can train on; constant while its learner works, so any thread may read them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.trainers.batches.batch import BatchError, Experts, TrainingSequence


@dataclass(frozen=True, slots=True)
class RoutingLimits:
    """The experts of a model that replays recorded routing."""

    layers: int
    experts: int
    """Number of experts of each layer."""
    per_token: int

    def check(self, routing: Experts) -> None:
        """Raise BatchError for routing [n, layers, experts per token] that this model cannot follow."""
        if routing.shape[1:] != (self.layers, self.per_token):
            raise BatchError(
                f"the recorded routing has {routing.shape[1]} layers with {routing.shape[2]} experts per token, but "
                f"the trainer's model has {self.layers} layers with {self.per_token}: check that the engine serves "
                "this policy"
            )
        if routing.size and routing.max() >= self.experts:
            raise BatchError(
                f"the recorded routing names expert {routing.max()}, but a layer of the trainer's model has only the "
                f"experts 0 to {self.experts - 1}: check that the engine serves this policy"
            )
        if (np.diff(np.sort(routing, axis=2), axis=2) == 0).any():
            raise BatchError("the recorded routing sends a token to the same expert twice")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a model with its trainer's settings."""

    vocabulary: int
    """Token ids that have an embedding: 0..vocabulary-1."""
    positions: int | None = None
    """Tokens of the longest sequence; None for no limit."""
    routing: RoutingLimits | None = None
    """None if recorded routing is not replayed."""

    def check_ids(self, ids: npt.NDArray[np.int32]) -> None:
        """Raise BatchError for token ids, int32[T], without an embedding or a position in this model."""
        if ids.min() < 0 or ids.max() >= self.vocabulary:
            raise BatchError(
                f"a sequence has token ids from {ids.min()} to {ids.max()}, but the trainer's model takes only ids "
                f"from 0 to {self.vocabulary - 1}: check that the engine serves this policy"
            )
        if self.positions and ids.size > self.positions:
            raise BatchError(
                f"a sequence has {ids.size} tokens, but the trainer's model takes at most {self.positions}: shorten "
                "the prompts, or lower rollout.max_tokens"
            )

    def check_routing(self, sequence: TrainingSequence) -> None:
        """Raise BatchError if routing must be replayed but does not fit this model."""
        if self.routing is not None and sequence.routing is not None:
            self.routing.check(sequence.routing)

    def check(self, sequence: TrainingSequence) -> None:
        """Raise BatchError for a sequence that this model cannot be trained on."""
        self.check_ids(sequence.ids)
        self.check_routing(sequence)
