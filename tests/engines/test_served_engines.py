"""The engine over real servers of each kind: what they promise, recomputed by a plain forward pass."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from cpu_servers import ARGUMENTS, ENVIRONMENT
from install_servers import KINDS, find_python
from made_models import (
    PROMPT,
    SAME,
    TOKENIZER,
    compute_logprobs,
    compute_masked_logprobs,
    find_gap,
    make_model,
    save_files,
    weights_of,
)

from headrace.envs.contract import Generation
from headrace.infra.recipe.settings import Rollout
from headrace.producers.engines.contract import EngineError, Sampling
from headrace.producers.engines.registry import open_engine
from headrace.producers.engines.served import generation_server
from headrace.producers.engines.served.served_engine import ServedEngine

pytestmark = pytest.mark.timeout(600)
LONG = Sampling(max_tokens=400)
MODELS: dict[int, Any] = {}


@contextmanager
def serving(kind: str, folder: Path, servers: int) -> Iterator[ServedEngine]:
    """Serve version 0."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        settings = {"use": kind, "python": str(find_python(kind)), "arguments": ARGUMENTS[kind], "folder": str(folder)}
        settings["servers"] = servers
        rollout = Rollout.model_validate({"engine": settings})
        opened, build = open_engine({"solver": save_files(folder / "solver")}, rollout, 64)
        assert re.match(rf"{kind} \d+\.\d+\S* torch \d", build), build
        assert isinstance(opened, ServedEngine)
        load(opened, 0)
        yield opened
        opened.close()


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Name an engine: all tests are of each."""
    return str(request.param)


@pytest.fixture(scope="module")
def engine(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedEngine]:
    with serving(kind, tmp_path_factory.mktemp("models"), 1) as opened:
        yield opened


def load(engine: ServedEngine, version: int) -> None:
    MODELS[version] = make_model(version)
    engine.load("solver", version, weights_of(MODELS[version]))


def newest(engine: ServedEngine) -> int:
    return engine.versions()["solver"]


def run(*calls: Awaitable[Generation]) -> list[Generation]:
    async def gather() -> list[Generation]:
        return list(await asyncio.gather(*calls))

    return asyncio.run(gather())


def wait_until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        time.sleep(0.02)


def own_process(engine: ServedEngine) -> psutil.Process:
    """Return the process of the server that training uses."""
    [server] = engine._policies["solver"].servers
    assert server._process is not None
    assert server._process.pid is not None
    return psutil.Process(server._process.pid)


def test_filters_do_to_log_probabilities_what_the_convention_says(engine: ServedEngine) -> None:
    for filters in ({"top_k": 5}, {"min_p": 0.1}, {"top_p": 0.7}, {"top_p": 0.9, "top_k": 5, "min_p": 0.01}):
        sampling = Sampling(max_tokens=100, temperature=0.7, **filters)  # type: ignore[arg-type] # mixed kinds
        [made] = run(engine.generate("solver", PROMPT, sampling, seed=0))
        whole, model = [*PROMPT, *made.ids.tolist()], MODELS[newest(engine)]
        masked = compute_masked_logprobs(model, whole, len(made.ids), sampling)
        tempered = compute_logprobs(model, whole, len(made.ids), sampling.temperature)
        expected = {"masked": masked, "tempered": tempered}[engine.logprob_convention]
        assert abs(expected - made.logprobs).max() < SAME
        assert abs(masked - tempered).max() > 0.01


def test_a_deadline_keeps_what_is_made_until_then(engine: ServedEngine) -> None:
    most = replace(LONG, max_tokens=1000)
    # Several: a server on two busy cores may read one order after seconds, when all is made.
    found = run(*(engine.generate("solver", PROMPT, most, seed=0, deadline_s=0.3) for _ in range(8)))
    ended = [made for made in found if made.finish_reason == "cancelled"]
    assert ended
    assert all(len(made.ids) < 1000 and find_gap(MODELS, PROMPT, made) < SAME for made in ended)


@pytest.mark.sglang
def test_the_turns_of_an_episode_find_their_prefix_in_one_of_two_servers(tmp_path: Path) -> None:
    turns, new = 10, [TOKENIZER.encode(f"({number}*7)+") for number in range(9)]

    async def play(engine: ServedEngine, session: int) -> int:
        """Return the tokens that its turns after the first could find: all of the turn before but its last one."""
        ids, had = new[session] * 3, 0
        for turn in range(turns):
            await asyncio.sleep((session + 3 * turn) % 7 * 0.03)  # a tool is called meanwhile
            made = await engine.generate("solver", ids, Sampling(max_tokens=12), seed=0, session=session)
            had += len(ids) + len(made.ids) - 1 if turn < turns - 1 else 0
            ids = [*ids, *made.ids.tolist(), *new[(session + turn) % len(new)]]
        return had

    async def play_all(engine: ServedEngine) -> int:
        return sum(await asyncio.gather(*(play(engine, session) for session in range(len(new)))))

    with serving("sglang", tmp_path, 2) as engine:
        could_find = asyncio.run(play_all(engine))
        found = engine.stats().reused_tokens / could_find
        assert found >= 0.95, found


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_a_server_that_goes_away_is_started_again_and_its_requests_are_answered(
    engine: ServedEngine, how: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation_server, "FROZEN_S", 1.0)

    async def scenario() -> Generation:
        task = asyncio.create_task(engine.generate("solver", PROMPT, replace(LONG, max_tokens=900), seed=0))
        await asyncio.to_thread(wait_until, lambda: engine.stats().running == 1)
        process = own_process(engine)
        for one in (process, *process.children(recursive=True)):
            os.kill(one.pid, how)
        await asyncio.to_thread(wait_until, lambda: bool(engine.stats().trouble))
        return await task

    made = asyncio.run(scenario())
    assert made.finish_reason in {"stop", "length"}
    assert made.version_runs[-1][0] == newest(engine)
    assert find_gap(MODELS, PROMPT, made) < SAME
    wait_until(lambda: not engine.stats().trouble)  # one that is let go on to end may answer before it does


def test_a_server_of_somebody_else_serves_one_worker_and_another_one_is_noticed(
    kind: str, engine: ServedEngine, tmp_path: Path
) -> None:
    url = engine.list_servers()[0].url
    rollout = Rollout.model_validate({"engine": {"use": kind, "urls": [url], "folder": str(tmp_path)}})
    other, build = open_engine({"solver": save_files(tmp_path / "solver")}, rollout, 64)
    assert re.match(rf"{kind} \d+\.\d+\S* ServerSettings", build), build
    MODELS[1000] = make_model(1000)
    other.load("solver", 1000, weights_of(MODELS[1000]))
    [made] = run(other.generate("solver", PROMPT, LONG, seed=0))
    assert made.version_runs[0][0] == 1000
    assert find_gap(MODELS, PROMPT, made) < SAME
    other.close()
    with pytest.raises(EngineError, match="answered with weights of version 1000, but"):
        run(engine.generate("solver", PROMPT, LONG, seed=0))
    with pytest.raises(EngineError, match="another process loads weights into this server"):
        load(engine, newest(engine) + 1)


def test_nothing_is_left_in_memory_by_an_engine_that_is_closed(engine: ServedEngine) -> None:
    kept, [server] = engine._folders.folder, engine._policies["solver"].servers
    assert server._process is not None
    assert server._process.folder.exists()
    assert len([one for one in (kept / "solver").iterdir() if one.name.isdigit()]) <= 2
    engine.close()
    assert not kept.exists()
    assert not server._process.folder.parent.exists()
    with pytest.raises(EngineError, match="closed"):
        run(engine.generate("solver", PROMPT, LONG, seed=0))
