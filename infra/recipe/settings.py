"""The recipe: everything that can be set for a run, checked before anything starts.

`recipe_file.py` reads it from TOML, the `recipe` topic carries it as JSON to every component.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from headrace.infra.errors import UsageError
from headrace.infra.kafka.bootstrap import Bootstrap
from headrace.infra.recipe.table import MOST_PARTITIONS, MOST_PROCESSES, RunName, Settings, Temperature
from headrace.infra.store.endpoint import BucketName, Endpoint, split_scheme
from headrace.schemas.topics import Topics, TopicSpec, check_name, policy_of, policy_variant_of, variant_of

MOST_STATE_PARTITIONS = 64


class Named(BaseModel):
    """What a recipe names, with its settings: `{ use = "max_staleness", limit = 2 }`, or only the name."""

    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)

    use: str
    """Name of a shipped one, or `package.module:Name`."""

    @model_validator(mode="before")
    @classmethod
    def _parse_bare_name(cls, value: Any) -> Any:
        return {"use": value} if isinstance(value, str) else value

    @property
    def settings(self) -> dict[str, Any]:
        """All keys beside `use`."""
        return dict(self.model_extra or {})

    def describe(self) -> str:
        """Return name and settings in one line: `pods m=4`."""
        return " ".join([self.use, *(f"{name}={value}" for name, value in self.settings.items())])


def _wrap_single(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


OneOrSeveral: TypeAlias = Annotated[tuple[Named, ...], BeforeValidator(_wrap_single)]
"""Several in order, or only one, not in a list."""


class WarmStart(Settings):
    """Supervised steps before version 0, until the share of held-out examples that it completes is in a band."""

    reward_low: float = Field(0.30, ge=0, lt=1)
    """Lower edge of the band: share of held-out examples that the policy completes word by word. Not a reward."""
    reward_high: float = Field(0.40, gt=0, le=1)
    """Upper edge of the band."""
    examples: int = Field(4096, ge=1)
    """Worked examples to ask the environment for."""
    held_out: int = Field(256, ge=16)
    """Worked examples that are held out to measure on."""
    max_steps: int = Field(2000, ge=1)
    """Supervised steps after which the warm start gives up."""
    batch: int = Field(64, ge=1)
    """Examples per supervised step."""
    learning_rate: float = Field(1e-3, gt=0, le=1)
    """Learning rate of AdamW."""


class Lora(Settings):
    """Train a low-rank adapter alone: a layer computes W x + (alpha / rank) B A x, of which W is frozen."""

    rank: int = Field(8, ge=1, le=4096)
    """Rows of A and columns of B."""
    alpha: float = Field(16.0, gt=0)
    """Scale of the adapter, divided by the rank."""
    targets: tuple[str, ...] = ()
    """Linear layers by the end of their names, as `q_proj` or `layers.0.mlp.up_proj`; empty for all but the head's."""
    publish: Literal["adapter", "merged"] = "adapter"
    """What a version is. `adapter`: the adapter alone, which the engine puts on the base. `merged`: whole weights,
    W + (alpha / rank) B A rounded to bf16, which any engine can serve. The trainer computes with what is published."""


class Policy(Settings):
    """A policy: where its first weights come from."""

    path: str = ""
    """Folder of a Hugging Face checkpoint; empty to build from `model`."""
    model: dict[str, Any] = Field(default_factory=dict)
    """Fields of a Hugging Face config, with `architecture` as its model type: `{ architecture = "qwen3", … }`."""
    alphabet: str = ""
    """Characters of a character tokenizer, for a model built from `model`."""
    warm_start: WarmStart | None = None
    """Supervised start; none by default."""
    lora: Lora | None = None
    """Train an adapter alone; by default all weights are trained. Fixed for a run."""
    trainer: dict[str, Any] = Field(default_factory=dict)
    """Keys of `[trainer]` that differ for this policy."""

    @model_validator(mode="after")
    def _check_origin(self) -> Policy:
        if bool(self.path) == bool(self.model):
            raise ValueError("give either `path` (a Hugging Face folder) or `model` (a config to build from)")
        if self.model and not self.alphabet:
            raise ValueError("a model built from a config needs `alphabet`, the characters of its tokenizer")
        return self


