"""Everything that is said on a topic: one frozen record per topic, and the parts they are made of.

A record's docstring says who produces it and who consumes it; a field's text stands under the field and travels into
the `.avsc` file. Every field has a default, so any past or future schema can be read. Words that may grow (kinds,
reasons, verdicts) are strings, not Avro enums: a new symbol would break old readers.

Tensors are Avro `bytes`, little-endian, with their dtype named in the schema; here they are numpy arrays, on read
views that cannot be written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import numpy.typing as npt

from headrace.schemas.avro import Dtype

Int32s = Annotated[npt.NDArray[np.int32], Dtype("int32")]
Float32s = Annotated[npt.NDArray[np.float32], Dtype("float32")]


def no_ints() -> npt.NDArray[np.int32]:
    """Return an empty int32 array, the default of an integer tensor."""
    return np.empty(0, np.int32)


def no_floats() -> npt.NDArray[np.float32]:
    """Return an empty float32 array, the default of a float tensor."""
    return np.empty(0, np.float32)


# ---------------------------------------------------------------------------------------------------------------- parts


@dataclass(frozen=True, slots=True)
class ClaimCheck:
    """Names an immutable object in the store, never a host."""

    store: str = ""
    """Name of the store in the recipe."""
    key: str = ""
    """Key of the object; it holds the content hash."""
    sha256: str = ""
    """Hash of the object's bytes, in hex."""
    size_bytes: int = 0
    """Length of the object."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """A tensor or file that goes with a group, trajectory or sequence: an image, expert routing, a sampling mask."""

    name: str = ""
    """What it is, in the workflow's words."""
    claim: ClaimCheck | None = None
    """Where its bytes are."""
    dtype: str = ""
    """Type of its elements; empty for a plain file."""
    shape: tuple[int, ...] = ()
    """Shape of the tensor."""
    span: int = -1
    """Span of the sequence that it belongs to; -1 for the whole."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a span was sampled."""

    temperature: float = 1.0
    """Divides the logits; 0 is greedy."""
    top_p: float = 1.0
    """Nucleus; 1 keeps all."""
    top_k: int = 0
    """The k likeliest tokens; 0 keeps all."""
    min_p: float = 0.0
    """Least share of the likeliest token's probability; 0 keeps all."""
    max_tokens: int = 0
    """Limit that was in force."""
    stop_ids: tuple[int, ...] = ()
    """Token ids that end a generation; the stop token itself is part of the ids."""


@dataclass(frozen=True, slots=True)
class Span:
    """A run of tokens of one origin. The loss mask of a sequence is derived from its spans: 1 on `generated`."""

    kind: str = ""
    """prompt | generated | observation | injected."""
    length: int = 0
    """Number of tokens; the lengths of a sequence's spans add up to its ids."""
    turn: int = 0
    """Which turn of the conversation."""
    reward: float | None = None
    """Reward for this span alone, where the environment gives one."""
    finish_reason: str = ""
    """stop | length | cancelled, for a generated span."""
    sampling: Sampling | None = None
    """How a generated span was sampled."""


@dataclass(frozen=True, slots=True)
class Routing:
    """The experts to which the engine sent tokens of a sequence, in every layer that has experts."""

    ids: bytes = b""
    """Ids of experts, `dtype`[tokens, layers, per_token] in C order."""
    dtype: str = "uint8"
    """uint8, or uint16 where a layer has more than 256 experts."""
    tokens: int = 0
    """The sequence's first so many; the last token is not among them, since nothing was computed of it."""
    layers: int = 0
    """Layers with experts, in the model's order."""
    per_token: int = 0
    """Experts per token."""


