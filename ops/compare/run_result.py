"""The result of one run of a sweep: the part of the summary of `headrace up` that `headrace compare` uses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from headrace.ops.discards import RUN_END


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The result of the audit of task numbers."""

    ok: bool
    lost: int = 0
    doubled: int = 0


@dataclass(frozen=True, slots=True)
class GroupsResult:
    """How many of a policy's groups were trained or discarded."""

    trained: int
    discarded: dict[str, int]
    """Reason to the number of groups discarded for it."""
    dead: int
    replayed: int

    @property
    def trained_share(self) -> float | None:
        """Share of the concluded groups that was trained on, without replays; None if no group concluded."""
        concluded = self.trained + sum(self.discarded.values()) + self.dead
        return self.trained / concluded if concluded else None

    @property
    def discarded_share(self) -> float | None:
        """Share of discarded groups among those that concluded before the run's end; None if none concluded."""
        discarded = sum(count for reason, count in self.discarded.items() if reason != RUN_END)
        concluded = self.trained + discarded + self.dead
        return discarded / concluded if concluded else None


@dataclass(frozen=True, slots=True)
class BiasResult:
    """Mean length of discarded groups over that of trained groups."""

    ratio: float | None


@dataclass(frozen=True, slots=True)
class LengthsResult:
    """Mean lengths of groups; None if there are none."""

    trained: float | None
    discarded: float | None
    bias: BiasResult | None


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """The result of one policy; None for what was never measured."""

    versions: int
    reward_last: float | None
    eval_last: float | None
    groups: GroupsResult
    lengths: LengthsResult
    trajectories: int
    reward_curve: tuple[tuple[float, float], ...]
    """(version, reward)."""
    eval_curve: tuple[tuple[float, float], ...]
    """(version, held-out reward), one for each workflow."""
    progress: tuple[tuple[float, float, float], ...]
    """(version, trajectories, seconds): the effort until the version was made."""
    reward_first: float | None = None
    eval_first: float | None = None


@dataclass(frozen=True, slots=True)
class SelectionResult:
    """How many problems of a stream its selector took or rejected."""

    rejected: int


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run. Its JSON is the whole summary as it was read; the other fields are parts of it."""

    wall_s: float
    reward_first: float | None
    reward_last: float | None
    eval_first: float | None
    eval_last: float | None
    audit: AuditResult | None
    """None if nothing was played."""
    selection: dict[str, SelectionResult]
    policies: dict[str, PolicyResult]
    run_id: str = ""
    rest: str = ""
    """What is still missing of the run, in words; empty if it is finished."""
    summary: dict[str, Any] = field(default_factory=dict, compare=False)
    """The whole file."""

    def to_json(self) -> Mapping[str, object]:
        """Return the whole summary."""
        return self.summary


_PARSED = TypeAdapter(RunResult)


def read_result(text: bytes) -> RunResult:
    """Return the result that a summary file holds. Raises ValueError for any other file."""
    found = json.loads(text)
    try:
        return _PARSED.validate_python({**found, "summary": found} if isinstance(found, dict) else found)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
