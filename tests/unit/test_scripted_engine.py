"""The engine without a model, and the questions that it answers; beside `test_engine_contract.py`."""

import asyncio
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from headrace.envs.scripted import Question, Scripted, read_question
from headrace.infra.errors import UsageError
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.recipe.settings import Rollout
from headrace.ops.preflight.table import check_names
from headrace.producers.engines.contract import EngineError, Generation, Sampling
from headrace.producers.engines.registry import open_engine
from headrace.producers.engines.scripted import ScriptedEngine, ScriptedPolicy, ScriptedSettings

LETTERS = "\0\1=/?0123456789"
"""By token id; the first two are padding and stop."""
STOP = 1
WHOLE = Sampling(max_tokens=64, stop_ids=(STOP,))


class Letters:
    """A tokenizer of one token a letter."""

    hash = ""
    stop_ids = (STOP,)

    def encode(self, text: str) -> list[int]:
        return self.encode_plain(text)

    def encode_plain(self, text: str) -> list[int]:
        return [LETTERS.index(letter) for letter in text]

    def decode(self, ids: Sequence[int] | npt.NDArray[np.int32]) -> str:
        return "".join(LETTERS[int(one)] for one in ids if one > STOP)


def engine(**settings: object) -> ScriptedEngine:
    policy = ScriptedPolicy(Letters(), vocabulary=len(LETTERS), context=128)
    made = ScriptedEngine({"p": policy}, ScriptedSettings(**settings))  # type: ignore[arg-type]
    made.load("p", 0, {})
    return made


def answers(engine: ScriptedEngine, prompt: str, seeds: Sequence[int], sampling: Sampling = WHOLE) -> list[Generation]:
    async def ask() -> list[Generation]:
        ids = Letters().encode(prompt)
        return list(await asyncio.gather(*(engine.generate("p", ids, sampling, seed=seed) for seed in seeds)))

    return asyncio.run(ask())


def test_an_answer_is_as_long_as_its_level_says_and_every_token_a_uniform_choice() -> None:
    scripted = engine(tokens=[4, 9], difficulties=[-99.0, 99.0])
    (short,), (long,) = (answers(scripted, f"{level}/3=7?", [5]) for level in (0, 1))
    assert [Letters().decode(one.ids) for one in (short, long)] == ["==7", "=======8"]
    assert (len(short.ids), len(long.ids), short.ids[-1], short.finish_reason) == (4, 9, STOP, "stop")
    np.testing.assert_allclose(long.logprobs, -math.log(len(LETTERS)))


def test_an_answer_that_is_cut_off_is_none() -> None:
    (cut,) = answers(engine(tokens=[9], difficulties=[-99.0]), "0/3=7?", [5], Sampling(max_tokens=8, stop_ids=(STOP,)))
    assert (Letters().decode(cut.ids), cut.finish_reason) == ("=======7", "length")
    (shorter,) = answers(engine(tokens=[9], difficulties=[-99.0]), "0/3=7?", [5], Sampling(max_tokens=5))
    env = Scripted(seed=0)
    assert env.score(env.problem("train", 0), Letters().decode(shorter.ids)).reward == 0


def test_an_answer_is_right_as_often_as_said_and_stays_right_as_versions_rise() -> None:
    seeds, right = range(2000), dict[int, set[int]]()
    scripted = engine(rate=0.5, tokens=[2, 2], difficulties=[0.0, 1.0])
    for version in (0, 2, 4):
        scripted.load("p", version, {})
        found = answers(scripted, "1/3=7?", seeds)
        right[version] = {seed for seed, one in zip(seeds, found, strict=True) if Letters().decode(one.ids) == "7"}
        chance = 1 / (1 + math.exp(1.0 - 0.5 * version))
        assert len(right[version]) / len(seeds) == pytest.approx(chance, abs=0.04)
        assert scripted.stats().busy_s == 0
    assert right[0] < right[2] < right[4]
    assert scripted._settings.chance(1, 100_000) == 1.0