@dataclass(frozen=True, slots=True)
class Sequence:
    """Tokens that one forward pass sees. Arrays are aligned with `ids`, 0 or -1 where nothing was generated."""

    ids: Int32s = field(default_factory=no_ints)
    """Token ids, int32[T]."""
    logprobs: Float32s = field(default_factory=no_floats)
    """Behaviour log-probabilities, float32[T]; 0 on tokens that this policy did not generate."""
    version_runs: Int32s = field(default_factory=no_ints)
    """Weight versions as pairs (version, run length), int32[2R]; version -1 on tokens that were not generated."""
    role: str = ""
    """What the policy was in the workflow."""
    agent_id: str = ""
    """Which agent of that role."""
    parent: int = -1
    """Index of the sequence that this one branched from; -1 for none."""
    reward: float | None = None
    """Reward of this sequence; the trajectory's holds where this is missing."""
    baseline: float | None = None
    """Baseline that the workflow gives; missing where the group's statistics serve."""
    spans: tuple[Span, ...] = ()
    """Where the tokens come from, in order."""
    attachments: tuple[Attachment, ...] = ()
    """What goes with this sequence."""
    routing: Routing | None = None
    """Where its tokens went in a mixture of experts, when the recipe has it recorded."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """What one policy did in one episode."""

    id: str = ""
    """`stream:number:sample`."""
    reward: float = 0.0
    """Reward of the whole trajectory."""
    reward_parts: dict[str, float] = field(default_factory=dict)
    """What the reward is made of."""
    sequences: tuple[Sequence, ...] = ()
    """One or more sequences: attempts, turns that were rebuilt, sub-agents."""
    attachments: tuple[Attachment, ...] = ()
    """What goes with the whole trajectory."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An episode that gave no trajectory. It is data, never a crash."""

    sample: int = 0
    """Which of the group's n samples."""
    reason: str = ""
    """error | time_limit | run_end | version_gone | poison."""
    detail: str = ""
    """The error in one line."""


# -------------------------------------------------------------------------------------------------------------- records


@dataclass(frozen=True, slots=True)
class RecipeRevision:
    """One revision of a run's resolved recipe, or the word that the run is over. launcher, feeder, swap → everybody."""

    run_id: str = ""
    """New for every run, even of the same name."""
    revision: int = 0
    """0 at the start; tasks are stamped with the one in force."""
    recipe: str = ""
    """The resolved recipe, as JSON; empty in a record that only tells the schemas of another build."""
    schemas: dict[str, str] = field(default_factory=dict)
    """Record name to `.avsc` text: the writers' schemas of this run."""
    store: str = ""
    """Address of the object store as JSON; with keys only when it is embedded, on loopback."""
    ended: str = ""
    """Why the run is over: steps | solved; empty while it goes on. Workers and trainers then conclude what is left."""
    source: str = ""
    """Of an offline experiment: name of the run, on the same cluster, over whose batches it was trained."""
    created_ms: int = 0
    """Wall time in ms since the epoch."""
    swapped: bool = False
    """Whether `headrace swap` made it from the one before, with another chain."""
    plug_ins: dict[str, str] = field(default_factory=dict)
    """Top-level module of each plug-in of the user's own to the BLAKE3 (hex) of its source when this was written."""


@dataclass(frozen=True, slots=True)
class Task:
    """A question to be rolled out. (run id, stream, number) names it for ever. feeder → rollout workers."""

    run_id: str = ""
    """The run."""
    stream: str = ""
    """One workflow in one region: `workflow[.region]`; evaluations: `eval.workflow[.region]`."""
    number: int = 0
    """Consecutive in its stream, from 0."""
    attempt: int = 0
    """Counts how often this number was issued again."""
    purpose: str = "train"
    """train | eval."""
    revision: int = 0
    """Recipe revision in force."""
    workflow: str = ""
    """Which workflow plays it."""
    task_id: str = ""
    """Identity in its source, the same whenever it is drawn."""
    tier: str = ""
    """Difficulty tier or source that it was drawn from."""
    payload: str = ""
    """The problem as JSON, in the environment's words."""
    n_asked: int = 0
    """How many episodes make its group."""
    seed: int = 0
    """Seed of its sampling."""
    versions: dict[str, int] = field(default_factory=dict)
    """Policy to the exact weight version to use; empty in training."""
    issued_ms: int = 0
    """Wall time in ms since the epoch."""


