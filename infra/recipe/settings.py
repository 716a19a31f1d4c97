"""The recipe: everything that can be set for a run, checked before anything starts.

`recipe_file.py` reads it from TOML, the `recipe` topic carries it as JSON to every component.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from headrace.infra.errors import UsageError
from headrace.schemas.topics import Topics, TopicSpec, check_name, policy_of, policy_variant_of, variant_of

MOST_STATE_PARTITIONS = 64


class Settings(BaseModel):
    """Base of every table of a recipe: frozen, no unknown key. `recipe_keys` reads the text under a field."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


class Use(BaseModel):
    """A thing found by name, with its own settings: `{ use = "max_staleness", limit = 2 }`, or only its name."""

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


Uses: TypeAlias = Annotated[tuple[Use, ...], BeforeValidator(_wrap_single)]
"""Several in order, or only one, not in a list."""


class WarmStart(Settings):
    """Supervised steps before version 0, until the measured exact match with worked examples is in a band."""

    reward_low: float = Field(0.30, ge=0, lt=1)
    """Lower edge of the band: share of held-out examples that the policy completes word by word. No reward is taken."""
    reward_high: float = Field(0.40, gt=0, le=1)
    """Upper edge of the band."""
    examples: int = Field(4096, ge=1)
    """Worked examples to ask the environment for."""
    held_out: int = Field(256, ge=16)
    """Number of the examples that are held out to measure on."""
    max_steps: int = Field(2000, ge=1)
    """Give up after so many supervised steps."""
    batch: int = Field(64, ge=1)
    """Examples per supervised step."""
    learning_rate: float = Field(1e-3, gt=0)
    """Of AdamW."""


class Lora(Settings):
    """Train a low-rank adapter alone: a layer computes W x + (alpha / rank) B A x, of which W is frozen."""

    rank: int = Field(8, ge=1)
    """Rows of A and columns of B."""
    alpha: float = Field(16.0, gt=0)
    """Scale of the adapter, by its rank."""
    targets: tuple[str, ...] = ()
    """Linear layers by the end of their names, as `q_proj` or `layers.0.mlp.up_proj`; empty for all but the head's."""
    publish: Literal["adapter", "merged"] = "adapter"
    """What a version is: the adapter alone, which an engine puts on the base; or whole weights, W + (alpha / rank) B A
    rounded to bf16, which any engine takes as they are. The trainer computes with what is published."""


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
    """Train an adapter alone; by default everything is trained. Fixed for a run."""
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
    """What is asked, and which policies act."""

    env: Use
    """Environment that asks and judges: `{ use = "arithmetic", … }`."""
    workflow: str = "single_turn"
    """How an episode is played: a shipped name or `package.module:name`."""
    policies: dict[str, str]
    """Role in the workflow to the policy that plays it."""

    @field_validator("policies")
    @classmethod
    def _check_some(cls, value: dict[str, str]) -> dict[str, str]:
        if not value:
            raise ValueError('name at least one role and its policy, as in `policies = { solver = "solver" }`')
        return value


class Rollout(Settings):
    """How workers generate."""

    engine: Use = Use(use="torch")
    """torch (in-process); scripted, which has no model (`producers/engines/scripted.py`), with settings of its own; or
    your own as `package.module:function`."""
    device: str = "cpu"
    """Where the in-process engine computes."""
    group_size: int = Field(8, ge=1, le=4096)
    """Episodes per task."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature in training."""
    top_p: float = 1.0
    """Must stay 1 in training: a cut distribution has other log-probabilities than those recorded."""
    top_k: int = 0
    """Must stay 0 in training."""
    min_p: float = 0.0
    """Must stay 0 in training."""
    max_tokens: int = Field(256, ge=1)
    """Most tokens per generation."""
    concurrency: int = Field(256, ge=1)
    """Episodes that one worker runs at once."""
    episode_limit_s: float = Field(120.0, gt=0)
    """An episode that takes longer has failed."""
    record_routing: bool = False
    """Record the experts of every token, where a policy has experts, for a trainer that replays them (`docs/moe.md`):
    a byte for each layer and expert of a token."""
    inline_limit_bytes: int = Field(512 * 1024, ge=1024, le=4 << 20)
    """A larger group goes to the store, its record carries a claim check."""

    @model_validator(mode="after")
    def _check_distribution(self) -> Rollout:
        if (self.top_p, self.top_k, self.min_p) != (1.0, 0, 0.0):
            raise ValueError(
                "top_p, top_k and min_p cut the distribution that tokens are drawn from, and the recorded "
                "log-probabilities would not be theirs: leave them at 1, 0 and 0 in training (evaluation may set them)",
            )
        return self