def test_lengths_with_a_spread_are_log_normal_around_their_median_and_cut_at_the_requests_limit() -> None:
    scripted = engine(tokens=[20, 20], difficulties=[-99.0, -99.0], spreads=[0.0, 0.7])
    (same,), seeds = answers(scripted, "0/3=7?", [5]), range(3000)
    drawn = answers(scripted, "1/3=7?", seeds)
    logs = np.log([scripted._settings.draw_tokens(1, seed) for seed in seeds])
    assert len(same.ids) == 20
    assert (logs.mean(), logs.std()) == pytest.approx((math.log(20), 0.7), abs=0.05)
    assert {one.finish_reason for one in drawn if len(one.ids) == 64} >= {"length"}
    texts = [Letters().decode(one.ids) for one in drawn if one.finish_reason == "stop"]
    assert all(text.strip("=") == "7" for text in texts)
    assert [len(one.ids) for one in answers(scripted, "1/3=7?", seeds)] == [len(one.ids) for one in drawn]


def test_what_it_cannot_read_is_refused_with_what_to_do() -> None:
    with pytest.raises(EngineError, match='only questions of the environment "scripted"; set env'):
        answers(engine(), "0/=?", [0])
    with pytest.raises(EngineError, match=r"'2/3=7\?' is of level 2, but the engine scripted has only the levels 0 t"):
        answers(engine(), "2/3=7?", [0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tokens": [], "difficulties": []}, "must be equally long lists"),
        ({"tokens": [4, 1]}, "tokens must be at least 2"),
        ({"spreads": [0.5]}, r"a number from 0 on for each difficulty level; got \[0.5\] for 2 levels"),
        ({"spreads": 0.5}, "spreads must be a list of numbers"),
        ({"seconds_per_token": -1.0}, "seconds_per_token at least 0"),
        ({"latency": 1.0}, "rollout.engine, scripted: no option 'latency'; the options are .*tokens"),
        ({"rate": "fast"}, "rate must be a number, got 'fast'"),
    ],
)
def test_settings_that_it_does_not_take_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_engine({}, Rollout.model_validate({"engine": {"use": "scripted", **settings}}), 1)


@pytest.mark.parametrize(
    ("recipe", "engine", "message"),
    [
        ("arithmetic", "scriptd", "'scriptd' is not known; take one of scripted, torch"),
        ("arithmetic", "scripted", 'workflows.sums takes problems from the environment "arithmetic", but the engine'),
        ("efficient-data/edf", '{ use = "scripted", tokens = [1, 4] }', "tokens must be at least 2"),
        ("arithmetic", '{ use = "torch", tokens = [4] }', "engine, torch: .* takes no settings; remove tokens"),
    ],
)
def test_an_engine_that_cannot_play_a_recipe_is_refused_before_anything_is_started(
    recipe: str, engine: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        check_names(load_recipe(recipe, [f"rollout.engine={engine}"]))


def test_it_needs_no_torch() -> None:
    code = "import sys, headrace.producers.engines.scripted, headrace.envs.scripted\nprint('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    assert done.stdout.strip() == "False"


def test_questions_are_read_as_they_are_written_and_the_last_one_counts() -> None:
    assert read_question(str(Question(2, 31, 7))) == Question(2, 31, 7)
    assert read_question("user: 0/1=2? no: 1 / 3 = 4 ? ") == Question(1, 3, 4)
    assert read_question("1/3=44?") is None


def test_levels_come_in_turn_and_no_problem_is_in_two_splits() -> None:
    env = Scripted(seed=3, levels=[0, 0, 2], tasks=2)
    train = [env.problem("train", index) for index in range(6)]
    assert [problem.tier for problem in train] == ["level0", "level0", "level2"] * 2
    assert env.problem("train", 6) == train[0]
    held_out = [env.problem("held_out", index) for index in range(env.size("held_out"))]
    assert len({problem.task_id for problem in (*train, *held_out)}) == 12
    with pytest.raises(ValueError, match="split 'warm_start' has 0 problems, so there is no problem 0"):
        env.problem("warm_start", 0)


def test_only_the_right_digit_alone_is_right() -> None:
    env = Scripted(seed=0)
    problem = env.problem("train", 17)
    assert problem.answer == "7"
    rewards = [env.score(problem, text).reward for text in ("===7", "7", "= = 7", "===8", "===", "", "=7=", "77", "?7")]
    assert rewards == [1, 1, 1, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("settings", [{"levels": []}, {"levels": [-1]}, {"levels": 2}, {"levels": [0.5]}, {"tasks": 0}])
def test_settings_that_the_questions_do_not_take_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"levels must be a list|tasks, the number of problems"):
        Scripted(seed=1, **settings)  # type: ignore[arg-type]
