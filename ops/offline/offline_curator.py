"""`headrace offline curate`: the curator's own logic over archived trajectories, with no broker and no run.

Each partition goes through a `CuratorPartition` as in `headrace curate`. So the run's own chain gives exactly the
records on its curated topic, and another chain gives the records that it would have given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headrace.consumers.curate.context import CuratorContext, find_recipe
from headrace.consumers.curate.curator import CuratorPartition
from headrace.consumers.curate.revision_chains import load_policy_chain
from headrace.infra.archive.reading import Archive
from headrace.infra.archive.writing import ArchiveWriter
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Message, Outgoing
from headrace.infra.kafka.dead_letters import NOT_ISSUED, TIME_TRAVEL, verdict_of
from headrace.infra.progress import open_progress
from headrace.infra.recipe.plug_in_sources import curator_plug_ins, newest_sources, warn_of_differing_sources
from headrace.infra.recipe.recipe_file import replace_chain_from_file
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.revisions import replace_experiment
from headrace.infra.whole_folder import write_new_folder
from headrace.ops.curated_digest import CuratedDigest
from headrace.ops.offline.archiver import list_group_claims
from headrace.ops.offline.refusals import read_first_revision, read_refusals
from headrace.ops.plain_json import plain
from headrace.schemas import codec
from headrace.schemas.headers import Stamp
from headrace.schemas.records import DeadLetter, Outcome, TrajectoryGroup
from headrace.schemas.topics import Topics, policy_of, variant_of

CURATE_REPORT_EVERY = 500


@dataclass(slots=True)
class CurationCounts:
    """The results of one policy's groups."""

    digest: CuratedDigest = field(default_factory=CuratedDigest)
    read: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Number of dropped groups by reason."""
    dropped_trajectories: Counter[str] = field(default_factory=Counter)
    """Number of trajectories left out of kept groups, by reason."""
    flagged: Counter[str] = field(default_factory=Counter)
    """Number of trajectories that an algorithm flagged, by its name, even if it only watches."""
    dead: Counter[str] = field(default_factory=Counter)
    """Number of messages that could not be read, by reason."""
    repeated: int = 0
    """Number of messages of tasks that were concluded before."""

    def count_results(self, outgoing: list[Outgoing], topics: Topics, policy_variant: str) -> None:
        """Count the records that a curator writes for one message."""
        self.read += 1
        self.repeated += not outgoing
        concluded = []
        for one in outgoing:
            if one.topic == topics.curated(policy_variant):
                self.digest.add_record(one.value, one.headers)
            elif one.topic == topics.dead_letters:
                self.dead[codec.decode(one.value, DeadLetter).reason] += 1
            else:
                concluded.append(one.value)
        if len(outgoing) == 2 and len(concluded) == 1:
            return  # kept as a whole: most groups need not be decoded again
        for value in concluded:
            outcome = codec.decode(value, Outcome)
            if outcome.verdict == "dropped":
                counts = self.dropped if outcome.level == "group" else self.dropped_trajectories
                counts[outcome.reason] += 1

    def counts(self) -> CuratedPolicy:
        """Return the counts, reasons in alphabetical order."""
        return CuratedPolicy(
            read=self.read,
            kept=self.digest.kept,
            dropped=dict(sorted(self.dropped.items())),
            dropped_trajectories=dict(sorted(self.dropped_trajectories.items())),
            flagged=dict(sorted(self.flagged.items())),
            again=self.digest.again,
            dead=dict(sorted(self.dead.items())),
            repeated=self.repeated,
            sha256=self.digest.sha256,
        )


@dataclass(frozen=True, slots=True)
class CuratedPolicy:
    """Counts of one policy's groups; the names of the fields are those of `CuratedCounts`."""

    read: int
    kept: int
    dropped: dict[str, int]
    dropped_trajectories: dict[str, int]
    flagged: dict[str, int]
    again: int
    """Replays that the chain asked for."""
    dead: dict[str, int]
    repeated: int
    sha256: str
    """Hash of the curated records."""


