"""Records of weight versions: batches, weights, evaluations, checkpoints, and retired objects."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.schemas.field_types import ClaimCheck, Int32s, NamedObject, no_ints
from headrace.schemas.group_records import EpisodeError

OFF_POLICY_GAP = "off_policy_gap"
"""Name of a version's metric: the distance between the policy and the policy that sampled its batch."""


LENGTH_MEAN, TURNS_MEAN = "length_mean", "turns_mean"
"""Names of two metrics of a version: mean generated tokens of the trajectories of its batch, and mean answers."""
REWARD_PART = "reward_part_"
"""Beginning of the name of a metric: the mean of a part of the reward that the environment or workflow gives."""


@dataclass(frozen=True, slots=True)
class GroupUse:
    """One use of one group in a batch."""

    stream: str = ""
    """Stream of the task."""
    number: int = 0
    """Number of the task."""
    use: int = 0
    """Number of the use of this group: 0 for the first use, above 0 for replays."""
    partition: int = -1
    """Partition of the curated topic: a hint."""
    offset: int = -1
    """Offset in that partition: a hint."""


@dataclass(frozen=True, slots=True)
class Position:
    """Next offset to read."""

    partition: int = 0
    """Partition of the topic."""
    offset: int = 0
    """Next offset to read of that partition."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """A curated group that left the window untrained."""

    group: GroupUse | None = None
    """The group, and which use of it."""
    verdict: str = ""
    """expired | surplus | run_end | dead | missing (a replay whose first use is no longer on the log)."""


@dataclass(frozen=True, slots=True)
class BatchTrained:
    """The groups, in order, that turned one version into the next. trainer → feeder, page, lineage, retrain."""

    run_id: str = ""
    """The run."""
    policy: str = ""
    """Name of the policy."""
    variant: str = ""
    """Variant of the curated topic; empty for the main one."""
    version: int = -1
    """The new version; -1 in a record that only reports evictions."""
    epoch: int = 0
    """Counts how often the hash chain was cut."""
    revision: int = 0
    """Recipe revision that the trainer used; `retrain` and a resume use it too."""
    groups: tuple[GroupUse, ...] = ()
    """The groups that were trained on, in that order."""
    positions: tuple[Position, ...] = ()
    """Next offset of every curated partition when the batch was cut."""
    evictions: tuple[Eviction, ...] = ()
    """Groups that left the window untrained since the last record."""
    base_hash: str = ""
    """Hash of the published weights at the start of training; within an epoch, that of the last version."""
    weights_hash: str = ""
    """Hash of the new published weights."""
    fingerprint: dict[str, str] = field(default_factory=dict)
    """All that the numbers depend on: torch, oneDNN and MKL, instruction set, threads, device."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Loss, reward, ratio, staleness and times of the step."""
    created_ms: int = 0
    """Wall time in ms since the epoch."""
    log_hash: str = ""
    """Hash over the record before it, this one, and the curated records of its groups: see `schemas/digests.py`."""


@dataclass(frozen=True, slots=True)
class WeightsPublished:
    """A weight version in the store, or whole weights of a version again. trainer → workers, lineage."""

    run_id: str = ""
    """The run."""
    policy: str = ""
    """Name of the policy."""
    variant: str = ""
    """Variant of the curated topic; empty for the main one."""
    version: int = 0
    """Version of the weights; it never goes back."""
    epoch: int = 0
    """Counts how often the hash chain was cut."""
    kind: str = "anchor"
    """anchor (whole weights) | delta (against base_version) | whole (a version stored again after its objects were
    lost; not a new version) | merged (only in older runs: several deltas in one; not a new version, and not read)."""
    base_version: int = -1
    """Version to which a delta applies."""
    base_hash: str = ""
    """`weights_hash` of the base."""
    weights_hash: str = ""
    """BLAKE3 over name, dtype, shape and bytes of the result, in name order."""
    dtype: str = "bfloat16"
    """Type of the published tensors."""
    weights: ClaimCheck | None = None
    """The object: safetensors of an anchor, or its index if it has several files, or a delta."""
    shards: tuple[NamedObject, ...] = ()
    """The files that an anchor's index names, in Hugging Face layout; empty if it is one file."""
    files: tuple[NamedObject, ...] = ()
    """Config and tokenizer files beside an anchor, in Hugging Face layout."""
    anchor_offset: int = -1
    """Offset of the nearest anchor in this topic; -1 when this record is one."""
    final: bool = False
    """True for the last version of the run."""
    created_ms: int = 0
    """Wall time in ms since the epoch."""
    metrics: dict[str, float] = field(default_factory=dict)
    """full_bytes of the weights, density of a delta, seconds of encode and upload."""


