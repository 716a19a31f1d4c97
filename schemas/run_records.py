"""Records of a run and its components: recipe, workers' status, dead letters, snapshots, warm start."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.schemas.field_types import ClaimCheck


@dataclass(frozen=True, slots=True)
class RecipeRevision:
    """One revision of a run's resolved recipe, or the mark of its end. launcher, feeder, swap → everybody."""

    run_id: str = ""
    """New for every run, even of the same name."""
    revision: int = 0
    """0 at the start; tasks are stamped with the one in force."""
    recipe: str = ""
    """The resolved recipe, as JSON; empty in a record of the schemas of another build alone."""
    schemas: dict[str, str] = field(default_factory=dict)
    """Record name to `.avsc` text: the writers' schemas of this run."""
    store: str = ""
    """Address of the object store as JSON. Its keys are empty but in runs of 0.1 with an embedded one; since then
    `keys_file` is where the keys of an embedded one are, on its machine."""
    ended: str = ""
    """Why the run has ended: steps | solved; empty before. Workers and trainers then conclude what is left."""
    source: str = ""
    """Of an offline experiment: name of the run, on the same cluster, over whose batches it was trained."""
    created_ms: int = 0
    """Wall time in ms since the epoch."""
    swapped: bool = False
    """Whether `headrace swap` made it from the one before, with another chain."""
    plug_ins: dict[str, str] = field(default_factory=dict)
    """Top-level module of each plug-in of the user's own to the BLAKE3 (hex) of its source when this was written."""
    asks_for_published: bool = False
    """Of a run's first: whether its curators refuse groups that name a version which is not published."""
    asks_for_issued: bool = False
    """Of a run's first: whether its curators refuse groups of numbers that were never issued."""
    state_partitions: int = 0
    """Of a run's first: partitions of `state`, on which a component has the one that its name's CRC-32 gives; 0, of
    runs of before, for one."""


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
    """Where it is."""
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
    """Where they were; with reason `redriven`, where they are again."""
    partition: int = 0
    """Where they were; with reason `redriven`, where they are again."""
    offset: int = 0
    """Where they were; with reason `redriven`, where they are again."""
    reason: str = ""
    """undecodable | other_run | misrouted | time_travel | missing_object | unknown_revision | unusable | poison |
    forgotten | unanswered | algorithm_failed | not_issued | redriven."""
    detail: str = ""
    """The error in one line."""
    policy: str = ""
    """From the headers; empty when unknown."""
    stream: str = ""
    """From the headers; empty when unknown."""
    number: int = -1
    """From the headers; -1 when unknown. A known number of this run is concluded by this record."""
    use: int = 0
    """From the headers. The dead letter of a replay concludes that use, and not the number."""
    key: bytes = b""
    """As it was."""
    headers: dict[str, bytes] = field(default_factory=dict)
    """As they were."""
    value: bytes = b""
    """As it was."""
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
class WarmStartExamples:
    """Worked examples for a supervised start. feeder → trainer, once, in `state`."""

    run_id: str = ""
    """The run."""
    policy: str = ""
    """Which policy."""
    examples: ClaimCheck | None = None
    """JSON lines with prompt and completion."""