class Workflow(Settings):
    """An environment, a workflow, and the policies that play its roles."""

    env: Named
    """Environment that gives the problems and scores the answers: `{ use = "arithmetic", … }`."""
    workflow: str = "single_turn"
    """How an episode runs: a shipped name or `package.module:name`."""
    policies: dict[str, str]
    """The policy that plays each role of the workflow."""

    @field_validator("policies")
    @classmethod
    def _check_some(cls, value: dict[str, str]) -> dict[str, str]:
        if not value:
            raise ValueError('name at least one role and its policy, as in `policies = { solver = "solver" }`')
        return value


class Rollout(Settings):
    """How workers generate."""

    engine: Named = Named(use="torch")
    """Token generation: `torch` (in-process); `sglang` or `vllm` (servers: `docs/engines.md`); `scripted`, without a
    model (`producers/engines/scripted.py`); or your own as `package.module:function`."""
    device: str = "cpu"
    """Device of the in-process engine: `cpu`, `cuda`, `cuda:1`."""
    group_size: int = Field(8, ge=1, le=4096)
    """Episodes per task."""
    temperature: float = Field(1.0, ge=0.01, le=100)
    """Sampling temperature in training."""
    top_p: float = 1.0
    """Must stay 1 in training: recorded log-probabilities are those of the whole distribution."""
    top_k: int = 0
    """Must stay 0 in training."""
    min_p: float = 0.0
    """Must stay 0 in training."""
    max_tokens: int = Field(256, ge=1)
    """Largest number of tokens per generation."""
    concurrency: int = Field(256, ge=1, le=1_000_000)
    """Episodes that one worker runs at once. Those of a group, or of a held-out problem, that has more take turns."""
    episode_limit_s: float = Field(120.0, gt=0)
    """Seconds after which an episode fails."""
    score_threads: int = Field(8, ge=1, le=256)
    """Threads of a worker in which `score` runs. 1 for a scorer that cannot run twice at once."""
    score_limit_s: float = Field(10.0, gt=0)
    """Seconds that one score may take; then its episode fails. The time that it waits for a thread does not count."""
    record_routing: bool = False
    """Record the experts of every token, if the policy has experts, for a trainer that replays them (`docs/moe.md`). It
    takes a byte for each layer and expert of a token."""
    inline_limit_bytes: int = Field(512 * 1024, ge=1024, le=4 << 20)
    """A larger group goes to the store, and its record carries a claim check."""

    @model_validator(mode="after")
    def _check_distribution(self) -> Rollout:
        if (self.top_p, self.top_k, self.min_p) != (1.0, 0, 0.0):
            raise ValueError(
                "top_p, top_k and min_p must be 1, 0 and 0 in training, because log-probabilities are recorded for the "
                "whole distribution, not for a part of it (evaluation may set them)",
            )
        return self


class Feed(Settings):
    """Which tasks are issued, and how fast."""

    selector: OneOrSeveral = (Named(use="accept_all"),)
    """Which tasks are worth a rollout (`docs/task-selectors.md`). Of a list, all must agree."""
    pace: Literal["any", "all"] = "any"
    """Issue tasks while any, or while all, of a workflow's policies have room."""
    solved_share: float = Field(0.95, gt=0, le=1)
    """Share of zero-variance drops among the last 500 groups at which the tasks count as solved."""
    raise_tier: bool = False
    """When the tasks are solved, continue with the environment's next harder tier; else the run ends as `solved`."""
    reissue_after_s: float = Field(60.0, gt=0)
    """Seconds after which a task is issued again if the workers have committed past it and it has no outcome."""

    @field_validator("selector")
    @classmethod
    def _check_some(cls, value: tuple[Named, ...]) -> tuple[Named, ...]:
        if not value:
            raise ValueError('name at least one selector, as in `selector = "accept_all"`')
        return value


class Curate(Settings):
    """The chain of data algorithms, in order, after dedupe."""

    chain: tuple[Named, ...] = (Named(use="validate"), Named(use="max_staleness"), Named(use="drop_zero_variance"))
    """Data algorithms, in order (`docs/data-algorithms.md`)."""
    snapshot_every_s: float = Field(3.0, gt=0)
    """Seconds between two snapshots of a partition's state."""


