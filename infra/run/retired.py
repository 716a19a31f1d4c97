"""Versions whose objects `headrace gc` has deleted or is about to delete, as recorded in `state`."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.decoding import read_record
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.run.run import Run
from headrace.schemas.records import ObjectsRetired
from headrace.schemas.topics import policy_variant_of, prefix_of_retired

WEIGHTS, CHECKPOINTS = "weights", "checkpoints"
"""Kinds of retired objects of a policy."""
Ranges = tuple[tuple[int, int], ...]
"""(first, last) of consecutive versions, both retired."""


class Retired:
    """Retired versions of one run's policies and shadows; the newest record of each has the complete list."""

    def __init__(self, run_id: str, policies: Iterable[str]) -> None:
        self._run_id = run_id
        self._prefixes = tuple(prefix_of_retired(policy) for policy in policies)
        self._ranges: dict[tuple[str, str], Ranges] = {}

    def fold_message(self, message: Message) -> bool:
        """Take in a message of `state`; return whether it is a record of retired objects."""
        if not message.key.startswith(self._prefixes):
            return False
        record = read_record(message, ObjectsRetired)
        if record is not None and record.run_id == self._run_id:
            pairs = record.versions[: len(record.versions) // 2 * 2].reshape(-1, 2).tolist()
            policy_variant = policy_variant_of(record.policy, record.variant)
            self._ranges[policy_variant, record.what] = tuple((first, last) for first, last in pairs)
        return True

    def has_version(self, policy: str, what: str, version: int) -> bool:
        """Return whether the objects of a version may be missing."""
        return any(first <= version <= last for first, last in self.ranges(policy, what))

    def ranges(self, policy: str, what: str) -> Ranges:
        """Return all retired versions of a policy."""
        return self._ranges.get((policy, what), ())


def read_retired(run: Run) -> Retired:
    """Read the retired versions of a run up to the current high watermark.

    The record comes before the deletion, so a process that misses an object and then reads this finds it here.
    """
    found = Retired(run.run_id, run.recipe.policy_variants)
    for message in read_all(run.connection, [run.topics.state]):
        found.fold_message(message)
    return found


def describe_versions(versions: Iterable[int]) -> str:
    """Return versions as text, with ranges for consecutive ones: `0, 50 to 63`."""
    ranges: list[list[int]] = []
    for version in sorted(versions):
        if ranges and version == ranges[-1][1] + 1:
            ranges[-1][1] = version
        else:
            ranges.append([version, version])
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in ranges)
