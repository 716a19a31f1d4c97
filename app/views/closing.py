"""The page at the end of a run: its summary, and why it did not get further."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from headrace.app.views.chart import CHART_HEIGHT, CHART_WIDTH, by_version, chart
from headrace.app.views.columns import make_facts
from headrace.app.views.dead_letters import describe_unnumbered
from headrace.app.views.evaluation_words import describe_interval
from headrace.app.views.safe_text import Text
from headrace.app.views.tables import MOST_ERRORS, describe_shadow, describe_waste, replay_lines
from headrace.app.views.weights_page import describe_weights
from headrace.infra.inflection import inflect
from headrace.ops.figures.summary import PolicySummary, Summary
from headrace.trainers.health import LARGE_GAP

ENOUGH_VERSIONS = 15
CURVE_EDGE = 5
RISE = 0.02
"""Smallest difference between the first and the last versions that counts as a rise."""
HIGH_ENOUGH = 0.9
"""Above this reward the run can hardly improve."""
MANY_DISCARDED = 0.7


@dataclass(frozen=True, slots=True)
class Signs:
    """The figures of a policy that tell why its reward does not rise."""

    rewards: Sequence[float]
    """Mean reward by version, in order."""
    concluded: int
    """Groups trained or discarded."""
    discarded: Mapping[str, int]
    """Reason to groups."""
    staleness_mean: float
    max_staleness: int
    logprob_gap_mean: float


def explain_no_rise(signs: Signs) -> str:
    """Return why reward does not rise, in a sentence; empty if it rises, is high, or it is too early to know."""
    curve = signs.rewards
    if len(curve) < ENOUGH_VERSIONS:
        return ""
    first, last = (sum(part) / CURVE_EDGE for part in (curve[:CURVE_EDGE], curve[-CURVE_EDGE:]))
    if last - first >= RISE or last >= HIGH_ENOUGH:
        return ""
    share = sum(signs.discarded.values()) / signs.concluded if signs.concluded else 0.0
    measured = (
        f"{share:.0%} of the groups discarded, staleness {signs.staleness_mean:.1f}, log-probability gap "
        f"{signs.logprob_gap_mean:.2g}"
    )
    return f"Reward does not rise ({first:.2f} → {last:.2f}). {_find_cause(signs, share, last)} [{measured}]"


def _find_cause(signs: Signs, share: float, reward: float) -> str:
    if signs.logprob_gap_mean > LARGE_GAP:
        return (
            "Engine and trainer disagree on log-probabilities: check that both have the same weights, tokenizer and "
            "sampling temperature."
        )
    if share > MANY_DISCARDED:
        reason = max(signs.discarded, key=lambda name: signs.discarded[name])
        if reason != "zero_variance":
            return f"Most groups are discarded, most often as {reason}: `headrace discards` shows these groups."
        harder = "too hard: let the warm start reach a higher reward (reward_low), or take an easier tier"
        how = "too easy: take a harder tier" if reward > 0.5 else harder
        return f"Most groups are discarded, most often because all their rewards are equal: the tasks are {how}."
    if signs.staleness_mean > max(2.0, 0.8 * signs.max_staleness):
        return "The groups are too old: lower trainer.max_staleness, or slow the trainer by larger batches."
    return "No usual cause was found: try another trainer.learning_rate, or larger groups."


SOLVED, EARLY_STOP = "solved", "early_stop"
"""Why a run ended before its last step."""
ENDED_TEXTS = {SOLVED: "ended as solved", EARLY_STOP: "stopped early"}


def show_summary(summary: Summary, console: Console, program: str, again: str) -> None:
    """Print the closing page.

    Args:
        summary: What `headrace.ops.figures.summary.summarize` returned.
        console: Where to print.
        program: How this user calls `headrace`.
        again: The command line that ran it; empty for a run of a sweep, where no command is suggested.
    """
    console.print(panel(summary))
    if again:
        console.print(suggest_commands(summary, program, again), soft_wrap=True, highlight=False)


def panel(summary: Summary) -> Panel:
    """Return curves and facts of a run."""
    parts: list[RenderableType] = []
    for policy, block in summary.policies.items():
        drawing = "\n".join(chart(by_version(block.reward_curve), CHART_WIDTH, CHART_HEIGHT))
        parts += [Text(f"reward of {policy} by version", style="bold"), Text(drawing, style="green", no_wrap=True)]
    ended = f" · {ENDED_TEXTS[summary.ended]}" if summary.ended in ENDED_TEXTS else ""
    words = f" · {summary.versions} {inflect(summary.versions, 'version')} in {summary.wall_s:.0f} s{ended}"
    title = Text.assemble((summary.run, "bold"), words)
    return Panel(Group(*parts, _build_facts_table(summary)), title=title, title_align="left", expand=False)


def suggest_commands(summary: Summary, program: str, again: str) -> Text:
    """Return some commands to copy, each on its own line."""
    folder = shlex.quote(shorten_path(summary.data.folder))
    policy, step = max(((name, block.versions) for name, block in summary.policies.items()), key=itemgetter(1))
    whose = f" --policy {policy}" if len(summary.policies) > 1 else ""
    text = Text("Try next:\n")
    best = ("write the best version as a folder", f"{program} weights export trained --best{whose} --data {folder}")
    look = ("see what the last step learnt from", f"{program} inspect --step {step}{whose} --data {folder}")
    for why, command in (
        *([look] if step else []),
        ("check in topics and store that nothing was lost", f"{program} audit --data {folder}"),
        *([best] if summary.ended == EARLY_STOP else []),
        *_suggest_continuing(summary, again),
        ("delete all data of the run in this folder", f"{program} clean --data {folder}"),
    ):
        text.append(f"  # {why}\n", style="dim").append(f"  {command}\n", style="bold")
    return text


def _suggest_continuing(summary: Summary, again: str) -> list[tuple[str, str]]:
    """Return ways to continue the training, each with its command."""
    if summary.ended == EARLY_STOP:
        return [("continue training without early stopping", _change_command(again, {"evaluate.stop_after": 0}))]
    if summary.ended != SOLVED:
        return [("continue training from here", _change_command(again, _double_steps(summary.policies)))]
    higher = round((1 + summary.feed.solved_share) / 2, 4)
    same = (
        "continue training with the same tasks until more of them are solved",
        _change_command(again, {"feed.solved_share": higher}),
    )
    harder = "continue training with harder tasks, if the environment has a harder tier"
    raised = summary.feed.raise_tier
    return [same] if raised else [(harder, _change_command(again, {"feed.raise_tier": "true"})), same]


def _double_steps(policies: Mapping[str, PolicySummary]) -> dict[str, int]:
    """Return the keys of steps that these policies obey, and twice the versions that they have; 1 before the first."""
    own = {name: block.versions for name, block in policies.items() if block.has_own_steps and block.versions}
    shared = max((block.versions for name, block in policies.items() if name not in own), default=0)
    doubled = {"trainer.steps": 2 * shared or 1} if shared or not own else {}
    return doubled | {f"policies.{name}.trainer.steps": 2 * versions for name, versions in own.items()}


def _change_command(again: str, changes: Mapping[str, object]) -> str:
    """Return the command that resumes with some keys changed, without their old values and without --summary."""
    words, kept = shlex.split(again), []
    while words:
        word = words.pop(0)
        option, joined, setting = word.partition("=")  # --set=KEY=VALUE, beside --set KEY=VALUE
        if option in ("--set", "--summary") and (joined or words):
            setting = setting if joined else words.pop(0)
            if option == "--set" and setting.partition("=")[0] not in changes:
                kept += [option, setting]
        elif word != "--new-recipe":
            kept.append(word)
    sets = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    return shlex.join([*kept, *sets, "--new-recipe"])


def _build_facts_table(summary: Summary) -> Table:
    groups, data = summary.groups, summary.data
    table = make_facts()
    if summary.ended == SOLVED:
        table.add_row(
            "ended",
            f"as solved: of the last 500 groups more than {summary.feed.solved_share:.1%} (feed.solved_share) "
            "were dropped as zero_variance, most of them with rewards above 0.5",
        )
        if not groups.trained:
            table.add_row("", "nothing was trained: check that `headrace try` with a wrong --answer gives a low reward")
    if summary.ended == EARLY_STOP:
        table.add_row("ended", "early: the held-out reward did not rise any more (evaluate.stop_after)")
    _add_rewards(table, summary.policies)
    discarded = ", ".join(f"{count} {reason}" for reason, count in groups.discarded.items()) or "none"
    table.add_row("groups", Text(f"{groups.issued} issued = {groups.trained} trained + discarded ({discarded})"))
    table.add_row("", f"+ {groups.dead} dead + {groups.in_flight} in flight")
    counts = {name: one.groups for name, one in summary.policies.items()}
    counts |= {name: one.groups for name, one in summary.shadows.items()}
    for line in replay_lines(counts):
        table.add_row("replays", Text(line))
    for policy_variant, shadow in summary.shadows.items():
        table.add_row("shadow", Text(describe_shadow(policy_variant, shadow)))
    if summary.unnumbered_letters:
        table.add_row("", Text(describe_unnumbered(summary.unnumbered_letters)))
    table.add_row("audit", _describe_audit(summary))
    for line in summary.errors[:MOST_ERRORS]:
        table.add_row("errors", Text(line, style="red"))
    for line in summary.stood_still:
        table.add_row("no progress", Text(line, style="yellow"))
    table.add_row("speed", f"{summary.samples_per_s:,.0f} trajectories/s, {summary.tokens_per_s:,.0f} tokens/s")
    table.add_row("wasted", describe_waste(summary.wasted_tokens, summary.tokens, is_all=not groups.in_flight))
    table.add_row(
        "Kafka overhead",
        f"{summary.log_share:.1%} of the busy time of workers and trainers, {summary.log_cpu_share:.1%} of all CPU "
        "time",
    )
    for policy, block in summary.policies.items():
        table.add_row("weights", Text(f"{policy}: {describe_weights(block.weights)}"))
    table.add_row("data", Text(f"{shorten_path(data.folder)} ({data.bytes / 1e6:.0f} MB)"))
    return table


def _describe_audit(summary: Summary) -> str:
    proof = summary.audit
    if proof.problems:
        first = f"groups lost: {proof.lost}, groups doubled: {proof.doubled}"
        return "\n".join([f"[bold red]does not close[/]: {first}", *map(escape, proof.problems)])
    if not proof.ok:
        return f"[yellow]no verdict[/]: {escape(proof.unchecked)}"
    flying = summary.in_flight
    so_far = f" so far, with {flying} {inflect(flying, 'group')} in flight" if flying else ""
    return f"[green]closes[/]{so_far}: nothing lost, nothing trained twice"


def _add_rewards(table: Table, policies: Mapping[str, PolicySummary]) -> None:
    """Add rewards by policy. Policies may have different tasks, such as answers and judgments, so no mean is shown."""
    rewards = {
        "training reward": [_describe_change(block.reward_first, block.reward_last) for block in policies.values()],
        "held-out reward": [
            _describe_change(block.eval_first, block.eval_last) + describe_interval(block.eval_last_error)
            for block in policies.values()
        ],
    }
    for what, changes in rewards.items():
        for (policy, block), change in zip(policies.items(), changes, strict=True):
            whose = f"{policy}, {block.versions} {inflect(block.versions, 'version')}: " if len(policies) > 1 else ""
            table.add_row(what, f"{whose}{change}")
    for policy, block in policies.items():
        whose = f"{policy}: " if len(policies) > 1 else ""
        for name, (first, last) in {**block.eval_workflows, **block.eval_tiers}.items():
            table.add_row(Text(f"  {name}"), f"{whose}{_describe_change(first, last)}")
    for policy, block in policies.items():
        if block.best is not None and block.best.version < block.versions:
            whose = f"{policy}: " if len(policies) > 1 else ""
            table.add_row("best held-out", f"{whose}{block.best.reward:.2f}, version {block.best.version}")
        if block.eval_failures:
            episodes = f"{block.eval_failures:,} {inflect(block.eval_failures, 'episode')}"
            table.add_row("held-out failed", f"{policy}: {episodes}, not counted in any reward")


def _describe_change(first: float | None, last: float | None) -> str:
    if last is None:
        return "not measured"
    return f"[bold]{last:.2f}[/]" if first is None else f"{first:.2f} → [bold]{last:.2f}[/]"


def shorten_path(folder: str) -> str:
    """Return the shortest form of a path from the working directory."""
    relative = os.path.relpath(folder, Path.cwd())
    return folder if relative.startswith("..") else relative
