"""Identities of groups, seeds derived from names, and the clock of all records.

Some other modules have their own hashes for random draws. Those hashes must never change, because snapshots and
checkpoints depend on them: selectors (`producers/feed/selectors/draws.py`), data algorithms
(`consumers/algorithms/draws.py`, `random_m.py`), the window's order and minibatches (`trainers/batches/window.py`,
`batch.py`), and permutations of environments (`envs/permutation.py`, `reasoning_gym_env.py`).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from typing import NamedTuple, Protocol

LONGEST_NAME = 1000
"""Most characters of a stream, task id, tier or reason, because later records repeat them. Ids of trajectories are
repeated up to this length."""


def describe_long_fields(record: object, names: Iterable[str]) -> list[str]:
    """Return, for each of these texts of a record that is longer than LONGEST_NAME, what is wrong with it."""
    lengths = {name: len(getattr(record, name)) for name in names}
    return [
        f"{name} has {length} characters, and may have at most {LONGEST_NAME}"
        for name, length in lengths.items()
        if length > LONGEST_NAME
    ]


class HasGroup(Protocol):
    """A record, or its stamp, that names a group."""

    @property
    def stream(self) -> str:
        """Stream of the task."""
        ...

    @property
    def number(self) -> int:
        """Number of the task in its stream."""
        ...


class HasUse(HasGroup, Protocol):
    """A record, or its stamp, that names one use of a group."""

    @property
    def use(self) -> int:
        """0 for the first training on the group, above 0 for replays."""
        ...


class GroupId(NamedTuple):
    """A group of one policy, or a task of all policies. It compares and sorts like the tuple (stream, number)."""

    stream: str
    number: int

    def __str__(self) -> str:
        """Return `stream:number`."""
        return f"{self.stream}:{self.number}"

    @classmethod
    def of(cls, record: HasGroup) -> GroupId:
        """Return the group that a record is about."""
        return cls(record.stream, record.number)


class UseId(NamedTuple):
    """One use of a group of one policy. It compares and sorts like a plain tuple."""

    stream: str
    number: int
    use_number: int
    """0 for the first training on the group, above 0 for replays."""

    def __str__(self) -> str:
        """Return `stream:number use N`."""
        return f"{self.stream}:{self.number} use {self.use_number}"

    @classmethod
    def of(cls, record: HasUse) -> UseId:
        """Return the use that a record is about."""
        return cls(record.stream, record.number, record.use)


def now_ms() -> int:
    """Return wall time in ms since the epoch, as in records."""
    return time.time_ns() // 1_000_000


def derive_seed(*parts: object) -> int:
    """Return a seed in [0, 2**63) that depends only on the parts, on every machine."""
    return _hash_to_seed("\0".join(map(str, parts)))


def derive_task_seed(seed: int, stream: str, number: int) -> int:
    """Return the seed of a task's sampling: a stable hash in [0, 2**63), the same for every attempt."""
    return _hash_to_seed(f"{seed}|{stream}|{number}")


def _hash_to_seed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
