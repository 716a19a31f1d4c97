"""The pages of a run's status, audit, swap and evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table

from headrace.app.views.answer_metrics import describe_answers
from headrace.app.views.columns import PLAIN, make_columns, make_facts
from headrace.app.views.dead_letters import describe_unnumbered
from headrace.app.views.environment_lines import environment_lines
from headrace.app.views.evaluation_words import describe_evaluation, describe_interval
from headrace.app.views.safe_text import Text
from headrace.app.views.weights_page import describe_weights
from headrace.infra.inflection import inflect
from headrace.infra.utc import format_utc
from headrace.schemas.records import ScalingDecision, WorkerStatus

if TYPE_CHECKING:  # each command imports its own tool alone
    from headrace.ops.audit.findings import AuditReport
    from headrace.ops.audit.numbers import PolicyAudit
    from headrace.ops.figures.revision_figures import RevisionFigures
    from headrace.ops.figures.run_figures import RunFigures, ShadowFigures
    from headrace.ops.figures.status import Status
    from headrace.ops.offline.held_out import Measured
    from headrace.ops.swap import Swap

MOST_EVALS = 3
MOST_ERRORS = 8
"""Most frequent errors to show; `--json` has all."""


def status_table(status: Status) -> RenderableType:
    """Return what `headrace status` shows."""
    from headrace.ops.figures.workers import describe_kinds

    found = status.figures
    table = make_facts()
    ended = f" ({found.ended})" if found.ended else ""
    table.add_row("run", Text.assemble((found.run, "bold"), f" {found.state}{ended}"))
    for what, words in _describe_policies(found):
        table.add_row(what, Text(words, style="red" if what == "error" else ""))
    groups = found.groups
    table.add_row("groups", f"{groups.issued} issued · {groups.trained} trained · {groups.in_flight} in flight")
    discarded = " · ".join(f"{count} {reason}" for reason, count in groups.discarded.items())
    table.add_row("discarded", Text(f"{discarded or 'none'} · {groups.dead} dead"))
    for line in replay_lines(
        {**found.policies, **{variant: shadow.groups for variant, shadow in found.shadows.items()}}
    ):
        table.add_row("replays", Text(line))
    data = (("data", line) for line in environment_lines(found.environments))
    scaled = (("scaled", describe_scaling(decision)) for decision in found.scaling)
    for word, line in (*_describe_revisions(found), *_describe_selections(found), *data, *scaled):
        table.add_row(word, Text(line))
    if found.unnumbered_letters:
        table.add_row("dead letters", Text(describe_unnumbered(found.unnumbered_letters)))
    table.add_row("lag", Text(" · ".join(f"{topic} {count}" for topic, count in found.lag.items()) or "none"))
    for words in _describe_evaluations(found):
        table.add_row("held out", Text(words))
    if found.tokens:
        table.add_row("wasted", describe_waste(found.wasted_tokens, found.tokens, is_all=status.wasted_is_all))
    for policy, weights in found.weights.items():
        if weights.published:
            table.add_row("weights", Text(f"{policy}: {describe_weights(weights)}"))
    kinds = describe_kinds(found.workers)
    for worker, gone in zip(found.workers, status.gone, strict=True):
        made = f", {worker.tokens:,} tokens since it started" if worker.tokens else ""
        detail = f" ({worker.detail})" if worker.detail else ""
        state = _describe_lost(worker) if gone else worker.state
        kind = f" · {kinds[worker.worker]}" if worker.worker in kinds else ""
        table.add_row("worker", Text(f"{worker.worker} {state}{detail}{made}{kind}"))
    return table


def _describe_evaluations(status: RunFigures) -> Iterator[str]:
    from headrace.ops.figures.best_version import find_best_version

    if len(status.evals) > MOST_EVALS:
        yield f"{len(status.evals)} evaluations; the newest {MOST_EVALS}:"
    has_workflows = len({one.workflow for one in status.evals}) > 1
    for one in status.evals[-MOST_EVALS:]:
        yield f"{one.policy} {f'on {one.workflow} ' if has_workflows else ''}{describe_evaluation(one)}"
    for policy in dict.fromkeys(one.policy for one in status.evals):
        best = find_best_version(one for one in status.evals if one.policy == policy)
        if best is not None and len(status.evals) > 1:
            yield f"{policy} best {best.reward:.2f}, version {best.version}"


def _describe_revisions(status: RunFigures) -> Iterator[tuple[str, str]]:
    """Yield a line for every revision of the recipe."""
    newest = next((one.revision for one in status.revisions if one.in_force), None)
    for one in status.revisions:
        words = [str(one.revision)]
        if newest is not None and not one.begins:
            words.append("not yet in force" if one.revision > newest else "never in force")
        if one.in_force:
            words.append("in force")
        if any(one.begins.values()):
            words.append(_name_first_tasks(one))
        chain = " → ".join(one.chain) or "no chain"
        groups = f"{one.groups} {inflect(one.groups, 'group')}"
        yield "revision", f"{' '.join(words)}: {groups}, {one.kept} kept by {chain}"


def describe_revision(one: RevisionFigures) -> str:
    """Return the sentence that a revision of the recipe came into force."""
    chain = " → ".join(one.chain) or "(empty)"
    return f"recipe revision {one.revision} is in force {_name_first_tasks(one)}: chain {chain}"


def _name_first_tasks(one: RevisionFigures) -> str:
    return f"from task {', '.join(f'{stream}:{number}' for stream, number in one.begins.items())} on"


def _describe_selections(status: RunFigures) -> Iterator[tuple[str, str]]:
    for stream, selection in status.selection.items():
        if words := str(selection):
            yield "tasks", f"{stream}: {words}"


def _describe_policies(status: RunFigures) -> Iterator[tuple[str, str]]:
    """Yield the lines of every policy and shadow; before them why no version is made, if that is so."""
    if status.parent:
        yield "branch of", status.parent
    yield from (("error first", one.sentence) for one in status.advice if one.is_cause)
    if status.standstill is not None:
        yield "failing" if status.standstill.in_part else "no progress", status.standstill.sentence
    yield from (("error", error.sentence) for error in status.errors[:MOST_ERRORS])
    yield from (("advice", one.sentence) for one in status.advice if not one.is_cause)
    for policy, version in status.versions.items():
        first, last = status.reward_first.get(policy), status.reward_last.get(policy)
        ends = [f"{reward:.2f}" for reward in (first, last) if reward is not None]
        reward = f", reward {' → '.join(ends)}" if ends else ""
        yield "policy", f"{policy} at version {version}{reward}"
        if answers := describe_answers(status.answers.get(policy, {})):
            yield "batch mean", f"{policy}: {answers}"
    for policy_variant, shadow in status.shadows.items():
        yield "shadow", describe_shadow(policy_variant, shadow)


def describe_shadow(policy_variant: str, shadow: ShadowFigures) -> str:
    """Return the state of a shadow in words."""
    groups = shadow.groups
    discarded = ", ".join(f"{count} {reason}" for reason, count in groups.discarded.items()) or "none"
    words = [f"{policy_variant} " + (f"at version {shadow.version}" if shadow.version >= 0 else "has not begun")]
    if (gap := shadow.off_policy_gap) is not None:
        beside = shadow.off_policy_gap_beside
        words.append(f"off-policy gap {gap:.1e}" + (f" (its policy: {beside:.1e})" if beside is not None else ""))
    words.append(f"groups {groups.trained} trained, discarded {discarded}, {groups.in_flight} in flight")
    return " · ".join(words)


def describe_scaling(decision: ScalingDecision) -> str:
    """Return a decision of the autoscaler in words."""
    workers = inflect(decision.after, "worker")
    return f"{decision.pool}: {decision.before} → {decision.after} {workers}: {decision.reason}"


def describe_waste(count: int, tokens: int, *, is_all: bool) -> str:
    """Show the wasted share of the tokens that all workers generated; "at least" if not all are known."""
    least = "" if is_all else "at least "
    return (
        f"{least}{count / max(1, tokens):.1%} of {tokens:,} generated tokens: failed, cancelled, too late or done twice"
    )


def _describe_lost(worker: WorkerStatus) -> str:
    return f"gone; its last status, at {format_utc(worker.updated_ms)}, was {worker.state}"


def audit_table(audit: AuditReport) -> RenderableType:
    """Return what `headrace audit` shows."""
    names = ("policy", "issued", "trained", "discarded", "dead", "in flight", "lost", "doubled")
    table = make_columns(*names, titles=PLAIN, pad_edge=True)
    policy_variants = {**audit.policies, **audit.shadows}
    for policy_variant, counts in policy_variants.items():
        discarded = ", ".join(f"{count} {reason}" for reason, count in counts.discarded.items()) or "0"
        table.add_row(
            policy_variant,
            str(counts.issued),
            str(counts.trained),
            Text(discarded),
            *map(str, (counts.dead, counts.in_flight, counts.lost, counts.doubled)),
        )
    numbers: list[RenderableType] = [] if audit.source else [table]  # an offline experiment has none of its own
    numbers += map(Text, replay_lines(policy_variants))
    numbers += [
        Text(f"{stream}: recipe revision {revision} from task {stream}:{first} on")
        for stream, begins in audit.revisions.items()
        for revision, first in begins[1:]
    ]
    if audit.unnumbered_letters:
        numbers.append(Text(describe_unnumbered(audit.unnumbered_letters), style="yellow"))
    return Group(*numbers, Text(_describe_reading(audit), style="dim"), *_show_verdict(audit))


def replay_lines(policy_variants: Mapping[str, PolicyAudit]) -> list[str]:
    """Return a line for each policy and shadow that has replays."""
    return [
        _describe_replays(policy_variant, counts)
        for policy_variant, counts in policy_variants.items()
        if counts.replays
    ]


def _describe_replays(policy: str, counts: PolicyAudit) -> str:
    asked, trained, discarded = counts.replays, counts.replayed, counts.replays_discarded
    left = f", {asked - trained - discarded} not yet trained or discarded" if asked > trained + discarded else ""
    share = trained / max(1, trained + counts.trained)
    fresh = f"{counts.trained} fresh {inflect(counts.trained, 'group')}"
    beside = f"{trained} trained beside {fresh} ({share:.0%} of all trained)"
    return f"{policy}: {asked} {inflect(asked, 'replay')}, {beside}, {discarded} discarded{left}"


def _describe_reading(audit: AuditReport) -> str:
    objects = f"{audit.objects} {inflect(audit.objects, 'object')}"
    store = {"checked": objects, "left out": "no objects (--no-store)", "away": objects}
    text = f"{audit.records:,} records read at {audit.records_per_s:,}/s, {store[audit.store]}"
    if deep := audit.deep:
        text += f"; {deep.records:,} {inflect(deep.records, 'group')} decoded at {deep.records_per_s:,}/s"
    if unreadable := audit.unreadable_letters:
        letters = "dead letter cannot be read, so it is counted for"
        if unreadable > 1:
            letters = "dead letters cannot be read, so they are counted for"
        text += f"; {unreadable:,} {letters} no task"
    if without := audit.without_digest:
        text += f"; {without:,} {inflect(without, 'record')} of an older build audited without a digest"
    if audit.source:
        text += f"; an offline experiment: its groups are audited under run {audit.source}"
    return text


def _show_verdict(audit: AuditReport) -> list[RenderableType]:
    if audit.ok:
        if audit.source:
            return [Text("The experiment's chain of weights is whole, and no group is in two batches.", style="green")]
        good = (
            "The audit closes: issued = trained + discarded + dead + in flight; nothing lost, nothing doubled, the "
            "chain of weights is whole."
        )
        return [Text(good, style="green")]
    if not audit.problems:
        return [Text(f"No verdict: {audit.unchecked}", style="yellow")]
    bad = f"The audit does not close: groups lost: {audit.lost}, groups doubled: {audit.doubled}"
    chain = "" if audit.weights_chain_ok else ", and the chain of weights is broken"
    found: list[RenderableType] = [Text(f"{bad}{chain}.", style="bold red")]
    found += [Text(f"  {problem}") for problem in audit.problems]
    if audit.more_problems:
        found.append(Text(f"  and {audit.more_problems} more"))
    if audit.unchecked:
        found.append(Text(f"  {audit.unchecked}", style="yellow"))
    return found


def swap_lines(found: Swap) -> RenderableType:
    """Return what `headrace swap` shows."""
    before, after = (" → ".join(chain) or "(empty)" for chain in (found.chain_before, found.chain))
    if found.before == found.revision:
        return Text(f"run {found.run} has this chain already, as revision {found.revision}: {after}")
    done = "" if found.swapped else " (a dry run: nothing is changed)"
    table = Table.grid(padding=(0, 2))
    table.add_row(f"revision {found.before}", Text(before, style="dim"))
    table.add_row(f"revision {found.revision}", Text(after))
    rule = "Every task issued from now on goes through the new chain, earlier ones through the old chain."
    return Group(Text(f"run {found.run}{done}"), table, Text(rule if found.swapped else "The chain is sound."))


def evaluation_table(found: Mapping[str, Mapping[str, Measured]]) -> RenderableType:
    """Return what `headrace offline evaluate` shows, by workflow and policy."""
    names = ("workflow", "policy", "avg@k", "pass@k", "problems", "tokens", "failures")
    table = make_columns(*names, titles=PLAIN, pad_edge=True)
    for workflow, policies in found.items():
        for policy, one in policies.items():
            passed = ", ".join(f"{k}: {share:.2f}" for k, share in one.pass_at_k.items())
            asked = f"{one.problems} x {one.samples}"
            mean = "-" if one.avg_at_k is None else f"{one.avg_at_k:.3f}{describe_interval(one.standard_error, 3)}"
            row = (mean, passed, asked, f"{one.mean_length:.1f}", str(one.failures))
            table.add_row(workflow, policy, *row)
            for tier, reward in one.tiers.items():
                table.add_row("", Text(f"  {tier}"), "-" if reward is None else f"{reward:.3f}")
    return table