class Feed(Settings):
    """Which tasks are issued, and how fast."""

    selector: Uses = (Use(use="accept_all"),)
    """Which tasks are worth a rollout: a name or `{ use = "greso", … }`, or a list of which each must agree."""
    pace: Literal["any", "all"] = "any"
    """Issue while any, or all, of a workflow's policies have room."""
    solved_share: float = Field(0.95, gt=0, le=1)
    """Share of zero-variance drops among the last 500 groups at which the tasks count as solved."""
    raise_tier: bool = False
    """When the tasks are solved, go on with the environment's next harder tier; else the run ends as `solved`."""
    reissue_after_s: float = Field(60.0, gt=0)
    """A task that the workers committed past and nobody concluded is issued again after so long."""

    @field_validator("selector")
    @classmethod
    def _check_some(cls, value: tuple[Use, ...]) -> tuple[Use, ...]:
        if not value:
            raise ValueError('name at least one selector, as in `selector = "accept_all"`')
        return value


class Curate(Settings):
    """The chain of data algorithms, in order, after dedupe."""

    chain: tuple[Use, ...] = (Use(use="validate"), Use(use="max_staleness"), Use(use="drop_zero_variance"))
    """Data algorithms."""
    snapshot_every_s: float = Field(3.0, gt=0)
    """How often a partition's state is written."""


class Reference(Settings):
    """How the reference policy goes along with the policy; at first it is the policy as the kl term found it."""

    refresh_every: int = Field(0, ge=0)
    """Versions after which it becomes the policy as it is; 0 for never."""
    decay: float = Field(1.0, ge=0, le=1)
    """Share of itself that an average keeps at every version; 1 is frozen."""


Share: TypeAlias = Annotated[float, Field(ge=0, lt=1)]


class TrainerSettings(Settings):
    """One trainer's algorithm and pace."""

    steps: int = Field(100, ge=1)
    """Versions to train; version 0 is the start."""
    groups_per_batch: int = Field(32, ge=1)
    """Groups per version."""
    batch_limit_s: float = Field(0.0, ge=0)
    """Seconds for which a free trainer waits for a whole batch; then it takes as many groups as there are, a multiple
    of `minibatches`, and the others stay. 0 waits as long as it takes."""
    order: Literal["edf", "fifo", "lifo", "random"] = "edf"
    """Which of the groups that wait are trained next: those of the earliest deadline, the first or the last that came,
    or by lot. What has grown too stale is dropped in every order."""
    minibatches: int = Field(4, ge=1)
    """Optimizer steps per version."""
    max_staleness: int = Field(1, ge=0)
    """How many versions a token may be behind the policy that trains on it."""
    learning_rate: float = Field(5e-6, gt=0, le=1)
    """Of AdamW, on fp32 masters."""
    warmup_versions: int = Field(0, ge=0)
    """Versions over which the learning rate rises linearly."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate falls after that, until version `steps`."""
    final_share: float = Field(0.1, ge=0, le=1)
    """Share of the learning rate that is left at the end."""
    weight_decay: float = Field(0.01, ge=0)
    """Of AdamW, for matrices; norms and biases have none."""
    betas: tuple[Share, Share] = (0.9, 0.999)
    """Of AdamW."""
    adam_eps: float = Field(1e-8, ge=1e-30)
    """Of AdamW."""
    grad_clip: float = Field(1.0, gt=0)
    """Largest global norm of a gradient."""
    loss: Use = Use(use="ppo")
    """What is minimised."""
    aggregation: Use | None = None
    """What the loss is a mean of; by default as in the paper of the loss."""
    correction: Uses = ()
    """Weights and rejections of tokens by how far a version's base is from the policy that sampled them."""
    count_rejected: bool = False
    """Keep rejected tokens in the loss's denominator: many rejections make a smaller step then."""
    kl: Use | None = None
    """Divergence from the reference policy, as a term of the loss or of the reward; costs a forward pass a version."""
    entropy: float = Field(0.0, ge=0)
    """Weight of an entropy bonus."""
    reference: Reference = Reference()
    """The reference policy, where the KL term needs one."""
    replay_routing: bool = False
    """Send every token to the experts that the engine sent it to; needs `rollout.record_routing`."""
    router_aux: float = Field(0.0, ge=0)
    """Weight of the loss that has experts used alike, 1e-3 to 1e-2 where it is used; costs a forward pass more."""
    advantage: Use = Use(use="grpo")
    """From rewards to advantages: one of `trainers/advantages.py`, or your own as `package.module:function`."""
    group_by: Literal["task", "task+role", "task+role+turn"] = "task"
    """What a reward is compared with."""
    weight: Literal["trajectory", "sequence"] = "trajectory"
    """What counts once in a group's statistics."""
    batch_norm: bool = False
    """Normalise advantages over the tokens of the whole batch at the end."""
    micro_batch_tokens: int = Field(16384, ge=64)
    """Token budget of one forward pass, padding included where there is any."""
    packing: bool = True
    """Lay sequences end to end instead of padding them. A model that cannot do it pads, and its trainer logs that."""
    activation_checkpointing: bool = False
    """Keep the inputs of each layer only, and compute it again in the backward pass: less memory, a third more work."""
    compile: bool = False
    """Compile norms and MLPs (torch.compile; on a CPU it needs a C++ compiler). Bits may then depend on the shapes that
    a process met before, so that `retrain` and a resume need not find the same ones."""
    logits_mib: int = Field(256, ge=1)
    """Most fp32 logits at a time, MiB. What takes more is computed in parts, and again in the backward pass."""
    fused_optimizer: bool = False
    """One kernel for all of AdamW: sooner, and other bits than without."""
    checkpoint_every: int = Field(10, ge=1)
    """Versions between checkpoints."""
    anchor_every: int = Field(50, ge=1)
    """Versions between whole weights; those between are published as deltas. 1 publishes whole weights only."""
    anchor_share: float = Field(1.0, ge=0)
    """Whole weights are published sooner when the deltas since the last ones come to this share of them."""
    processes: int = Field(1, ge=0)
    """Processes that `headrace up` starts this trainer in: several share its model (FSDP2), each on a GPU of its own
    where there are some. 0 for none: start it by yourself, as on other machines (`docs/trainer-backends.md`)."""
    tensor_parallel: int = Field(1, ge=1)
    """Processes over which every layer's matrices are cut: all of the trainer's; 1 for one, or FSDP2."""
    device: str = "cpu"
    """Where the trainer computes."""

    @property
    def is_shadow(self) -> bool:
        """Whether the tokens that it trains on name versions of another trainer."""
        return False

    @model_validator(mode="after")
    def _check_minibatches(self) -> TrainerSettings:
        if self.groups_per_batch % self.minibatches:
            raise ValueError(
                f"groups_per_batch ({self.groups_per_batch}) must be a multiple of minibatches ({self.minibatches})",
            )
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
    """Whose trajectories; may be left out where there is one policy."""
    chain: tuple[Use, ...] | None = None
    """Data algorithms; by default those of `[curate]`."""
    trainer: dict[str, Any] = Field(default_factory=dict)
    """Keys of `[trainer]` that differ from those of the policy."""


