"""The workflow `tools`: every outcome of a call is an observation, and the user hears of what is his own fault."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import pytest
from chat_models import END, prepare_actor, save_tokenizer

from headrace.consumers.algorithms.validate import find_sequence_fault
from headrace.envs.contract import Environment, Problem, RoleTrajectory, Score
from headrace.envs.isolation import IsolatedEnvironment, isolate
from headrace.envs.registry import check_alphabet, check_plays, load_workflow
from headrace.envs.tool_calls import InvalidToolCall, ToolCall
from headrace.envs.tools.forms import fit_to_policy, parse_short_calls
from headrace.envs.tools.functions import read_tool, read_tools
from headrace.envs.tools.outcomes import Limits, Outcome, answer_calls
from headrace.envs.workflows.tools import tools as play_tools
from headrace.infra.weights.policy_files import Tokenizer

PROBLEM = Problem("t", "3*4?", answer="12", extra={"secret": 7})


@dataclass
class Point:
    x: int
    y: int = 0


def multiply(a: int, b: int = 2) -> int:
    """Multiply two integers.

    More about it.

    Args:
        a: The first one,
            which may be long.
        b (int): The second one.

    Returns:
        The product.
    """
    return a * b


async def reveal(problem: Problem) -> dict[str, Any]:
    """Tell the secret."""
    await asyncio.sleep(0)
    return dict(problem.extra)


def note(text: str) -> None:
    """Keep a text."""


def forget(text: str):  # type: ignore[no-untyped-def]  # noqa: ANN201
    """Forget to return."""


def fail(why: str) -> str:
    """Raise."""
    raise KeyError(why)


def leave() -> str:
    """End the process."""
    raise SystemExit(3)


async def leave_soon() -> str:
    """End the process, on the event loop."""
    raise SystemExit(3)


def hang() -> str:
    """Never return."""
    threading.Event().wait()
    return ""


async def wait() -> str:
    """Never return, on the event loop."""
    await asyncio.Event().wait()
    return ""


def lose() -> str:
    """Call a server that is away."""
    raise ConnectionError("refused")


def flood(count: int) -> str:
    """Say much."""
    return "x" * count


def find(point: Point, kind: Literal["near", "far"], tags: list[str]) -> list[Any]:
    """Take arguments of many types."""
    return [point.x, point.y, kind, *tags]


class World:
    name = "world"
    tools = (multiply, reveal, note, forget, fail, leave, leave_soon, hang, wait, lose, flood, find)

    def score(self, problem: Problem, text: str) -> Score:
        return Score(text == problem.answer, {"length": len(text)})


class Meeting:
    """Its calls return only if two run at once."""

    name = "meeting"
    soon, both = asyncio.Barrier(2), threading.Barrier(2)

    async def meet(self, name: str) -> str:
        await self.soon.wait()
        return name

    def meet_too(self, name: str) -> str:
        assert self.both.wait(10) in (0, 1)
        return name

    tools = (meet, meet_too)


KNOWN = read_tools(World())
WORLD: Any = IsolatedEnvironment(cast("Environment", World()))


def answer(
    *calls: ToolCall | InvalidToolCall, limit_s: float = 10.0, chars: int = 4000, env: Any = WORLD
) -> list[Outcome]:
    async def run() -> list[Outcome]:
        with isolate(env) as episode:
            return await answer_calls(calls, read_tools(env), episode, PROBLEM, Limits(limit_s, chars))

    return asyncio.run(run())


def call(name: str, **arguments: Any) -> Outcome:
    [found] = answer(ToolCall(name, arguments))
    return found


def play(actor: Any, **settings: Any) -> RoleTrajectory:
    return asyncio.run(load_workflow("tools", settings)(PROBLEM, WORLD, {"solver": actor}))["solver"]


@pytest.fixture
def plain(tmp_path: Path) -> Tokenizer:
    return save_tokenizer(tmp_path, template=None)


def test_a_schema_is_read_from_the_signature_and_the_docstring() -> None:
    assert read_tool(multiply).schema == {
        "type": "function",
        "function": {
            "name": "multiply",
            "description": "Multiply two integers.",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "integer", "description": "The first one, which may be long."},
                    "b": {"type": "integer", "description": "The second one."},
                },
                "required": ["a"],
            },
        },
    }
    parameters = read_tool(find).schema["function"]["parameters"]
    assert parameters["properties"]["kind"] == {"enum": ["near", "far"], "type": "string"}
    assert parameters["properties"]["point"]["properties"]["x"] == {"type": "integer"}
    assert read_tool(reveal).schema["function"]["parameters"]["properties"] == {}, "the problem is not the policy's"


def test_a_tool_may_be_a_bound_method_or_one_that_the_class_lists() -> None:
    class Shop:
        name = "shop"
        price = 5

        def buy(self, count: int) -> int:
            return self.price * count

        tools = (buy,)

    for shop in (Shop(), type("Other", (), {"name": "other", "tools": [Shop().buy]})()):
        [found] = answer(ToolCall("buy", {"count": 2}), env=shop)
        assert (found.text, found.kind) == ("10", "")


def test_what_is_no_tool_is_refused_before_a_run_with_its_name_and_place() -> None:
    def many(*numbers: int) -> int:
        return sum(numbers)

    def odd(lock: threading.Lock) -> str:
        return str(lock)

    for listed, why in (
        ((), "environment shop must list its tools, plain functions, in `tools`"),
        (({"name": "add"},), r"tools\[0\] of environment shop must be a function, got dict"),
        ((lambda: 1,), "a tool needs a name that a policy can write, got '<lambda>'"),
        ((many,), r"test_tools.py:\d+\): \*numbers: int of many has no name that a call can give"),
        ((odd,), "parameter lock of odd has the type"),
        ((multiply, multiply), "environment shop has two tools of the name multiply"),
    ):
        shop: Any = type("Shop", (), {"name": "shop", "tools": listed})()
        with pytest.raises(ValueError, match=why):
            check_plays("tools", shop)


def test_every_outcome_of_a_call_is_an_observation_and_is_counted_by_its_kind() -> None:
    for outcome, text, kind in (
        (call("multiply", a=3, b=4), "12", ""),
        (call("multiply", a="3"), "6", ""),
        (call("reveal"), '{"secret": 7}', ""),
        (call("note", text="é"), "null", ""),
        (call("find", point={"x": 1}, kind="far", tags=["a"]), '[1, 0, "far", "a"]', ""),
        (call("multiply", b=4), "error: multiply needs the argument a; its arguments are a, b", "bad_calls"),
        (call("multiply", a=1, c=4), "error: multiply has no argument c; its arguments are a, b", "bad_calls"),
        (call("reveal", problem=1), "error: reveal has no argument problem; it takes no arguments", "bad_calls"),
        (call("multiply", a="x"), "error: argument a of multiply: Input should be a valid integer", "bad_calls"),
        (call("divide"), "error: there is no tool divide; the tools are multiply, reveal", "unknown_tools"),
        (answer(InvalidToolCall("the tool call is not JSON", "{"))[0], "error: the tool call is not JSON", "bad_calls"),
        (call("fail", why="so"), "error: KeyError: 'so'", "tool_errors"),
        (call("leave"), "error: RuntimeError: leave raised SystemExit: 3", "tool_errors"),
        (call("leave_soon"), "error: RuntimeError: leave_soon raised SystemExit: 3", "tool_errors"),
        (call("forget", text=""), "null", "none_outputs"),
        (answer(ToolCall("hang", {}), limit_s=0)[0], "error: hang took longer than 0 s", "tool_timeouts"),
        (answer(ToolCall("wait", {}), limit_s=0)[0], "error: wait took longer than 0 s", "tool_timeouts"),
    ):
        assert (outcome.text[: len(text)], outcome.kind) == (text, kind)
    [cut] = answer(ToolCall("flood", {"count": 50}), chars=20)
    assert (cut.text, cut.is_cut) == ("x" * 20 + " [30 more characters]", True)


def test_the_user_hears_where_his_own_tool_failed_and_of_no_fault_of_the_policy() -> None:
    own = {
        name: told
        for name, outcome in (
            ("fail", call("fail", why="so")),
            ("forget", call("forget", text="")),
            ("wait", answer(ToolCall("wait", {}), limit_s=0.01)[0]),
        )
        if (told := outcome.tell(2)) is not None
    }
    assert {name: told.turn for name, told in own.items()} == {"fail": 2, "forget": 2, "wait": 2}
    assert "test_tools.py" in own["forget"].at
    assert "in wait" in own["wait"].at
    assert all(one.tell(1) is None for one in (call("multiply", a="x"), call("divide"), call("note", text="")))


def test_a_tool_whose_server_is_away_fails_the_episode_and_is_no_observation() -> None:
    with pytest.raises(ConnectionError):
        answer(ToolCall("multiply", {"a": 1}), ToolCall("lose", {}))


def test_calls_of_one_answer_run_at_the_same_time_and_are_answered_in_their_order() -> None:
    for function in ("meet", "meet_too"):
        outcomes = answer(*(ToolCall(function, {"name": name}) for name in "ab"), env=Meeting())
        assert [one.text for one in outcomes] == ["a", "b"]


def test_a_call_in_the_short_form_is_a_whole_line() -> None:
    for text, found in (
        ("@multiply 3, 4", [ToolCall("multiply", {"a": "3", "b": "4"})]),
        ("so\n@multiply 3\n@reveal\nwell", [ToolCall("multiply", {"a": "3"}), ToolCall("reveal", {})]),
        ("@note a, b, c", [ToolCall("note", {"text": "a, b, c"})]),
        (
            '@find {"x": 1}, near, ["a", "b"]',
            [ToolCall("find", {"point": {"x": 1}, "kind": "near", "tags": ["a", "b"]})],
        ),
        ("a @multiply 3, 4", []),
        ("<think>@multiply 3, 4\n</think>12", []),
    ):
        assert parse_short_calls(text, KNOWN) == found, text
    for text, why in (
        ("@", "a call is a line `@name argument, argument`"),
        ("@multiply(3, 4)", "a call is a line `@name argument, argument`"),
        ("@divide 3", "there is no tool divide; the tools are multiply, reveal"),
        ("@reveal 3", "reveal takes no arguments"),
        ("@find x, near, []", "argument point of find is not JSON"),
    ):
        [wrong] = parse_short_calls(text, KNOWN)
        assert isinstance(wrong, InvalidToolCall)
        assert wrong.error.startswith(why)


def test_without_a_chat_template_an_episode_is_played_in_the_short_form(plain: Tokenizer) -> None:
    actor = prepare_actor(plain, f"@multiply 3, 4\n@fail so{END}", f"@divide 1\n@multiply x{END}", f"12{END}")
    played = play(actor)
    [sequence] = played.sequences
    assert plain.decode(sequence.ids, special_tokens=True) == (
        f"3*4?@multiply 3, 4\n@fail so{END}= 12\n= error: KeyError: 'so'\n@divide 1\n@multiply x{END}"
        "= error: there is no tool divide; the tools are multiply, reveal, note, forget, fail, leave, leave_soon, "
        "hang, wait, lose, flood, find\n= error: argument a of multiply: Input should be a valid integer, unable to "
        f"parse string as an integer, got str 'x'\n12{END}"
    )
    assert find_sequence_fault(sequence, head_version=4) is None
    counts = {"turns": 3, "calls": 4, "tool_errors": 1, "unknown_tools": 1, "bad_calls": 1}
    nothing = {"tool_timeouts": 0, "none_outputs": 0, "cut_outputs": 0}
    assert (played.reward, played.parts) == (1, {**counts, **nothing, "length": 2})
    assert [(type(one.error), one.turn) for one in played.errors] == [(KeyError, 1)]


def test_a_template_that_shows_tools_makes_the_calls_those_of_hermes_unless_the_recipe_says_short(
    tmp_path: Path,
) -> None:
    shows = save_tokenizer(tmp_path / "shows")
    asked = '<tool_call>{"name": "multiply", "arguments": {"a": 3, "b": 4}}</tool_call>'
    hides = save_tokenizer(tmp_path / "hides", "{% for one in messages %}{{ one.content }}{% endfor %}")
    for tokenizer, settings, text, told in (
        (shows, {}, asked, "<tool_response>12</tool_response>"),
        (shows, {"calls": "short"}, "@multiply 3, 4", "= 12\n"),
        (hides, {}, "@multiply 3, 4", "= 12\n"),
    ):
        played = play(prepare_actor(tokenizer, text + END, "12" + END), **settings)
        assert told in tokenizer.decode(played.sequences[-1].ids)
        assert (played.reward, played.parts["calls"]) == (1, 1)


def test_an_episode_ends_at_the_last_turn_and_at_the_end_of_the_context(tmp_path: Path, plain: Tokenizer) -> None:
    texts = [f"@multiply 3, 4{END}"] * 3
    played = play(prepare_actor(plain, *texts), max_turns=2)
    assert (played.reward, played.parts["turns"], played.parts["calls"]) == (0, 2, 1)
    short = save_tokenizer(tmp_path / "short", template=None, context=24)
    played = play(prepare_actor(short, *texts))
    assert (played.reward, played.parts["turns"], played.parts["length"]) == (0, 1, 0)


def test_a_call_that_the_limit_of_tokens_cut_is_not_run(plain: Tokenizer) -> None:
    played = play(prepare_actor(plain, "@multiply 3, 1", f"12{END}"))
    assert played.parts["bad_calls"] == 1
    assert "= error: the call was cut off by the limit of tokens\n" in plain.decode(played.sequences[0].ids)


def test_a_result_loses_special_tokens_and_what_the_alphabet_lacks(plain: Tokenizer, tmp_path: Path) -> None:
    told = fit_to_policy(Outcome("t", f"a{END}b"), prepare_actor(plain))
    assert (told.text, told.is_cut) == ("ab", False)

    class Letters:
        def encode_plain(self, text: str) -> list[int]:
            from headrace.infra.weights.prompt_tokens import CannotEncode

            if set(text) - set("abc"):
                raise CannotEncode("it")
            return [ord(one) for one in text]

        def decode(self, ids: Any, *, special_tokens: bool = False) -> str:
            return "".join(map(chr, ids))

    told = fit_to_policy(Outcome("t", "a: B!c"), Letters())
    assert (told.text, told.is_cut) == ("ac", True)


def test_settings_and_alphabets_that_cannot_play_are_refused_before_a_run(plain: Tokenizer) -> None:
    for settings, why in (
        ({"max_turn": 2}, "workflow tools: no option 'max_turn'; the options are max_turns"),
        ({"max_turns": "2"}, "workflow tools: max_turns must be an integer"),
        ({"max_turns": 0}, "max_turns must be 1 or more, got 0"),
        ({"call_limit_s": 0}, "call_limit_s must be above 0"),
        ({"calls": "json"}, "calls must be one of auto, hermes, short; got 'json'"),
    ):
        with pytest.raises(ValueError, match=why):
            load_workflow("tools", settings)
    with pytest.raises(ValueError, match=r"no option 'x'; the options are \(none\)"):
        load_workflow("single_turn", {"x": 1})
    world: Any = type("Shop", (), {"name": "shop", "tools": (multiply,)})()
    with pytest.raises(ValueError, match=r"policies.p.alphabet: add '\\n @' to it"):
        check_alphabet("tools", world, "p", "multiply,=")
    check_alphabet("tools", world, "p", "multiply,= @\n")
    check_alphabet("single_turn", world, "p", "a")
    schemas = Problem("t", "?", tools=[read_tool(multiply).schema])
    with pytest.raises(ValueError, match=r"the workflow tools reads no Problem\.tools"):
        asyncio.run(play_tools(schemas, world, {"solver": prepare_actor(plain)}))
    assert load_workflow("tools") is play_tools


class Rewarding(World):
    """Each answer earns a part of the reward."""

    def score_turn(self, problem: Problem, text: str, results: list[str]) -> float | None:
        if text == "nothing":
            return None
        return 0.25 if results == [problem.answer] else float("nan") if text == "nan" else 0.75


def test_an_environment_may_say_what_part_of_the_reward_each_answer_has_earned(plain: Tokenizer) -> None:
    world: Any = IsolatedEnvironment(cast("Environment", Rewarding()))

    def rewards(*said: str) -> list[float | None]:
        actor = prepare_actor(plain, *(f"{text}{END}" for text in said))
        [sequence] = asyncio.run(load_workflow("tools", {})(PROBLEM, world, {"solver": actor}))["solver"].sequences
        return [span.reward for span in sequence.spans if span.kind == "generated"]

    assert rewards("@multiply 3, 4", "12") == [0.25, 0.75]
    assert rewards("@multiply 3, 4", "nothing") == [0.25, None]
    with pytest.raises(ValueError, match=r"score_turn.*must be finite"):
        rewards("nan")
