"""The pages of `headrace lineage`: the groups of a version, and the history of a group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Column, Table

from headrace.app.views.columns import make_columns, make_facts
from headrace.app.views.environment_lines import environment_lines
from headrace.app.views.safe_text import Text
from headrace.infra.inflection import inflect
from headrace.infra.utc import format_utc
from headrace.ops.lineage.group_fate import Concluded, GroupFate, GroupLineage, PlayAttempt, TrainedUse
from headrace.ops.lineage.lineage import MadeOf, VersionLineage
from headrace.schemas.episode_errors import TOOL_ERROR, describe_error

FATES = {
    "trained": ("green", ""),
    "dropped": ("yellow", "the curator dropped it: {reason}."),
    "expired": ("yellow", "the curator kept it, but it grew too old before a batch took it."),
    "surplus": ("yellow", "the curator kept it, but the trainer took fresher groups instead."),
    "run_end": ("yellow", "the run ended before a batch took it."),
    "dead": ("red", "it is a dead letter: {reason}."),
    "kept": ("cyan", "in flight: the curator kept it, and it waits for the trainer."),
    "produced": ("cyan", "in flight: a worker has produced it, and it waits for the curator."),
    "issued": ("cyan", "in flight: it was issued, and no worker has produced it yet."),
    "never_issued": ("red", ""),
}
"""Colour and sentence by fate."""
LINEAGE_COLUMNS: tuple[tuple[str, JustifyMethod, str], ...] = (
    ("#", "right", "dim"),
    ("group", "left", "bold"),
    ("task", "left", ""),
    ("reward", "right", ""),
    ("tokens of", "left", ""),
    ("head", "right", ""),
    ("worker", "left", ""),
    ("curated", "left", "dim"),
)
"""Columns of the groups that made a version: name, side and style."""
CROPPED_COLUMNS = ("task", "worker")
"""Columns that may shrink on a narrow terminal."""


def version_page(found: VersionLineage) -> RenderableType:
    """Return what `headrace lineage --version` shows."""
    facts = make_facts(fold=True)
    base = f"version {found.base_version}  {found.base_hash}" if found.base_version >= 0 else found.parent or "nothing"
    facts.add_row("from", Text(base))
    facts.add_row("weights", Text(found.weights_hash))
    facts.add_row("object", Text(found.object_key or "not published"))
    facts.add_row(
        "made", Text(", ".join(filter(None, (format_utc(found.created_ms), _describe_hardware(found.fingerprint)))))
    )
    for line in environment_lines(found.environments):
        facts.add_row("data", Text(line))
    title = Text.assemble(
        (f"version {found.version} of {found.policy}", "bold"),
        f"  run {found.run}, epoch {found.epoch}, recipe revision {found.revision}",
    )
    if not found.groups:
        why = "Made from no group: training began here." if not found.version else "Its batch is not recorded."
        return Group(title, facts, Text(why))
    facts.add_row("groups", Text(_describe_batch(found.groups)))
    return Group(title, facts, Text(), _build_groups_table(found.groups))


def _describe_batch(groups: Iterable[MadeOf]) -> str:
    """Return a batch in one line."""
    some = list(groups)
    rewards = [group.reward_mean for group in some if group.reward_mean is not None]
    shares: defaultdict[str, float] = defaultdict(float)
    for group in some:
        for version, share in group.version_shares.items():
            shares[version] += share
    parts = [str(len(some))]
    if rewards:
        parts.append(f"reward {sum(rewards) / len(rewards):.2f}")
    if total := sum(shares.values()):
        mean = {version: share / total for version, share in shares.items()}
        parts.append(f"tokens of versions {format_shares(mean)}")
    if missing := sum(group.missing for group in some):
        parts.append(f"{missing} missing or unreadable on the curated topic")
    return ", ".join(parts)


def _build_groups_table(groups: Iterable[MadeOf]) -> Table:
    some = list(groups)
    table = make_columns(
        *(
            Column(name, justify=justify, style=style, no_wrap=name not in CROPPED_COLUMNS)
            for name, justify, style in LINEAGE_COLUMNS
        )
    )
    for index, group in enumerate(some):
        use = f" use {group.use}" if group.use else ""
        row = [str(index), f"{group.stream}:{group.number}{use}"]
        if group.missing:
            row += ["missing", "", "", "", ""]
        else:
            reward = group.reward_mean
            row += [
                _describe_task(group),
                "" if reward is None else f"{reward:.2f}",
                format_shares(group.version_shares)
                if 1 <= len(group.version_shares) <= 2
                else _describe_version_range(group),
                str(group.head_version),
                f"{group.worker} {group.region}".strip(),
            ]
        row.append(f"{group.partition}@{group.offset}")
        cells = (Text(text, no_wrap=True, overflow="ellipsis") for text in row)
        table.add_row(*cells, style="red" if group.missing else "")
    return table


def format_shares(shares: Mapping[str, float]) -> str:
    """Return versions with their shares, as in `5 (12%), 6 (88%)`; a single version without a share."""
    if len(shares) == 1:
        return next(iter(shares))
    return ", ".join(
        f"{version} ({share:.0%})" for version, share in sorted(shares.items(), key=lambda item: int(item[0]))
    )


def _describe_version_range(group: MadeOf | PlayAttempt) -> str:
    low, high = group.min_version, group.max_version
    return str(low) if low == high else f"{low}-{high}"


def _describe_task(facts: MadeOf | Concluded) -> str:
    """Return a task's id, with its tier unless the id names the tier."""
    task, tier = facts.task_id, facts.tier
    return task if not tier or tier in task else f"{task} ({tier})"


