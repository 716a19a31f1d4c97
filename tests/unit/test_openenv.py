"""OpenEnv's wire both ways: our client plays our server; no server that lies, dies or is full becomes a reward."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from chat_models import END, prepare_actor, save_tokenizer
from corridor import HANGS, Corridor
from openenv_servers import CLOSE, FIRST, HANG, RESET, answering, lying, replying, serving
from typer.testing import CliRunner
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from headrace.app.cli.main import app
from headrace.envs.arithmetic import Arithmetic
from headrace.envs.contract import RoleTrajectory, Split
from headrace.envs.identity import find_version
from headrace.envs.ledger import Ledger
from headrace.envs.openenv import places, session
from headrace.envs.openenv.environment import OpenEnv
from headrace.envs.openenv.places import PLACES
from headrace.envs.openenv.wire import read_action_form, read_tools, show_observation
from headrace.envs.registry import check_plays, load_environment, load_workflow
from headrace.envs.tool_calls import ToolCall
from headrace.envs.tools.forms import parse_short_calls
from headrace.envs.tools.functions import build_foreign_tool
from headrace.envs.worlds.contract import WorldFailed
from headrace.infra.unreachable import OutOfTime, is_unreachable
from headrace.infra.weights.policy_files import Tokenizer
from headrace.producers.rollout.play.failures import build_failure


@pytest.fixture
def plain(tmp_path: Path) -> Tokenizer:
    return save_tokenizer(tmp_path, template=None)


def play(url: str, actor: Any, index: int = 0, split: Split = "train", **settings: Any) -> RoleTrajectory:
    limit = {"step_limit_s": settings.pop("step_limit_s", 10.0)}
    env = OpenEnv(1, url, **settings)
    return asyncio.run(load_workflow("world", limit)(env.problem(split, index), env, {"agent": actor}))["agent"]


def act(url: str, tokenizer: Tokenizer, *answers: str, **settings: Any) -> RoleTrajectory:
    return play(url, prepare_actor(tokenizer, *(f"{one}{END}" for one in answers)), **settings)


# ----------------------------------------------------------------------------------------------------- there and back


def test_our_client_plays_a_world_of_ours_over_the_wire(plain: Tokenizer) -> None:
    with serving(Corridor()) as url:
        played = act(url, plain, "right", "left", "right", "right", "right", index=7)
        text = plain.decode(played.sequences[0].ids)
        held_out = OpenEnv(1, url)
        assert (held_out.size("held_out"), held_out.size("train"), held_out.size("warm_start")) == (4, None, 0)
        assert find_version(held_out) == "corridor"
    assert text.startswith("train 7\nrightat 1\n"), "as at home"
    assert played.reward == pytest.approx(4 / 3)
    assert (played.parts["turns"], played.parts["done"]) == (5, 1)


def test_our_client_plays_an_environment_with_tools(plain: Tokenizer) -> None:
    ledger = Ledger(1)
    problem = ledger.problem("held_out", 3)
    *calls, answer = ledger.solve(problem)
    with serving(ledger) as url:
        played = act(url, plain, *calls, f"@answer {answer}", index=3, split="held_out")
        wrong = act(url, plain, "@get", "@answer 0", index=3, split="held_out")
    text = plain.decode(played.sequences[0].ids)
    assert text.startswith(f"{problem.text}\n")
    assert f"= {answer}\n" in text
    assert (played.reward, played.parts["done"], played.parts["actions"]) == (1, 1, 4)
    assert (wrong.reward, wrong.parts["bad_calls"]) == (0, 1)


@pytest.mark.parametrize("name", ["alfworld", "webshop", "textcraft"])
def test_the_worked_solutions_of_shipped_worlds_earn_all_over_the_wire(plain: Tokenizer, name: str) -> None:
    settings = {"tiers": ["depth2"], "spawns": False} if name == "textcraft" else {}
    env: Any = load_environment(name, 1, settings)
    *actions, last = env.solve(env.problem("held_out", 2))
    answers = [*actions, f"@answer {last}" if name == "textcraft" else last]
    with serving(env) as url:
        played = act(url, plain, *answers, index=2, split="held_out")
    assert (played.reward, played.parts["turns"], played.parts["done"]) == (pytest.approx(1), len(answers), 1)


def test_our_client_plays_an_environment_of_single_answers(plain: Tokenizer) -> None:
    problem = (env := Arithmetic(1)).problem("train", 5)
    with serving(env) as url:
        right, wrong = (act(url, plain, answer, index=5) for answer in (f"\\boxed{{{problem.answer}}}", "no"))
    assert plain.decode(right.sequences[0].ids).startswith(problem.text)
    assert (right.reward, right.parts["turns"], right.parts["done"]) == (1, 1, 1)
    assert wrong.reward < 1


def test_a_group_waits_for_places_of_a_server_that_serves_one_session_and_is_told(
    plain: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(Corridor(), sessions=1) as url:
        env = OpenEnv(1, url)

        async def play_together() -> list[RoleTrajectory]:
            flow = load_workflow("world")
            actors = [prepare_actor(plain, *[f"right{END}"] * 3) for _ in range(4)]
            played = [flow(env.problem("train", 0), env, {"agent": actor}) for actor in actors]
            return [one["agent"] for one in await asyncio.gather(*played)]

        assert [one.reward for one in asyncio.run(play_together())] == [pytest.approx(1)] * 4
    assert "world.full" in capsys.readouterr().out


@asynccontextmanager
async def take_place(address: str) -> AsyncIterator[ClientConnection]:
    """Give a client that has a session; wait for a place."""
    ends_s = time.monotonic() + 60
    while True:
        async with connect(address, proxy=None) as client:
            with suppress(ConnectionClosed):  # a server that is full says so unasked
                await client.send('{"type": "state"}')
            if (said := json.loads(await client.recv()))["type"] == "state":
                yield client
                return
        assert time.monotonic() < ends_s, said


def test_a_world_gives_its_place_back_once_also_if_its_close_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    async def open_and_close(url: str) -> list[int]:
        env = OpenEnv(1, url)
        worlds = [await env.open_world(env.problem("train", 0)) for _ in range(2)]
        await worlds[0].close()
        await worlds[0].close()
        counts = [PLACES[url]._opened]
        end = worlds[1]._session.close
        monkeypatch.setattr(worlds[1]._session, "close", asyncio.Event().wait)
        closing = asyncio.create_task(worlds[1].close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        await end()
        return [*counts, PLACES[url]._opened]

    with serving(Corridor()) as url:
        assert asyncio.run(open_and_close(url)) == [1, 0]


def test_a_session_whose_client_is_gone_gives_its_place_back_and_a_broken_one_goes_on() -> None:
    async def talk(url: str) -> list[Any]:
        address = f"ws{url.removeprefix('http')}/ws"
        async with connect(address, proxy=None) as gone:
            await gone.send('{"type": "reset"}')
            await gone.recv()
            gone.transport.abort()
        said = []
        async with take_place(address) as client:
            for message in (
                "no json",
                "[1]",
                '{"type": "what"}',
                '{"type": "step", "data": {"text": "left"}}',
                '{"type": "reset", "data": {"index": -1}}',
                '{"type": "reset", "data": {"split": "held_out", "index": 4}}',
                '{"type": "reset", "data": {"seed": 3, "episode_id": "e"}}',
                '{"type": "reset", "data": {"split": ["a"]}}',
                '{"type": "reset", "data": {"split": {}}}',
                '{"type": "step", "data": {"move": "left"}}',
                '{"type": "step", "data": {"text": 3}}',
                '{"type": "step", "data": {"text": "left"}}',
                '{"type": "state"}',
                '{"type": "step", "data": {"text": "nan"}}',
                '{"type": "step", "data": {"text": "left"}}',
                '{"type": "reset", "data": {"index": 5}}',
            ):
                await client.send(message)
                said.append(json.loads(await client.recv()))
        return said

    with serving(Corridor(), sessions=1) as url:
        said = asyncio.run(talk(url))
    codes = [one["data"].get("code", one["type"]) for one in said]
    assert codes == [
        "INVALID_JSON",
        "VALIDATION_ERROR",
        "UNKNOWN_TYPE",
        "EXECUTION_ERROR",
        "VALIDATION_ERROR",
        "VALIDATION_ERROR",
        "observation",
        *["VALIDATION_ERROR"] * 4,
        "observation",
        "state",
        "EXECUTION_ERROR",
        "EXECUTION_ERROR",
        "observation",
    ]
    assert said[11]["data"] == {"observation": {"text": "at -1", "metadata": {}}, "reward": None, "done": False}
    assert said[12]["data"] == {"episode_id": "e", "step_count": 1}
    assert "must be finite" in said[13]["data"]["message"]


def test_tools_are_listed_with_or_without_metadata_and_a_failing_call_is_told_as_an_error() -> None:
    async def talk(address: str) -> list[dict[str, Any]]:
        said = []
        async with connect(address, proxy=None) as client:
            await client.send('{"type": "reset"}')
            await client.recv()
            for action in (
                {"type": "list_tools"},
                {"type": "list_tools", "metadata": {}},
                {"tool_name": "nothing"},
                {"tool_name": "get", "arguments": {"x": 1}},
                {"tool_name": "get", "arguments": {"name": "a"}},
            ):
                await client.send(json.dumps({"type": "step", "data": action}))
                said.append(json.loads(await client.recv())["data"]["observation"])
        return said

    with serving(Ledger(1)) as url:
        listed, again, unknown, wrong, right = asyncio.run(talk(f"ws{url.removeprefix('http')}/ws"))
    assert [one["name"] for one in listed["tools"]][-1] == "answer"
    assert again == listed
    assert [one["result"] for one in (unknown, wrong)] == [None, None]
    assert unknown["error"]["error_type"] == "tool_not_found"
    assert unknown["error"]["message"].startswith("there is no tool nothing")
    assert wrong["error"] == {"error_type": "invalid_args", "message": "get has no argument x; its arguments are name"}
    assert right["error"] is None
    assert right["result"]


def test_a_problem_that_never_comes_ends_in_time_and_holds_no_place_of_a_client_that_is_gone() -> None:
    async def reset(client: ClientConnection, index: int) -> Any:
        await client.send(json.dumps({"type": "reset", "data": {"index": index}}))
        return json.loads(await client.recv())

    async def wait_for_late(address: str) -> list[Any]:
        async with connect(address, proxy=None) as client:
            return [await reset(client, index) for index in (1, HANGS, 1)]

    async def leave_and_come(address: str) -> str:
        async with connect(address, proxy=None) as gone:
            await gone.send(json.dumps({"type": "reset", "data": {"index": HANGS}}))
            await (await gone.ping())
            gone.transport.abort()
        async with take_place(address) as client:
            return str((await reset(client, 1))["type"])

    with serving(Corridor(), limit_s=3) as url:
        first, late, third = asyncio.run(wait_for_late(f"ws{url.removeprefix('http')}/ws"))
    assert (first["type"], late["data"]["code"], third["type"]) == ("observation", "EXECUTION_ERROR", "observation")
    assert "corridor.problem took longer than 3 s" in late["data"]["message"]
    with serving(Corridor(), sessions=1, limit_s=300) as url:
        assert asyncio.run(leave_and_come(f"ws{url.removeprefix('http')}/ws")) == "observation"


def ask(url: str, body: Any, path: str = "/corridor/task") -> tuple[int, Any]:
    content = body if isinstance(body, bytes) else json.dumps(body)
    answer = httpx2.post(f"{url}{path}", content=content, trust_env=False)
    return answer.status_code, answer.json() if answer.status_code == 200 else answer.text


def test_a_body_that_is_no_json_too_long_or_of_wrong_types_is_refused() -> None:
    with serving(Corridor()) as url:
        assert ask(url, {"split": "held_out", "index": 3})[0] == 200
        for body, status, why in (
            (b"{" + b" " * 70_000 + b"}", 413, "the body has more than 65536 bytes"),
            (b"{", 422, "the body is no JSON"),
            (b"\xff", 422, "the body is no JSON"),
            (b"[" * 60_000, 422, "the body is no JSON"),
            ([], 422, "the body must be a JSON object"),
            ({"split": ["a"]}, 400, "split: there is no list ['a']; there are train, held_out"),
            ({"split": {}}, 400, "split: there is no dict {}"),
        ):
            assert (found := ask(url, body))[0] == status
            assert why in found[1]


def test_tasks_are_listed_all_or_refused() -> None:
    with serving(Corridor()) as url:
        _, listed = ask(url, {"split": "held_out"}, "/corridor/tasks")
        assert [one["index"] for one in listed["tasks"]] == [0, 1, 2, 3]
        _, some = ask(url, {"split": "train", "start": 5, "stop": 5005}, "/corridor/task_range")
        assert [one["index"] for one in some["tasks"]] == list(range(5, 5005))
        for path, more in (("tasks", {}), ("task_range", {"start": 7}), ("task_range", {"stop": 10**30})):
            found = ask(url, {"split": "train", **more}, f"/corridor/{path}")
            assert found == (400, "more than 100000 tasks at once: ask /task_range for fewer")


# ------------------------------------------------------------------------------------------------------ bad servers


def step(**data: Any) -> dict[str, Any]:
    return {"type": "observation", "data": {"observation": {"seen": "x"}, "reward": 0.0, "done": False} | data}


def error(code: str, message: str = "why", **more: Any) -> dict[str, Any]:
    return {"type": "error", "data": {"code": code, "message": message, **more}}


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        (
            ["hello"],
            "does not begin an episode: http://.* answers with what is no JSON: str 'hello'",
        ),
        ([{"type": "state", "data": {}}], "answers with no observation"),
        (["[]"], "answers with no observation, got list"),
        ([step(observation=[1])], "does not begin an episode: its observation must be a JSON object, got list"),
        ([step(done=True)], "it is over before the first action"),
        ([step(observation={})], "the first observation is empty: set `prompt`"),
        ([error("FACTORY_ERROR")], "does not begin an episode: FACTORY_ERROR: why"),
        ([FIRST, "hello"], "failed at an action: .* is no JSON"),
        ([FIRST, step(reward="much")], "the reward of openenv must be a number, got str 'much'"),
        ([FIRST, json.dumps(step(reward=float("nan")))], "the reward of openenv must be finite, got nan"),
        ([FIRST, json.dumps(step()).replace("0.0", "1e999")], "must be finite, got inf"),
        ([FIRST, step(done="yes")], "openenv must say by True or False whether it is done, got str 'yes'"),
        ([FIRST, step(observation=None)], "its observation must be a JSON object, got NoneType"),
        ([FIRST, error("EXECUTION_ERROR", "KeyError: 'x'")], "failed at an action: EXECUTION_ERROR: KeyError: 'x'"),
        ([FIRST, CLOSE], "failed at an action: it closed the connection"),
        ([FIRST, RESET], "failed at an action: it closed the connection"),
        ([FIRST, step(), RESET], "failed at an action: it closed the connection"),
        ([FIRST, "x" * 3000], "it closed the connection: .*1009"),
    ],
)
def test_a_server_that_lies_or_dies_fails_the_episode_with_its_reason(
    plain: Tokenizer, monkeypatch: pytest.MonkeyPatch, answers: list[Any], why: str
) -> None:
    monkeypatch.setattr(session, "MOST_BYTES", 2000)
    with lying(*answers) as url, pytest.raises(WorldFailed, match=why) as failed:
        act(url, plain, "go", "go")
    assert build_failure(0, failed.value).reason == "environment"


@pytest.mark.parametrize(
    ("routes", "status", "kind", "why"),
    [
        ({"/schema": "<html>"}, 101, WorldFailed, "/schema answers with what is no JSON"),
        ({"/schema": {"action": 3}}, 101, WorldFailed, "its /schema has no JSON schema of an action"),
        ({"/schema": None}, 101, WorldFailed, "has no route /schema: is it an OpenEnv server"),
        ({}, 404, WorldFailed, "answers with HTTP 404: is it an OpenEnv server"),
        ({}, 503, ConnectionError, "answers with HTTP 503"),
        ({}, 0, ConnectionError, "does not answer"),
        ({"/schema": {"action": {"properties": {}}}}, 101, WorldFailed, "its actions are calls of tools, but it lists"),
    ],
)
def test_what_is_no_server_of_openenv_is_told_from_one_that_is_away(
    plain: Tokenizer, routes: dict[str, Any], status: int, kind: type[Exception], why: str
) -> None:
    with lying(FIRST, FIRST, routes=routes, status=status) as url, pytest.raises(kind, match=why) as failed:
        act(url, plain, "go")
    assert is_unreachable(failed.value) == (kind is ConnectionError)


def test_what_speaks_no_http_is_no_server_that_is_away_but_one_that_hangs_up_is() -> None:
    for scheme, text, kind in (
        ("http", b"SSH-2.0-x\r\n\r\n", WorldFailed),
        ("https", b"HTTP/1.1 400 Bad Request\r\n\r\n", WorldFailed),
        ("http", b"", ConnectionError),
        ("http", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{", ConnectionError),
    ):
        with replying(text) as address, pytest.raises(kind):
            OpenEnv(1, f"{scheme}{address}").size("train")


def test_a_server_that_is_away_or_full_makes_the_episode_wait(
    plain: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConnectionError, match="does not answer") as failed:
        act("http://127.0.0.1:1", plain, "go")
    assert build_failure(0, failed.value).reason == "unreachable"
    full = error("CAPACITY_REACHED")
    with lying(full, full, FIRST, step(done=True, reward=1)) as url:
        assert act(url, plain, "go").reward == 1
    monkeypatch.setattr(places, "FULL_LIMIT_S", 0.2)
    why = r"is full \(CAPACITY_REACHED: why\) for 0.2 s: let it serve more sessions"
    with lying(*[full] * 50) as url, pytest.raises(OutOfTime, match=why) as failed:
        act(url, plain, "go")
    assert build_failure(0, failed.value).reason == "time_limit"
    with lying(CLOSE) as url, pytest.raises(ConnectionError, match="closed the connection at the start"):
        act(url, plain, "go")


def test_a_server_that_hangs_fails_the_episode_in_time(plain: Tokenizer) -> None:
    with lying(HANG) as url, pytest.raises(OutOfTime, match=r"began no episode within 0.2 s \(start_limit_s\)"):
        act(url, plain, "go", start_limit_s=0.2)
    tools = {"/schema": {"action": {"properties": {}}}}
    with lying(FIRST, HANG, routes=tools) as url, pytest.raises(OutOfTime, match=r"began no episode within 0.2 s"):
        act(url, plain, "go", start_limit_s=0.2)
    with lying(FIRST, HANG) as url, pytest.raises(OutOfTime, match=r"an action in openenv took longer than 0.2 s"):
        act(url, plain, "go", step_limit_s=0.2)


def test_a_server_that_computes_for_long_is_not_left_for_want_of_pongs() -> None:
    async def look(url: str) -> float | None:
        opened = await session.OpenEnvSession.connect(url)
        await opened.close()
        return opened._socket.ping_interval

    with lying() as url:
        assert asyncio.run(look(url)) is None


def test_an_action_that_the_server_refuses_is_told_to_the_policy(plain: Tokenizer) -> None:
    wrong = [{"loc": ["move"], "msg": "too long"}, {"loc": ["x", 0], "msg": "extra"}]
    refused = error("VALIDATION_ERROR", "Invalid message", errors=wrong)
    with lying(FIRST, refused, step(done=True, reward=1)) as url:
        played = act(url, plain, "go", "on")
    assert "error: move: too long; x.0: extra\n" in plain.decode(played.sequences[0].ids)
    assert (played.reward, played.parts["bad_calls"], played.parts["actions"]) == (1, 1, 1)


# --------------------------------------------------------------------------------------------------- shapes and tasks


def test_the_form_of_actions_is_read_from_the_schema() -> None:
    text, number = {"type": "string"}, {"type": "integer"}
    metadata = {"metadata": {"type": "object"}}
    for properties, required, actions, written in (
        ({"move": text, **metadata}, ["move"], [], {"move": "e4"}),
        ({"kind": {"const": "say"}, "move": text}, [], [], {"kind": "say", "move": "e4"}),
    ):
        form = read_action_form({"action": {"properties": properties, "required": required}})
        assert (form.list_actions(), form.write("", {"text": "e4"})) == (actions, written)
    several = {"properties": {"x": number, "y": text, "t": {"const": 1}}, "required": ["x", "t"], "$defs": {"a": {}}}
    form = read_action_form({"action": several})
    [action] = form.list_actions()
    assert action["parameters"] == {
        "type": "object",
        "properties": {"x": number, "y": text},
        "required": ["x"],
        "$defs": {"a": {}},
    }
    assert form.write("act", {"x": 3}) == {"t": 1, "x": 3}
    one = read_action_form({"action": {"properties": {"move": {"type": "string", "enum": ["a"]}}}})
    assert one.list_actions(), "a choice is no free text"


def test_tools_and_actions_that_no_call_can_fit_are_refused() -> None:
    tool = {"name": "get", "input_schema": {"properties": {"a": {"type": "string"}}, "required": None}}
    assert read_tools({"tools": [tool]})[0]["parameters"]["required"] == []
    for name in ("get-weather", "browser.click"):
        [read] = read_tools({"tools": [{**tool, "name": name}]})
        known = [build_foreign_tool(name, "", read["parameters"], print)]
        assert parse_short_calls(f"@{name} x", known) == [ToolCall(name, {"a": "x"})]
    with pytest.raises(WorldFailed, match="it lists two tools of the name get"):
        read_tools({"tools": [tool, tool]})
    for required in ("a", [3], ["b"], [["a"]], 1):
        schema = {"properties": {"a": {}, "c": {}}, "required": required}
        with pytest.raises(
            WorldFailed, match="the input_schema of its tool get requires what is not in its properties"
        ):
            read_tools({"tools": [{"name": "get", "input_schema": schema}]})
        with pytest.raises(WorldFailed, match="its /schema requires what is not in its properties"):
            read_action_form({"action": schema})


def test_the_policy_reads_the_only_field_the_chosen_one_or_all() -> None:
    for observation, chosen, text in (
        ({"a": "x", "done": False, "metadata": {"m": 1}}, "", "x"),
        ({"a": "ü", "b": 2}, "", '{"a": "ü", "b": 2}'),
        ({"a": "x", "b": 2}, "b", "2"),
        ({"metadata": {"text": "hi"}}, "", '{"text": "hi"}'),
        ({}, "", ""),
        ({"tool_name": "t", "result": "r", "error": None}, "", "r"),
        ({"tool_name": "t", "result": {"content": [{"type": "text", "text": "3"}]}, "error": None}, "", "3"),
        ({"tool_name": "t", "result": {"content": [], "structured_content": {"r": 3}}}, "", '{"r": 3}'),
        ({"tool_name": "t", "result": None, "error": {"error_type": "timeout", "message": "late"}}, "", "error: late"),
    ):
        assert show_observation(observation, chosen) == text
    with pytest.raises(WorldFailed, match="its observation has no field 'c'; the fields are a, b"):
        show_observation({"a": 1, "b": 2, "reward": 1}, "c")


def test_splits_are_chosen_by_their_types_or_named_and_without_tasks_seeds_never_end() -> None:
    splits = [{"name": "dev", "type": "validation"}, {"name": "all", "type": "train"}, {"name": "hard", "type": "test"}]
    there: dict[str, Any] = {"/list_environments": ["w"], "/w/splits": splits}
    with answering(there) as url:
        env = OpenEnv(1, url)
        assert (env.size("train"), env.size("held_out")) == (None, None), "it does not count"
        assert {"split": "all", "index": 3}.items() <= env.problem("train", 3).extra["reset"].items()
        assert OpenEnv(1, url, held_out="dev", tasks=9).problem("held_out", 0).extra["reset"]["split"] == "dev"
        assert OpenEnv(1, url, tasks=9).size("train") == 9
        with pytest.raises(WorldFailed, match="has no split 'x'; it has dev, all, hard"):
            OpenEnv(1, url, train="x").size("train")
        for same in ({"held_out": "all"}, {"train": "dev", "held_out": "dev"}):
            with pytest.raises(WorldFailed, match=r"held_out would be '(all|dev)', the split for training"):
                OpenEnv(1, url, **same).size("held_out")  # type: ignore[arg-type]
        with pytest.raises(WorldFailed, match="has no world 'v'; it has w"):
            OpenEnv(1, url, env="v").size("train")
    for count in (-1, "many", True, None):
        counted = {**there, "/w/num_tasks": {"num_tasks": count}}
        with answering(counted) as url, pytest.raises(WorldFailed, match="does not count the tasks of split all"):
            OpenEnv(1, url).size("train")
    with answering({**there, "/w/num_tasks": {"num_tasks": 7}}) as url:
        assert [OpenEnv(1, url, tasks=tasks).size("train") for tasks in (0, 3, 9)] == [7, 3, 7]
    with answering({"/metadata": {"name": "W", "version": "1.2"}}) as url:
        env, other = OpenEnv(1, url), OpenEnv(2, url)
        assert (env.size("train"), find_version(env)) == (None, "W 1.2")
        assert list(env.problem("train", 0).extra["reset"]) == ["seed"]
        assert env.problem("train", 0) != env.problem("train", 1)
        assert env.problem("train", 0) != other.problem("train", 0)
        assert env.problem("held_out", 0) == other.problem("held_out", 0)
    with lying(routes={"/metadata": "<html>"}) as url:
        assert not OpenEnv(1, url).version


def test_a_world_of_any_name_has_its_tasks_and_a_named_one_without_any_is_refused() -> None:
    name = "my data #1? 50%20x"
    there = {f"/{name}/splits": [{"name": "all", "type": "train"}], f"/{name}/num_tasks": {"num_tasks": 7}}
    with answering({"/list_environments": [name], **there}) as url:
        assert (OpenEnv(1, url).size("train"), OpenEnv(1, url, env=name).size("train")) == (7, 7)
    with answering({"/list_environments": [name]}) as url:
        assert OpenEnv(1, url).size("train") is None
        with pytest.raises(WorldFailed, match=r"lists no splits of tasks for 'my data .*': leave `env` out"):
            OpenEnv(1, url, env=name).size("train")


def test_wrong_settings_are_refused() -> None:
    for settings, why in (
        ({"url": "localhost:8000"}, "url must be the address of a server, as http://host:port; got 'localhost:8000'"),
        ({"url": "http://"}, "url must be the address of a server"),
        ({"url": "http://host:port"}, "url must be the address of a server"),
        ({"url": "http://a", "tasks": -1}, "tasks must be 0 or more"),
        ({"url": 3}, "url must be a string"),
    ):
        with pytest.raises(ValueError, match=why):
            load_environment("openenv", 1, settings)
    for url in ("https://a", "http://127.0.0.1:80/", "http://[::1]:80", "https://me:key@a-b.c:443/path"):
        check_plays("world", load_environment("openenv", 1, {"url": url}))


def test_what_cannot_be_served_is_refused(tmp_path: Path) -> None:
    for words, why in (
        (["errands"], "environment errands has worlds in boxes, which cannot be served"),
        (["openenv", "--set", "url=http://127.0.0.1:1"], "127.0.0.1:1 does not answer"),
        (["nothing"], "'nothing' is not known"),
        (["ledger", "--set", "most"], "--set needs KEY=VALUE"),
        (["ledger", "--set", "most=1"], "must be 2 or more; got 1"),
    ):
        done = CliRunner().invoke(app, ["serve-env", *words, "--port", "0"])
        assert done.exit_code != 0
        assert why in str(done.exception), words
