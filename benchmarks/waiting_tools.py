"""How busy an engine stays while tools of its episodes take time: `python -m benchmarks.waiting_tools [--json FILE]`.

A worker's own parts play episodes of several turns on the engine without a model, which takes a fixed time for each
token: tasks begin as in a worker, and each answer but the last is followed by a tool that sleeps. The figure is tokens
per second with the tool / without it. The last row bounds the episodes instead of the requests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from headrace.envs.contract import Actor, Environment, Episode, Problem, RoleTrajectory
from headrace.envs.payload import problem_to_json
from headrace.envs.scripted import Scripted
from headrace.envs.transcript import Transcript
from headrace.producers.engines.scripted import ScriptedEngine, ScriptedPolicy, ScriptedSettings
from headrace.producers.rollout.intake.slots import Reservation, Slots
from headrace.producers.rollout.play.engine_room import EngineRoom
from headrace.producers.rollout.play.episodes import RolloutContext, WorkflowSpec, play_group
from headrace.schemas.records import Sampling, Task

REQUESTS = 8
EPISODES = 64
GROUP_SIZE = 8
TURNS = 4
TOKENS = (50, 60, 75)
"""Of an answer, by level."""
LOOK_S = 0.01


@dataclass(frozen=True, slots=True)
class Load:
    """What is played."""

    call_s: float
    """Seconds of the shortest answer."""
    tool_s: float
    warm_up_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Busy:
    """Tokens per second in the engine."""

    tool_s: float
    episodes: int
    """Most episodes at once."""
    tokens_per_s: float
    ratio: float
    """To the tokens per second without the tool."""


class Letters:
    """A tokenizer with a token for each character."""

    hash = "letters"
    stop_ids: tuple[int, ...] = (0,)
    context = 4096

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        template_arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """See `TextCodec.render`. There is no template."""
        raise NotImplementedError

    def encode(self, text: str) -> list[int]:
        """See `TextCodec.encode`."""
        return [ord(character) for character in text]

    encode_rendered = encode_plain = encode

    def decode(self, ids: Sequence[int] | npt.NDArray[np.int32], *, special_tokens: bool = False) -> str:
        """See `TextCodec.decode`."""
        return "".join(chr(int(one)) for one in ids if one or special_tokens)


def build_spec(tool_s: float) -> WorkflowSpec:
    async def use_tool(problem: Problem, _env: Environment, actors: Mapping[str, Actor]) -> Episode:
        [(role, actor)] = actors.items()
        played = []
        for number in range(TURNS):
            transcript = Transcript(role, turn=number)
            transcript.prompt(actor.encode(str(problem.prompt)))
            transcript.add_generation(await actor.generate(transcript.ids))
            played.append(transcript.sequence())
            if tool_s and number < TURNS - 1:
                await asyncio.sleep(tool_s)
        return {role: RoleTrajectory(0.0, tuple(played))}

    sampling = Sampling(max_tokens=max(TOKENS))
    env = Scripted(0, levels=range(len(TOKENS)))
    return WorkflowSpec(use_tool, env, {"solver": "p"}, sampling, sampling, 3600.0, 1 << 20)


async def play(load: Load, tool_s: float, episodes: int) -> float:
    """Return the tokens per second after the warm-up, while there are always tasks."""
    room = EngineRoom(REQUESTS)
    slots, spec = Slots(episodes, room), build_spec(tool_s)
    settings = ScriptedSettings(
        difficulties=(0.0,) * len(TOKENS), tokens=TOKENS, seconds_per_token=load.call_s / min(TOKENS)
    )
    engine = ScriptedEngine({"p": ScriptedPolicy(Letters(), 128, Letters.context)}, settings)
    engine.load("p", 0, {})
    context = RolloutContext(engine, "scripted", "", {"p": Letters()}, "w", "", lambda _: 0, room=room)
    playing: set[asyncio.Task[object]] = set()

    def begin(number: int, reservation: Reservation) -> None:
        problem = spec.environment.problem("train", number)
        task = Task(stream="s", number=number, n_asked=GROUP_SIZE, seed=number, payload=problem_to_json(problem))
        group = play_group(
            task, spec, context, asyncio.Event(), lambda *_: reservation.note_ended(), at_once=reservation.size
        )
        begun = asyncio.create_task(group)
        playing.add(begun)
        begun.add_done_callback(playing.discard)

    number, began, made = 0, time.monotonic(), 0
    measured_from: float | None = None
    while (now := time.monotonic()) < began + load.warm_up_s + load.seconds:
        if measured_from is None and now >= began + load.warm_up_s:
            measured_from, made = now, engine.stats().generated_tokens
        while (reservation := slots.reserve(GROUP_SIZE)) is not None:
            begin(number, reservation)
            number += 1
        await asyncio.sleep(LOOK_S)
    assert measured_from is not None  # noqa: S101 - the warm-up is over
    speed = (engine.stats().generated_tokens - made) / (now - measured_from)
    for one in list(playing):
        one.cancel()
    await asyncio.gather(*playing, return_exceptions=True)
    engine.close()
    return speed


def measure(load: Load) -> list[Busy]:
    found: list[Busy] = []
    for tool_s, episodes in ((0.0, EPISODES), (load.tool_s, EPISODES), (load.tool_s, REQUESTS)):
        speed = asyncio.run(play(load, tool_s, episodes))
        found.append(Busy(tool_s, episodes, speed, speed / (found[0].tokens_per_s if found else speed)))
    return found


def show(console: Console, rows: Sequence[Busy]) -> None:
    table = Table(title=f"An engine of {REQUESTS} requests, with episodes of {TURNS} answers and tools between them")
    for name in ("tool, s", "most episodes", "tokens/s", "with the tool / without"):
        table.add_column(name, justify="right")
    for one in rows:
        table.add_row(f"{one.tool_s:g}", str(one.episodes), f"{one.tokens_per_s:.0f}", f"{one.ratio:.2f}")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--call-s", type=float, default=0.5, help="seconds of the shortest answer")
    parser.add_argument("--tool-s", type=float, default=2.0, help="seconds that a tool takes")
    parser.add_argument("--warm-up-s", type=float, default=10.0, help="seconds before the tokens count")
    parser.add_argument("--seconds", type=float, default=30.0, help="seconds that count")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    rows = measure(Load(options.call_s, options.tool_s, options.warm_up_s, options.seconds))
    show(Console(), rows)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
