"""Groups that a run's curators refused because of the log's state then: a version not published, a task not issued.

Curating archived trajectories again uses these refusals, because the state of the log at that time is not known.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.infra.archive.reading import Archive
from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.dead_letters import NOT_ISSUED, TIME_TRAVEL
from headrace.infra.kafka.decoding import read_own
from headrace.schemas.records import DeadLetter, Outcome, RecipeRevision
from headrace.schemas.topics import variant_of

RefusedReasons = dict[tuple[str | int, int], str]
"""Reason by (partition, offset) of trajectories, or by (stream, number)."""


def read_first_revision(archive: Archive) -> RecipeRevision:
    """Return the first revision, which says which checks the curators make; if not archived, a revision without checks.

    Raises as `Archive.revisions`.
    """
    return next(iter(archive.revisions()), RecipeRevision())


def read_refusals(archive: Archive, policy_variant: str) -> RefusedReasons:
    """Return why trajectories were refused, by (partition, offset); empty if the archive lacks the dead letters.

    A shadow concludes a group of an unpublished version by an outcome: this is by (stream, number). Raises
    ArchiveCorrupt.
    """
    topics, run_id = archive.topics, archive.manifest.run_id
    source, is_shadow = topics.trajectories(policy_variant), bool(variant_of(policy_variant))
    component = f"curate.{policy_variant}"
    found: RefusedReasons = {}
    for message in _iterate_messages(archive, topics.dead_letters):
        dead_letter = read_own(message, DeadLetter, run_id)
        if dead_letter is None or dead_letter.topic != source or dead_letter.component != component:
            continue
        if dead_letter.reason in {TIME_TRAVEL, NOT_ISSUED}:
            found[dead_letter.partition, dead_letter.offset] = dead_letter.reason
    for message in _iterate_messages(archive, topics.outcomes(policy_variant)) if is_shadow else ():
        outcome = read_own(message, Outcome, run_id)
        if outcome is not None and outcome.reason == TIME_TRAVEL:
            found[outcome.stream, outcome.number] = outcome.reason
    return found


def _iterate_messages(archive: Archive, topic: str) -> Iterator[Message]:
    if topic in archive.manifest.topics:
        for partition_id in archive.partitions(topic):
            yield from archive.messages(partition_id)
