"""Records of tasks and groups: tasks, rolled-out groups, curated groups, and outcomes."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.schemas.field_types import ClaimCheck, Float32s, Int32s, no_floats, no_ints


@dataclass(frozen=True, slots=True)
class Task:
    """A problem to roll out. (run id, stream, number) identifies it for ever. feeder → rollout workers."""

    run_id: str = ""
    """The run."""
    stream: str = ""
    """One workflow in one region: `workflow[.region]`; evaluations: `eval.workflow[.region]`."""
    number: int = 0
    """Consecutive in its stream, from 0."""
    attempt: int = 0
    """How often this number was issued again."""
    purpose: str = "train"
    """train | eval."""
    revision: int = 0
    """Recipe revision in force."""
    workflow: str = ""
    """Workflow that plays it."""
    task_id: str = ""
    """Id of the problem in its source, the same at every draw."""
    tier: str = ""
    """Difficulty tier or source of the problem."""
    payload: str = ""
    """The problem as the environment's JSON."""
    n_asked: int = 0
    """Number of episodes of its group."""
    seed: int = 0
    """Seed of its sampling."""
    versions: dict[str, int] = field(default_factory=dict)
    """Policy to the exact weight version to use; empty in training."""
    issued_ms: int = 0
    """Wall time in ms since the epoch."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """A tensor or file attached to a group, trajectory or sequence: an image, expert routing, a sampling mask."""

    name: str = ""
    """Name that the workflow gives it."""
    claim: ClaimCheck | None = None
    """Object that holds its bytes."""
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
    """Most tokens that might be generated."""
    stop_ids: tuple[int, ...] = ()
    """Token ids that end a generation; the stop token itself is part of the ids."""
    stop: tuple[str, ...] = ()
    """Texts that end a generation. The token that completes such a text is part of the ids."""


@dataclass(frozen=True, slots=True)
class Span:
    """A run of tokens of one origin. The loss mask of a sequence is derived from its spans: 1 on `generated`."""

    kind: str = ""
    """prompt | generated | observation | injected."""
    length: int = 0
    """Number of tokens; the lengths of a sequence's spans add up to its ids."""
    turn: int = 0
    """Index of the turn of the conversation."""
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
    """Number of first tokens of the sequence that have experts; the last token has none, as no layer computed it."""
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
    """Role of the policy in the workflow."""
    agent_id: str = ""
    """Id of the agent among those of its role."""
    parent: int = -1
    """Index of the sequence that this one branched from; -1 for none."""
    reward: float | None = None
    """Reward of this sequence; if missing, the trajectory's reward holds."""
    baseline: float | None = None
    """Baseline that the workflow gives; if missing, the group's statistics are used."""
    spans: tuple[Span, ...] = ()
    """Spans of the tokens by origin, in order."""
    attachments: tuple[Attachment, ...] = ()
    """Attachments of this sequence."""
    routing: Routing | None = None
    """Experts of its tokens, if the recipe records routing."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Actions of one policy in one episode."""

    id: str = ""
    """`stream:number:sample`."""
    reward: float = 0.0
    """Reward of the whole trajectory."""
    reward_parts: dict[str, float] = field(default_factory=dict)
    """Parts of the reward by name."""
    sequences: tuple[Sequence, ...] = ()
    """One or more sequences: attempts, turns that were rebuilt, sub-agents."""
    attachments: tuple[Attachment, ...] = ()
    """Attachments of the whole trajectory."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An episode that gave no trajectory, or an error of a tool that did not end its episode. Data, never a crash."""

    sample: int = 0
    """Index of the sample in the group."""
    reason: str = ""
    """error | environment | time_limit | unreachable | run_end | version_gone | poison; of a tool: tool_error."""
    detail: str = ""
    """The error in one line, its type first."""
    at: str = ""
    """File, line and function of the newest frame in user code, as `flow.py:12 in play`; else of the newest frame.
    Empty if nothing was raised."""
    role: str = ""
    """Role that generated last."""
    turn: int = 0
    """How often that role had generated; 0 if the episode failed before."""
    traceback: str = ""
    """Traceback, only in the first failure of this kind in the life of its worker; else empty."""


