"""What an environment and a workflow are.

An *environment* asks and judges: it draws problems by index, so that the same (split, index) is the same problem for
ever, and it scores an answer. A *workflow* plays one episode: an async function of a problem and one actor per role.
Neither knows Kafka, weights or torch.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from headrace.schemas import records

Split = Literal["train", "held_out", "warm_start"]
"""Disjoint sets of problems."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One question of an environment."""

    task_id: str
    """Identity in its source, the same whenever it is drawn."""
    prompt: str
    """What is asked, as text."""
    answer: str = ""
    """What the scorer compares with, in the environment's words."""
    tier: str = ""
    """Difficulty tier or source."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else the environment needs to score; plain JSON."""


@dataclass(frozen=True, slots=True)
class Score:
    """A judgement."""

    reward: float
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkedExample:
    """A prompt and a good completion, for a supervised start."""

    prompt: str
    completion: str


class Environment(Protocol):
    """Asks and judges. Built as `Environment(seed=…, **settings)`; a bad setting raises ValueError with a sentence."""

    name: str

    def size(self, split: Split) -> int | None:
        """Return how many problems a split has; None for no end. A feeder that reaches the end begins again."""

    def problem(self, split: Split, index: int) -> Problem:
        """Return the problem at an index: a pure function of the settings, the split and the index."""

    def score(self, problem: Problem, text: str) -> Score:
        """Judge a completion. It must not raise for any text: a wrong form is a low reward."""


@runtime_checkable
class GivesExamples(Protocol):
    """An environment that can show how its problems are solved."""

    def example(self, index: int) -> WorkedExample:
        """Return a worked example, of the split `warm_start`."""


@runtime_checkable
class HasTiers(Protocol):
    """An environment whose problems can be made harder while a run goes on."""

    def tiers(self) -> tuple[str, ...]:
        """Return all tiers that there are, easiest first. A setting `tiers` says which of them are asked."""

    def asked(self) -> tuple[str, ...]:
        """Return those that this one asks, easiest first."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What a policy said."""

    ids: npt.NDArray[np.int32]
    """Token ids, int32[T], the stop token included."""
    logprobs: npt.NDArray[np.float32]
    """Log-probabilities of the tokens as sampled, float32[T]."""
    version_runs: tuple[tuple[int, int], ...]
    """(weight version, number of tokens); the numbers add up to T."""
    finish_reason: str
    """stop | length | cancelled."""
    sampling: records.Sampling
    """How it was sampled."""
    routing: npt.NDArray[np.uint8 | np.uint16] | None = None
    """uint8 or uint16 [P+T-1, layers, experts per token]: the experts of all P tokens before it and of its own but the
    last; None where the engine records none."""


class Actor(Protocol):
    """One policy as one episode sees it."""

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a user's turn, the chat template applied where the tokenizer has one."""

    def encode_plain(self, text: str) -> list[int]:
        """Return the token ids of text that is spliced in as it stands."""

    def decode(self, ids: Sequence[int] | npt.NDArray[np.int32]) -> str:
        """Return the text of token ids, without special tokens."""

    async def generate(self, ids: Sequence[int], *, max_tokens: int | None = None) -> Generation:
        """Go on from these token ids. Tokens in, tokens out: nothing generated is ever tokenized again."""


@dataclass(frozen=True, slots=True)
class RoleTrajectory:
    """What one role did in an episode; it trains that role's policy."""

    reward: float
    sequences: tuple[records.Sequence, ...]
    parts: Mapping[str, float] = field(default_factory=dict)


Episode = Mapping[str, RoleTrajectory]
"""Role to what it did; a role that never acted is left out."""

Workflow = Callable[[Problem, Environment, Mapping[str, Actor]], Awaitable[Episode]]
"""Plays one episode. What it raises makes the episode a recorded failure, never a crash."""