class Reference(Settings):
    """How the reference policy of the KL term follows the policy.

    It begins as a copy of the policy's weights before the first version that is trained with a KL term.
    """

    refresh_every: int = Field(0, ge=0)
    """Versions after which the reference becomes the current policy; 0 for never."""
    decay: float = Field(1.0, ge=0, le=1)
    """Share of the reference that a moving average keeps at every version; 1 freezes it."""


Share: TypeAlias = Annotated[float, Field(ge=0, lt=1)]


class TrainerSettings(Settings):
    """One trainer's algorithm and pace."""

    steps: int = Field(100, ge=1)
    """Versions to train; version 0 is the start."""
    groups_per_batch: int = Field(32, ge=1)
    """Groups per version."""
    batch_limit_s: float = Field(0.0, ge=0)
    """Seconds for which an idle trainer waits for a whole batch. Then it trains on the groups that it has, in
    a multiple of `minibatches`; the others stay. 0 waits without limit."""
    order: Literal["edf", "fifo", "lifo", "random"] = "edf"
    """Which of the waiting groups are trained next: those of the earliest deadline, the oldest, the newest, or random
    ones. Groups that have become too stale are evicted in every order."""
    minibatches: int = Field(4, ge=1)
    """Optimizer steps per version."""
    max_staleness: int = Field(1, ge=0)
    """How many versions a token may be behind the policy that trains on it."""
    learning_rate: float = Field(5e-6, ge=0, le=1)
    """Learning rate of AdamW, which works on fp32 master weights. With 0 the policy never changes: a control."""
    warmup_versions: int = Field(0, ge=0)
    """Versions over which the learning rate rises linearly."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate falls after the warm-up, until version `steps`."""
    final_share: float = Field(0.1, ge=0, le=1)
    """Share of the learning rate that is left at the end."""
    weight_decay: float = Field(0.01, ge=0)
    """Weight decay of AdamW, for matrices; norms and biases have none."""
    betas: tuple[Share, Share] = (0.9, 0.999)
    """Decay rates of AdamW's moments."""
    adam_eps: float = Field(1e-8, ge=1e-30)
    """The epsilon of AdamW."""
    grad_clip: float = Field(1.0, gt=0)
    """Largest global norm of a gradient."""
    loss: Named = Named(use="ppo")
    """The loss that is minimised (`docs/losses.md`)."""
    aggregation: Named | None = None
    """How token losses become one number; by default as in the paper of the loss."""
    correction: OneOrSeveral = ()
    """Corrections for off-policy tokens, such as `tis`: weights and rejections by the ratio of the version's first
    weights to the policy that sampled the token."""
    count_rejected: bool = False
    """Keep rejected tokens in the denominator of the loss, so that many rejections make a smaller step."""
    kl: Named | None = None
    """KL term to the reference policy, in the loss or in the reward. It costs one forward pass per version."""
    entropy: float = Field(0.0, ge=0)
    """Weight of an entropy bonus."""
    reference: Reference = Reference()
    """The reference policy of the KL term."""
    replay_routing: bool = False
    """Send every token to the experts that the engine sent it to; needs `rollout.record_routing`."""
    router_aux: float = Field(0.0, ge=0)
    """Weight of the load-balancing loss of experts, usually 1e-3 to 1e-2. It costs one more forward pass."""
    advantage: Named = Named(use="grpo")
    """Advantage estimator (`docs/advantages.md`), or your own as `package.module:function`."""
    group_by: Literal["task", "task+role", "task+role+turn"] = "task"
    """Which rewards are compared with each other: those of one task, of one role in it, or of one role at one turn."""
    weight: Literal["trajectory", "sequence"] = "trajectory"
    """Whether a trajectory or a sequence counts once in a group's statistics."""
    batch_norm: bool = False
    """Normalise advantages over all tokens of the batch, as the last step."""
    micro_batch_tokens: int = Field(16384, ge=64)
    """Largest number of tokens in one forward pass, padding included."""
    packing: bool = True
    """Put sequences end to end instead of padding them. If a model cannot do this, the trainer pads and logs it."""
    activation_checkpointing: bool = False
    """Keep only the inputs of each layer, and compute it again in the backward pass: less memory, a third more work."""
    compile: bool = False
    """Compile norms and MLPs (torch.compile; on a CPU it needs a C++ compiler). Bits may then depend on the shapes that
    a process has seen before, so `retrain` and a resume may give other ones."""
    logits_mib: int = Field(256, ge=1)
    """Largest block of fp32 logits, in MiB. Larger ones are computed in parts, and again in the backward pass."""
    fused_optimizer: bool = False
    """One kernel for all of AdamW: faster, with other bits."""
    checkpoint_every: int = Field(10, ge=1)
    """Versions between checkpoints."""
    anchor_every: int = Field(50, ge=1)
    """Every so many versions whole weights are published, and deltas between them. 1 publishes whole weights only."""
    anchor_share: float = Field(1.0, ge=0)
    """Whole weights are published earlier if the deltas since the last ones reach this share of their size."""
    processes: int = Field(1, ge=0, le=MOST_PROCESSES)
    """Processes of this trainer that `headrace up` starts. Several share its model (FSDP2), each on its own GPU if
    there are GPUs. 0 for none: start the trainer yourself, on any machine (`docs/trainer-backends.md`)."""
    tensor_parallel: int = Field(1, ge=1, le=MOST_PROCESSES)
    """Processes over which every layer's matrices are cut: all of the trainer's processes, or 1 for FSDP2."""
    device: str = "cpu"
    """Device of the trainer: `cpu`, `cuda`, `cuda:1`."""

    @property
    def is_shadow(self) -> bool:
        """Whether the tokens that it trains on name versions of another trainer."""
        return False

    @model_validator(mode="after")
    def _check_minibatches(self) -> TrainerSettings:
        if self.groups_per_batch % self.minibatches:
            given = f"groups_per_batch ({self.groups_per_batch})"
            raise ValueError(f"{given} must be a multiple of minibatches ({self.minibatches})")
        return self


