"""Records of a run and its components: recipe, workers' status and number, dead letters, snapshots, warm start."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.schemas.field_types import ClaimCheck


@dataclass(frozen=True, slots=True)
class ReadData:
    """A data set from which problems come."""

    path: str = ""
    """File, folder, or `hub:owner/name`, as the recipe has it."""
    rows: int = 0
    """Number of rows, duplicates included."""
    content: str = ""
    """SHA-256 in hexadecimal of a JSONL file's uncompressed text, of a Parquet file or of a folder's Arrow files in
    order; or the revision on the hub."""


@dataclass(frozen=True, slots=True)
class UsedEnvironment:
    """Environment and data of a workflow when a revision was written."""

    workflow: str = ""
    """Name of the workflow."""
    name: str = ""
    """Name that the environment gives itself."""
    version: str = ""
    """Version that the environment tells, else its package with its version; empty for a user's own module, whose
    source is in `plug_ins`, and for a server that was away."""
    data: tuple[ReadData, ...] = ()
    """The data that it reads; empty if it generates its problems."""
    settings_hash: str = ""
    """Hash of the environment's name and settings in the recipe; empty in records of older builds."""


@dataclass(frozen=True, slots=True)
class RecipeRevision:
    """One revision of a run's resolved recipe, or the mark of its end. launcher, feeder, swap → everybody."""

    run_id: str = ""
    """Id of the run: a new one for every run, even of the same name."""
    revision: int = 0
    """Number of the revision, 0 at the start; each task names the revision in force."""
    recipe: str = ""
    """The resolved recipe as JSON; empty in a record that only adds the schemas of another build."""
    schemas: dict[str, str] = field(default_factory=dict)
    """Record name to `.avsc` text: the writers' schemas of this run."""
    store: str = ""
    """Address of the object store as JSON. Its keys are empty, except in runs of 0.1 with an embedded store. Since then
    `keys_file` is the path of an embedded store's keys on its machine."""
    ended: str = ""
    """Why the run has ended: steps | solved | early_stop; empty before. Workers and trainers conclude open work."""
    source: str = ""
    """Offline experiments: name of the run on the same cluster whose batches it was trained on."""
    created_ms: int = 0
    """Wall time in ms since the epoch."""
    swapped: bool = False
    """Whether `headrace swap` made this revision from the last one by replacing the chain."""
    plug_ins: dict[str, str] = field(default_factory=dict)
    """BLAKE3 (hex) of each plug-in's source when this was written, by its top-level module."""
    asks_for_published: bool = False
    """First revision only: whether curators refuse groups that name an unpublished version."""
    asks_for_issued: bool = False
    """First revision only: whether curators refuse groups whose number was never issued."""
    state_partitions: int = 0
    """First revision only: number of partitions of `state`; the CRC-32 of a component's name gives its partition. 0,
    in older runs, means 1."""
    parent: str = ""
    """First revision of a branch only: id of the source run and the versions taken from it: `RUN-ID solver@40`."""
    environments: tuple[UsedEnvironment, ...] = ()
    """Environment and data of every workflow; empty if unchanged since the last revision, and in older runs."""
    regions: dict[str, str] = field(default_factory=dict)
    """Region to its servers as JSON: `bootstrap` of its Kafka, and `store` as above."""


