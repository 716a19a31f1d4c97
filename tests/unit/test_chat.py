"""Conversations: nothing that was sampled is encoded again, and a history that a template rewrites is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from chat_models import DROPS_THOUGHTS, END, KEEPS, Prepared, prepare_actor, save_tokenizer
from structlog.testing import capture_logs

from headrace.consumers.algorithms.validate import find_sequence_fault
from headrace.envs import chat as chat_module
from headrace.envs.chat import Chat, ChatError
from headrace.envs.contract import Actor, Problem
from headrace.envs.messages import Message
from headrace.producers.rollout.play.actor import EngineActor

ADD: dict[str, Any] = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
SYSTEM = {"role": "system", "content": "Be brief."}
ASKED = {"role": "user", "content": "1+1?"}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


def engine_of(actor: EngineActor) -> Prepared:
    found: Any = actor.engine
    return found  # type: ignore[no-any-return]


def play(chat: Chat, *turns: Message) -> list[str]:
    """Let a policy answer, and again after each of `turns`; return why each answer ended."""

    async def run() -> list[str]:
        reasons = [(await chat.generate()).finish_reason]
        for turn in turns:
            chat.add(turn)
            reasons.append((await chat.generate()).finish_reason)
        return reasons

    return asyncio.run(run())


def test_only_what_is_new_is_encoded_and_the_sequence_reads_like_the_template(tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path)
    actor = prepare_actor(tokenizer, CALL + END, "2" + END)
    chat = Chat(actor, "solver", [SYSTEM, ASKED], tools=[ADD])

    assert play(chat, {"role": "tool", "content": "2"}) == ["stop", "stop"]

    first, second = engine_of(actor).asked
    said = tokenizer.encode_plain(CALL + END)
    assert second[: len(first) + len(said)] == first + said, "what was read and sampled, token by token"
    [sequence] = chat.sequences()
    messages = [SYSTEM, ASKED, {"role": "assistant", "content": CALL}, {"role": "tool", "content": "2"}]
    assert tokenizer.decode(sequence.ids, special_tokens=True) == tokenizer.render(messages, [ADD]) + "2" + END
    assert list(chat.messages) == [*messages, {"role": "assistant", "content": "2"}]
    assert [(span.kind, span.turn) for span in sequence.spans] == [
        ("prompt", 0),
        ("generated", 0),
        ("observation", 1),
        ("generated", 1),
    ]
    assert (chat.text, chat.rewrites, sequence.parent) == ("2", 0, -1)
    assert find_sequence_fault(sequence, head_version=4) is None
    assert sequence.routing is not None
    assert sequence.routing.tokens == len(sequence.ids) - 1


def test_a_text_prompt_begins_as_a_text_environment_always_did_and_goes_on_as_messages(tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path)
    actor = prepare_actor(tokenizer, "3" + END, "2" + END)
    chat = Chat(actor, "solver", "1+1?")

    play(chat, {"role": "user", "content": "No."})

    assert engine_of(actor).asked[0] == tokenizer.encode("1+1?")
    assert len(chat.sequences()) == 1
    assert [message["content"] for message in chat.messages] == ["1+1?", "3", "No.", "2"]


def test_an_answer_that_was_cut_off_is_ended_by_the_template(tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path)
    chat = Chat(prepare_actor(tokenizer, "thre", "3" + END), "solver", [ASKED])

    assert play(chat, {"role": "user", "content": "Go on."}) == ["length", "stop"]

    [sequence] = chat.sequences()
    whole = tokenizer.decode(sequence.ids, special_tokens=True)
    assert f"thre{END}\n<|im_start|>user\nGo on.{END}" in whole
    ended = sequence.spans[2]
    assert (ended.kind, tokenizer.decode(sequence.ids[-ended.length - 2 :][:1], special_tokens=True)) == (
        "observation",
        END,
    )


def test_a_template_that_rewrites_history_is_noticed_once_and_a_new_sequence_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_module, "_reported", set())
    tokenizer = save_tokenizer(tmp_path, DROPS_THOUGHTS)
    texts = [f"<think>{word}</think>{word}{END}" for word in ("a", "b", "c")]
    actor = prepare_actor(tokenizer, *texts)
    chat = Chat(actor, "solver", [ASKED])

    with capture_logs() as logs:
        play(chat, ASKED, ASKED)

    sequences = chat.sequences(reward=1.0, first=5)
    assert (chat.rewrites, [one.parent for one in sequences]) == (2, [-1, 5, 6])
    assert [one.spans[-1].turn for one in sequences] == [0, 1, 2]
    assert logs == [
        {
            "event": "chat.rewritten",
            "log_level": "warning",
            "role": "solver",
            "kept": f"<think>a</think>a{END}",
            "rendered": f"a{END}\n<|im_start|>user\n1+1?<|im_en",
        }
    ]
    for one, text in zip(sequences, texts, strict=True):
        assert [span.kind for span in one.spans] == ["prompt", "generated"]
        assert tokenizer.decode(one.ids[one.spans[0].length :], special_tokens=True) == text, "as it was sampled"
        assert find_sequence_fault(one, head_version=4) is None
    assert "<think>" not in tokenizer.decode(engine_of(actor).asked[2])


def test_tools_that_a_template_does_not_show_are_refused(tmp_path: Path) -> None:
    hides = KEEPS.replace("{{ tool | tojson }}", "")
    with pytest.raises(ChatError, match="does not show the tools add"):
        play(Chat(prepare_actor(save_tokenizer(tmp_path, hides)), "solver", [ASKED], tools=[ADD]))


def test_a_problem_brings_messages_tools_and_template_arguments(tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path)
    problem = Problem("p", [SYSTEM, ASKED], tools=[ADD], template_arguments={"enable_thinking": False})
    actor = prepare_actor(tokenizer, "2" + END)

    play(Chat.of_problem(actor, "solver", problem))

    asked = tokenizer.decode(engine_of(actor).asked[0])
    assert asked.endswith("<think></think>")
    assert '"name": "add"' in asked


def test_images_and_what_is_no_message_are_refused_at_once(tmp_path: Path) -> None:
    image = {"role": "user", "content": [{"type": "text", "text": "?"}, {"type": "image_url", "image_url": {}}]}
    chat = Chat(prepare_actor(save_tokenizer(tmp_path)), "solver", [ASKED])
    with pytest.raises(TypeError, match=r"Problem.prompt\[0\].content\[1\] is of type image_url: messages hold text"):
        Problem("p", [image])
    with pytest.raises(TypeError, match=r"messages\[0\].content\[1\] is of type image_url"):
        chat.add(image)
    for wrong in ({"role": "robot", "content": ""}, {"role": "user"}, {"role": "user", "content": 3}):
        with pytest.raises(TypeError, match=r"messages\[0\]"):
            chat.add(wrong)
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    assert Problem("p", [parts]).text == "ab"


# ------------------------------------------------------------------------------------------------------ a full context


def a_long_chat(folder: Path, when_full: Any, context: int, turns: int = 4, **options: Any) -> tuple[Chat, list[str]]:
    """Play turns, each of 20 tokens and more."""
    tokenizer = save_tokenizer(folder, context=context)
    actor = prepare_actor(tokenizer, *(f"answer {turn}{END}" for turn in range(4)))
    chat = Chat(actor, "solver", [SYSTEM, ASKED], when_full=when_full, **options)
    return chat, play(chat, *({"role": "user", "content": f"question {turn}"} for turn in range(1, turns)))


def test_a_conversation_that_fills_the_context_stops_by_default(tmp_path: Path) -> None:
    chat, reasons = a_long_chat(tmp_path, "stop", 100, turns=3)

    assert reasons == ["stop", "stop", "length"]
    [sequence] = chat.sequences()
    assert (len(sequence.spans), chat.text, chat.tool_calls) == (4, "", [])
    assert len(sequence.ids) < 100


def test_the_oldest_turns_may_be_dropped_in_a_new_sequence(tmp_path: Path) -> None:
    chat, reasons = a_long_chat(tmp_path, "drop_oldest", 180)

    assert reasons == ["stop"] * 4
    first, second = chat.sequences()
    assert (first.parent, second.parent, chat.rewrites) == (-1, 0, 0)
    begun = save_tokenizer(tmp_path).decode(second.ids[: second.spans[0].length])
    assert ("Be brief." in begun, "1+1?" in begun, "answer 0" in begun) == (True, True, False)
    assert [message["content"] for message in chat.messages][:3] == ["Be brief.", "1+1?", "answer 1"]


def test_a_loop_in_a_full_context_gives_way_once_and_then_ends_with_an_error(tmp_path: Path) -> None:
    chat, _ = a_long_chat(tmp_path, "stop", 100, turns=2)
    chat.add({"role": "user", "content": "x" * 100})
    others = []

    async def run() -> None:
        asyncio.get_running_loop().call_soon(others.append, "ran")
        while True:
            await chat.generate()

    with pytest.raises(ChatError, match=r"context of 100 tokens is full, .* end the loop of turns when"):
        asyncio.run(run())
    assert others == ["ran"]


def test_an_own_function_says_how_a_full_conversation_goes_on(tmp_path: Path) -> None:
    async def sum_up(messages: Sequence[Message]) -> list[Message]:
        await asyncio.sleep(0)
        return [SYSTEM, {"role": "user", "content": f"after {len(messages)} messages"}]

    def keep_all(messages: Sequence[Message]) -> Sequence[Message]:
        return messages

    chat, reasons = a_long_chat(tmp_path, sum_up, 180)
    assert reasons == ["stop"] * 4
    assert [message["content"] for message in chat.messages][1] == "after 8 messages"
    assert [one.parent for one in chat.sequences()] == [-1, 0]

    _, reasons = a_long_chat(tmp_path, keep_all, 180)
    assert reasons[-1] == "length"


def test_a_first_prompt_that_is_too_long_and_an_unknown_policy_are_refused(tmp_path: Path) -> None:
    actor: Actor = prepare_actor(save_tokenizer(tmp_path, context=20))
    with pytest.raises(ChatError, match="too long for the model's context of 20 tokens"):
        play(Chat(actor, "solver", [SYSTEM, ASKED]))
    unknown: Any = "forget"
    with pytest.raises(ChatError, match="when_full must be"):
        Chat(actor, "solver", [ASKED], when_full=unknown)


def test_an_answer_may_have_a_reward_of_its_own_beside_that_of_the_episode(tmp_path: Path) -> None:
    chat = Chat(prepare_actor(save_tokenizer(tmp_path), "1" + END, "2" + END), "solver", [ASKED])
    with pytest.raises(ChatError, match="no answer"):
        chat.reward_answer(1.0)

    play(chat)
    chat.reward_answer(0.5)
    play(chat)

    [sequence] = chat.sequences(reward=1.0)
    assert sequence.reward == 1.0
    assert [span.reward for span in sequence.spans if span.kind == "generated"] == [0.5, None]


def test_a_conversation_that_another_one_started_names_the_sequence_that_did(tmp_path: Path) -> None:
    actor = prepare_actor(save_tokenizer(tmp_path, DROPS_THOUGHTS), "<think>a</think>1" + END, "2" + END)
    chat = Chat(actor, "solver", [ASKED], agent_id="sub-1")

    play(chat, ASKED)

    assert [(one.agent_id, one.parent) for one in chat.sequences(first=7, parent=4)] == [("sub-1", 4), ("sub-1", 7)]