class TrainerError(ValueError):
    """The keys of `[trainer]` that a policy or a shadow sets for itself do not go with the others."""


class ShadowTrainerSettings(TrainerSettings):
    """The trainer of a shadow: the tokens that it trains on were sampled by the main variant, and name its versions."""

    @property
    def is_shadow(self) -> bool:
        """It is one."""
        return True


class Shadow(Settings):
    """A second chain and a second trainer beside a policy's own, over the same rollouts (`docs/shadows.md`)."""

    policy: str = ""
    """The policy whose trajectories it reads; may be left out if there is only one."""
    chain: tuple[Named, ...] | None = None
    """Data algorithms; by default those of `[curate]`."""
    trainer: dict[str, Any] = Field(default_factory=dict)
    """Keys of `[trainer]` that differ from those of the policy."""


class Evaluate(Settings):
    """Evaluations on held-out problems."""

    every: int = Field(20, ge=0)
    """Versions between evaluations; the first and the last version are evaluated too. 0 for none."""
    stop_after: int = Field(0, ge=0)
    """Evaluations in a row without a better held-out reward after which the run ends, as `early_stop`; with several
    policies or workflows when none of them rises any more. 0 for never."""
    problems: int = Field(128, ge=1)
    """Held-out problems."""
    samples: int = Field(1, ge=1, le=4096)
    """Samples per problem: the k of avg@k, their mean reward, and of pass@k, for which a reward above 0.5 is right."""
    temperature: Temperature = 1.0
    """Sampling temperature; 0 is greedy."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Share of the probability that nucleus sampling keeps."""


