"""The live page and its one-line form, drawn from figures: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table

from headrace.app.views.answer_metrics import describe_answers
from headrace.app.views.chart import CHART_HEIGHT, CHART_WIDTH, by_version, chart
from headrace.app.views.closing import Signs, explain_no_rise
from headrace.app.views.columns import make_facts
from headrace.app.views.dead_letters import describe_unnumbered
from headrace.app.views.evaluation_words import describe_evaluation, describe_failed, group_by_workflow
from headrace.app.views.safe_text import Text
from headrace.app.views.tables import describe_scaling, describe_shadow, replay_lines
from headrace.infra.inflection import inflect
from headrace.infra.process.child_life import ChildState
from headrace.infra.recipe.settings import Recipe
from headrace.ledger.liveness import is_alive
from headrace.ops.figures.pulse import PolicyPulse, Pulse, Rates
from headrace.ops.figures.run_figures import RunFigures
from headrace.ops.figures.workers import describe_kinds
from headrace.schemas.episode_errors import TOOL_ERROR, describe_error
from headrace.schemas.records import EvalResult
from headrace.trainers.health import findings

WIDTH = 100
"""Largest width of the page, in columns."""
SHORTEN_WORKERS = 6
MOST_ERRORS_OF_MOMENT = 3
SILENT_MS = 60_000
"""A heartbeat older than this is treated as dead, in milliseconds."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The state that the page shows at one moment."""

    recipe: Recipe
    figures: RunFigures
    pulse: Pulse
    rates: Rates
    elapsed_s: float
    now_ms: int
    """Wall time in ms since the epoch, to tell which workers are alive."""
    processes: Mapping[str, ChildState]
    """Component processes of this machine, where a launcher runs them."""


def page(moment: Moment, width: int = WIDTH) -> RenderableType:
    """Return the whole page, `width` columns wide at most."""
    parts: list[RenderableType] = [_draw_curve(moment, policy) for policy in moment.recipe.policies]
    parts.append(_build_numbers_table(moment))
    standstill = moment.figures.standstill
    fails = standstill is not None and standstill.cause == "failing"
    if standstill is not None and fails:
        parts.append(Text(standstill.sentence, style="bold red"))
    elif first := [one.sentence for one in moment.figures.advice if one.is_cause]:
        parts.append(Text("\n".join(first), style="bold red"))
    said = [standstill.sentence] if standstill is not None and not fails else []
    advice = [one.sentence for one in moment.figures.advice if not one.is_cause]
    if trouble := [*said, *_describe_restarts(moment), *list_warnings(moment).values(), *advice]:
        parts.append(Text("\n".join(trouble), style="yellow"))
    if errors := moment.figures.errors[:MOST_ERRORS_OF_MOMENT]:
        parts.append(Text("\n".join(error.sentence for error in errors), style="red"))
    figures = moment.figures
    starts = figures.state == "stopped" and moment.processes
    state = f"{figures.state}: {figures.ended}" if figures.ended else "starting" if starts else figures.state
    state = "episodes fail" if fails else "no progress" if standstill else state
    title = Text.assemble((figures.run, "bold"), f" · {moment.recipe.about or 'headrace'}")
    return Panel(
        Group(*parts),
        title=title,
        title_align="left",
        subtitle=Text(f"{state} · {format_duration(moment.elapsed_s)}"),
        width=min(width, WIDTH),
    )


def line(moment: Moment) -> str:
    """Return the page in one line, for logs and pipes."""
    figures = moment.figures
    words = [
        f"{format_duration(moment.elapsed_s):>6}",
        *(_describe_policy(moment, policy) for policy in moment.recipe.policies),
    ]
    groups = figures.groups
    words.append(
        f"groups issued={groups.issued} trained={groups.trained} discarded={sum(groups.discarded.values())} "
        f"dead={groups.dead} in_flight={groups.in_flight}"
    )
    if replayed := sum(counts.replayed for counts in figures.policies.values()):
        words.append(f"replayed={replayed}")
    words.append(f"{moment.rates.samples:.0f} trajectories/s {moment.rates.tokens:.0f} tokens/s")
    words += [f"shadow {describe_shadow(name, shadow)}" for name, shadow in figures.shadows.items()]
    if figures.lag and not figures.ended:
        words.append(f"lag {sum(figures.lag.values())}")
    if dead_letters := describe_unnumbered(figures.unnumbered_letters):
        words.append(dead_letters)
    if failed := [error for error in figures.errors if not error.component and error.reason != TOOL_ERROR]:
        most = describe_error(failed[0].first).partition(":")[0]
        count = sum(error.count for error in failed)
        asked = sum({error.stream: error.asked for error in failed}.values())
        share = f"{count} of {asked}" if asked else f"{count}"
        words.append(f"{share} {inflect(max(count, asked), 'episode')} failed (most by {most})")
    if figures.ended:
        words.append(f"{figures.state}: {figures.ended}")
    if figures.standstill is not None:  # its sentence is long, and is printed once
        stands = f"no progress ({figures.standstill.cause})"
        words.append("a workflow fails" if figures.standstill.in_part else stands)
    if warnings := list_warnings(moment):  # their sentences too are printed once
        words.append(f"warning ({', '.join(warnings)})")
    words += _describe_restarts(moment)
    return "  ".join(words)


