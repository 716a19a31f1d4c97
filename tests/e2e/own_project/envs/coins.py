"""An environment whose rewards are a hash of the words, and a workflow that takes its time."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping

from headrace.envs.arithmetic import Arithmetic
from headrace.envs.contract import Actor, Environment, Episode, Problem, Score
from headrace.envs.workflows.single_turn import single_turn


class Coins(Arithmetic):
    """Sums that nobody judges: no group is of one reward."""

    def __init__(self, seed: int, turn_s: float = 0.0) -> None:
        super().__init__(seed, ("sum1",))
        self.turn_s = turn_s

    def score(self, problem: Problem, text: str) -> Score:
        digest = hashlib.blake2b(f"{problem.prompt}\n{text}".encode(), digest_size=2).digest()
        return Score(int.from_bytes(digest) / 0xFFFF)


async def slow_turn(problem: Problem, env: Environment, actors: Mapping[str, Actor]) -> Episode:
    """Play one turn after the environment's `turn_s`."""
    await asyncio.sleep(getattr(env, "turn_s", 0.0))
    return await single_turn(problem, env, actors)