class Kafka(Settings):
    """The Kafka cluster."""

    model_config = ConfigDict(coerce_numbers_to_str=True)  # `"max.poll.interval.ms" = 45000`

    bootstrap: Bootstrap = ""
    """Address of a Kafka cluster, 4.0 or newer; empty starts an embedded one."""
    client: dict[str, str] = Field(default_factory=dict)
    """Further librdkafka settings. Secrets belong in HEADRACE_KAFKA_CLIENT: a recipe is written to a topic."""
    partitions: int = Field(8, ge=1, le=MOST_PARTITIONS)
    """Partitions of the topics of tasks, trajectories, curated groups and outcomes. Fixed for a run."""
    task_partitions: int = Field(0, ge=0, le=MOST_PARTITIONS)
    """Partitions of the topics of tasks; each worker needs one. 0 for as many as `partitions`. Fixed for a run."""
    compression: Literal["none", "lz4", "zstd", "snappy", "gzip"] = "lz4"
    """Compression of the batches that producers send."""


class Store(Settings):
    """The object store."""

    endpoint: Endpoint = ""
    """`host:port` of an S3 store, with `https://` before it for TLS; empty starts an embedded one. Keys and
    certificates come from the environment: `docs/object-store.md`."""
    bucket: BucketName = "headrace"
    """Bucket; created if it is missing."""
    secure: bool = False
    """TLS, as with `https://` before the endpoint."""
    region: str = "us-east-1"
    """Region of the bucket."""
    cache_gib: float = Field(20.0, ge=0)
    """GiB of weights that a machine keeps for all its workers, below `HEADRACE_CACHE`. The oldest are removed first. 0
    for none."""

    @model_validator(mode="before")
    @classmethod
    def _check_scheme(cls, given: Any) -> Any:
        return split_scheme(given) if isinstance(given, dict) else given


class Launch(Settings):
    """How many processes `headrace up` starts."""

    workers: int = Field(1, ge=0, le=MOST_PROCESSES)
    """Rollout workers per workflow; 0 if you start them yourself."""
    curators: int = Field(1, ge=0, le=MOST_PROCESSES)
    """Curators per policy; a shadow has one. 0 if you start them yourself (`docs/processes.md`)."""
    feeder: bool = True
    """Whether the feeder is started; false if you start it yourself."""
    most_short_lives: int = Field(8, ge=1)
    """Deaths in a row, each within a minute of the start, after which a component is given up and the run stops. The
    default allows for finding two tasks that kill their worker, with three deaths each."""
    all_failed_limit_s: float = Field(300.0, ge=0)
    """Seconds after which the run is given up, with exit code 1, if every episode of it has failed: a workflow, an
    environment or a judge raises each time. Waiting for an unreachable environment does not count. 0 for never."""
    fork: bool = True
    """Fork components from a process that has already imported their modules, which saves each some seconds. Components
    on CUDA and trainers of several processes are always programs of their own."""