@dataclass(frozen=True, slots=True)
class TakenWeights:
    """The newest version of a policy that a worker loaded, and its cost; part of the worker's status."""

    policy: str = ""
    """Name of the policy."""
    version: int = -1
    """Version of the weights."""
    fetched_bytes: int = 0
    """Bytes of the objects fetched for this version."""
    fetch_s: float = 0.0
    """Seconds to fetch these from the store or this machine's cache, and to read them."""
    verify_s: float = 0.0
    """Seconds to hash weights, before and after."""
    apply_s: float = 0.0
    """Seconds to write the changed weights, or all."""
    pause_s: float = 0.0
    """Seconds for which the engine did not generate during the load."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """State of a worker or trainer; the newest record of each is kept. rollout workers, trainers → page."""

    run_id: str = ""
    """The run."""
    worker: str = ""
    """Name of the worker."""
    workflow: str = ""
    """Workflow that it plays."""
    region: str = ""
    """Region of the worker."""
    kind: str = ""
    """Kind of the worker, as it was started with; empty for none."""
    engine: str = ""
    """What generates its tokens, as recipes name it; empty for a trainer."""
    device: str = ""
    """Device of an engine in the worker's process, such as `cuda:1`; empty if it is not known."""
    dtype: str = ""
    """Type of the numbers that the engine computes with; empty if it is not known."""
    policies: tuple[str, ...] = ()
    """Policies that it serves: those of its workflow."""
    slots: int = 0
    """Most episodes that it runs at once."""
    state: str = ""
    """starting | waiting | rolling | behind | draining | stopped."""
    detail: str = ""
    """Why the worker is not rolling; empty while it rolls."""
    versions: dict[str, int] = field(default_factory=dict)
    """Served version by policy."""
    taken: tuple[TakenWeights, ...] = ()
    """Cost of the served version, one entry per policy."""
    episodes_running: int = 0
    """Episodes that run now."""
    requests_running: int = 0
    """Requests of episodes that are in the engine now."""
    requests_waiting: int = 0
    """Requests of episodes that wait for a place in the engine now."""
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
class ScalingDecision:
    """A new number of workers of a pool, written before anything acts on it. autoscaler → itself, page."""

    run_id: str = ""
    """The run."""
    pool: str = ""
    """The workers that are meant: `rollout-<workflow>`."""
    before: int = 0
    """Number of workers that was asked before."""
    after: int = 0
    """Number of workers that is asked now."""
    reason: str = ""
    """Why, as a sentence."""
    policy: str = ""
    """Policy whose trainer decided: the most starved of those that the workflow trains."""
    version: int = -1
    """Newest version of that policy that the decision counts."""
    versions: int = 0
    """How many versions it counts."""
    wait_share: float = 0.0
    """Share of their time that the trainer waited for groups, at most 0.95."""
    busy_share: float = 1.0
    """Share of the workers' room that was in use meanwhile; 1 if not known."""
    consumed: int = 0
    """Groups that were trained on for the first time in these versions."""
    entered: int = 0
    """Groups that curators kept meanwhile."""
    scaler: str = ""
    """What it was told to: `up` and its data folder, or `kubernetes`, namespace and Deployment."""
    created_ms: int = 0
    """Wall time in ms since the epoch."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Bytes that could not be read, why, and where from. every consumer, redrive → people, feeder, audit, redrive."""

    run_id: str = ""
    """The run."""
    component: str = ""
    """Component that could not read the bytes."""
    topic: str = ""
    """Topic of the message; with reason `redriven`, the topic to which it was sent back."""
    partition: int = 0
    """Partition of the message; with reason `redriven`, the partition to which it was sent back."""
    offset: int = 0
    """Offset of the message; with reason `redriven`, its new offset."""
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
    """Bytes of key, headers and value that were left out because the dead letter would be too large; then it cannot be
    sent back. Of several headers with one name, only the last is kept, and the others count here."""
    redrives: int = -1
    """With reason `redriven`: offset, in this topic, of the dead letter whose message was sent back, so that its number
    is open again. -1 in any other dead letter."""
    created_ms: int = 0
    """Wall time in ms since the epoch."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of a feeder, or of a curator's partition. It holds references, never payloads. a component → itself."""

    run_id: str = ""
    """The run."""
    component: str = ""
    """Component whose state it is."""
    topic: str = ""
    """Input topic; empty for a component with several input topics."""
    partition: int = -1
    """Input partition."""
    positions: dict[str, int] = field(default_factory=dict)
    """Next input offset that is not in this state, by `topic[partition]`."""
    body: bytes = b""
    """The state as JSON."""


@dataclass(frozen=True, slots=True)
class WarmStartExamples:
    """Worked examples for a supervised warm start. feeder → trainer, once, in `state`."""

    run_id: str = ""
    """The run."""
    policy: str = ""
    """Name of the policy."""
    examples: ClaimCheck | None = None
    """JSON lines with prompt and completion."""