class Evaluate(Settings):
    """Evaluations on held-out problems."""

    every: int = Field(20, ge=0)
    """Versions between evaluations; the first and the last version are evaluated too. 0 for none."""
    problems: int = Field(128, ge=1)
    """Held-out problems."""
    samples: int = Field(1, ge=1)
    """Samples per problem: the k of avg@k."""
    temperature: float = Field(1.0, ge=0)
    """Sampling temperature; 0 is greedy."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus."""


class Kafka(Settings):
    """The log."""

    bootstrap: str = ""
    """Address of a Kafka cluster, 4.0 or newer; empty starts an embedded one."""
    client: dict[str, str] = Field(default_factory=dict)
    """Further librdkafka settings. Secrets belong into HEADRACE_KAFKA_CLIENT: a recipe is written to a topic."""
    partitions: int = Field(8, ge=1)
    """Partitions of tasks, trajectories, curated and outcomes; fixed for a run."""
    task_partitions: int = Field(0, ge=0)
    """Partitions of tasks alone, of which each worker needs one; 0 for as many as `partitions`. Fixed for a run."""
    compression: Literal["none", "lz4", "zstd", "snappy", "gzip"] = "lz4"
    """Of produced batches."""


class Store(Settings):
    """The object store."""

    endpoint: str = ""
    """`host:port` of an S3 store, with `https://` before it for TLS; empty starts an embedded one. Its keys and
    certificates are the environment's: `docs/object-store.md`."""
    bucket: str = "headrace"
    """Bucket; made when it is missing."""
    secure: bool = False
    """TLS, as with `https://` before the endpoint."""
    region: str = "us-east-1"
    """Region of the bucket."""
    cache_gib: float = Field(20.0, ge=0)
    """Weights that a machine keeps for all its workers, in the folder of `HEADRACE_CACHE`; the oldest go first. 0 for
    none."""

    @model_validator(mode="before")
    @classmethod
    def _check_scheme(cls, given: Any) -> Any:
        endpoint = given.get("endpoint") if isinstance(given, dict) else None
        scheme, found, place = endpoint.partition("://") if isinstance(endpoint, str) else ("", "", "")
        if not found:
            return given
        if scheme not in {"http", "https"} or (scheme == "http" and given.get("secure") is True):
            raise ValueError(f"endpoint {endpoint!r}: write host:port, https://host:port for TLS, or http://host:port")
        return {**given, "endpoint": place.rstrip("/"), "secure": scheme == "https"}


