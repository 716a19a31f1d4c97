"""A workflow with sub-agents: an agent starts others on tasks of its own, reads their answers, and answers.

Whoever waits for a sub-agent holds no place in the engine, so trees of any shape end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from headrace.envs.chat import Chat
from headrace.envs.contract import Actor, Environment, Episode, Problem, RoleTrajectory, Score
from headrace.envs.isolation import IsolatedEnvironment, isolate
from headrace.envs.thoughts import read_answer
from headrace.envs.tool_calls import InvalidToolCall, ToolCall
from headrace.envs.tools.forms import AUTO, HERMES, choose_form, list_lacking
from headrace.envs.tools.functions import BadArguments, Tool
from headrace.envs.tools.outcomes import Limits, Outcome, answer_call, build_outcome, run_together
from headrace.envs.tools.sub_agents import SPAWN, build_sub_problem, has_sub_problems, list_callable, share_extra
from headrace.envs.tools.turns import Budget, Tally, play_turns
from headrace.envs.workflows import tools as tools_workflow
from headrace.schemas import records

MAIN = "main"
"""Id of the first agent."""
SUB = "sub"
"""Role of sub-agents, of every depth, in a recipe with two roles."""
CREDITS = ("tree", "agent")


def check_roles(roles: Collection[str]) -> None:
    """Raise ValueError unless there is one role, or one and `sub`."""
    if len(roles) != 1 and (len(roles) != 2 or SUB not in roles):
        raise ValueError(
            "workflow spawn needs one role in the recipe's `policies`, or two of which one is `sub`, the role of all "
            f"sub-agents; got {sorted(roles)}"
        )


def check_settings(  # noqa: PLR0913 - the settings by name
    *,
    max_turns: int = 4,
    max_depth: int = 1,
    max_children: int = 4,
    budget_answers: int = 64,
    budget_tokens: int = 0,
    credit: str = "tree",
    call_limit_s: float = 10.0,
    observation_chars: int = 4000,
    calls: str = AUTO,
) -> None:
    """Raise ValueError for a setting of the workflow out of its range."""
    for name, value in (("max_depth", max_depth), ("max_children", max_children)):
        if value < 1:
            raise ValueError(f"workflow spawn: {name} must be 1 or more, got {value}")
    for name, value in (("budget_answers", budget_answers), ("budget_tokens", budget_tokens)):
        if value < 0:
            raise ValueError(f"workflow spawn: {name} must be 0 (no limit) or more, got {value}")
    if credit not in CREDITS:
        raise ValueError(f"workflow spawn: credit must be one of {', '.join(CREDITS)}; got {credit!r}")
    tools_workflow.check_settings(
        max_turns=max_turns, call_limit_s=call_limit_s, observation_chars=observation_chars, calls=calls
    )


def check_environment(environment: Environment) -> None:
    """Raise ValueError if the environment lists a tool that a policy cannot call."""
    list_callable(environment)


def list_lacking_characters(environment: Environment, alphabet: str) -> str:
    """Return the characters of calls that an alphabet lacks; such a policy has no chat template."""
    return list_lacking(alphabet, list_callable(environment))


@dataclass(eq=False, slots=True)
class _Agent:
    """One agent of the tree."""

    id: str
    role: str
    problem: Problem
    chat: Chat
    form: str
    known: Sequence[Tool]
    """What it may call."""
    depth: int
    parent: _Agent | None
    started_in: int
    """Index of the sequence that started it, among those of its parent."""
    children: list[_Agent] = field(default_factory=list)
    score: Score | None = None
    """Its own, if credit is by agent."""

    def walk(self) -> Iterator[_Agent]:
        """Yield it and all below it, in the order in which they were asked for."""
        yield self
        for child in self.children:
            yield from child.walk()


async def spawn(  # noqa: PLR0913 - the settings by name
    problem: Problem,
    env: Environment,
    actors: Mapping[str, Actor],
    *,
    max_turns: int = 4,
    max_depth: int = 1,
    max_children: int = 4,
    budget_answers: int = 64,
    budget_tokens: int = 0,
    credit: str = "tree",
    call_limit_s: float = 10.0,
    observation_chars: int = 4000,
    calls: str = AUTO,
) -> Episode:
    """Play an agent and the sub-agents that it starts by calls of `spawn`; score its last answer.

    Args:
        problem: The problem of the first agent.
        env: An environment, with functions in `tools` or without, and perhaps with a method `sub_problem`.
        actors: One actor for all agents, or one for the first agent and `sub` for all others.
        max_turns: Most answers of one agent.
        max_depth: Of sub-agents: those at this depth start none.
        max_children: Most sub-agents that one answer may start.
        budget_answers: Most answers of all agents together.
        budget_tokens: Most generated tokens of all agents together.
        credit: `tree`: every sequence has the reward of the episode. `agent`: a sub-agent's sequences have the score of
            its own problem.
        call_limit_s: Seconds that a call of a tool may take.
        observation_chars: Most characters of a result.
        calls: The form of calls: `hermes`, `short`, or `auto`.

    Raises ValueError if the roles are others, or if credit is by agent and the environment has no `sub_problem`.
    """
    check_roles(actors)
    if credit == "agent" and not has_sub_problems(env):
        raise ValueError(
            f'credit = "agent" of workflow spawn scores the problems of sub-agents, so environment {env.name} needs a '
            "method `sub_problem(problem, task)`"
        )
    with isolate(env) as isolated:
        share_extra(isolated, problem)
        tree = _Tree(
            isolated,
            actors,
            Limits(call_limit_s, observation_chars),
            calls,
            credit == "agent",
            max_turns,
            max_depth,
            max_children,
            Budget(budget_answers, budget_tokens),
        )
        first = tree.begin(MAIN, next(role for role in actors if role != SUB or len(actors) == 1), problem)
        await tree.play(first)
        score = await isolated.score_in_child(problem, first.chat.text)
    parts = {**tree.tally.list_parts("spawned", "refused", "unanswered"), **score.parts}
    sequences = _list_sequences(first)
    made = {first.role: RoleTrajectory(score.reward, tuple(sequences[first.role]), parts, tree.tally.errors)}
    if first.role != SUB and SUB in sequences:
        own = [one.score.reward for one in first.walk() if one.score is not None]
        reward = sum(own) / len(own) if own else score.reward
        made[SUB] = RoleTrajectory(reward, tuple(sequences[SUB]), {"agents": float(tree.tally.counts["spawned"])})
    return made


@dataclass(eq=False, slots=True)
class _Tree:
    """The agents of one episode, and what they share."""

    env: IsolatedEnvironment
    actors: Mapping[str, Actor]
    limits: Limits
    calls: str
    scores_agents: bool
    max_turns: int
    max_depth: int
    max_children: int
    budget: Budget
    known: Sequence[Tool] = field(init=False)
    """What an agent may call that may start others."""
    tally: Tally = field(default_factory=Tally)

    def __post_init__(self) -> None:
        self.known = list_callable(self.env)

    def begin(self, agent_id: str, role: str, problem: Problem, parent: _Agent | None = None) -> _Agent:
        """Begin the conversation of an agent."""
        actor, depth = self.actors[role], 0 if parent is None else parent.depth + 1
        known = self.known if depth < self.max_depth else [tool for tool in self.known if tool is not SPAWN]
        form = choose_form(self.calls, actor, known, problem)
        schemas = [tool.schema for tool in known] if form == HERMES else ()
        arguments = problem.template_arguments
        chat = Chat(actor, role, problem.prompt, tools=schemas, template_arguments=arguments, agent_id=agent_id)
        started_in = -1 if parent is None else parent.chat.sequence_count - 1
        return _Agent(agent_id, role, problem, chat, form, known, depth, parent, started_in)

    async def play(self, agent: _Agent) -> str:
        """Play an agent, and those that it starts; return why it has no answer, or an empty text."""

        async def answer(asked: Sequence[ToolCall | InvalidToolCall]) -> Sequence[Outcome]:
            return await self._answer(agent, asked)

        why = await play_turns(
            agent.chat,
            self.actors[agent.role],
            agent.form,
            agent.known,
            answer,
            tally=self.tally,
            max_turns=self.max_turns,
            budget=self.budget,
            score_turn=partial(self.env.score_turn, agent.problem),
        )
        if agent.parent is not None and self.scores_agents:
            agent.score = await self.env.score_in_child(agent.problem, agent.chat.text)
        return why

    async def _answer(self, agent: _Agent, asked: Sequence[ToolCall | InvalidToolCall]) -> Sequence[Outcome]:
        """Run the calls of one answer at the same time; those of `spawn` as agents."""
        running, started = [], 0
        for call in asked:
            if SPAWN in agent.known and isinstance(call, ToolCall) and call.name == SPAWN.name:
                started += 1
                running.append(self._spawn(agent, call, is_refused=started > self.max_children))
            else:
                running.append(answer_call(call, agent.known, self.env, agent.problem, self.limits))
        return await run_together(running)

    async def _spawn(self, agent: _Agent, call: ToolCall, *, is_refused: bool) -> Outcome:
        if is_refused:
            self.tally.counts["refused"] += 1
            why = f"error: one answer may start {self.max_children} agents"
            return build_outcome(SPAWN.name, why, "", self.limits)
        try:
            task = SPAWN.read_arguments(call.arguments)["task"]
        except BadArguments as error:
            return build_outcome(SPAWN.name, f"error: {error}", "bad_calls", self.limits)
        self.tally.counts["spawned"] += 1
        role = SUB if len(self.actors) > 1 else agent.role
        problem = build_sub_problem(self.env, agent.problem, task)
        child = self.begin(f"{agent.id}.{len(agent.children) + 1}", role, problem, agent)
        agent.children.append(child)
        why = await self.play(child)
        self.tally.counts["unanswered"] += bool(why)
        told = f"error: no answer: {why}" if why else read_answer(child.chat.text).strip()
        return build_outcome(SPAWN.name, told, "", self.limits)


def _list_sequences(first: _Agent) -> dict[str, list[records.Sequence]]:
    """Return the sequences of each role, with the index of the one that started each agent, if its role is the same."""
    made: dict[str, list[records.Sequence]] = {}
    begins: dict[_Agent, int] = {}
    for agent in first.walk():
        if not agent.chat.sequence_count:  # the budget was spent before its first answer
            continue
        of_role = made.setdefault(agent.role, [])
        begins[agent] = len(of_role)
        by = agent.parent
        parent = begins[by] + agent.started_in if by is not None and by.role == agent.role else -1
        reward = None if agent.score is None else agent.score.reward
        of_role += agent.chat.sequences(reward, first=begins[agent], parent=parent)
    return made
