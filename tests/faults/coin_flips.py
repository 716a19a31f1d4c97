"""Sums that nobody judges: the reward is a hash of the words, so no group is of one reward and every group trains.

A turn takes a moment longer than the model needs, which leaves the machine's cores to what is being restarted.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence

from headrace.envs.arithmetic import Arithmetic
from headrace.envs.contract import Actor, Environment, Episode, Problem, Score
from headrace.envs.workflows.single_turn import single_turn


class CoinFlips(Arithmetic):
    """Arithmetic whose scores are drawn from prompt and answer: the same words earn the same for ever."""

    def __init__(self, seed: int, tiers: Sequence[str] = ("sum1",), turn_s: float = 0.0) -> None:
        super().__init__(seed, tiers)
        self.turn_s = turn_s

    def score(self, problem: Problem, text: str) -> Score:
        digest = hashlib.blake2b(f"{problem.prompt}\n{text}".encode(), digest_size=2).digest()
        return Score(int.from_bytes(digest) / 0xFFFF)


async def slow_turn(problem: Problem, env: Environment, actors: Mapping[str, Actor]) -> Episode:
    """Play one turn after the environment's `turn_s`."""
    await asyncio.sleep(getattr(env, "turn_s", 0.0))
    return await single_turn(problem, env, actors)