@dataclass(frozen=True, slots=True)
class Curated:
    """An archive that was curated into another."""

    archive: str
    out: str
    chain: str | None
    """File of the chain; None for the chain of the run or of a recipe."""
    policies: dict[str, CuratedPolicy]

    def to_json(self) -> Mapping[str, object]:
        """Return the counts of the only policy, or of all policies with their sums."""
        where = {"archive": self.archive, "out": self.out, "chain": self.chain}
        if len(self.policies) == 1:
            [(policy, counts)] = self.policies.items()
            return {**where, "policy": policy, **plain(counts)}
        every = self.policies.values()
        dropped = sum((Counter(one.dropped) for one in every), Counter[str]())
        return {
            **where,
            "policies": self.policies,
            "read": sum(one.read for one in every),
            "kept": sum(one.kept for one in every),
            "again": sum(one.again for one in every),
            "dropped": dict(sorted(dropped.items())),
            "sha256": {policy: one.sha256 for policy, one in self.policies.items()},
        }


def curate_offline(
    source: Path | str, policy: str | None, chain: Path | Recipe | None, out: Path, variant: str | None = None
) -> Curated:
    """Curate archived trajectories into a new archive of recipe, curated records, outcomes and dead letters.

    Args:
        source: The archive.
        policy: Policy of the groups; None for all archived policies.
        chain: A TOML file with `[[curate.chain]]`, or a recipe, for every group. By default each group goes through the
            chain of its revision.
        out: Folder of the new archive, which appears only when complete.
        variant: Name of a shadow, to use its chain and topics.

    Raises:
        UsageError: No such archive, policy or shadow; a chain that does not work; an `out` that exists already.
        FolderBusy: Another process makes `out`.
        ArchiveCorrupt: A file differs from the manifest.
    """
    archive = Archive(source)
    recipes = _read_recipes(archive, chain)
    policies = _choose_policies(archive, policy)
    if variant is not None:
        policies = _find_shadow(recipes[max(recipes)], policies, variant)
    for name in policies:
        newest = _find_newest_recipe(recipes, name)
        load_policy_chain(newest, name)
        warn_of_differing_sources(newest_sources(archive.revisions()), curator_plug_ins(newest, name))
    tallies = {name: CurationCounts() for name in policies}
    with _open_new_archive(archive, out) as writer, open_progress("curating") as tell:
        _copy_topic(archive, archive.topics.recipe, writer)
        for name in policies:
            _curate(archive, name, recipes, writer, tallies[name], tell)
        writer.save()
    found = {name: tally.counts() for name, tally in tallies.items()}
    return Curated(str(source), str(out), str(chain) if isinstance(chain, Path) else None, found)


def _read_recipes(archive: Archive, chain: Path | Recipe | None) -> dict[int, Recipe]:
    """Return the recipes of an archived run by revision, each with the chain of the file if one is given."""
    recipes = {one.revision: Recipe.from_json(one.recipe) for one in archive.revisions()}
    if not recipes:
        raise UsageError(
            f"the archive {archive.root} holds no recipe of its run {archive.manifest.run_id}: archive the run again"
        )
    if isinstance(chain, Recipe):
        return {revision: replace_experiment(recipe, chain) for revision, recipe in recipes.items()}
    return {
        revision: replace_chain_from_file(recipe, chain) if chain else recipe for revision, recipe in recipes.items()
    }


def _choose_policies(archive: Archive, asked: str | None) -> list[str]:
    """Return the policies to curate. Raises UsageError if their trajectories are not archived."""
    begin = archive.topics.trajectories("")
    there = sorted(name.removeprefix(begin) for name in archive.manifest.topics if name.startswith(begin))
    if not there:
        raise UsageError(
            f"the archive {archive.root} holds no trajectories: copy them into it by `headrace archive --topics "
            "trajectories.POLICY`"
        )
    if asked is not None and asked not in there:
        raise UsageError(f"--policy {asked}: the archive has only trajectories of {', '.join(there)}: name one")
    return there if asked is None else [asked]


def _find_newest_recipe(recipes: Mapping[int, Recipe], policy_variant: str) -> Recipe:
    """Return the newest recipe that has a policy or shadow: a later recipe may have dropped it. Raises UsageError."""
    for revision in sorted(recipes, reverse=True):
        if policy_variant in recipes[revision].policy_variants:
            return recipes[revision]
    raise UsageError(f"no recipe of the run has policy {policy_variant}: name another policy by --policy")