@dataclass(frozen=True, slots=True)
class TrajectoryGroup:
    """The trajectories of one task that train one policy, never split. rollout workers → curators, archive."""

    run_id: str = ""
    """The run."""
    stream: str = ""
    """Stream of the task."""
    number: int = 0
    """Number of the task."""
    attempt: int = 0
    """Attempt of the task."""
    purpose: str = "train"
    """train | eval."""
    revision: int = 0
    """Recipe revision that the task was stamped with."""
    policy: str = ""
    """Which policy these trajectories train."""
    task_id: str = ""
    """Identity of the task in its source."""
    tier: str = ""
    """Difficulty tier of the task."""
    episode_ids: tuple[str, ...] = ()
    """One per trajectory; ties the groups of several policies together."""
    n_asked: int = 0
    """How many episodes were asked for."""
    trajectories: tuple[Trajectory, ...] = ()
    """What was played; empty when all failed, the policy never acted, or the bytes are behind `claim`."""
    failures: tuple[Failure, ...] = ()
    """Episodes that gave no trajectory."""
    reason: str = ""
    """Why there is no trajectory: failed | not_acted | run_end | version_gone | poison; empty when there are some."""
    claim: ClaimCheck | None = None
    """Where the whole encoded group is when it was too large for a message."""
    head_version: int = -1
    """Newest version of the policy that the worker knew when it finished: the clock of every data algorithm."""
    asked_version: int = -1
    """The exact version that an evaluation asked for; -1 in training."""
    env: str = ""
    """Environment that asked and judged."""
    tokenizer_hash: str = ""
    """BLAKE3 of tokenizer.json."""
    engine: str = ""
    """Which engine generated."""
    engine_build: str = ""
    """Its version and settings that matter to numbers."""
    logprob_convention: str = "tempered"
    """raw | tempered | masked: what the log-probabilities are of."""
    kv_on_swap: str = "recompute"
    """recompute | keep: what became of the KV cache when weights changed in flight."""
    worker: str = ""
    """Name of the worker."""
    region: str = ""
    """Region of the worker."""
    started_ms: int = 0
    """Wall time in ms since the epoch."""
    finished_ms: int = 0
    """Wall time in ms since the epoch."""
    attachments: tuple[Attachment, ...] = ()
    """What goes with the whole group."""


@dataclass(frozen=True, slots=True)
class CuratedGroup:
    """A group that passed the chain, its bytes unchanged. curator → trainer, retrain. No wall time, no offset."""

    run_id: str = ""
    """The run."""
    stream: str = ""
    """Stream of the task."""
    number: int = 0
    """Number of the task."""
    use: int = 0
    """0 for fresh; a replay carries the identity of the first use instead of its bytes."""
    group: bytes = b""
    """The encoded TrajectoryGroup (or its claim check) exactly as the worker wrote it; empty in a replay."""
    deadline_version: int = 0
    """Last version that may still be trained on it: min_version + max_staleness."""
    min_version: int = 0
    """Oldest version among its generated tokens."""
    revision: int = 0
    """Recipe revision whose chain it passed."""
    kept: tuple[int, ...] = ()
    """Indices of the trajectories to train on; empty in a replay, for which those of the first use serve."""
    rewards: tuple[float, ...] = ()
    """Shaped rewards of all members, in order; group statistics are taken from these. NaN: malformed, not counted.
    Empty in a replay, for which those of the first use serve."""
    first_back: int = 0
    """Of a replay: how many curated records of its partition ago the first use was written. With the markers of
    transactions between them it is at least so many offsets before; 0 when unknown."""
    weight: float = 1.0
    """Factor on the group's advantages: the importance weight of a replay that was drawn by priority, else 1."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a group or a trajectory, without tensors. curator, trainer → feeder, page, audit, discards."""

    run_id: str = ""
    """The run."""
    stream: str = ""
    """Stream of the task."""
    number: int = 0
    """Number of the task."""
    use: int = 0
    """Which use of the group."""
    policy: str = ""
    """Which policy."""
    level: str = "group"
    """group | trajectory."""
    trajectory_id: str = ""
    """For level trajectory."""
    verdict: str = ""
    """kept | dropped | expired | surplus | run_end | missing."""
    reason: str = ""
    """Which rule, and for what."""
    component: str = ""
    """curate | train."""
    revision: int = 0
    """Recipe revision of the task."""
    task_id: str = ""
    """Identity of the task in its source."""
    tier: str = ""
    """Difficulty tier of the task."""
    rewards: tuple[float, ...] = ()
    """Rewards of the members before any filter or shaping."""
    lengths: tuple[int, ...] = ()
    """Generated tokens of each member."""
    n_asked: int = 0
    """How many episodes were asked for."""
    failures: int = 0
    """How many of them failed."""
    min_version: int = -1
    """Oldest version among the generated tokens; -1 for none."""
    max_version: int = -1
    """Newest version among the generated tokens; -1 for none."""
    head_version: int = -1
    """Newest version that the worker knew."""


@dataclass(frozen=True, slots=True)
class GroupUse:
    """One use of one group in a batch."""

    stream: str = ""
    """Stream of the task."""
    number: int = 0
    """Number of the task."""
    use: int = 0
    """Which use."""
    partition: int = -1
    """Partition of the curated topic: a hint."""
    offset: int = -1
    """Offset in it: a hint."""


