"""Pages of commands that work without a running run: archives, offline training, retraining."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table

from headrace.app.views.columns import PLAIN, make_columns, make_facts
from headrace.app.views.safe_text import Text
from headrace.app.views.weights_page import format_bytes
from headrace.infra.inflection import inflect
from headrace.ops.offline.archiver import Archived
from headrace.ops.offline.exporter import TrajectoryTable as Exported
from headrace.ops.offline.offline_curator import Curated
from headrace.ops.offline.offline_run import OfflineSummary
from headrace.ops.offline.replayer import Replayed
from headrace.schemas.topics import variant_of

LEFT_OUT = {
    "undecodable": "records that cannot be decoded",
    "missing_object": "groups whose object is not in the archive, or is damaged",
    "other_run": "groups of another run",
    "malformed": "sequences whose spans or versions do not cover all their tokens, or with a negative token id",
    "empty": "trajectories without a sequence",
}
"""Reason why `headrace export` left something out, to what that was."""


def archive_page(done: Archived) -> RenderableType:
    """Return what `headrace archive` shows."""
    table = _build_table("topic", "records", "bytes", "files", "new this time")
    for name, one in done.topics.items():
        new = f"{one.new_records:,}"
        table.add_row(name, f"{one.records:,}", format_bytes(one.bytes), f"{one.files:,}", new)
    objects = done.objects
    parts: list[RenderableType] = [_build_title("archived", done, done.archive), table]
    if objects.count:
        held = f"{objects.count:,} {inflect(objects.count, 'object')}, {format_bytes(objects.bytes)}"
        parts.append(Text(f"{held}, {objects.new:,} of them new this time"))
    parts += [Text(f"An object could not be read: {why}", style="yellow") for why in objects.missing.values()]
    if done.raw:
        values = f"{done.raw:,} {inflect(done.raw, 'value does', 'values do')}"
        parts.append(Text(f"{values} not have a known schema, and {inflect(done.raw, 'is', 'are')} kept as bytes."))
    gone = Counter[str]()
    for deleted in done.gone:
        gone[deleted.topic] += deleted.end - deleted.begin
    parts += [Text(_describe_deleted(topic, offsets), style="dim") for topic, offsets in gone.items()]
    return Group(*parts)


def _describe_deleted(topic: str, offsets: int) -> str:
    why = " (finished tasks are deleted)" if topic.startswith(("tasks.", "eval-tasks.")) else ""
    where = f"{offsets:,} {inflect(offsets, 'offset')}"
    return f"{topic}: the records at {where} had been deleted before the topic was archived{why}."


def replay_page(done: Replayed) -> RenderableType:
    """Return what `headrace replay` shows."""
    table = _build_table("topic", "records", "new this time")
    for name, one in done.topics.items():
        table.add_row(name, f"{one.records:,}", f"{one.new_records:,}")
    parts: list[RenderableType] = [_build_title("replayed", done, done.into), table]
    if done.objects:
        parts.append(Text(f"{done.objects:,} {inflect(done.objects, 'object is', 'objects are')} in the store."))
    return Group(*parts)


def offline_page(done: Curated) -> RenderableType:
    """Return what `headrace offline curate` shows."""
    table = _build_table("policy", "read", "kept", "again", "dropped", "of those kept", "dead")
    for policy, one in done.policies.items():
        gone = (one.dropped, one.dropped_trajectories, one.dead)
        cells = [Text(", ".join(f"{n:,} {why}" for why, n in counts.items()) or "0") for counts in gone]
        table.add_row(policy, f"{one.read:,}", f"{one.kept:,}", f"{one.again:,}", *cells)
    by = done.chain or ("the shadow's own chain" if any(map(variant_of, done.policies)) else "the run's own chain")
    title = Text.assemble(("curated", "bold"), f"  {done.archive} by {by}, into {done.out}")
    hashes = [Text(f"{one.sha256} {policy}", style="dim") for policy, one in done.policies.items()]
    return Group(title, table, *hashes)


def export_page(done: Exported) -> RenderableType:
    """Return what `headrace export` shows."""
    table = _build_table("outcome", "trajectories")
    for outcome, count in done.outcomes.items():
        table.add_row(Text(outcome), f"{count:,}")
    what = f"  {done.topic} of {done.archive} into {done.file}"
    title = Text.assemble(
        ("exported", "bold"), f"{what}: {done.rows:,} {inflect(done.rows, 'row')}, {format_bytes(done.bytes)}"
    )
    parts: list[RenderableType] = [title, table]
    if not done.texts:
        parts.append(Text("No texts: the archive holds no tokenizer. `headrace archive --with-weights` adds it."))
    parts += [
        Text(f"Left out as {why}, {count:,} in all: {LEFT_OUT.get(why, 'records')}.", style="yellow")
        for why, count in done.skipped.items()
    ]
    return Group(*parts)


def _build_title(what: str, done: Archived | Replayed, where: str) -> Text:
    return Text.assemble((what, "bold"), f"  run {done.run} into {where}, {done.seconds:.1f} s")


def _build_table(first: str, *others: str) -> Table:
    return make_columns(first, *others, right=slice(1, None), pad_edge=True)


if TYPE_CHECKING:  # the tool needs torch, and its page does not
    from headrace.ops.offline.offline_trainer import TrainedOffline
    from headrace.ops.offline.offline_versions import OfflineVersion

MOST_VERSION_ROWS = 20
VERSION_COLUMNS = {
    "reward_mean": ("reward", "{:.2f}"),
    "loss": ("loss", "{:.4f}"),
    "kl_k3": ("KL", "{:.4f}"),
    "ess_share": ("alike", "{:.0%}"),
    "grad_norm_mean": ("grad norm", "{:.2f}"),
}
"""Name of each metric in the table, and its format."""


def offline_training_page(trained: TrainedOffline) -> RenderableType:
    """Return what `headrace offline train` shows."""
    versions = trained.versions
    title = Text.assemble(("trained", "bold"), f"  {trained.policy} over {trained.archive}, into {trained.out}")
    parts: list[RenderableType] = [
        title,
        Text(f"Training began with {trained.start}. Its batches were {trained.batches}."),
    ]
    parts += [Text(f"  {line}") for line in trained.settings]
    parts.append(_build_versions_table(_pick_evenly_spaced(versions)))
    if len(versions) > MOST_VERSION_ROWS:
        parts.append(Text(f"{len(versions)} versions in all; all are in batches.jsonl.", style="dim"))
    parts += [*_show_verdict(trained), *_show_counts(trained), Text(f"{trained.weights_hash} weights", style="dim")]
    return Group(*parts)


def _pick_evenly_spaced(versions: Sequence[OfflineVersion]) -> Sequence[OfflineVersion]:
    """Return evenly spaced versions, with the first and the last."""
    if len(versions) <= MOST_VERSION_ROWS:
        return versions
    return [versions[row * (len(versions) - 1) // (MOST_VERSION_ROWS - 1)] for row in range(MOST_VERSION_ROWS)]


def _build_versions_table(versions: Sequence[OfflineVersion]) -> Table:
    columns = {name: shape for name, shape in VERSION_COLUMNS.items() if any(name in one.metrics for one in versions)}
    titles = (title for title, _ in columns.values())
    table = make_columns("version", "groups", *titles, right=slice(None), pad_edge=True)
    for one in versions:
        cells = (shape.format(one.metrics[name]) if name in one.metrics else "" for name, (_, shape) in columns.items())
        table.add_row(str(one.version), str(one.groups), *cells)
    return table


def _show_verdict(trained: TrainedOffline) -> list[Text]:
    compared = [one for one in trained.versions if one.equal is not None]
    differ = [one.version for one in compared if not one.equal]
    others = [one.version for one in trained.versions if one.expected is not None and one.equal is None]
    said = []
    if differ:
        said.append(
            Text(
                f"{len(differ)} of {len(compared)} versions differ from the run's, the first is version {differ[0]}. "
                "Probably the settings or the weights at the start were different.",
                style="yellow",
            )
        )
    elif compared:
        said.append(
            Text(
                f"{'' if others or len(compared) == 1 else 'All '}{len(compared):,} "
                f"{inflect(len(compared), 'version')} came out as in the run, bit for bit.",
                style="green",
            )
        )
    if others:
        said.append(
            Text(
                f"{len(others):,} {inflect(len(others), 'version is', 'versions are')} not comparable here, the "
                f"first is version {others[0]}, which the run made with other hardware, other software or "
                "another number of threads.",
                style="yellow",
            )
        )
    return said


def _show_counts(trained: TrainedOffline) -> list[Text]:
    counts = trained.counts
    if counts is None:
        return []
    gone = {**counts.evicted, **counts.unusable, "left over": counts.left}
    said = ", ".join(f"{count:,} {why}" for why, count in gone.items() if count)
    read = f"{counts.read:,} {inflect(counts.read, 'record')} read"
    words = f"{read}, {trained.trained:,} {inflect(trained.trained, 'group')} trained on"
    unread = f"{counts.unread:,} {inflect(counts.unread, 'record')} not read"
    parts = [Text(f"{words}{', ' + said if said else ''}; {unread}.")]
    if counts.first_unusable:
        parts.append(Text(f"The first unusable record is {counts.first_unusable}", style="yellow"))
    if counts.evicted.get("expired"):
        parts.append(
            Text(
                "Expired groups became too old before a batch was full: allow older groups with --set "
                f"policies.{trained.policy}.trainer.max_staleness=N, or make batches smaller.",
                style="yellow",
            )
        )
    return parts


def run_page(summary: OfflineSummary) -> RenderableType:
    """Return what `headrace offline up` shows."""
    [(policy, block)] = summary.policies.items()
    groups, data = block.groups, summary.data
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in groups.discarded.items()) or "none"
    table = make_facts()
    table.add_row("run", Text.assemble((summary.run, "bold"), f" over {data.archive}, nothing played"))
    made = len(block.progress) - 1
    table.add_row("policy", f"{policy}, {made:,} {inflect(made, 'version')}, to version {block.versions}")
    table.add_row("groups", f"{groups.issued:,} read, {groups.trained:,} trained, {groups.replayed:,} replayed")
    table.add_row("dropped", Text(dropped))
    for version, reward in block.eval_curve:
        table.add_row("held out", f"{reward:.2f} at version {version}")
    for line in summary.ignored:
        table.add_row("ignored", Text(line, style="yellow"))
    table.add_row("data", Text(f"{data.folder}: curated, trained"))
    return table


if TYPE_CHECKING:  # the tools need torch, and their page does not
    from headrace.ops.offline.experiment import Experiment
    from headrace.ops.offline.retrain import Retrained

TABLE_METRICS = {
    "loss": ("loss", "{:.4f}"),
    "kl_k3": ("KL", "{:.4f}"),
    "clip_fraction": ("clipped", "{:.1%}"),
    "ratio_mean": ("ratio", "{:.4f}"),
    "entropy": ("entropy", "{:.3f}"),
    "grad_norm_mean": ("grad norm", "{:.2f}"),
    "grad_norm_max": ("grad norm max", "{:.2f}"),
    "learning_rate": ("learning rate", "{:.2g}"),
}
"""Name of each metric in the table, and its format."""


def retrain_page(retrained: Retrained | Experiment, program: str, where: str) -> RenderableType:
    """Return what `headrace retrain` shows.

    Args:
        retrained: The versions that were made.
        program: How this user calls `headrace`.
        where: The options that name an experiment.
    """
    from headrace.ops.offline.retrain import Retrained

    if isinstance(retrained, Retrained):
        return Group(_build_hashes_table(retrained), _describe_hashes(retrained))
    look = f"{program} inspect --step {retrained.to} {where}"
    return Group(*_show_experiment(retrained), Text(f"Look at it:\n  {look}", style="bold"))


def _build_hashes_table(retrained: Retrained) -> Table:
    """Return versions and hashes; neighbouring versions with the same result share a row."""
    names = ("versions", "epoch", "", "expected at the last", "came out")
    table = make_columns(*names, titles=PLAIN, pad_edge=True)
    for (epoch, equal), group in groupby(retrained.versions, key=lambda one: (one.epoch, one.equal)):
        alike = list(group)
        first, last = alike[0].version, alike[-1]
        table.add_row(
            str(first) if first == last.version else f"{first}-{last.version}",
            str(epoch),
            {True: "[green]equal[/]", False: "[red]differ[/]", None: "[yellow]not comparable here[/]"}[equal],
            last.expected[:16],
            (last.got or "")[:16],
        )
    return table


def _describe_hashes(retrained: Retrained) -> Text:
    versions, from_ = retrained.versions, retrained.from_
    if differ := [one.version for one in versions if one.equal is False]:
        return Text(
            f"{len(differ)} of {len(versions)} versions differ from the recorded versions, the first is version "
            f"{differ[0]}.",
            style="bold red",
        )
    if not retrained.comparable:
        why = "\n".join(f"  {part}" for part in retrained.differing)
        return Text(
            f"Not comparable here: hardware, software or threads differ from the run's (recorded -> here).\n{why}",
            style="yellow",
        )
    which = f"All {len(versions)} versions" if len(versions) > 1 else f"Version {versions[0].version}"
    return Text(f"{which} after checkpoint {from_} came out the same, bit for bit.", style="green")


def _show_experiment(retrained: Experiment) -> list[RenderableType]:
    """Return the result of other settings beside that of the run's own."""
    run, into, versions = retrained.run, retrained.into, retrained.versions
    changed = sum(not one.equal for one in versions)
    first, last = versions[0].version, versions[-1].version
    held = f"version {first}" if first == last else f"versions {first} to {last}"
    other = f"{changed} {inflect(changed, 'has', 'have')} other weights than in {run}"
    made = f"Run {into} holds {held}, made from the batches of {run}; {other}."
    parts: list[RenderableType] = [Text(made, style="green")]
    parts += [Text(f"  {line}") for line in retrained.settings]
    table = _build_table("", f"{run}, mean", "at the last", f"{into}, mean", "at the last")
    for name, metric in retrained.metrics.items():
        label, form = TABLE_METRICS[name]
        sides = (metric.source_mean, metric.source_last, metric.into_mean, metric.into_last)
        table.add_row(label, *(form.format(value) for value in sides))
    why = (
        "Nothing was played again, so the rewards are those of the same groups. KL, clipped and ratio show how far the "
        "policy moved from the weights that played the groups. Only rollouts can show whether the new policy plays "
        "better."
    )
    return [*parts, Text(), table, Text(), Text(why, style="dim"), Text()]