def describe_so_far(recipe: Recipe, figures: RunFigures) -> str:
    """Return the state of a run with a past in one line."""
    at = ", ".join(f"{name} at version {v} of {recipe.trainer_of(name).steps}" for name, v in figures.versions.items())
    groups = figures.groups
    return f"{at}; of {groups.issued} groups {groups.trained} are trained, {groups.in_flight} in flight"


def format_duration(seconds: float) -> str:
    """Return minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _describe_policy(moment: Moment, policy: str) -> str:
    curve = moment.figures.rewards.get(policy, ())
    metrics = moment.pulse.policies[policy].metrics
    words = [f"{policy} version {_format_version(moment, policy)}"]
    if curve:
        words.append(f"reward {curve[-1].reward:.2f}")
    else:
        words.append(_describe_wait(moment, policy))
    if metrics:
        words.append(f"staleness {metrics.get('staleness_mean', 0.0):.1f}")
    for workflow, evals in _select_evals(moment, policy).items():
        newest = evals[-1]
        reward = f"{newest.avg_at_k:.2f}" if newest.has_reward else "-"
        words.append(f"eval {f'{workflow} ' if workflow else ''}{reward} at {newest.version}{describe_failed(newest)}")
    return " ".join(words)


def _format_version(moment: Moment, policy: str) -> str:
    version = moment.figures.versions.get(policy, -1)
    return f"{version if version >= 0 else '-'}/{moment.recipe.trainer_of(policy).steps}"


def _draw_curve(moment: Moment, policy: str) -> RenderableType:
    curve = by_version((point.version, point.reward) for point in moment.figures.rewards.get(policy, ()))
    newest = f"{curve[-1]:.2f}" if curve else _describe_wait(moment, policy)
    head = Text.assemble(
        (policy, "bold"), "  version ", (_format_version(moment, policy), "bold"), "  reward ", (newest, "bold green")
    )
    drawing = Text("\n".join(chart(curve, CHART_WIDTH, CHART_HEIGHT)), style="green", no_wrap=True)
    return Group(head, drawing)


def _describe_wait(moment: Moment, policy: str) -> str:
    """Show what a run without a reward yet is doing, as its trainer or a waiting worker reports it."""
    for worker in moment.figures.workers:
        if worker.worker == f"train-{policy}" and moment.now_ms - worker.updated_ms < SILENT_MS:
            return f"({worker.state}: {worker.detail})"
    if moment.pulse.policies[policy].newest_published >= 0:
        here = (worker for worker in moment.figures.workers if is_alive(worker, moment.now_ms) and worker.detail)
        words = {"waiting": "waits", "rolling": "plays"}
        waits = [f"({one.worker} {words[one.state]}: {one.detail})" for one in here if one.state in words]
        return waits[0] if waits else "(first groups are played)"
    if moment.recipe.policies[policy].warm_start:
        return "(components start, then the supervised warm start)"
    return "(components start)"


def _build_numbers_table(moment: Moment) -> Table:
    figures = moment.figures
    groups = figures.groups
    table = make_facts()
    wasted = (
        f" · {figures.wasted_tokens / max(1, figures.tokens):.1%} of all tokens wasted" if figures.wasted_tokens else ""
    )
    table.add_row("speed", f"{moment.rates.samples:,.0f} trajectories/s · {moment.rates.tokens:,.0f} tokens/s{wasted}")
    for label, words in _list_step_rows(moment):
        table.add_row(label, Text(words))
    for policy in moment.recipe.policies:
        for workflow, found in _select_evals(moment, policy).items():
            some = (*found[:1], *found[1:][-(1 if found[-1].tiers or workflow else 3) :])
            words = " · ".join(describe_evaluation(one, has_interval=one is some[-1]) for one in some)
            whose = f"{workflow}: " if workflow else ""
            table.add_row(_make_label("held out", policy, moment.recipe), Text(f"{whose}{words}"))
    table.add_row(
        "groups",
        f"{groups.issued} issued · {groups.trained} trained · {groups.in_flight} in flight · {groups.dead} dead",
    )
    discarded = " · ".join(f"{count} {reason}" for reason, count in sorted(groups.discarded.items()))
    table.add_row("discarded", Text(discarded or "none"))
    counts = {**figures.policies, **{name: shadow.groups for name, shadow in figures.shadows.items()}}
    for words in replay_lines(counts):
        table.add_row("replays", Text(words))
    for policy_variant, shadow in figures.shadows.items():
        table.add_row("shadow", Text(describe_shadow(policy_variant, shadow)))
    for stream, selection in figures.selection.items():
        if words := str(selection):
            table.add_row("tasks" if len(figures.selection) == 1 else f"tasks {stream}", Text(words))
    if figures.unnumbered_letters:
        table.add_row("dead letters", Text(describe_unnumbered(figures.unnumbered_letters)))
    for label, words in _list_worker_rows(moment):
        table.add_row(label, Text(words))
    return table


def _list_step_rows(moment: Moment) -> Iterator[tuple[str, str]]:
    for policy, pulse in moment.pulse.policies.items():
        yield _make_label("step", policy, moment.recipe), _describe_step(pulse)
        if answers := describe_answers(pulse.metrics):
            yield _make_label("batch mean", policy, moment.recipe), answers


def _list_worker_rows(moment: Moment) -> Iterator[tuple[str, str]]:
    figures = moment.figures
    if not figures.ended:  # after the end unread groups do not matter
        yield "lag", _describe_lag(moment)
    yield from (("scaled", describe_scaling(decision)) for decision in figures.scaling)
    yield "workers", _describe_workers(moment)


def _make_label(word: str, policy: str, recipe: Recipe) -> str:
    return word if len(recipe.policies) == 1 else f"{word} {policy}"


def _describe_step(pulse: PolicyPulse) -> str:
    words = [f"{pulse.published} weights published"]
    metrics = pulse.metrics
    if metrics:
        words += [
            f"staleness {metrics.get('staleness_mean', 0.0):.2f} (most {metrics.get('staleness_max', 0.0):.0f})",
            f"log-probability gap {metrics.get('logprob_gap_mean', 0.0):.1e}",
            f"entropy {metrics.get('entropy', 0.0):.2f}",
        ]
    return " · ".join(words)


def _describe_lag(moment: Moment) -> str:
    prefix = f"{moment.figures.run}."
    waiting = [f"{topic.removeprefix(prefix)} {count}" for topic, count in moment.figures.lag.items() if count]
    return " · ".join(waiting) or "none"


def _describe_workers(moment: Moment) -> str:
    here = [worker for worker in moment.figures.workers if is_alive(worker, moment.now_ms)]
    kinds = describe_kinds(here)
    words = [
        f"{worker.worker} {worker.state}"
        + (
            f" ({worker.detail})"
            if worker.detail
            else f", {worker.groups_done:,} {inflect(worker.groups_done, 'group')}"
        )
        + (f" · {kinds[worker.worker]}" if worker.worker in kinds else "")
        for worker in here[:SHORTEN_WORKERS]
    ]
    if len(here) > SHORTEN_WORKERS:
        words.append(f"and {len(here) - SHORTEN_WORKERS} more")
    return "\n".join(words) or ("none" if moment.figures.ended else "none yet")


def _select_evals(moment: Moment, policy: str) -> dict[str, list[EvalResult]]:
    return group_by_workflow(one for one in moment.figures.evals if one.policy == policy)


def _describe_restarts(moment: Moment) -> list[str]:
    again = [
        f"{name} {state.starts - 1}x" + (f" (last: {state.error})" if state.error else "")
        for name, state in moment.processes.items()
        if state.starts > 1
    ]
    return [f"started again: {', '.join(again)}"] if again else []


def list_warnings(moment: Moment) -> dict[str, str]:
    """Return the warnings about the training of each policy, name to sentence."""
    found: dict[str, str] = {}
    for policy, counts in moment.figures.policies.items():
        metrics = moment.pulse.policies[policy].metrics
        signs = Signs(
            rewards=[point.reward for point in moment.figures.rewards.get(policy, ())],
            concluded=counts.trained + sum(counts.discarded.values()),
            discarded=counts.discarded,
            staleness_mean=metrics.get("staleness_mean", 0.0),
            max_staleness=moment.recipe.trainer_of(policy).max_staleness,
            logprob_gap_mean=metrics.get("logprob_gap_mean", 0.0),
        )
        why = {finding.name: finding.sentence for finding in findings(moment.pulse.policies[policy].recent)}
        many_failed = any(one.policy == policy and one.is_cause for one in moment.figures.advice)
        if not many_failed and (no_rise := explain_no_rise(signs)):
            why["no_rise"] = no_rise
        of = "" if len(moment.recipe.policies) == 1 else f"{policy}: "
        found |= {f"{of}{name}": f"{of}{sentence}" for name, sentence in why.items()}
    return found
