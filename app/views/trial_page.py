"""The page of `headrace try`: conversations, tokens, rewards, advantages, a step, errors of the user's code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import dropwhile, groupby, islice
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Column, Table

from headrace.app.views.columns import fold_text, make_columns, number
from headrace.app.views.inspection_page import (
    SPAN_STYLES,
    crop,
    facts,
    find_table_begin,
    format_advantage,
    list_own_metrics,
    token_table,
)
from headrace.app.views.safe_text import Text
from headrace.infra.inflection import inflect
from headrace.ops.lineage.seen import GENERATED, SequenceSeen, SpanSeen, TokenSeen, TrajectorySeen
from headrace.schemas.episode_errors import describe_error, error_key_of

if TYPE_CHECKING:  # the trial needs torch, and its page does not
    from headrace.envs.tools.solutions import SolutionPlayed, TurnPlayed
    from headrace.ops.offline.trial import EpisodeFailed, Tried
    from headrace.ops.offline.tried_policy import GroupTried, PolicyTried, StepTried

MOST_TOKENS_SHOWN = 40
"""Tokens of the sequence that is shown token by token; `--json` has all."""
MOST_READ = 300
"""Characters shown of the beginning, and of the end, of a text that a policy reads."""
MOST_PARTS = 4
"""Parts of rewards up to which those that are 0 everywhere have columns, too."""
MOST_WRONG = 4
"""Worked solutions that are wrong, to show."""
SHORT_ANSWER = 60
"""Characters of an answer in the table of a group."""


def trial_page(tried: Tried) -> RenderableType:
    """Return what `headrace try` shows."""
    title = f"  {describe_count(tried.episodes, 'episode')} in {tried.seconds:.1f} s: no server, no run, no warm start"
    parts: list[RenderableType] = [Text.assemble((tried.recipe, "bold"), title)]
    parts += [Text(f"maybe: {doubt}", style="yellow") for doubt in tried.doubts]
    if tried.solutions:
        parts += [Text(), *show_solutions(tried.solutions)]
    for name, policy in tried.policies.items():
        parts += [Text(), *_show_policy(name, policy)]
    if tried.failures:
        said = f"{len(tried.failures)} of {tried.episodes} episodes failed"
        parts += [Text(), *show_failures(said, tried.failures)]
    if tried.tool_errors:
        count = len({one.episode for one in tried.tool_errors})
        said = f"a tool failed in {count} of {tried.episodes} episodes, where the policy read its error"
        parts += [Text(), *show_failures(said, tried.tool_errors)]
    for shadow in tried.shadows:
        parts += [
            Text(),
            Text(f"shadow {shadow} was not tried: only a full run (`headrace up`) runs its chain and its trainer"),
        ]
    return Group(*parts)


def show_solutions(solutions: Sequence[SolutionPlayed]) -> Iterator[RenderableType]:
    """Show the first wrong worked solution of each workflow, or the first one, turn by turn."""
    by_workflow = [(name, list(several)) for name, several in groupby(solutions, key=lambda one: one.workflow)]
    for name, several in by_workflow:
        yield from _show_solution(several, f"worked solutions{f' of {name}' if len(by_workflow) > 1 else ''}")


def _show_solution(solutions: Sequence[SolutionPlayed], title: str) -> Iterator[RenderableType]:
    wrong = [one for one in solutions if one.fault]
    shown = (wrong or solutions)[0]
    right = f"{len(solutions) - len(wrong)} of {len(solutions)} give a reward of 1"
    yield Text.assemble((title, "bold"), "  ", (right, "red" if wrong else "green"))
    has_agents = any(turn.agents for turn in shown.turns)
    table = make_columns(*map(fold_text, (*["agent"] * has_agents, "turn", "answer", "results")))
    for agent, turn, played in _list_turns(shown, "main"):
        results = Text("\n".join(crop(result) for result in played.results))
        table.add_row(*[agent] * has_agents, str(turn), Text(played.answer), results)
    yield Padding(Text(f"{shown.task_id}  reward {shown.reward:g}\n{shown.prompt}"), (0, 0, 0, 2))
    yield Padding(table, (0, 0, 0, 2))
    yield from (Text(f"  wrong: {one.task_id}: {one.fault}", style="red") for one in wrong[:MOST_WRONG])


def _list_turns(solution: SolutionPlayed, agent: str) -> Iterator[tuple[str, int, TurnPlayed]]:
    """Yield the turns of an agent, each followed by those of the sub-agents that it started, with agent and number."""
    started = 0
    for turn, played in enumerate(solution.turns):
        yield agent, turn, played
        for sub in played.agents:
            started += 1
            yield from _list_turns(sub, f"{agent}.{started}")


def _show_policy(name: str, policy: PolicyTried) -> Iterator[RenderableType]:
    yield Text.assemble((f"policy {name}", "bold"), f"  {policy.model}{_describe_start(policy)}")
    if policy.left_out:
        lacked = f"results had characters that its alphabet lacks, {policy.left_out!r}: it read them without these"
        yield Text(lacked, style="yellow")
    for tried in policy.groups:
        yield Text()
        yield from _show_group(tried)
    sequences = [one for tried in policy.groups for member in tried.group.trajectories for one in member.sequences]
    if sequences:
        yield Text()
        yield Text("the first sequence, token by token", style="bold")
        begin = find_table_begin(sequences[0].each, MOST_TOKENS_SHOWN)
        yield token_table(sequences[0].each[begin : begin + MOST_TOKENS_SHOWN], begin)
        if (more := len(sequences[0].each) - MOST_TOKENS_SHOWN) > 0:
            yield Text(f"{more:,} more {inflect(more, 'token')}: --json has all", style="dim")
    yield Text()
    yield from _show_step(policy.step) if policy.step else [Text(f"no step: {policy.no_step}", style="yellow")]


def _describe_start(policy: PolicyTried) -> str:
    if policy.has_given_answers:
        return "; its answers are the --answer texts"
    return "; a run warms it up before version 0" if policy.warm_start else ""


def _show_group(tried: GroupTried) -> Iterator[RenderableType]:
    group = tried.group
    fate = f"{tried.verdict} by the chain{f': {tried.reason}' if tried.reason else ''}"
    style = "green" if tried.verdict == "kept" else "yellow"
    yield Text.assemble((f"{group.stream}:{group.number}", "bold"), f"  {group.task_id}  ", (fate, style))
    if not group.trajectories:
        return
    for index, sequence in enumerate(group.trajectories[0].sequences):
        if index:
            yield Padding(Text(f"sequence {index} {sequence.agent_id}".rstrip(), style="dim"), (0, 0, 0, 2))
        yield Padding(_build_conversation(sequence), (0, 0, 0, 2))
    yield Padding(_build_members_table(tried), (0, 0, 0, 2))


def _build_conversation(sequence: SequenceSeen) -> Table:
    """Return the spans of a sequence, as the first member of a group had them."""
    role = Column(Text(sequence.role or "kind"), no_wrap=True)
    table = make_columns(role, *map(number, ("turn", "tokens", "mask")), "text")
    tokens = iter(sequence.each)
    for span in sequence.spans:
        text = _read_span(span, list(islice(tokens, span.tokens)))
        if span.finish_reason not in ("", "stop"):
            text.append(f" [{span.finish_reason}]", style="dim")
        table.add_row(span.kind, str(span.turn), str(span.tokens), str(int(span.kind == "generated")), text)
    return table


def _read_span(span: SpanSeen, tokens: Sequence[TokenSeen]) -> Text:
    """Return what the policy read, the special tokens of a chat template included, or what it generated."""
    if span.kind == GENERATED:
        return Text(crop(span.text), style=SPAN_STYLES[GENERATED])
    text = Text(style=SPAN_STYLES.get(span.kind, ""))
    for token in dropwhile(lambda token: token.text.isspace(), tokens):
        text.append(token.text, style="dim" if token.special else "")
    text.rstrip()
    if (more := len(text) - 2 * MOST_READ) <= 0:
        return text
    return Text.assemble(text[:MOST_READ], f" … {more:,} characters … ", text[-MOST_READ:])


def _build_members_table(tried: GroupTried) -> Table:
    parts = _choose_parts([member.reward_parts for member in tried.group.trajectories])
    numbers = ("#", "reward", *parts, "advantage", "logprob", "tokens")
    table = make_columns(*(number(Text(name)) for name in numbers), fold_text("answer"))
    for member in tried.group.trajectories:
        for index, sequence in enumerate(member.sequences):
            table.add_row(
                *_build_member_row(member, index, parts),
                *_build_sequence_cells(sequence, tried.rejected.get(member.id, "")),
            )
    return table


def _choose_parts(each: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the parts of rewards to show: of many, only those that are not 0 everywhere."""
    parts = list(dict.fromkeys(name for one in each for name in one))
    return parts if len(parts) <= MOST_PARTS else [name for name in parts if any(one.get(name) for one in each)]