@dataclass(frozen=True, slots=True)
class TierResult:
    """Reward on the held-out problems of one tier: a held-out set, a source of a mixture, a difficulty."""

    tier: str = ""
    """Name of the tier."""
    problems: int = 0
    """How many problems concluded."""
    played: int = 0
    """Episodes that played."""
    avg_at_k: float = 0.0
    """avg_at_k of this tier; NaN if none played."""


@dataclass(frozen=True, slots=True)
class EvalResult:
    """Reward of one version on held-out problems. evaluator → page, feeder."""

    run_id: str = ""
    """The run."""
    policy: str = ""
    """Name of the policy."""
    variant: str = ""
    """Variant of the curated topic; empty for the main one."""
    workflow: str = ""
    """Name of the workflow that was evaluated."""
    version: int = 0
    """Version of the weights that was evaluated."""
    problems: int = 0
    """How many problems concluded."""
    asked: int = 0
    """How many problems were asked."""
    samples: int = 0
    """Samples per problem."""
    avg_at_k: float = 0.0
    """Mean over problems of the mean reward of the samples that played; NaN if none played."""
    pass_at_k: dict[str, float] = field(default_factory=dict)
    """Unbiased estimate by k, averaged over the problems with at least k played samples; empty if none played."""
    mean_length: float = 0.0
    """Mean number of generated tokens of a trajectory."""
    failures: int = 0
    """Episodes that failed; they count neither as right nor as wrong."""
    played: int = -1
    """Episodes that played; -1 in results of older builds, which counted failed episodes as wrong."""
    tiers: tuple[TierResult, ...] = ()
    """The same by tier, in the order of their names; empty for fewer than 2 or more than 16 tiers."""
    standard_error: float = -1.0
    """Standard error of avg_at_k over the problems; -1 if fewer than two played, and in results of older builds."""
    errors: tuple[EpisodeError, ...] = ()
    """The four most frequent errors of its episodes; empty in results of older builds."""

    @property
    def has_reward(self) -> bool:
        """Whether any episode played."""
        return self.played != 0


@dataclass(frozen=True, slots=True)
class CheckpointPointer:
    """Newest checkpoint of a trainer. trainer → itself, retrain."""

    run_id: str = ""
    """The run."""
    policy: str = ""
    """Name of the policy."""
    variant: str = ""
    """Variant of the curated topic."""
    version: int = 0
    """Version of the weights in it."""
    epoch: int = 0
    """Epoch of the weights in it."""
    checkpoint: ClaimCheck | None = None
    """The object: master weights, optimizer, scheduler, random state; or an index, if they are in `parts`."""
    parts: tuple[NamedObject, ...] = ()
    """Objects that the index names: with several trainer processes, each stores its shards. Empty for one object."""
    weights_hash: str = ""
    """Hash of the published weights."""
    positions: tuple[Position, ...] = ()
    """Offset of every curated partition at or before all groups that were in the window at the checkpoint."""
    fingerprint: dict[str, str] = field(default_factory=dict)
    """All that the numbers depend on, as in BatchTrained."""
    batches_offset: int = -1
    """Offset on `batches` from which a resuming trainer reads; -1: from the beginning."""


@dataclass(frozen=True, slots=True)
class ObjectsRetired:
    """Versions whose objects are no longer needed, recorded before deletion. gc → audit, retrain, export, gc."""

    run_id: str = ""
    """The run."""
    policy: str = ""
    """Name of the policy."""
    variant: str = ""
    """Variant of the curated topic; empty for the main one."""
    what: str = ""
    """weights | checkpoints."""
    versions: Int32s = field(default_factory=no_ints)
    """All versions ever retired, as pairs (first, last), int32[2R]."""
    created_ms: int = 0
    """Wall time in ms since the epoch."""
