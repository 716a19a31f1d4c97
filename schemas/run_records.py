"""Records of a run and its components: recipe, workers' status, dead letters, snapshots, warm start."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.schemas.field_types import ClaimCheck


@dataclass(frozen=True, slots=True)
class ReadData:
    """Rows that problems come from."""

    path: str = ""
    """File, folder, or `hub:owner/name`, as the recipe has it."""
    rows: int = 0
    """Rows, those that hold the same problem included."""
    content: str = ""
    """SHA-256 in hexadecimal of a JSONL file's plain text, of a Parquet file or of a folder's Arrow files in their
    order; or the revision of the hub."""


@dataclass(frozen=True, slots=True)
class UsedEnvironment:
    """What a workflow's problems come from, when a revision was written."""

    workflow: str = ""
    """Name of the workflow."""
    name: str = ""
    """Name that the environment gives itself."""
    version: str = ""
    """Package and version that it comes from; empty for a module of the user's own, whose source is in `plug_ins`."""
    data: tuple[ReadData, ...] = ()
    """The data that it reads; none where it makes its problems."""


@dataclass(frozen=True, slots=True)
class RecipeRevision:
    """One revision of a run's resolved recipe, or the mark of its end. launcher, feeder, swap → everybody."""

    run_id: str = ""
    """Id of the run: a new one for every run, even of the same name."""
    revision: int = 0
    """Number of the revision, 0 at the start; tasks are stamped with the one in force."""
    recipe: str = ""
    """The resolved recipe, as JSON; empty in a record of the schemas of another build alone."""
    schemas: dict[str, str] = field(default_factory=dict)
    """Record name to `.avsc` text: the writers' schemas of this run."""
    store: str = ""
    """Address of the object store as JSON. Its keys are empty but in runs of 0.1 with an embedded one; since then
    `keys_file` is where the keys of an embedded one are, on its machine."""
    ended: str = ""
    """Why the run has ended: steps | solved | early_stop; empty before. Workers and trainers conclude what is left."""
    source: str = ""
    """Offline experiments: name of the run, on the same cluster, over whose batches it was trained."""
    created_ms: int = 0
    """Wall time in ms since the epoch."""
    swapped: bool = False
    """Whether `headrace swap` made it from the one before, with another chain."""
    plug_ins: dict[str, str] = field(default_factory=dict)
    """Top-level module of each plug-in of the user's own to the BLAKE3 (hex) of its source when this was written."""
    asks_for_published: bool = False
    """First revision only: whether curators refuse groups that name a version that is not published."""
    asks_for_issued: bool = False
    """First revision only: whether curators refuse groups of numbers that were never issued."""
    state_partitions: int = 0
    """First revision only: number of partitions of `state`; a component writes to the one that the CRC-32 of its name
    gives. 0, in older runs, means 1."""
    parent: str = ""
    """First revision of a branch only: id of the run whose versions it began with, and they: `RUN-ID solver@40`."""
    environments: tuple[UsedEnvironment, ...] = ()
    """Environment and data of every workflow; none where they are as in the revision before, and in older runs."""


@dataclass(frozen=True, slots=True)
class TakenWeights:
    """The newest version of a policy that a worker took, and what that cost; in its status."""

    policy: str = ""
    """Name of the policy."""
    version: int = -1
    """Version of the weights."""
    fetched_bytes: int = 0
    """Bytes of the objects that led to this version."""
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
    """State of a rollout worker or trainer, the newest by worker. rollout workers, trainers → page."""

    run_id: str = ""
    """The run."""
    worker: str = ""
    """Name of the worker."""
    workflow: str = ""
    """Workflow that it plays."""
    region: str = ""
    """Region that it is in."""
    state: str = ""
    """starting | waiting | rolling | behind | draining | stopped."""
    detail: str = ""
    """Why it does not roll; empty when it does."""
    versions: dict[str, int] = field(default_factory=dict)
    """Policy to the version that it serves."""
    taken: tuple[TakenWeights, ...] = ()
    """Cost of the version that it serves, one entry per policy."""
    episodes_running: int = 0
    """Episodes that run now."""
    episodes_done: int = 0
    """Episodes that succeeded since its start."""
    episodes_failed: int = 0
    """Episodes that failed since its start."""
    groups_done: int = 0
    """Groups that were completed since its start."""
    tokens: int = 0
    """Tokens generated since its start."""
    wasted_tokens: int = 0
    """Tokens generated for episodes that were cancelled, since its start."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall seconds by activity since its start: encode, produce, consume, commit, decode, generate, wait."""
    cpu_s: float = 0.0
    """CPU seconds of the process since its start."""
    pid: int = 0
    """Process id on its host."""
    host: str = ""
    """Host name."""
    started_ms: int = 0
    """Wall time of its start, in ms since the epoch."""
    updated_ms: int = 0
    """Wall time of this status, in ms since the epoch."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Bytes that could not be read, why, and where from. every consumer, redrive → people, feeder, audit, redrive."""

    run_id: str = ""
    """The run."""
    component: str = ""
    """Component that could not read the bytes."""
    topic: str = ""
    """Topic that they were on; with reason `redriven`, that they are on again."""
    partition: int = 0
    """Partition that they were on; with reason `redriven`, that they are on again."""
    offset: int = 0
    """Offset that they had; with reason `redriven`, that they have now."""
    reason: str = ""
    """undecodable | other_run | misrouted | time_travel | missing_object | unknown_revision | unusable | poison |
    forgotten | unanswered | algorithm_failed | not_issued | redriven."""
    detail: str = ""
    """The error in one line."""
    policy: str = ""
    """Policy in the headers; empty when unknown."""
    stream: str = ""
    """Stream in the headers; empty when unknown."""
    number: int = -1
    """Number in the headers; -1 when unknown. This record concludes a known number of this run."""
    use: int = 0
    """Use in the headers. The dead letter of a replay concludes that use, and not the number."""
    key: bytes = b""
    """Key of the message, unchanged."""
    headers: dict[str, bytes] = field(default_factory=dict)
    """Headers of the message, unchanged."""
    value: bytes = b""
    """Value of the message, unchanged."""
    cut_bytes: int = 0
    """Bytes of key, headers and value that are left out, as the dead letter would be too large: it cannot be sent
    back. Of headers of one name it holds the last only, and counts the others here."""
    redrives: int = -1
    """Offset, in this topic, of the dead letter whose message was sent back to where it came from (reason
    `redriven`): its number is open again. -1 in any other dead letter."""
    created_ms: int = 0
    """Wall time in ms since the epoch."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of a feeder, or of a curator's partition. It holds references, never payloads. themselves → themselves."""

    run_id: str = ""
    """The run."""
    component: str = ""
    """Component whose state it is."""
    topic: str = ""
    """Input topic; empty for a component that has no single one."""
    partition: int = -1
    """Input partition."""
    positions: dict[str, int] = field(default_factory=dict)
    """`topic[partition]` to the next input offset that is not in this state."""
    body: bytes = b""
    """The state as JSON."""


@dataclass(frozen=True, slots=True)
class WarmStartExamples:
    """Worked examples for a supervised start. feeder → trainer, once, in `state`."""

    run_id: str = ""
    """The run."""
    policy: str = ""
    """Name of the policy."""
    examples: ClaimCheck | None = None
    """JSON lines with prompt and completion."""