@dataclass(frozen=True, slots=True)
class Position:
    """Next offset to read."""

    partition: int = 0
    """Partition."""
    offset: int = 0
    """The next offset."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """A curated group that left the window untrained."""

    group: GroupUse | None = None
    """Which."""
    verdict: str = ""
    """expired | surplus | run_end | dead | missing (a replay whose first use is no longer on the log)."""


@dataclass(frozen=True, slots=True)
class BatchTrained:
    """The groups, in order, that turned one version into the next. trainer → feeder, page, lineage, retrain."""

    run_id: str = ""
    """The run."""
    policy: str = ""
    """Which policy."""
    variant: str = ""
    """Variant of the curated topic; empty for the main one."""
    version: int = -1
    """The version that came out; -1 in a record that only reports evictions."""
    epoch: int = 0
    """Counts how often the hash chain was cut."""
    revision: int = 0
    """Recipe revision that the trainer had in force: what `retrain` and a resume use."""
    groups: tuple[GroupUse, ...] = ()
    """In the order in which they were trained."""
    positions: tuple[Position, ...] = ()
    """Next offset of every curated partition at the cut."""
    evictions: tuple[Eviction, ...] = ()
    """What left the window untrained since the record before."""
    base_hash: str = ""
    """Of the published weights that training began from: `weights_hash` of the version before, within an epoch."""
    weights_hash: str = ""
    """Of the published weights that came out."""
    fingerprint: dict[str, str] = field(default_factory=dict)
    """What numbers depend on: torch, oneDNN and MKL, instruction set, threads, device."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Loss, reward, ratio, staleness and times of the step."""
    created_ms: int = 0
    """Wall time in ms since the epoch."""


@dataclass(frozen=True, slots=True)
class NamedObject:
    """A file and the object that holds it."""

    name: str = ""
    """File name."""
    claim: ClaimCheck | None = None
    """Where its bytes are."""


@dataclass(frozen=True, slots=True)
class WeightsPublished:
    """A weight version that is in the store, or a way between two. trainer, compactor → workers, lineage."""

    run_id: str = ""
    """The run."""
    policy: str = ""
    """Which policy."""
    variant: str = ""
    """Variant of the curated topic; empty for the main one."""
    version: int = 0
    """Never goes back."""
    epoch: int = 0
    """Counts how often the hash chain was cut."""
    kind: str = "anchor"
    """anchor (whole) | delta (against base_version) | merged (deltas of versions before as one; publishes none)."""
    base_version: int = -1
    """What a delta, or a merged one, applies to."""
    base_hash: str = ""
    """`weights_hash` of the base."""
    weights_hash: str = ""
    """BLAKE3 over name, dtype, shape and bytes of the result, in name order."""
    dtype: str = "bfloat16"
    """Published type."""
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
class EvalResult:
    """Success of one version on held-out problems. evaluator → page."""

    run_id: str = ""
    """The run."""
    policy: str = ""
    """Which policy."""
    variant: str = ""
    """Variant of the curated topic; empty for the main one."""
    workflow: str = ""
    """Which workflow."""
    version: int = 0
    """Which version."""
    problems: int = 0
    """How many problems concluded."""
    asked: int = 0
    """How many were asked."""
    samples: int = 0
    """Samples per problem."""
    avg_at_k: float = 0.0
    """Mean success over samples and problems."""
    pass_at_k: dict[str, float] = field(default_factory=dict)
    """k to the unbiased estimate, averaged over problems."""
    mean_length: float = 0.0
    """Mean generated tokens."""
    failures: int = 0
    """Episodes that failed; they count as wrong."""


