"""Sums of which two kill the process that plays them."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import replace

from headrace.envs.arithmetic import Arithmetic
from headrace.envs.contract import Actor, Environment, Episode, Problem, Split
from headrace.envs.workflows.single_turn import single_turn

DEADLY = (5, 9)
"""Indices of the training problems."""


class DeadlySums(Arithmetic):
    """Arithmetic, two problems marked."""

    def problem(self, split: Split, index: int) -> Problem:
        found = super().problem(split, index)
        return replace(found, extra={"deadly": True}) if split == "train" and index in DEADLY else found


async def deadly_turn(problem: Problem, env: Environment, actors: Mapping[str, Actor]) -> Episode:
    """Play one turn, unless the problem kills."""
    if problem.extra.get("deadly"):
        os.kill(os.getpid(), signal.SIGKILL)
    return await single_turn(problem, env, actors)