def _describe_hardware(fingerprint: Mapping[str, str]) -> str:
    if not fingerprint:
        return ""
    threads = fingerprint.get("threads", "?")
    plural = "" if threads == "1" else "s"
    return f"torch {fingerprint.get('torch', '?')} on {fingerprint.get('device', '?')}, {threads} thread{plural}"


# ---------------------------------------------------------------------------------------------------------- of a group


def group_page(found: GroupFate) -> RenderableType:
    """Return what `headrace lineage --group` shows."""
    return Group(*(part for one in found.policies.values() for part in (_build_title(one), _build_records_table(one))))


def _build_title(one: GroupLineage) -> Text:
    colour = FATES[one.fate][0]
    name = f"{one.stream}:{one.number}"
    return Text.assemble((name, "bold"), f" for {one.policy}: ", (describe_fate(one), colour))


def describe_fate(one: GroupLineage) -> str:
    """Return a sentence about the fate of a group."""
    if one.fate == "trained":
        uses = [f" (use {use.use})" if use.use else "" for use in one.trained]
        versions = [f"version {use.version}{nth}" for use, nth in zip(one.trained, uses, strict=True)]
        return f"it trained {', '.join(versions)}."
    if one.fate == "never_issued":
        stream, issued = one.stream, one.issued_next
        some = inflect(issued, f"only {stream}:0 was", f"{stream}:0 to {stream}:{issued - 1} were")
        there = some if issued else "no task of that stream was"
        return f"it was never issued: {there}."
    return FATES[one.fate][1].format(reason=one.reason)


def _build_records_table(one: GroupLineage) -> Table:
    """Return the records of a group, in order, with their positions."""
    table = make_facts(fold=True)
    if not one.attempts:
        for times in one.on_tasks:
            table.add_row("task", f"on the tasks topic{f', {_describe_reissues(times)}' if times else ''}")
    for attempt in one.attempts:
        table.add_row("produced" if attempt.counts else "passed over", Text(_describe_attempt(attempt)))
        for error in attempt.errors:
            table.add_row(
                "tool" if error.reason == TOOL_ERROR else "failed",
                Text(f"{error.episodes} by {describe_error(error)}", style="red"),
            )
        if attempt.traceback:
            table.add_row("", Text(attempt.traceback.rstrip()))
    for dead_letter in one.letters:
        back = ", sent back since" if dead_letter.redriven else ""
        where = f"{dead_letter.topic}[{dead_letter.message_partition}]@{dead_letter.message_offset}"
        table.add_row(
            "dead letter",
            Text(f"@{dead_letter.offset} by {dead_letter.component}, {dead_letter.reason}{back}: {where}"),
        )
        table.add_row("", Text(dead_letter.detail))
    for outcome in one.concluded:
        table.add_row(Text(outcome.verdict), Text(_describe_outcome(outcome)))
    for use in one.trained:
        words = f"version {use.version}, index {use.place} of {use.of}, from {_name_position('curated', use)}"
        table.add_row("trained", Text(words + (f", use {use.use}" if use.use else "")))
    return table


def _describe_attempt(attempt: PlayAttempt) -> str:
    worker = f"{attempt.worker or 'an unreadable worker'} {attempt.region}".strip()
    words = [f"{_name_position('trajectories', attempt)} by {worker}"]
    if attempt.finished_ms:
        seconds = (attempt.finished_ms - attempt.started_ms) / 1000
        words.append(f"{format_utc(attempt.finished_ms)} after {seconds:.1f} s")
    if attempt.attempt:
        words.append(f"{_describe_reissues(attempt.attempt)} before")
    if attempt.trajectories:
        trajectories = f"{attempt.trajectories} {inflect(attempt.trajectories, 'trajectory', 'trajectories')}"
        words.append(f"{trajectories}, tokens of versions {_describe_version_range(attempt)}")
    if attempt.failures:
        words.append(f"{len(attempt.failures)} failed: {', '.join(sorted(set(attempt.failures)))}")
    if attempt.reason:
        words.append(f"reason {attempt.reason}")
    if attempt.unreadable:
        words.append(attempt.unreadable)
    return ", ".join(words)


def _describe_reissues(times: int) -> str:
    return f"issued again {inflect(times, 'once', f'{times} times')}"


def _describe_outcome(outcome: Concluded) -> str:
    words = [f"{_name_position('outcomes', outcome)} by {outcome.component}"]
    if outcome.reason and outcome.reason != outcome.verdict:
        words.append(outcome.reason)
    if outcome.rewards:
        words.append(f"rewards {' '.join(f'{reward:g}' for reward in outcome.rewards)}")
    if outcome.task_id:
        words.append(f"task {_describe_task(outcome)}")
    return ", ".join(words)


def _name_position(topic: str, facts: PlayAttempt | Concluded | TrainedUse) -> str:
    return f"{topic}[{facts.partition}]@{facts.offset}"
