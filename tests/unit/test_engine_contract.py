"""What every engine promises (`producers/engines/contract.py`), of those that are shipped."""

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import transformers

from headrace.infra.recipe.settings import Rollout
from headrace.producers.engines import scripted
from headrace.producers.engines.contract import Engine, EngineError, EngineStats, Generation, Sampling, VersionGone
from headrace.producers.engines.registry import open_engine
from headrace.producers.engines.torch.weight_set import Ended, WeightSet
from headrace.trainers.learner.model import character_tokenizer

ALPHABET = "0123456789/=?"
TOKENIZER = character_tokenizer(ALPHABET)
CONTEXT = 64
CONFIG = transformers.Qwen3Config(
    vocab_size=len(ALPHABET) + 2,
    hidden_size=16,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    max_position_embeddings=CONTEXT,
    tie_word_embeddings=True,
    initializer_range=0.2,
    eos_token_id=TOKENIZER.eos_token_id,
)
WEIGHTS: dict[str, Any] = dict(transformers.Qwen3ForCausalLM(CONFIG).named_parameters())
PROMPT: list[int] = TOKENIZER.encode("1/17=4?")
LONG = Sampling(max_tokens=50)
"""An answer of the scripted engine is as long as this allows, and takes half a second."""
SECONDS_PER_TOKEN = 0.01
ENGINES: dict[str, dict[str, object]] = {
    "torch": {"use": "torch"},
    "scripted": {
        "use": "scripted",
        "difficulties": [0.0, 0.0],
        "tokens": [4, 50],
        "seconds_per_token": SECONDS_PER_TOKEN,
    },
}
Make = Callable[..., Engine]


