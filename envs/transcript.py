"""Builds one sequence of an episode from the tokens that the policy read and generated, without retokenizing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from headrace.envs.contract import Generation, check_number
from headrace.schemas import records

Ids = Sequence[int] | npt.NDArray[np.int32]


class TranscriptError(ValueError):
    """Tokens cannot be appended; the message gives the reason."""


class Transcript:
    """Builds one sequence of one role.

    A turn ends with each generation. The first prompt and generation are turn 0, or `turn` if the role has acted in
    other sequences before.
    """

    def __init__(self, role: str, agent_id: str = "", parent: int = -1, turn: int = 0) -> None:
        self.role = role
        self.agent_id = agent_id
        self.parent = parent
        self.turn = turn
        self._ids: list[int] = []
        self._spans: list[records.Span] = []
        self._logprobs: list[npt.NDArray[np.float32]] = []
        self._runs: list[tuple[int, int]] = []
        self._routing: list[npt.NDArray[np.uint8 | np.uint16]] = []

    @property
    def ids(self) -> list[int]:
        """All token ids so far, which the next `generate` continues."""
        return list(self._ids)

    def prompt(self, ids: Ids) -> None:
        """Append tokens of a prompt."""
        self._append_given("prompt", ids)

    def observe(self, ids: Ids) -> None:
        """Append tokens of an observation: a tool's output, another agent's message."""
        self._append_given("observation", ids)

    def inject(self, ids: Ids) -> None:
        """Append tokens that the workflow writes in the policy's name."""
        self._append_given("injected", ids)

    def add_generation(self, generation: Generation, reward: float | None = None) -> None:
        """Append a generation, with the reward for this turn alone (any number) if there is one.

        Raises TranscriptError if the sequence is empty (no token predicts the first one), or if its parts differ in
        length.
        """
        if not self._ids:
            raise TranscriptError(
                "a sequence must begin with a prompt, because the prompt's last token predicts the first token of the "
                "generation: call prompt() before add_generation()"
            )
        length = len(generation.ids)
        counted = sum(count for _, count in generation.version_runs)
        if not len(generation.logprobs) == counted == length:
            raise TranscriptError(
                f"a generation must have a log-probability and a version per token: it has {length} tokens, "
                f"{len(generation.logprobs)} log-probabilities and {counted} versions",
            )
        if generation.routing is not None:
            self._append_routing(generation.routing, length)
        own = None if reward is None else check_number("the reward of a turn", reward)
        span = records.Span("generated", length, self.turn, own, generation.finish_reason, generation.sampling)
        self._append(span, generation.ids, generation.logprobs.astype(np.float32, copy=False))
        self._runs.extend(generation.version_runs)
        self.turn += 1

    def reward_turn(self, reward: float) -> None:
        """Give the newest generation a reward for this turn alone (any number). Raises TranscriptError without one."""
        at = next((at for at in reversed(range(len(self._spans))) if self._spans[at].kind == "generated"), None)
        if at is None:
            raise TranscriptError("there is no generation yet that a reward could be for")
        self._spans[at] = replace(self._spans[at], reward=check_number("the reward of a turn", reward))

    def sequence(self, reward: float | None = None, baseline: float | None = None) -> records.Sequence:
        """Return the record of all tokens so far. A None reward or baseline comes from the trajectory or the group."""
        return records.Sequence(
            ids=np.array(self._ids, np.int32),
            logprobs=np.concatenate([*self._logprobs, records.no_floats()]),
            version_runs=merge_runs(self._runs),
            role=self.role,
            agent_id=self.agent_id,
            parent=self.parent,
            reward=None if reward is None else check_number("the reward of a sequence", reward),
            baseline=None if baseline is None else check_number("the baseline of a sequence", baseline),
            spans=tuple(self._spans),
            routing=self._build_routing(),
        )

    def _append_routing(self, routing: npt.NDArray[np.uint8 | np.uint16], length: int) -> None:
        """Keep the experts of tokens that no earlier generation recorded, so each token has its first experts."""
        if len(routing) != len(self._ids) + length - 1:
            raise TranscriptError(
                f"the routing of a generation must have the experts of {len(self._ids) + length - 1} tokens (all of "
                f"the sequence but the last), but it has the experts of {len(routing)}. Check that the generation was "
                "made from this sequence's `ids`",
            )
        self._routing.append(routing[sum(map(len, self._routing)) :])

    def _build_routing(self) -> records.Routing | None:
        if not self._routing:
            return None
        whole = np.concatenate(self._routing)
        tokens, layers, per_token = whole.shape
        little_endian = whole.astype(whole.dtype.newbyteorder("<"), copy=False)
        return records.Routing(little_endian.tobytes(), whole.dtype.name, tokens, layers, per_token)

    def _append_given(self, kind: str, ids: Ids) -> None:
        if len(ids):
            self._append(records.Span(kind, len(ids), self.turn), ids, np.zeros(len(ids), np.float32))
            self._runs.append((-1, len(ids)))

    def _append(self, span: records.Span, ids: Ids, logprobs: npt.NDArray[np.float32]) -> None:
        self._ids.extend(ids.tolist() if isinstance(ids, np.ndarray) else ids)
        self._spans.append(span)
        self._logprobs.append(logprobs)


class Branches:
    """The sequences of one conversation. Whenever its history is written anew, another one begins.

    Args:
        role: Role of the policy.
        agent_id: Id of the agent among those of its role.
        turn: Number of the first turn, if the role has acted before.
    """

    def __init__(self, role: str, agent_id: str = "", turn: int = 0) -> None:
        self._role, self._agent_id, self._turn = role, agent_id, turn
        self._transcripts: list[Transcript] = []

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self._transcripts)

    @property
    def newest(self) -> Transcript:
        """The sequence that goes on."""
        return self._transcripts[-1]

    def begin(self, prompt: Ids) -> None:
        """Begin a sequence with the tokens of a prompt; its turns are counted on."""
        turn = self.newest.turn if self._transcripts else self._turn
        transcript = Transcript(self._role, self._agent_id, len(self._transcripts) - 1, turn)
        transcript.prompt(prompt)
        self._transcripts.append(transcript)

    def sequences(
        self, reward: float | None = None, baseline: float | None = None, first: int = 0, parent: int = -1
    ) -> tuple[records.Sequence, ...]:
        """Return the records.

        Args:
            reward: Of each sequence; None: that of the trajectory.
            baseline: Of each sequence; None: that of the group.
            first: Index of the first one among the role's sequences of the episode.
            parent: Index there of the sequence that started this conversation; -1 for none.
        """
        made = [transcript.sequence(reward, baseline) for transcript in self._transcripts]
        return tuple(replace(one, parent=one.parent + first if one.parent >= 0 else parent) for one in made)


def merge_runs(runs: Sequence[tuple[int, int]]) -> npt.NDArray[np.int32]:
    """Return runs as int32[2R] of (version, length), with adjacent equal versions joined and empty runs removed."""
    pairs = np.array(runs, np.int32).reshape(-1, 2)
    pairs = pairs[pairs[:, 1] > 0]
    if not len(pairs):
        return records.no_ints()
    starts = np.flatnonzero(np.diff(pairs[:, 0], prepend=pairs[0, 0] - 1))
    return np.stack([pairs[starts, 0], np.add.reduceat(pairs[:, 1], starts)], axis=1).astype(np.int32).ravel()