class Launch(Settings):
    """How many processes `headrace up` starts."""

    workers: int = Field(1, ge=0)
    """Rollout workers per workflow; 0 where you start them yourself."""
    curators: int = Field(1, ge=0)
    """Curators per policy; a shadow has one. 0 where you start them yourself: `docs/processes.md`."""
    feeder: bool = True
    """Whether the feeder is started too; false where you start it yourself."""
    most_short_lives: int = Field(8, ge=1)
    """A component that dies so often in a row, each time within a minute of its start, is given up; the run stops. The
    default is more than it takes to find two tasks that kill their worker, three deaths each."""
    all_failed_limit_s: float = Field(300.0, ge=0)
    """Seconds for which episodes may fail, all of them and in the whole run, until it is given up with exit code 1: a
    workflow, an environment or a judge that raises each time. An environment that cannot be reached is waited for, and
    does not count. 0 for never."""
    fork: bool = True
    """Components are forked from a process that has imported what they need, which saves each some seconds. Those on
    CUDA and trainers of several processes are programs of their own in any case."""


class Recipe(Settings):
    """A whole run."""

    name: str
    """Run name: the prefix of its topics."""
    about: str = ""
    """One sentence for people."""
    seed: int = Field(1, ge=0, lt=2**32)
    """Seed of everything random."""
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
    """Algorithm and pace, for every policy that sets nothing else."""
    shadows: dict[str, Shadow] = Field(default_factory=dict)
    """Shadows by name, which is that of their variant."""
    evaluate: Evaluate = Evaluate()
    """Evaluations."""
    kafka: Kafka = Kafka()
    """The log."""
    store: Store = Store()
    """The object store."""
    launch: Launch = Launch()
    """Processes of `headrace up`."""

    @model_validator(mode="after")
    def _check_names(self) -> Recipe:
        check_name("run", self.name)
        for what, names in (("policy", self.policies), ("workflow", self.workflows)):
            if not names:
                raise ValueError(f"name at least one {what}")
            for name in names:
                check_name(what, name)
        if "eval" in self.workflows:
            raise ValueError("a workflow cannot be called 'eval': that word names the streams of evaluations")
        for name, workflow in self.workflows.items():
            for role, policy in workflow.policies.items():
                if policy not in self.policies:
                    raise ValueError(
                        f"workflows.{name}.policies.{role} names policy {policy!r}, which is not one of "
                        f"{', '.join(self.policies)}",
                    )
        return self

    @model_validator(mode="after")
    def _check_variants(self) -> Recipe:
        for name, shadow in self.shadows.items():
            check_name("shadow", name)
            if shadow.policy not in self.policies and (shadow.policy or len(self.policies) > 1):
                found = f"names {shadow.policy!r}" if shadow.policy else "is missing"
                raise ValueError(f"shadows.{name}.policy {found}: name one of {', '.join(self.policies)}")
        for policy_variant in self.policy_variants:
            try:
                trainer = self.trainer_of(policy_variant)
            except ValidationError as error:
                raise TrainerError(f"the trainer of {policy_variant}: {error}") from error
            if trainer.replay_routing and not self.rollout.record_routing:
                raise ValueError(
                    f"the trainer of {policy_variant} is to replay routing that nobody records: set "
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

    def chain_of(self, policy_variant: str) -> tuple[Use, ...]:
        """Return the data algorithms of a policy, or of a shadow, `policy.variant`."""
        variant = variant_of(policy_variant)
        own = self.shadows[variant].chain if variant else None
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
        return self.topic_specs_with(1)

    def topic_specs_with(self, state_partitions: int) -> tuple[TopicSpec, ...]:
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

    def streams_of(self, policy: str) -> tuple[str, ...]:
        """Return the streams that train a policy; today a stream is a workflow."""
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
                f"the run's recipe was written by another version of Headrace ({error.errors()[0]['loc']}: "
                f"{error.errors()[0]['msg']}): go on with that version, or begin a new run"
            ) from error
