"""Our client and server beside the package openenv: worlds of its template and classes, and its own client."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from corridor import Corridor
from install_openenv import PYTHON
from openenv_servers import serving
from typer.testing import CliRunner

from headrace.app.cli.main import app
from headrace.envs.identity import identify_environment
from headrace.envs.ledger import Ledger
from headrace.envs.openenv.environment import OpenEnv
from headrace.envs.openenv.opening import OpenedWorld
from headrace.envs.tools.functions import BadArguments
from headrace.envs.worlds.actions import list_actions
from headrace.envs.worlds.contract import Step, WorldFailed
from headrace.infra.backoff import Backoff
from headrace.infra.embedded.loopback_ports import draw_port
from headrace.infra.recipe.table import Named

pytestmark = pytest.mark.worlds
HERE = Path(__file__).parent
START_S = 60.0


def reserve_port() -> int:
    with draw_port() as held:
        return int(held.getsockname()[1])


@contextmanager
def running(words: Sequence[str | Path], folder: Path, port: int) -> Iterator[str]:
    """Run a server until the end of the block; yield its address once it answers."""
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen([*map(str, words)], cwd=folder)
    try:
        asyncio.run(wait_for(url, process))
        yield url
    finally:
        process.kill()
        process.wait()


async def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    env, backoff = OpenEnv(1, url), Backoff(0.1, 1.0)
    async with asyncio.timeout(START_S):
        while process.poll() is None:
            try:
                assert env._routes.get("/health") == {"status": "healthy"}
            except ConnectionError:
                await asyncio.sleep(backoff.next_s())
            else:
                return
    raise AssertionError("the server ended")


async def act(world: OpenedWorld, *actions: tuple[str, dict[str, Any]]) -> list[Step]:
    return [await world.act(name, arguments) for name, arguments in actions]


def test_the_world_of_openenvs_template_is_played_as_it_is(tmp_path: Path) -> None:
    words = [PYTHON.with_name("openenv"), "init", "echo_world", "-o", tmp_path]
    subprocess.run(words, check=True, capture_output=True, env={**os.environ, "HOME": str(tmp_path)})

    async def play(env: OpenEnv, *texts: str) -> tuple[str, list[Step]]:
        world = await env.open_world(env.problem("train", 0))
        assert not list_actions(world), "an action is a text"
        try:
            return world.observation, await act(world, *(("", {"text": text}) for text in texts))
        finally:
            await world.close()

    port = reserve_port()
    server = [PYTHON, "-m", "uvicorn", "server.app:app", "--port", str(port), "--log-level", "warning"]
    with running(server, tmp_path / "echo_world", port) as url:
        env, chosen = OpenEnv(1, url), OpenEnv(1, url, observation="echoed_message")
        assert (env.size("train"), env.size("held_out")) == (None, None)
        assert identify_environment("w", env, Named(use="openenv")).version == "EchoWorldEnvironment 1.0.0"
        first, steps = asyncio.run(play(env, "hello", "x" * 20))
        assert json.loads(first)["echoed_message"] == "Echo World environment ready!"
        assert json.loads(steps[0].observation) == {"echoed_message": "hello", "message_length": 5}
        assert [(step.reward, step.done) for step in steps] == [(0.5, False), (1.0, False)]

        async def play_several() -> list[tuple[str, list[Step]]]:
            return await asyncio.gather(*(play(chosen, text) for text in "abcd"))

        several = asyncio.run(play_several())  # it serves one session at a time
        assert [steps[0].observation for _, steps in several] == list("abcd")


def test_a_world_with_openenvs_tools_is_played_by_calls() -> None:
    port = reserve_port()
    with running([PYTHON, "shop.py", str(port)], HERE, port) as url:
        env = OpenEnv(1, url)
        assert (env.size("train"), env.size("held_out"), OpenEnv(1, url, held_out="dev").size("held_out")) == (5, 2, 1)

        async def play() -> None:
            world = await env.open_world(env.problem("held_out", 1))
            assert json.loads(world.observation) == {"text": "test 1"}
            assert [(tool.name, tool.required) for tool in list_actions(world)] == [
                ("price", ("item",)),
                ("buy", ("item",)),
            ]
            calls = [
                ("price", {"item": "tea"}),
                ("buy", {"item": "sold out"}),
                ("sell", {}),
                ("price", {"item": 3}),
                ("buy", {"item": "tea"}),
                ("buy", {"item": "cup", "count": 2}),
            ]
            steps = await act(world, *calls)
            texts = [step.observation.partition("\n")[0] for step in steps]
            assert texts[:3] == ["3", "error: Error calling tool 'buy': sold out", "error: Unknown tool: 'sell'"]
            assert texts[3].startswith("error: 1 validation error")
            assert texts[4:] == ["bought 1 tea", "bought 2 cup"]
            assert [(step.reward, step.done) for step in steps[3:]] == [(None, False), (0.5, False), (1.5, True)]
            with pytest.raises(WorldFailed, match="failed at an action: EXECUTION_ERROR: the shop burned down"):
                await world.act("price", {"item": "crash"})
            with pytest.raises(BadArguments, match="tool_name: Input should be a valid string"):
                await world.act(3, {})  # type: ignore[arg-type]
            await world.close()
            await world.close()

        asyncio.run(play())


def test_openenvs_own_client_plays_what_is_served() -> None:
    port = reserve_port()
    serve = [sys.executable, "-m", "headrace", "serve-env", "ledger", "--port", str(port), "--set", "most=20"]
    with running(serve, HERE, port) as url:
        done = subprocess.run([PYTHON, "play_served.py", url], cwd=HERE, check=True, capture_output=True, text=True)
    problem = Ledger(1, most=20).problem("held_out", 3)
    assert json.loads(done.stdout) == {
        "first": problem.text,
        "tools": ["get", "add", "mul", "answer"],
        "got": ["get", str(problem.extra["a"]), None, False],
        "state": {"episode_id": "e", "step_count": 1},
        "last": [0.0, True],
    }


def test_try_plays_a_world_at_a_server(tmp_path: Path) -> None:
    with serving(Corridor()) as url:
        recipe = tmp_path / "far.toml"
        recipe.write_text(
            f'extends = "arithmetic"\nname = "far"\n[workflows.sums]\nenv = {{ use = "openenv", url = "{url}" }}\n'
            'workflow = { use = "world", max_turns = 3 }\n[policies.solver]\n'
            'alphabet = "abcdefghijklmnopqrstuvwxyz_0123456789 \\n"\n[policies.solver.model]\n'
            "max_position_embeddings = 64\n[evaluate]\nproblems = 4\n"
        )
        words = ["try", str(recipe), "--tasks", "1", "--set", "rollout.group_size=2", *["--answer", "right"] * 3]
        done = CliRunner().invoke(app, words, env={"COLUMNS": "120"})
    assert done.exit_code == 0, done.output
    assert "train 0" in done.stdout
