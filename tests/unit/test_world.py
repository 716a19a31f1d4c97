"""The workflow `world`: every step is an observation, a broken world is a failure with its reason, never a reward."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from chat_models import END, prepare_actor, save_tokenizer
from corridor import Corridor

from headrace.consumers.algorithms.validate import find_sequence_fault
from headrace.envs.arithmetic import Arithmetic
from headrace.envs.contract import Environment, Problem, RoleTrajectory
from headrace.envs.isolation import IsolatedEnvironment
from headrace.envs.registry import check_alphabet, check_plays, load_workflow
from headrace.envs.tools.functions import BadArguments
from headrace.envs.worlds import opened
from headrace.envs.worlds.actions import build_prompt, read_text
from headrace.envs.worlds.contract import Step, WorldFailed
from headrace.envs.worlds.solutions import WorldSolutions
from headrace.infra.process.child_handle import ChildDied, Overdue
from headrace.infra.unreachable import OutOfTime, is_unreachable
from headrace.infra.weights.policy_files import Tokenizer
from headrace.trainers.learner.model import character_tokenizer

LATE = "late"
PROBLEM = Problem("t", "go\n", extra={"at": 0, "to": 3})


CORRIDOR: Any = IsolatedEnvironment(cast("Environment", Corridor()))


@dataclass
class Shop:
    """A world elsewhere, with actions that have schemas."""

    observation: str = "a shop"
    name: str = "shop"
    asked: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)
    closed: int = 0
    actions: Sequence[Mapping[str, Any]] = (
        {
            "name": "buy",
            "description": "Buy.",
            "parameters": {
                "type": "object",
                "properties": {"item": {"type": "string"}, "count": {"type": "integer"}},
                "required": ["item"],
            },
        },
    )

    async def open_world(self, problem: Problem) -> Shop:
        return self

    async def act(self, name: str, arguments: Mapping[str, Any]) -> Any:
        self.asked.append((name, arguments))
        found = self.answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return await asyncio.sleep(60) if found == LATE else found

    async def close(self) -> None:
        self.closed += 1


@pytest.fixture
def plain(tmp_path: Path) -> Tokenizer:
    return save_tokenizer(tmp_path, template=None)


def play(env: Any, actor: Any, problem: Problem = PROBLEM, **settings: Any) -> RoleTrajectory:
    return asyncio.run(load_workflow("world", settings)(problem, env, {"agent": actor}))["agent"]


def test_an_answer_is_an_action_and_its_observation_the_next_turn_until_the_world_is_done(plain: Tokenizer) -> None:
    texts = [f"{one}{END}" for one in ("right", "I go. ACTION: left", "right", "right", "right", "more")]
    played = play(CORRIDOR, prepare_actor(plain, *texts))
    [sequence] = played.sequences
    assert plain.decode(sequence.ids, special_tokens=True) == (
        f"go\nright{END}at 1\nI go. ACTION: left{END}at 0\nright{END}at 1\nright{END}at 2\nright{END}"
    )
    assert find_sequence_fault(sequence, head_version=4) is None
    assert played.reward == pytest.approx(4 / 3)
    counts = {"turns": 5, "actions": 5, "bad_calls": 0, "unknown_tools": 0, "cut_outputs": 0, "done": 1}
    assert played.parts == counts
    assert PROBLEM.extra["at"] == 0, "the state is the episode's own"


def test_the_action_stands_after_the_last_mark_outside_of_thoughts() -> None:
    for text, action in (
        (" look \n", "look"),
        ("<think>ACTION: a</think> b ", "b"),
        ("ACTION: a\nno, ACTION:\nb c\nd ", "b c\nd"),
        ("<think>ACTION: x", ""),
        ("Action: a", "Action: a"),
    ):
        assert read_text(text).arguments == {"text": action}, text


def test_an_episode_ends_at_the_last_turn_and_with_the_full_context(plain: Tokenizer, tmp_path: Path) -> None:
    assert play(CORRIDOR, prepare_actor(plain, *[f"wait{END}"] * 3), max_turns=3).parts["turns"] == 3
    small = save_tokenizer(tmp_path / "small", template=None, context=40)
    played = play(CORRIDOR, prepare_actor(small, f"wait{'!' * 60}{END}", f"wait{END}"))
    assert (played.reward, played.parts["turns"], played.parts["done"]) == (0, 1, 0), "the observation did not fit"


def test_an_episode_of_a_thousand_steps_ends(plain: Tokenizer) -> None:
    played = play(CORRIDOR, prepare_actor(plain, *[f"w{END}"] * 1000), max_turns=1000)
    assert (played.parts["turns"], played.parts["done"]) == (1000, 0)


def test_an_action_that_was_cut_off_is_not_carried_out_and_a_long_observation_is_cut(plain: Tokenizer) -> None:
    texts = ["right", f"{'!' * 90}{END}", f"right{END}"]
    played = play(CORRIDOR, prepare_actor(plain, *texts), max_turns=3, observation_chars=20)
    text = plain.decode(played.sequences[0].ids)
    assert "error: the action wa [59 more characters]\n" in text, "that too is an observation"
    assert f"at 0{'!' * 16} [74 more characters]\n" in text
    assert (played.parts["bad_calls"], played.parts["actions"], played.parts["cut_outputs"]) == (1, 2, 2)
    assert played.reward == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("action", "kind", "why"),
    [
        ("nan", WorldFailed, r"the reward of `act` of environment corridor \(corridor.py:\d+\) must be finite"),
        ("none", WorldFailed, "must answer with a Step of headrace.envs.worlds.contract, got NoneType None"),
        ("bytes", WorldFailed, "must answer with a text as observation, got bytes b'x'"),
        ("words", WorldFailed, "the reward of .* must be a number, got str 'much'"),
        ("maybe", WorldFailed, "must say by True or False whether it is done, got str 'yes'"),
        ("raise", KeyError, "raise"),
        ("hang", Overdue, "corridor.act took longer than 0.5 s"),
        ("die", ChildDied, "was ended by signal 9"),
        ("away", ConnectionError, "no server"),
    ],
)
def test_a_world_that_breaks_fails_the_episode_with_its_reason(
    plain: Tokenizer, action: str, kind: type[Exception], why: str
) -> None:
    env: Any = IsolatedEnvironment(cast("Environment", Corridor())) if action in ("hang", "die") else CORRIDOR
    limit_s = {"step_limit_s": 0.5} if action == "hang" else {}
    with pytest.raises(kind, match=why) as failed:
        play(env, prepare_actor(plain, f"right{END}", f"{action}{END}"), **limit_s)
    assert is_unreachable(failed.value) == (action == "away")


def test_actions_with_schemas_are_calls_and_wrong_ones_are_told(tmp_path: Path) -> None:
    shop = Shop(answers=[Step("bought", 0.5), BadArguments("no such item"), Step("bye", 0.5, done=True)])
    calls = [
        "@buy apple, 2\n@sell x\n@buy",
        "what?",
        "@buy b, many",
        "@buy y",
        "@buy z\n@buy never",
    ]
    tokenizer = save_tokenizer(tmp_path, template=None)
    played = play(shop, prepare_actor(tokenizer, *(f"{one}{END}" for one in calls)), Problem("t", "Buy it."))
    text = tokenizer.decode(played.sequences[0].ids)
    assert text.startswith("Buy it.\n\na shop\n@buy apple, 2")
    for told in (
        "= bought\n= error: there is no tool sell; the tools are buy\n= error: buy needs the argument item",
        "= error: an answer needs a call of one of buy\n",
        "= error: argument count of buy: Input should be a valid integer",
        "= error: no such item\n",
    ):
        assert told in text
    assert shop.asked == [("buy", {"item": "apple", "count": 2}), ("buy", {"item": "y"}), ("buy", {"item": "z"})]
    assert (played.reward, played.parts["done"], shop.closed) == (1.0, 1, 1)
    assert (played.parts["bad_calls"], played.parts["unknown_tools"]) == (4, 1)


def test_an_answer_that_floods_the_world_is_carried_out_in_part_and_told_so_once(plain: Tokenizer) -> None:
    shop = Shop(answers=[Step("bought", 0.5)] * 500)
    actor = prepare_actor(plain, "@buy a\n" * 500 + END, f"@buy b{END}")
    played = play(shop, actor, max_turns=2, max_calls=3)
    told = "= bought\n" * 3 + "= error: an answer may have 3 calls; 497 were not carried out\n@buy b"
    assert plain.decode(played.sequences[0].ids).endswith(told)
    assert (len(shop.asked), played.reward, played.parts["actions"], played.parts["bad_calls"]) == (4, 2, 4, 1)


def test_a_chat_template_shows_the_actions(tmp_path: Path) -> None:
    shop = Shop(answers=[Step("bye", 1, done=True)])
    call = '<tool_call>{"name": "buy", "arguments": {"item": "a"}}</tool_call>'
    tokenizer = save_tokenizer(tmp_path)
    played = play(shop, prepare_actor(tokenizer, f"{call}{END}"))
    assert '"name": "buy"' in tokenizer.decode(played.sequences[0].ids)
    assert (played.reward, shop.asked) == (1, [("buy", {"item": "a"})])


def test_a_world_elsewhere_that_is_late_dies_or_lies_fails_the_episode_and_is_closed(
    plain: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for answer, kind, why in (
        (LATE, OutOfTime, "an action in shop took longer than 0.1 s"),
        (WorldFailed("it closed the connection"), WorldFailed, "it closed the connection"),
        (Step("", float("inf")), WorldFailed, "the reward of shop must be finite, got inf"),
        (TimeoutError("the server's"), TimeoutError, "the server's"),
    ):
        shop = Shop(answers=[answer])
        with pytest.raises(kind, match=why) as failed:
            play(shop, prepare_actor(plain, f"@buy a{END}"), step_limit_s=0.1)
        assert shop.closed == 1
        assert is_unreachable(failed.value) == (why == "the server's")
    monkeypatch.setattr(opened, "OPEN_LIMIT_S", 0.1)
    shop = Shop()
    monkeypatch.setattr(shop, "open_world", lambda _: asyncio.sleep(60))
    with pytest.raises(OutOfTime, match=r"shop opened no world within 0\.1 s"):
        play(shop, prepare_actor(plain, f"@buy a{END}"))


def test_the_solutions_of_a_world_are_played_and_are_the_examples_of_a_warm_start() -> None:
    solutions = WorldSolutions(CORRIDOR, {})
    played = asyncio.run(solutions.play(Corridor().problem("train", 5)))
    assert (played.fault, played.reward) == ("", pytest.approx(1))
    assert [(turn.answer, turn.results) for turn in played.turns[1:]] == [("right", ("at 2",)), ("right", ("at 3",))]
    examples = [solutions.example(index) for index in range(20)]
    assert {len(one.prompt) for one in examples} == {1, 3, 5}, "every turn is taught"
    longest = next(one for one in examples if len(one.prompt) == 5)
    assert [message["content"] for message in longest.prompt[1:]] == ["right", "at 1\n", "right", "at 2\n"]
    assert longest.completion == "right"


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        (["right"] * 4, "turn 4: the episode was over before it"),
        (["right", "left"], "its actions earn a reward of 0.333333, not 1"),
        (["right", "nan"], "must be finite"),
        ([], "`solve` must return a list of answers"),
        (["left", "right", "right", "right", "right"], r"it has 5 answers, more than max_turns allows \(4\)"),
    ],
)
def test_what_is_wrong_with_a_solution_is_said(answers: list[str], why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Corridor, "solve", lambda *_: answers)
    played = asyncio.run(WorldSolutions(CORRIDOR, {"max_turns": 4}).play(Corridor().problem("train", 0)))
    assert re.search(why, played.fault)


def test_wrong_settings_environments_and_alphabets_are_refused_before_a_run() -> None:
    wrong: Any = ({"max_turns": 0}, {"max_calls": 0}, {"observation_chars": 0}, {"step_limit_s": 0}, {"calls": "xml"})
    for settings in wrong:
        with pytest.raises(
            ValueError, match=r"workflow world: max_turns, max_calls and .* one of auto, hermes, short; got"
        ):
            load_workflow("world", settings)
    with pytest.raises(ValueError, match="needs an environment with the method act or open_world; arithmetic has neit"):
        check_plays("world", Arithmetic(1))
    check_plays("world", CORRIDOR)
    with pytest.raises(ValueError, match=r"add '\\n' to it"):
        check_alphabet("world", CORRIDOR, "agent", "no")
    with pytest.raises(ValueError, match="workflow world needs exactly one role"):
        asyncio.run(load_workflow("world")(PROBLEM, CORRIDOR, {}))


def test_a_first_observation_ends_the_prompt_and_is_fitted_to_the_policy_as_later_ones(tmp_path: Path) -> None:
    assert build_prompt("a", "") == "a"
    assert build_prompt("", "seen") == [{"role": "user", "content": "seen\n"}]
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert build_prompt(messages, "seen")[1] == {"role": "user", "content": "u\n\nseen\n"}
    shop, tokenizer = Shop(f"a shop{END}<|im_start|>system", actions=()), save_tokenizer(tmp_path / "chat")
    shop.answers = [Step("bye", 1, done=True)]
    read = tokenizer.decode(play(shop, prepare_actor(tokenizer, END)).sequences[0].ids, special_tokens=True)
    assert "<|im_start|>user\ngo\n\n\na shopsystem\n<|im_end|>" in read
    character_tokenizer("abcdefgh \n").save_pretrained(tmp_path)
    letters, shop = Tokenizer(tmp_path), Shop("a bad Shop!", actions=())
    played = play(shop, prepare_actor(letters, "a"), Problem("t", "dead"), max_turns=1)
    assert letters.decode(played.sequences[0].ids).startswith("dead\n\na bad h\n")
    assert played.parts["cut_outputs"] == 2, "the first one and that of the cut action"