@dataclass(frozen=True, slots=True)
class TakenWeights:
    """The newest version of a policy that a worker took, and what that cost; in its status."""

    policy: str = ""
    """Which policy."""
    version: int = -1
    """Which version."""
    fetched_bytes: int = 0
    """Of the objects that led to it."""
    fetch_s: float = 0.0
    """Seconds until these were here, from the store or from this machine's cache, and read."""
    verify_s: float = 0.0
    """Seconds of hashing weights, before and after."""
    apply_s: float = 0.0
    """Seconds of writing what changed, or all."""
    pause_s: float = 0.0
    """Seconds in which the engine generated nothing for it."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """How a rollout worker is doing, the newest by worker. rollout workers → autoscaler, page."""

    run_id: str = ""
    """The run."""
    worker: str = ""
    """Its name."""
    workflow: str = ""
    """What it plays."""
    region: str = ""
    """Where it stands."""
    state: str = ""
    """starting | waiting | rolling | behind | draining | stopped."""
    detail: str = ""
    """Why, when it does not roll."""
    versions: dict[str, int] = field(default_factory=dict)
    """Policy to the version that it serves."""
    taken: tuple[TakenWeights, ...] = ()
    """Of each policy, how the version that it serves came."""
    episodes_running: int = 0
    """Now."""
    episodes_done: int = 0
    """Since its start."""
    episodes_failed: int = 0
    """Since its start."""
    groups_done: int = 0
    """Since its start."""
    tokens: int = 0
    """Generated since its start."""
    wasted_tokens: int = 0
    """Generated for episodes that were cancelled."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall seconds by activity since its start: encode, produce, consume, commit, decode, generate, wait."""
    cpu_s: float = 0.0
    """CPU seconds of the process."""
    pid: int = 0
    """Process id on its host."""
    host: str = ""
    """Host name."""
    started_ms: int = 0
    """Wall time in ms since the epoch."""
    updated_ms: int = 0
    """Wall time in ms since the epoch."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Bytes that could not be read, why, and where from. every consumer, redrive → people, feeder, audit, redrive."""

    run_id: str = ""
    """The run."""
    component: str = ""
    """Who could not read them."""
    topic: str = ""
    """Where they were; with reason `redriven`, where they stand again."""
    partition: int = 0
    """Where they were; with reason `redriven`, where they stand again."""
    offset: int = 0
    """Where they were; with reason `redriven`, where they stand again."""
    reason: str = ""
    """undecodable | other_run | misrouted | time_travel | missing_object | unknown_revision | unusable | poison |
    forgotten | redriven."""
    detail: str = ""
    """The error in one line."""
    policy: str = ""
    """From the headers; empty when unknown."""
    stream: str = ""
    """From the headers; empty when unknown."""
    number: int = -1
    """From the headers; -1 when unknown. A known number of this run is concluded by this record."""
    use: int = 0
    """From the headers. The letter of a replay concludes that use, and not the number."""
    key: bytes = b""
    """As it was."""
    headers: dict[str, bytes] = field(default_factory=dict)
    """As they were."""
    value: bytes = b""
    """As it was."""
    cut_bytes: int = 0
    """Bytes of key, headers and value that the letter leaves out, as it would be too large: it cannot be sent back. Of
    headers of one name it holds the last only, and counts the others here."""
    redrives: int = -1
    """Offset, in this topic, of the letter whose message was sent back to where it came from (reason `redriven`): its
    number is open again. -1 in a letter of its own."""
    created_ms: int = 0
    """Wall time in ms since the epoch."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of a feeder, or of a curator's partition. It holds references, never payloads. themselves → themselves."""

    run_id: str = ""
    """The run."""
    component: str = ""
    """Whose."""
    topic: str = ""
    """Input topic; empty for a component that has no single one."""
    partition: int = -1
    """Input partition."""
    positions: dict[str, int] = field(default_factory=dict)
    """`topic[partition]` to the next input offset that is not in this state."""
    body: bytes = b""
    """The state as JSON."""


@dataclass(frozen=True, slots=True)
class CheckpointPointer:
    """Newest checkpoint of a trainer. trainer → itself, retrain."""

    run_id: str = ""
    """The run."""
    policy: str = ""
    """Which policy."""
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
    """Of the published weights."""
    positions: tuple[Position, ...] = ()
    """Next offset of every curated partition such that all in the window at the checkpoint lies at or after it."""
    fingerprint: dict[str, str] = field(default_factory=dict)
    """What its numbers depend on."""


@dataclass(frozen=True, slots=True)
class WarmStartExamples:
    """Worked examples for a supervised start. feeder → trainer, once, in `state`."""

    run_id: str = ""
    """The run."""
    policy: str = ""
    """Which policy."""
    examples: ClaimCheck | None = None
    """JSON lines with prompt and completion."""


@dataclass(frozen=True, slots=True)
class ObjectsRetired:
    """Versions whose objects nothing needs any more, said before they are deleted. gc → audit, retrain, export, gc."""

    run_id: str = ""
    """The run."""
    policy: str = ""
    """Which policy."""
    variant: str = ""
    """Variant of the curated topic; empty for the main one."""
    what: str = ""
    """weights | checkpoints."""
    versions: Int32s = field(default_factory=no_ints)
    """All that ever were retired, as pairs (first, last), int32[2R]: what was published or taken of these."""
    created_ms: int = 0
    """Wall time in ms since the epoch."""


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
    DeadLetter,
    Snapshot,
    CheckpointPointer,
    WarmStartExamples,
    ObjectsRetired,
)
"""Every record that may stand alone in a message."""
