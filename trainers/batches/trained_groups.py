"""The groups that batches were trained on, read back from the curated topic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from headrace.infra.errors import HeadraceError
from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.decoding import read_own
from headrace.infra.kafka.topic_reader import read_all, read_offsets
from headrace.infra.run.first_uses import complete_replay, find_first_uses
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import ObjectCorrupt, ObjectMissing
from headrace.schemas.ids import UseId
from headrace.schemas.records import BatchTrained, CuratedGroup, GroupUse
from headrace.trainers.batches.first_use_cache import replay_of
from headrace.trainers.batches.groups import DecodedGroup, decode_group

Read = tuple[Message, CuratedGroup]

BATCHES_AT_ONCE = 8
"""Number of batches whose groups are read together: a reader takes time to start, and groups take memory."""


class LineageBroken(HeadraceError):
    """Data from which a batch was made no longer exists."""


def read_trained_groups(
    run: Run, policy_variant: str, batches: Sequence[BatchTrained]
) -> Iterator[tuple[BatchTrained, list[DecodedGroup]]]:
    """Yield every batch with its groups, in their order; a replay has the trajectories of its first use.

    The positions in a batch are hints: if another record is there, the topic is searched. Raises LineageBroken if a
    group or its first use is no longer on the topic or in the store.
    """
    for begin in range(0, len(batches), BATCHES_AT_ONCE):
        part = batches[begin : begin + BATCHES_AT_ONCE]
        found = _read_records(run, policy_variant, part)
        for batch in part:
            try:
                yield batch, [decode_group(run, found[use]) for use in batch.groups]
            except (ObjectMissing, ObjectCorrupt) as error:
                raise LineageBroken(f"version {batch.version} cannot be trained again: {error}") from error


def _read_records(run: Run, policy_variant: str, batches: Iterable[BatchTrained]) -> dict[GroupUse, CuratedGroup]:
    wanted = {use for batch in batches for use in batch.groups}
    topic = run.topics.curated(policy_variant)
    found = find_records(run, topic, wanted)
    if missing := sorted(UseId.of(use) for use in wanted - found.keys()):
        raise LineageBroken(
            f"{topic} no longer holds {len(missing)} of the groups that were trained on, such as {missing[0]}, so "
            "their versions cannot be trained again: were records of this topic deleted?"
        )
    whole_ones = add_payloads(run, topic, found)
    if gone := sorted(UseId.of(use) for use in wanted - whole_ones.keys()):
        raise LineageBroken(
            f"{topic} no longer holds the first records of {len(gone)} replayed groups that were trained on, such as "
            f"{gone[0]}, so their versions cannot be trained again: were records of this topic deleted?"
        )
    return {use: curated for use, (_, curated) in whole_ones.items()}


def find_records(run: Run, topic: str, wanted: set[GroupUse]) -> dict[GroupUse, Read]:
    """Return the curated records of uses, with their messages, that are still on the topic."""
    offsets: defaultdict[int, set[int]] = defaultdict(set)
    for use in wanted:
        if use.partition >= 0:
            offsets[use.partition].add(use.offset)
    found: dict[GroupUse, Read] = {}
    for some in (read_offsets(run.connection, topic, offsets), read_all(run.connection, [topic])):
        if not (left := {UseId.of(use): use for use in wanted - found.keys()}):
            break
        for message in some:
            curated = read_own(message, CuratedGroup, run.run_id)
            if curated is not None and UseId.of(curated) in left:
                found[left[UseId.of(curated)]] = (message, curated)
    return found


def add_payloads(run: Run, topic: str, found: Mapping[GroupUse, Read]) -> dict[GroupUse, Read]:
    """Return the records; those of replays get the groups of their first uses, or are left out if these are gone."""
    replays = {use: replay_of(*read) for use, read in found.items() if read[1].use and not read[1].group}
    firsts = find_first_uses(run.connection, topic, run.run_id, replays.values())
    whole_ones = {use: read for use, read in found.items() if use not in replays}
    for use, replay in replays.items():
        first = read_own(firsts[replay], CuratedGroup, run.run_id) if replay in firsts else None
        if first is not None:
            message, curated = found[use]
            whole_ones[use] = message, complete_replay(curated, first)
    return whole_ones
