"""All records that are written to topics, and their parts: import them from here.

One frozen record per topic. A record's docstring names who produces it and who consumes it; a field's text is under
the field and goes into the `.avsc` file. Every field has a default, so any past or future schema can be read. Words
that may grow (kinds, reasons, verdicts) are strings, not Avro enums: a new symbol would break old readers.
"""

from __future__ import annotations

from headrace.schemas.field_types import ClaimCheck, Float32s, Int32s, NamedObject, no_floats, no_ints
from headrace.schemas.group_records import (
    Attachment,
    CuratedGroup,
    EpisodeError,
    Failure,
    Outcome,
    Routing,
    Sampling,
    Sequence,
    Span,
    Task,
    Trajectory,
    TrajectoryGroup,
)
from headrace.schemas.run_records import (
    DeadLetter,
    ReadData,
    RecipeRevision,
    ScalingDecision,
    Snapshot,
    TakenWeights,
    UsedEnvironment,
    WarmStartExamples,
    WorkerStatus,
)
from headrace.schemas.version_records import (
    BatchTrained,
    CheckpointPointer,
    EvalResult,
    Eviction,
    GroupUse,
    ObjectsRetired,
    Position,
    TierResult,
    WeightsPublished,
)

__all__ = [
    "RECORDS",
    "Attachment",
    "BatchTrained",
    "CheckpointPointer",
    "ClaimCheck",
    "CuratedGroup",
    "DeadLetter",
    "EpisodeError",
    "EvalResult",
    "Eviction",
    "Failure",
    "Float32s",
    "GroupUse",
    "Int32s",
    "NamedObject",
    "ObjectsRetired",
    "Outcome",
    "Position",
    "ReadData",
    "RecipeRevision",
    "Routing",
    "Sampling",
    "ScalingDecision",
    "Sequence",
    "Snapshot",
    "Span",
    "TakenWeights",
    "Task",
    "TierResult",
    "Trajectory",
    "TrajectoryGroup",
    "UsedEnvironment",
    "WarmStartExamples",
    "WeightsPublished",
    "WorkerStatus",
    "no_floats",
    "no_ints",
]

RECORDS: tuple[type, ...] = (
    RecipeRevision,
    Task,
    TrajectoryGroup,
    CuratedGroup,
    Outcome,
    BatchTrained,
    WeightsPublished,
    EvalResult,
    WorkerStatus,
    ScalingDecision,
    DeadLetter,
    Snapshot,
    CheckpointPointer,
    WarmStartExamples,
    ObjectsRetired,
)
"""Every record that can be a message of its own."""
