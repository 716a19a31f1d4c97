"""The workloads, whose latencies were fixed before anything was measured, and what to expect of them.

The recipes that they stand for publish limits of lengths, not distributions. An answer's length is log-normal, as
lengths of rollouts are found to be; public figures for reasoning (median 500 tokens, 99 % below 5,000) mean a sigma of
1.0. A request gets 50 tokens/s however many run: decoding is bound by the latency of a step, as it is while reading the
weights takes longer than computing. To play in seconds what takes minutes, lengths and times are divided by `shrink`:
one scripted token stands for so many and takes 20 ms.

| workload | stands for | calls of an episode: median / sigma / limit in tokens | shrink |
|---|---|---|---|
| team | math-multi-agent | attempt 800 / 1.0 / 4,096, verdict 400 / 1.0 / 4,096; in every second one a retry | 20 |
| turns | search, task servers | 1 to 10 turns of 150 / 0.7 / 1,024, one in four the last; 1 s for a tool between | 6 |

All sides have one place in the engine for each episode of a batch, as the recipes have (256 and 256), so the
synchronous side can play its whole batch at once, and more places would not help it.
"""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from benchmarks.asynchrony import plays

TOKEN_S = 0.02
GROUPS, GROUP_SIZE = 16, 8
EPISODES = GROUPS * GROUP_SIZE
"""Of a batch; also the places in the engine."""
STALENESS = 4
"""Of the headline."""
PLAYS = "asynchrony_plays"
POLICY_KEYS = """
alphabet = "0123456789/=?"
model = {{ architecture = "qwen3", hidden_size = 32, intermediate_size = 64, num_hidden_layers = 1, \
num_attention_heads = 2, num_key_value_heads = 1, head_dim = 16, tie_word_embeddings = true, \
max_position_embeddings = {context} }}
"""
RECIPE = """
extends = "efficient-data/scripted"
name = "{name}"
seed = {seed}
policies.solver.model.max_position_embeddings = {context}
[workflows.sums]
env = {{ use = "scripted", levels = [0], tasks = 64 }}
workflow = {workflow}
policies = {{ {roles} }}
[rollout]
engine = {{ use = "scripted", rate = 0, difficulties = {difficulties}, tokens = {tokens}, spreads = {spreads}, \
seconds_per_token = {token_s} }}
group_size = {group_size}
max_tokens = {limit}
concurrency = {episodes}
[feed]
pace = "all"
solved_share = 1.0
[trainer]
steps = {steps}
groups_per_batch = {groups}
minibatches = 4
max_staleness = {staleness}
group_by = "task+role"
weight = "sequence"
checkpoint_every = 1000000
[evaluate]
every = 0
"""


@dataclass(frozen=True, slots=True)
class Workload:
    """One workload, in scripted tokens and seconds."""

    name: str
    tokens: tuple[int, ...]
    """Median length of an answer by level."""
    spreads: tuple[float, ...]
    difficulties: tuple[float, ...]
    limit: int
    """Most tokens of an answer."""
    context: int
    most_turns: int = 0
    """Of `turns`; 0 for `team`."""
    tool_s: float = 0.0

    @property
    def policies(self) -> tuple[str, ...]:
        """All that train."""
        return ("solver",) if self.most_turns else ("solver", "verifier")

    def write_recipe(self, folder: Path, *, steps: int, staleness: int, seed: int) -> Path:
        """Write the recipe and the plays beside it."""
        play = f'{{ use = "{PLAYS}:turns", most = {self.most_turns}, tool_s = {self.tool_s} }}'
        text = RECIPE.format(
            name=f"asynchrony-{self.name.replace('.', '_')}",
            seed=seed,
            context=self.context,
            workflow=play if self.most_turns else f'"{PLAYS}:team"',
            roles=", ".join(f'{policy} = "{policy}"' for policy in self.policies),
            difficulties=list(self.difficulties),
            tokens=list(self.tokens),
            spreads=list(self.spreads),
            token_s=TOKEN_S,
            group_size=GROUP_SIZE,
            limit=self.limit,
            episodes=EPISODES,
            steps=steps,
            groups=GROUPS,
            staleness=staleness,
        )
        if "verifier" in self.policies:
            text += "[policies.verifier]" + POLICY_KEYS.format(context=self.context)
        shutil.copy(plays.__file__, folder / f"{PLAYS}.py")
        path = folder / "recipe.toml"
        path.write_text(text)
        return path

    def draw_episode(self, draw: random.Random) -> tuple[float, float]:
        """Return the seconds for which an episode holds a place in the engine, and those that it takes in all."""
        if not self.most_turns:
            made = [self._draw_call(draw, level)[0] for level in (plays.ATTEMPT, plays.VERDICT)]
            made += [self._draw_call(draw, plays.RETRY)[0]] if draw.random() < 0.5 else []
            return sum(made), sum(made)
        in_engine, turns, is_right = 0.0, 0, False
        while not is_right and turns < self.most_turns:
            seconds, is_right = self._draw_call(draw, plays.ATTEMPT)
            in_engine, turns = in_engine + seconds, turns + 1
        return in_engine, in_engine + (turns - 1) * self.tool_s

    def _draw_call(self, draw: random.Random, level: int) -> tuple[float, bool]:
        """Return the seconds of a call, and whether its answer is right; one that is cut is wrong."""
        tokens = self.tokens[level] * draw.lognormvariate(0.0, self.spreads[level])
        is_right = tokens <= self.limit and draw.random() < 1 / (1 + math.exp(self.difficulties[level]))
        return min(tokens, self.limit) * TOKEN_S, is_right

    def expect_version_s(self, side: str, batches: int = 50) -> float:
        """Return the seconds of a version if neither training nor anything but the engine takes time.

        With a barrier it is the time of the batch's longest episode; without, all places are always taken.
        """
        draw = random.Random(1)  # noqa: S311 - the same each time
        drawn = [[self.draw_episode(draw) for _ in range(EPISODES)] for _ in range(batches)]
        if side == "headrace":
            return fmean(in_engine for batch in drawn for in_engine, _ in batch)
        return fmean(max(whole for _, whole in batch) for batch in drawn)


def make_team(name: str, median: float, sigma: float, limit: float = 4096, shrink: float = 20) -> Workload:
    """Return the two-policy workload; verdicts have half of the median of attempts."""
    tokens = tuple(max(2, round(part * median / shrink)) for part in (1.0, 0.5, 1.0))
    most = round(limit / shrink)
    return Workload(name, tokens, (sigma,) * 3, (0.0,) * 3, most, context=most + 64)


TEAM = make_team("team", 800, 1.0)
TURNS = Workload("turns", (25,), (0.7,), (math.log(3),), 170, context=2048, most_turns=10, tool_s=1 / 6)
HEADLINE = (TEAM, TURNS)
GOALS = {"team": 2.7, "turns": 2.1}
"""Least ratio of versions per second."""
SPREADS = (0.4, 0.8, 1.2)
MEAN = 1200
"""Tokens of an attempt in the grid, whatever the spread, before the limit."""
GRID_STALENESS = (1, 2, 4)


def list_grid(spreads: Sequence[float] = SPREADS) -> list[Workload]:
    """Return the workloads of the grid: `team` with spreads around one mean."""
    return [make_team(f"spread-{spread:g}", MEAN * math.exp(-spread * spread / 2), spread) for spread in spreads]
