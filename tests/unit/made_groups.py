"""Groups for tests of data algorithms: as small as they can be, and sound."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from collections.abc import Sequence as Items
from typing import Any

import numpy as np

from headrace.consumers.algorithms.contract import Candidate, Drop, Keep, Replay, Result
from headrace.schemas.records import Failure, Sequence, Span, Trajectory, TrajectoryGroup


def sequence(generated: int = 1, version: int = 3, prompt: int = 2, **changes: Any) -> Sequence:
    """A prompt, then one generation; `finish` and `turns` say how it ended and how many it is cut into."""
    finish, turns = changes.pop("finish", "stop"), changes.pop("turns", 1)
    cuts = [generated * turn // turns for turn in range(turns + 1)]
    return Sequence(
        ids=np.arange(prompt + generated, dtype=np.int32),
        logprobs=np.array([0.0] * prompt + [-0.5] * generated, np.float32),
        version_runs=np.array([-1, prompt, *([version, generated] if generated else [])], np.int32),
        spans=(
            Span("prompt", prompt),
            *(
                Span("generated", end - begin, turn, None, finish)
                for turn, (begin, end) in enumerate(itertools.pairwise(cuts))
            ),
        ),
        **changes,
    )


def group(  # noqa: PLR0913 - by name
    rewards: Items[float],
    lengths: Items[int] = (),
    *,
    number: int = 1,
    version: int = 3,
    sequences: Items[Sequence] = (),
    failed: int = 0,
    ids: Items[str] = (),
) -> TrajectoryGroup:
    """One trajectory of one sequence for each reward; `lengths` are its generated tokens."""
    made = sequences or [sequence(length, version) for length in lengths or [1] * len(rewards)]
    names = ids or [f"sums:{number}:{index}" for index in range(len(rewards))]
    return TrajectoryGroup(
        stream="sums",
        number=number,
        policy="solver",
        trajectories=tuple(
            Trajectory(name, reward, {}, (one,)) for name, reward, one in zip(names, rewards, made, strict=True)
        ),
        n_asked=len(rewards) + failed,
        failures=tuple(Failure(len(rewards) + index, "error") for index in range(failed)),
        head_version=version,
    )


def candidate(*rewards: float, **settings: Any) -> Candidate:
    return Candidate.of(group(rewards, **settings))


def kept(results: Iterable[Result]) -> Candidate:
    [keep] = [result for result in results if not isinstance(result, Replay)]
    assert isinstance(keep, Keep), keep
    return keep.candidate


def dropped(results: Iterable[Result]) -> str:
    [drop] = results
    assert isinstance(drop, Drop), drop
    return drop.reason