@dataclass(frozen=True, slots=True)
class EpisodeError:
    """Episodes of a group with the same error: it failed them, unless it is a tool_error. Part of the outcome."""

    reason: str = ""
    """Reason of the failure. This and the next four fields are those of the first Failure with this error."""
    detail: str = ""
    at: str = ""
    role: str = ""
    turn: int = 0
    episodes: int = 0
    """Number of episodes with this error."""
    has_traceback: bool = False
    """Whether the group holds the traceback of one of these episodes."""


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
    """Policy that these trajectories train."""
    task_id: str = ""
    """Id of the problem in its source."""
    tier: str = ""
    """Difficulty tier of the task."""
    episode_ids: tuple[str, ...] = ()
    """Id of each trajectory's episode; it joins the groups of several policies."""
    n_asked: int = 0
    """How many episodes were asked for."""
    trajectories: tuple[Trajectory, ...] = ()
    """The trajectories; empty when all episodes failed, the policy never acted, or the bytes are behind `claim`."""
    failures: tuple[Failure, ...] = ()
    """Episodes that gave no trajectory."""
    reason: str = ""
    """Why there is no trajectory: failed | not_acted | run_end | version_gone | poison; empty when there are some."""
    claim: ClaimCheck | None = None
    """Object that holds the whole encoded group when it was too large for a message."""
    head_version: int = -1
    """Newest version of the policy that the worker knew when it finished: the clock of every data algorithm."""
    asked_version: int = -1
    """The exact version that an evaluation asked for; -1 in training."""
    env: str = ""
    """Environment that gave the problem and scored the answers."""
    tokenizer_hash: str = ""
    """BLAKE3 of tokenizer.json."""
    engine: str = ""
    """Name of the engine that generated."""
    engine_build: str = ""
    """Version of the engine, and the settings on which its numbers depend."""
    logprob_convention: str = "tempered"
    """raw | tempered | masked: the distribution of the log-probabilities."""
    kv_on_swap: str = "recompute"
    """recompute | keep: what the engine does with the KV cache when weights change during a generation."""
    worker: str = ""
    """Name of the worker."""
    region: str = ""
    """Region of the worker."""
    started_ms: int = 0
    """Wall time in ms since the epoch."""
    finished_ms: int = 0
    """Wall time in ms since the epoch."""
    attachments: tuple[Attachment, ...] = ()
    """Attachments of the whole group."""
    tool_errors: tuple[Failure, ...] = ()
    """Errors of tools that did not end their episodes, each kind once per episode: the policy read them."""

    @property
    def errors(self) -> tuple[Failure, ...]:
        """All errors of the user's code in its episodes."""
        return (*self.failures, *self.tool_errors)


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
    """0 for the first use; a replay (1 and more) has no bytes, only the identity of the first use."""
    group: bytes = b""
    """The encoded TrajectoryGroup (or its claim check) exactly as the worker wrote it; empty in a replay."""
    deadline_version: int = 0
    """Last version that may train on it: min_version + max_staleness."""
    min_version: int = 0
    """Oldest version among its generated tokens."""
    revision: int = 0
    """Recipe revision whose chain it passed."""
    kept: tuple[int, ...] = ()
    """Indices of the trajectories to train on; empty in a replay, which uses those of the first use."""
    rewards: tuple[float, ...] = ()
    """Shaped rewards of all members, in order, from which group statistics are computed. NaN: not counted. Empty in
    a replay, which uses those of the first use."""
    first_back: int = 0
    """In a replay: the first use was written this many curated records earlier in the partition. The distance in
    offsets is larger, because of transaction markers; 0 if unknown."""
    weight: float = 1.0
    """Factor on the group's advantages: the importance weight of a replay drawn by priority, else 1."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict on a group or a trajectory, without tensors. curator, trainer → feeder, page, audit, discards."""

    run_id: str = ""
    """The run."""
    stream: str = ""
    """Stream of the task."""
    number: int = 0
    """Number of the task."""
    use: int = 0
    """Number of the use of the group."""
    policy: str = ""
    """Name of the policy."""
    level: str = "group"
    """group | trajectory."""
    trajectory_id: str = ""
    """Id of the trajectory, for level trajectory; else empty."""
    verdict: str = ""
    """kept | dropped | expired | surplus | run_end | missing."""
    reason: str = ""
    """Rule that decided, and why."""
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
    """How many of these episodes failed."""
    errors: tuple[EpisodeError, ...] = ()
    """Errors of failed episodes, in a curator's outcome of a group: at most four, the most frequent first."""
    min_version: int = -1
    """Oldest version among the generated tokens; -1 for none."""
    max_version: int = -1
    """Newest version among the generated tokens; -1 for none."""
    head_version: int = -1
    """Newest version that the worker knew."""
    group_digest: str = ""
    """In a curator's verdict on a group: digest of the record that the worker wrote, as 16 bytes of BLAKE3 in hex."""