class Recipe(Settings):
    """A whole run."""

    name: RunName
    """Run name: the prefix of its topics."""
    about: str = ""
    """One sentence for people."""
    seed: int = Field(1, ge=0, lt=2**32)
    """Seed of all random choices. Two runs of one seed differ all the same, as batches are made of what comes first;
    `headrace retrain` makes the same weights of the same batches."""
    policies: dict[str, Policy]
    """Policies by name."""
    workflows: dict[str, Workflow]
    """Workflows by name."""
    rollout: Rollout = Rollout()
    """How workers generate."""
    feed: Feed = Feed()
    """Which tasks are issued."""
    curate: Curate = Curate()
    """The chain of data algorithms."""
    trainer: TrainerSettings = TrainerSettings()
    """Algorithm and pace, unless a policy sets its own."""
    shadows: dict[str, Shadow] = Field(default_factory=dict)
    """Shadows by the name of their variant."""
    evaluate: Evaluate = Evaluate()
    """Evaluations."""
    kafka: Kafka = Kafka()
    """The Kafka cluster."""
    store: Store = Store()
    """The object store."""
    launch: Launch = Launch()
    """Processes of `headrace up`."""

    @model_validator(mode="after")
    def _check_names(self) -> Recipe:
        for what, names in (("policy", self.policies), ("workflow", self.workflows)):
            if not names:
                raise ValueError(f"name at least one {what}")
            for name in names:
                check_name(what, name)
        if "eval" in self.workflows:
            raise ValueError("a workflow must not be named 'eval': this name is used for the streams of evaluations")
        for name, workflow in self.workflows.items():
            for role, policy in workflow.policies.items():
                if policy not in self.policies:
                    known = ", ".join(self.policies)
                    raise ValueError(f"workflows.{name}.policies.{role} must be one of {known}; got {policy!r}")
        return self

    @model_validator(mode="after")
    def _check_variants(self) -> Recipe:
        for name, shadow in self.shadows.items():
            check_name("shadow", name)
            if shadow.policy not in self.policies and (shadow.policy or len(self.policies) > 1):
                found = f"got {shadow.policy!r}" if shadow.policy else "it is missing"
                raise ValueError(f"shadows.{name}.policy must be one of {', '.join(self.policies)}; {found}")
        for policy_variant in self.policy_variants:
            try:
                trainer = self.trainer_of(policy_variant)
            except ValidationError as error:
                raise TrainerError(f"the trainer of {policy_variant}: {error}") from error
            if trainer.replay_routing and not self.rollout.record_routing:
                raise ValueError(
                    f"replay_routing of the trainer of {policy_variant} needs recorded routing: set "
                    "rollout.record_routing = true"
                )
        return self

    @property
    def shadow_variants(self) -> tuple[str, ...]:
        """The shadows, each named `policy.variant`."""
        return tuple(
            policy_variant_of(shadow.policy or next(iter(self.policies)), name) for name, shadow in self.shadows.items()
        )

    @property
    def policy_variants(self) -> tuple[str, ...]:
        """All that curate and train: the policies, then the shadows."""
        return (*self.policies, *self.shadow_variants)

    def trainer_of(self, policy_variant: str) -> TrainerSettings:
        """Return the trainer settings of a policy, or of a shadow, `policy.variant`."""
        settings = {**self.trainer.model_dump(), **self.policies[policy_of(policy_variant)].trainer}
        if not (variant := variant_of(policy_variant)):
            return TrainerSettings.model_validate(settings)
        return ShadowTrainerSettings.model_validate({**settings, **self.shadows[variant].trainer})

    def chain_of(self, policy_variant: str) -> tuple[Named, ...]:
        """Return the data algorithms of a policy, or of a shadow, `policy.variant`."""
        own = self.shadows[variant].chain if (variant := variant_of(policy_variant)) else None
        return self.curate.chain if own is None else own

    @property
    def task_partitions(self) -> int:
        """Partitions of every topic of tasks."""
        return self.kafka.task_partitions or self.kafka.partitions

    @property
    def state_partitions(self) -> int:
        """Partitions of `state` in a run that begins with this recipe."""
        return min(self.kafka.partitions, MOST_STATE_PARTITIONS)

    @property
    def topic_specs(self) -> tuple[TopicSpec, ...]:
        """Every topic of a run whose `state` has one partition, as it should be."""
        return self.build_topic_specs(1)

    def build_topic_specs(self, state_partitions: int) -> tuple[TopicSpec, ...]:
        """Return every topic of a run, as it should be."""
        return self.topics.all(
            tuple(self.workflows),
            tuple(self.policies),
            self.kafka.partitions,
            self.shadow_variants,
            task_partitions=self.task_partitions,
            state_partitions=state_partitions,
        )

    @property
    def topics(self) -> Topics:
        """Names of the run's topics."""
        return Topics(self.name)

    def policies_of(self, workflow: str) -> tuple[str, ...]:
        """Return the policies that a workflow trains, each once, in the order of its roles."""
        return tuple(dict.fromkeys(self.workflows[workflow].policies.values()))

    def workflows_of(self, policy: str) -> tuple[str, ...]:
        """Return the workflows that train a policy."""
        return tuple(workflow for workflow in self.workflows if policy in self.policies_of(workflow))

    def to_json(self) -> str:
        """Return the text that the `recipe` topic carries, its keys in the order that the recipe gives them."""
        return json.dumps(self.model_dump(mode="json"))

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        """Read what `to_json` wrote. Raises UsageError for a recipe of a version that knew other keys."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise UsageError(
                f"this version of Headrace cannot read the run's recipe ({error.errors()[0]['loc']}: "
                f"{error.errors()[0]['msg']}): go on with the version that wrote it, or begin a new run"
            ) from error