def _build_member_row(member: TrajectorySeen, index: int, parts: list[str]) -> list[RenderableType]:
    sample = member.id.rpartition(":")[2]
    reward = member.reward if member.shaped_reward is None else member.shaped_reward
    each = [f"{member.reward_parts[name]:g}" if name in member.reward_parts else "" for name in parts]
    return [Text(sample if len(member.sequences) == 1 else f"{sample}.{index}", style="dim"), f"{reward:g}", *each]


def _build_sequence_cells(sequence: SequenceSeen, rejected: str) -> list[RenderableType]:
    said = " ".join(span.text for span in sequence.spans if span.kind == "generated").replace("\n", "⏎")
    text = Text(said if len(said) <= SHORT_ANSWER else f"{said[:SHORT_ANSWER]} …")
    if rejected:
        text.append(f"  rejected: {rejected}", style="yellow")
    mean = "" if sequence.logprob_mean is None else f"{sequence.logprob_mean:.2f}"
    return [format_advantage(sequence.advantage), mean, str(sequence.tokens), text]


def _show_step(step: StepTried) -> Iterator[RenderableType]:
    over = f"{describe_count(step.groups, 'group')}{'' if step.chain_kept else ', though the chain kept none'}"
    yield Text.assemble(("one optimizer step", "bold"), f" over {over}: {step.tokens:,} tokens are trained on")
    if step.loss is None or step.grad_norm is None:
        yield Text("loss or gradient is not finite: a trainer skips such a step", style="red")
        return
    measured = [("loss", f"{step.loss:.4g}"), ("gradient norm", f"{step.grad_norm:.4g}")]
    yield facts([*measured, *list_own_metrics(step.metrics)])
    if not step.has_advantages:
        yield Text(
            "Every advantage is 0, so there is nothing to learn. Usually this is because the rewards within each group "
            "are equal: give --answer TEXT several times, to let the policy give right and wrong answers.",
            style="yellow",
        )


def describe_count(count: int, what: str) -> str:
    """Return a number and what is counted."""
    return f"{count:,} {inflect(count, what)}"


def show_failures(said: str, failures: Sequence[EpisodeFailed]) -> Iterator[RenderableType]:
    """Show each error once with its traceback and the number of episodes that had it."""
    yield Text(said, style="bold red")

    def kind(failed: EpisodeFailed) -> tuple[str, str, str]:
        return error_key_of(failed.failure)

    for _, several in groupby(sorted(failures, key=kind), key=kind):
        first, *others = several
        yield Text()
        yield Text.assemble((first.episode, "bold"), f"  task {first.task_id}, {describe_error(first.failure)}")
        if others:
            yield Text(
                f"and {len(others)} more with this error: {', '.join(one.episode for one in others[:8])}", style="dim"
            )
        if first.failure.traceback:
            yield Text(first.failure.traceback)
