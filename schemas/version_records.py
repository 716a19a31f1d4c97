"""Records of weight versions: the batch that made one, its weights, its evaluation, its checkpoint, its end."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.schemas.field_types import ClaimCheck, Int32s, NamedObject, no_ints
from headrace.schemas.group_records import EpisodeError

OFF_POLICY_GAP = "off_policy_gap"
"""Among the metrics of a version: how far the policy is from the one that sampled its batch."""


@dataclass(frozen=True, slots=True)
class GroupUse:
    """One use of one group in a batch."""

    stream: str = ""
    """Stream of the task."""
    number: int = 0
    """Number of the task."""
    use: int = 0
    """Number of the use of this group: 0 for fresh, counted up by replays."""
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
    """The version that came out; -1 in a record that only reports evictions."""
    epoch: int = 0
    """Counts how often the hash chain was cut."""
    revision: int = 0
    """Recipe revision that the trainer had in force: what `retrain` and a resume use."""
    groups: tuple[GroupUse, ...] = ()
    """The groups that were trained on, in that order."""
    positions: tuple[Position, ...] = ()
    """Next offset of every curated partition at the cut."""
    evictions: tuple[Eviction, ...] = ()
    """Groups that left the window untrained since the record before."""
    base_hash: str = ""
    """Hash of the published weights that training began from; within an epoch, that of the version before."""
    weights_hash: str = ""
    """Hash of the published weights that came out."""
    fingerprint: dict[str, str] = field(default_factory=dict)
    """What the numbers depend on: torch, oneDNN and MKL, instruction set, threads, device."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Loss, reward, ratio, staleness and times of the step."""
    created_ms: int = 0
    """Wall time in ms since the epoch."""


@dataclass(frozen=True, slots=True)
class WeightsPublished:
    """A weight version that is in the store, or a further way to one. trainer, compactor → workers, lineage."""

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
    """anchor (whole) | delta (against base_version) | merged (deltas of versions before as one; publishes none) | whole
    (a version whose objects were lost once more; publishes none)."""
    base_version: int = -1
    """Version that a delta, or a merged one, applies to."""
    base_hash: str = ""
    """`weights_hash` of the base."""
    weights_hash: str = ""
    """BLAKE3 over name, dtype, shape and bytes of the result, in name order."""
    dtype: str = "bfloat16"
    """Type of the published tensors."""
    weights: ClaimCheck | None = None
    """The object: safetensors of an anchor, or its index where it has several files, or a delta."""
    shards: tuple[NamedObject, ...] = ()
    """The files that an anchor's index names, in Hugging Face layout; none where it is one file."""
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
    """As that of the whole evaluation; NaN if none played."""


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
    """Mean reward over the samples that played, and over the problems with such samples; NaN if none played."""
    pass_at_k: dict[str, float] = field(default_factory=dict)
    """k to the unbiased estimate, averaged over the problems of which so many samples played; empty if none did."""
    mean_length: float = 0.0
    """Mean number of generated tokens of a trajectory."""
    failures: int = 0
    """Episodes that failed: they are no answers, right or wrong."""
    played: int = -1
    """Episodes that played; -1 where failed ones counted as wrong, as builds before this field did."""
    tiers: tuple[TierResult, ...] = ()
    """The same by tier, in the order of their names; empty where there are fewer than 2 tiers, or more than 16."""
    standard_error: float = -1.0
    """Standard error of avg_at_k over the problems; -1 where fewer than two played, and of builds before this field."""
    errors: tuple[EpisodeError, ...] = ()
    """How its episodes failed, the most frequent four; none of builds before this field."""

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
    """The object: masters, optimizer, scheduler, random state; or an index of those, where the parts hold them."""
    parts: tuple[NamedObject, ...] = ()
    """What the index names: each process of a trainer of several stores its own shards. None where it is one object."""
    weights_hash: str = ""
    """Hash of the published weights."""
    positions: tuple[Position, ...] = ()
    """Next offset of every curated partition such that all in the window at the checkpoint is at or after it."""
    fingerprint: dict[str, str] = field(default_factory=dict)
    """What the numbers depend on, as in BatchTrained."""
    batches_offset: int = -1
    """Offset on `batches` from which a trainer that resumes by it reads; -1: from the beginning."""


@dataclass(frozen=True, slots=True)
class StepBegun:
    """A step that a trainer has begun after a start, before it did: what it ends with shows who comes next. trainer."""

    run_id: str = ""
    """The run."""
    policy: str = ""
    """Name of the policy."""
    variant: str = ""
    """Variant of the curated topic; empty for the main one."""
    version: int = -1
    """The version that it is to make."""
    times: int = 0
    """How often a step to this version, or to one before it from the same groups, was begun; this one included."""
    suspects: int = 0
    """Number of groups still trained in small batches, since a larger one ended the process."""


@dataclass(frozen=True, slots=True)
class ObjectsRetired:
    """Versions whose objects nothing needs any more, before these are deleted. gc → audit, retrain, export, gc."""

    run_id: str = ""
    """The run."""
    policy: str = ""
    """Name of the policy."""
    variant: str = ""
    """Variant of the curated topic; empty for the main one."""
    what: str = ""
    """weights | checkpoints."""
    versions: Int32s = field(default_factory=no_ints)
    """All that ever were retired, as pairs (first, last), int32[2R]: what was published or taken of these."""
    created_ms: int = 0
    """Wall time in ms since the epoch."""
