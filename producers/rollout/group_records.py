"""Encodes groups as messages, with stamp, key, partition by number, and a claim check for large groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace.infra.kafka.clients import Outgoing
from headrace.producers.rollout.play.failures import build_failure
from headrace.schemas import codec
from headrace.schemas.avro import SchemaError
from headrace.schemas.headers import Stamp
from headrace.schemas.records import ClaimCheck, TrajectoryGroup
from headrace.schemas.topics import Topics
from headrace.schemas.versions import find_version_range


def encode_group(group: TrajectoryGroup) -> tuple[TrajectoryGroup, bytes]:
    """Return a group and its message's bytes; a trajectory that the schema refuses becomes a failure.

    If the schema still refuses the group, all of its episodes fail.
    """
    try:
        return group, codec.encode(group)
    except SchemaError:
        group = _fail_refused(group)
    try:
        return group, codec.encode(group)
    except SchemaError as error:
        failures = tuple(build_failure(sample, error) for sample in range(group.n_asked))
        failed = replace(group, episode_ids=(), trajectories=(), failures=failures, reason="failed")
        return failed, codec.encode(failed)


def _fail_refused(group: TrajectoryGroup) -> TrajectoryGroup:
    """Return a group in which each trajectory that the schema refuses is replaced by a failure."""
    kept, failures = [], list(group.failures)
    for trajectory in group.trajectories:
        try:
            codec.encode(TrajectoryGroup(trajectories=(trajectory,)))
        except SchemaError as error:
            failures.append(build_failure(int(trajectory.id.rpartition(":")[2]), error))
        else:
            kept.append(trajectory)
    return replace(
        group,
        episode_ids=tuple(trajectory.id for trajectory in kept),
        trajectories=tuple(kept),
        failures=tuple(sorted(failures, key=lambda failure: failure.sample)),
        reason=group.reason if kept else "failed",
    )


def encode_claim(group: TrajectoryGroup, claim: ClaimCheck) -> bytes:
    """Return the message of a group whose full bytes are in an object of the store."""
    return codec.encode(replace(group, trajectories=(), claim=claim))


def choose_topic(topics: Topics, policy: str, purpose: str) -> str:
    """Return the topic for a policy's groups."""
    return topics.eval_groups(policy) if purpose == "eval" else topics.trajectories(policy)


def build_outgoing(topics: Topics, group: TrajectoryGroup, value: bytes, partitions: Mapping[str, int]) -> Outgoing:
    """Return the record to produce for a group; `partitions` is the number of partitions by topic."""
    topic = choose_topic(topics, group.policy, group.purpose)
    stamp = build_stamp(group)
    return Outgoing(topic, value, stamp.key, stamp.to_headers(), group.number % partitions[topic])


def build_stamp(group: TrajectoryGroup) -> Stamp:
    """Return the stamp (identity and versions) of a group that holds its trajectories."""
    oldest, newest = find_version_range(group.trajectories)
    return Stamp(
        run_id=group.run_id,
        stream=group.stream,
        number=group.number,
        attempt=group.attempt,
        purpose=group.purpose,
        revision=group.revision,
        policy=group.policy,
        min_version=oldest,
        max_version=newest,
        head_version=group.head_version,
    )


def count_generated_tokens(group: TrajectoryGroup) -> int:
    """Return how many tokens of a group were generated."""
    return sum(
        span.length
        for trajectory in group.trajectories
        for sequence in trajectory.sequences
        for span in sequence.spans
        if span.kind == "generated"
    )
