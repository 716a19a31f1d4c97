"""The turns of one agent: it answers and calls, until an answer has no call or a limit is reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from headrace.envs.chat import Chat
from headrace.envs.contract import Actor, Generation, ToolError
from headrace.envs.tool_calls import InvalidToolCall, ToolCall
from headrace.envs.tools.forms import HERMES, build_observations, fit_to_policy, parse_short_calls, refuse_cut_call
from headrace.envs.tools.functions import Tool
from headrace.envs.tools.outcomes import KINDS, Outcome

AnswerCalls = Callable[[Sequence[ToolCall | InvalidToolCall]], Awaitable[Sequence[Outcome]]]
"""Runs the calls of one answer, and returns their outcomes in order."""
ScoreTurn = Callable[[str, Sequence[str]], Awaitable[float | None]]
"""Returns the reward of one answer by its text and the results of its calls; None for no reward of its own."""


@dataclass(slots=True)
class Tally:
    """What happened in an episode so far."""

    counts: Counter[str] = field(default_factory=Counter)
    errors: list[ToolError] = field(default_factory=list)

    def note(self, outcomes: Sequence[Outcome]) -> None:
        """Count the outcomes of one answer."""
        turn = self.counts["turns"]
        self.counts["calls"] += len(outcomes)
        self.counts["cut_outputs"] += sum(one.is_cut for one in outcomes)
        self.counts.update(one.kind for one in outcomes if one.kind)
        self.errors += [told for one in outcomes if (told := one.tell(turn)) is not None]

    def list_parts(self, *more: str) -> dict[str, float]:
        """Return the parts of the reward, with counts that only some workflows have."""
        return {name: float(self.counts[name]) for name in ("turns", "calls", *KINDS, "cut_outputs", *more)}


@dataclass(slots=True)
class Budget:
    """What all agents of an episode may spend together; 0 is no limit.

    It is looked at before an answer, so each agent that answers meanwhile may exceed it by that one answer.
    """

    answers: int = 0
    tokens: int = 0
    """Generated ones."""
    spent_answers: int = 0
    spent_tokens: int = 0

    def is_spent(self) -> bool:
        """Return whether no further answer may begin."""
        is_over = self.answers and self.spent_answers >= self.answers
        return bool(is_over or (self.tokens and self.spent_tokens >= self.tokens))


async def play_turns(  # noqa: PLR0913 - an agent, what it may call, and its limits
    chat: Chat,
    actor: Actor,
    form: str,
    known: Sequence[Tool],
    answer_calls: AnswerCalls,
    *,
    tally: Tally,
    max_turns: int,
    budget: Budget,
    score_turn: ScoreTurn,
) -> str:
    """Let an agent answer until an answer without a call; return why there is none, or an empty text.

    Calls of the last of `max_turns` answers are not run.
    """
    for turn in range(1, max_turns + 1):
        if budget.is_spent():
            return "the budget of all agents is spent"
        budget.spent_answers += 1
        made = await chat.generate()
        budget.spent_tokens += len(made.ids)
        if not len(made.ids):
            return "the context is full"
        tally.counts["turns"] += 1
        asked, outcomes = parse_calls(chat, made, form, known), list[Outcome]()
        if asked and turn < max_turns:
            outcomes = [fit_to_policy(one, actor) for one in await answer_calls(asked)]
            tally.note(outcomes)
        if (reward := await score_turn(chat.text, [one.text for one in outcomes])) is not None:
            chat.reward_answer(reward)
        if not asked:
            return ""
        if outcomes:
            chat.add(*build_observations(form, outcomes))
    return f"there were {max_turns} answers, all with calls"


def parse_calls(chat: Chat, made: Generation, form: str, known: Sequence[Tool]) -> list[ToolCall | InvalidToolCall]:
    """Return the calls of the newest answer, in the form of the policy."""
    if form == HERMES:
        return chat.tool_calls
    found = parse_short_calls(chat.text, known)
    return refuse_cut_call(found, chat.text) if made.finish_reason == "length" else found