@pytest.fixture(params=ENGINES)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Return what opens an engine with version 0 of each policy in it."""
    opened: list[Engine] = []

    def opens(*policies: str, loaded: bool = True) -> Engine:
        for policy in policies:
            CONFIG.save_pretrained(tmp_path / policy)
            TOKENIZER.save_pretrained(tmp_path / policy)
        rollout = Rollout.model_validate({"engine": ENGINES[request.param]})
        engine, build = open_engine({policy: tmp_path / policy for policy in policies}, rollout, 8)
        assert build.startswith(request.param)
        for policy in policies:
            shutil.rmtree(tmp_path / policy)  # as a worker does
        opened.append(engine)
        for policy in policies if loaded else ():
            engine.load(policy, 0, WEIGHTS)
        return engine

    yield opens
    for engine in opened:
        engine.close()


@pytest.fixture
def engine(make: Make) -> Engine:
    return make("p")


def test_a_request_may_have_stop_texts(engine: Engine) -> None:
    asked = replace(LONG, stop=("no such text",))
    made = asyncio.run(engine.generate("p", PROMPT, asked, seed=1))
    assert len(made.ids) == len(asyncio.run(engine.generate("p", PROMPT, LONG, seed=1)).ids)


class Pace:
    """Lets an engine make so many tokens and no more: what a test does meanwhile does not come too late.

    The engine of a model makes no step beyond them; for the scripted one, and its event loop, no time passes.
    """

    def __init__(self) -> None:
        self.tokens = 0

    def step(self, weights: WeightSet) -> Ended:
        if weights.generated_tokens < self.tokens:
            return STEP(weights)
        time.sleep(0.0005)
        return []

    def clock(self) -> float:
        return self.tokens * SECONDS_PER_TOKEN


STEP = WeightSet.step


@pytest.fixture
def pace(monkeypatch: pytest.MonkeyPatch) -> Pace:
    made = Pace()
    monkeypatch.setattr(WeightSet, "step", lambda weights: made.step(weights))  # noqa: PLW0108 - it takes `self`
    monkeypatch.setattr(scripted, "time", SimpleNamespace(monotonic=made.clock))
    monkeypatch.setattr(scripted, "_Request", partial(scripted._Request, began=0.0))
    return made


async def begun(engine: Engine, pace: Pace) -> asyncio.Task[Generation]:
    """Ask for a long answer, of which nothing is made yet."""
    asyncio.get_running_loop().time = pace.clock  # type: ignore[method-assign]
    task = asyncio.create_task(engine.generate("p", PROMPT, LONG, seed=0))
    await until(engine, lambda now: now.running + now.waiting == 1)
    return task


def run(*calls: Awaitable[Generation]) -> list[Generation]:
    async def gather() -> list[Generation]:
        return list(await asyncio.gather(*calls))

    return asyncio.run(gather())


async def until(engine: Engine, holds: Callable[[EngineStats], bool]) -> None:
    while not holds(engine.stats()):  # an engine has no event to wait for
        await asyncio.to_thread(time.sleep, 0.0005)  # by the time of the machine, whatever the loop's is


def test_an_answer_has_an_id_a_log_probability_and_a_version_for_every_token(engine: Engine) -> None:
    sampling = Sampling(max_tokens=8)
    same, again, other = run(*(engine.generate("p", PROMPT, sampling, seed=seed) for seed in (1, 1, 2)))
    for result in (same, other):
        assert (result.ids.dtype, result.logprobs.dtype) == (np.int32, np.float32)
        assert len(result.ids) == len(result.logprobs) == 8
        assert (result.logprobs < 0).all()
        assert result.version_runs == ((0, 8),)
        assert result.finish_reason == "length"
    assert same.ids.tolist() == again.ids.tolist()
    stats = engine.stats()
    assert (stats.generated_tokens, stats.prompt_tokens, stats.running) == (24, 3 * len(PROMPT), 0)


def test_a_token_carries_the_version_that_made_it_and_a_swap_ends_no_request(engine: Engine, pace: Pace) -> None:
    async def swap_twice() -> Generation:
        task = await begun(engine, pace)
        for version in (1, 2):
            pace.tokens = 15 * version
            await until(engine, lambda now: now.generated_tokens == pace.tokens)
            await asyncio.to_thread(engine.load, "p", version, WEIGHTS)
        pace.tokens = 50
        return await task

    result = asyncio.run(swap_twice())
    assert engine.versions() == {"p": 2}
    assert result.version_runs == ((0, 15), (1, 15), (2, 20))
    assert len(result.ids) == 50


def test_a_held_version_is_played_over_swaps_until_it_is_released(engine: Engine) -> None:
    engine.hold("p", 0)
    engine.hold("p", 0)
    engine.load("p", 1, WEIGHTS)
    engine.release("p", 0)
    few = Sampling(max_tokens=5)

    async def both() -> list[Generation]:
        held = asyncio.create_task(engine.generate("p", PROMPT, LONG, seed=0, version=0))
        await until(engine, lambda now: now.generated_tokens > 0)
        await asyncio.to_thread(engine.load, "p", 2, WEIGHTS)
        return [await held, await engine.generate("p", PROMPT, few, seed=0)]

    held, served = asyncio.run(both())
    assert (held.version_runs, served.version_runs) == (((0, 50),), ((2, 5),))
    engine.release("p", 0)
    with pytest.raises(VersionGone, match="version 0 is not held"):
        run(engine.generate("p", PROMPT, few, seed=0, version=0))
    with pytest.raises(VersionGone, match="version 0 is not held"):
        engine.release("p", 0)
    with pytest.raises(VersionGone, match="version 7 is not held"):
        engine.hold("p", 7)
    engine.hold("p", 7, WEIGHTS)
    assert run(engine.generate("p", PROMPT, few, seed=0, version=7))[0].version_runs == ((7, 5),)
    assert engine.versions() == {"p": 2}


def test_two_policies_have_versions_of_their_own(make: Make) -> None:
    engine = make("solver", "verifier")
    engine.load("verifier", 2, WEIGHTS)
    results = run(*(engine.generate(policy, PROMPT, Sampling(max_tokens=4), seed=0) for policy in engine.versions()))
    assert engine.versions() == {"solver": 0, "verifier": 2}
    assert [result.version_runs for result in results] == [((0, 4),), ((2, 4),)]


def test_a_cancelled_request_leaves_its_place_and_its_tokens_stay_counted(engine: Engine, pace: Pace) -> None:
    async def scenario() -> None:
        task = await begun(engine, pace)
        pace.tokens = 4
        await until(engine, lambda now: now.generated_tokens > 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(engine, lambda now: now.running == 0)

    asyncio.run(scenario())
    assert engine.stats().generated_tokens == 4


def test_a_deadline_that_has_passed_ends_a_request_as_cancelled(engine: Engine, pace: Pace) -> None:
    pace.tokens = 4
    (result,) = run(engine.generate("p", PROMPT, LONG, seed=0, deadline_s=0.0))
    assert result.finish_reason == "cancelled"
    assert len(result.ids) == len(result.logprobs) == sum(length for _, length in result.version_runs) < 50


def test_a_request_that_cannot_run_is_refused_alone(engine: Engine) -> None:
    wrong = [
        ([1, 99], LONG, "token id 99 at position 1 is not among"),
        ([-1], LONG, "token id -1"),
        ([], LONG, "non-empty"),
        (PROMPT, Sampling(top_p=0.0, max_tokens=8), "top_p"),
        (PROMPT, Sampling(max_tokens=0), "max_tokens"),
        ([2] * 64, LONG, "the model's context of 64 leaves no room"),
        (PROMPT, Sampling(temperature=-1.0, max_tokens=8), "temperature is -1.0; it must be"),
    ]
    asked = [(PROMPT, Sampling(max_tokens=8)), *((ids, sampling) for ids, sampling, _ in wrong)]

    async def scenario() -> list[Generation | BaseException]:
        calls = (engine.generate("p", ids, sampling, seed=0) for ids, sampling in asked)
        return list(await asyncio.gather(*calls, return_exceptions=True))

    good, *bad = asyncio.run(scenario())
    assert isinstance(good, Generation)
    for error, (_, _, message) in zip(bad, wrong, strict=True):
        assert isinstance(error, EngineError)
        assert message in str(error)


def test_a_policy_that_is_unknown_or_has_no_weights_is_refused(make: Make) -> None:
    engine = make("p", loaded=False)
    with pytest.raises(EngineError, match="no policy 'q'"):
        run(engine.generate("q", PROMPT, LONG, seed=0))
    with pytest.raises(EngineError, match="no weights yet"):
        run(engine.generate("p", PROMPT, LONG, seed=0))
    assert engine.versions() == {}


def test_any_engine_answers_the_one_token_by_which_a_worker_asks_whether_it_lives(engine: Engine) -> None:
    (result,) = run(engine.generate("p", [0], Sampling(max_tokens=1), seed=0))
    assert len(result.ids) == 1


def test_closing_fails_open_requests_and_later_ones(engine: Engine, pace: Pace) -> None:
    async def scenario() -> None:
        task = await begun(engine, pace)
        pace.tokens = 4
        await until(engine, lambda now: now.running == 1)
        await asyncio.to_thread(engine.close)
        with pytest.raises(EngineError, match="closed"):
            await task

    asyncio.run(scenario())
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        run(engine.generate("p", PROMPT, LONG, seed=0))
    with pytest.raises(EngineError, match="closed"):
        engine.load("p", 1, WEIGHTS)