def _find_shadow(recipe: Recipe, policies: list[str], variant: str) -> list[str]:
    """Return the shadow of that name. Raises UsageError."""
    found = [one for one in recipe.shadow_variants if variant_of(one) == variant and policy_of(one) in policies]
    if not found:
        there = [variant_of(one) for one in recipe.shadow_variants if policy_of(one) in policies]
        raise UsageError(
            f"there is no shadow {variant} of policy {' or '.join(policies)}: "
            + (f"give --variant with one of {', '.join(there)}" if there else "leave --variant out")
        )
    return found


def _curate(
    archive: Archive,
    policy_variant: str,
    recipes: dict[int, Recipe],
    writer: ArchiveWriter,
    counts: CurationCounts,
    tell: Callable[[int, int], None],
) -> None:
    topics = archive.topics

    def recipe_of(revision: int) -> Recipe:
        return find_recipe(recipes, revision, policy_variant)

    refused, first = read_refusals(archive, policy_variant), read_first_revision(archive)

    # As in a run, verdicts in the headers of a replayed run come first: its offsets differ from those of the archive.
    def is_published(message: Message, group: TrajectoryGroup) -> bool:
        if (verdict := verdict_of(message)) is not None:
            return verdict != TIME_TRAVEL
        return TIME_TRAVEL not in {
            refused.get((message.partition, message.offset)),
            refused.get((group.stream, group.number)),
        }

    def is_issued(message: Message, _: Stamp) -> bool:
        return (verdict_of(message) or refused.get((message.partition, message.offset))) != NOT_ISSUED

    context = CuratorContext(
        archive.manifest.run_id,
        policy_variant,
        topics,
        recipe_of,
        archive.get_group,
        is_published if first.asks_for_published else None,
        is_issued if first.asks_for_issued else None,
    )
    topic = topics.trajectories(policy_variant)
    partition_ids, source = archive.partitions(topic), archive.manifest.topics
    for name in (topics.curated(policy_variant), topics.outcomes(policy_variant)):
        writer.add_topic(name, len(partition_ids), source[name].config if name in source else {})
    whole, numbers = source[topic].records, _Offsets(writer, is_own=not archive.manifest.objects)
    for partition_id in partition_ids:
        state = CuratorPartition(context, partition_id, len(partition_ids))
        for message in archive.messages(partition_id):
            outgoing = list(state.handle(message))
            counts.count_results(outgoing, topics, policy_variant)
            for one in outgoing:
                numbers.write(one, message.timestamp_ms)
            if counts.read % CURATE_REPORT_EVERY == 0:
                tell(counts.read, whole)
        counts.flagged += state.flagged


class _Offsets:
    """Gives consecutive offsets, by partition, to records that do not come from a broker."""

    def __init__(self, writer: ArchiveWriter, *, is_own: bool) -> None:
        self._writer, self._is_own = writer, is_own
        self._next: Counter[tuple[str, int]] = Counter()

    def write(self, one: Outgoing, timestamp_ms: int) -> None:
        partition_id = (one.topic, max(one.partition, 0))
        offset = self._next[partition_id]
        self._next[partition_id] += 1
        message = Message(*partition_id, offset, one.key, one.value, list(one.headers), timestamp_ms)
        self._writer.write(message, is_own=self._is_own)


def _copy_topic(archive: Archive, topic: str, writer: ArchiveWriter) -> None:
    partition_ids = archive.partitions(topic)
    writer.add_topic(topic, len(partition_ids), archive.manifest.topics[topic].config)
    for partition_id in partition_ids:
        for message in archive.messages(partition_id):
            writer.write(message)


@contextmanager
def _open_new_archive(archive: Archive, out: Path) -> Iterator[ArchiveWriter]:
    """Open a writer on a temporary folder, which gets the name `out` at the end."""
    manifest = archive.manifest
    with (
        write_new_folder(out) as growing,
        ArchiveWriter(growing, manifest.run, manifest.run_id, archive.copy, list_group_claims) as writer,
    ):
        writer.add_topic(archive.topics.dead_letters, 1, {})
        yield writer
