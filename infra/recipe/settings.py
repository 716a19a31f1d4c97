"""The recipe: everything that can be set for a run, checked before anything starts.

`recipe_file.py` reads it from TOML, the `recipe` topic carries it as JSON to every component.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    BeforeValidator,
    Field,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)

from headrace.infra.errors import UsageError
from headrace.infra.recipe.recipe_paths import find_path
from headrace.infra.recipe.server_settings import Kafka, Kind, Launch, Region, Store
from headrace.infra.recipe.table import MOST_PROCESSES, Named, RunName, Settings, Temperature
from headrace.schemas.topics import Topics, TopicSpec, check_name, policy_of, policy_variant_of, stream_of, variant_of

MOST_STATE_PARTITIONS = 64


def _wrap_single(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


OneOrSeveral: TypeAlias = Annotated[tuple[Named, ...], BeforeValidator(_wrap_single)]
"""Several in order, or only one, not in a list."""


class WarmStart(Settings):
    """Supervised steps on worked examples before version 0.

    They end when exact match (see `reward_low`) on held-out examples is between `reward_low` and `reward_high`.
    """

    reward_low: float = Field(0.30, ge=0, lt=1)
    """Lowest exact match at which the warm start ends: the share of sampled answers that equal the example's answer
    word by word. It is not the environment's reward."""
    reward_high: float = Field(0.40, gt=0, le=1)
    """Highest exact match at which it ends. Steps that lead above it are undone."""
    examples: int = Field(4096, ge=1)
    """Worked examples to ask the environment for, including the held-out ones."""
    held_out: int = Field(256, ge=16)
    """Worked examples held out to measure exact match; at most a quarter, if there are few different ones."""
    max_steps: int = Field(2000, ge=1)
    """Most supervised steps, undone ones included; then the warm start fails."""
    batch: int = Field(64, ge=1)
    """Examples per supervised step."""
    learning_rate: float = Field(1e-3, gt=0, le=1)
    """Learning rate of AdamW."""


class Lora(Settings):
    """Train only a low-rank adapter (`docs/lora.md`): a layer computes W x + (alpha / rank) B A x, and W is frozen."""

    rank: int = Field(8, ge=1, le=4096)
    """Rank of the adapter: rows of A and columns of B."""
    alpha: float = Field(16.0, gt=0)
    """Scale of the adapter: B A is multiplied by alpha / rank."""
    targets: tuple[str, ...] = ()
    """Linear layers that get an adapter, by the ends of their names, such as `q_proj`; by default all but the head."""
    publish: Literal["adapter", "merged"] = "adapter"
    """What a version is: only the `adapter`, or, `merged`, whole weights with W + (alpha / rank) B A, rounded to bf16,
    which any engine can serve."""


class Policy(Settings):
    """A policy is a model in training. Give either `path` or `model`: its first weights come from there."""

    path: str = ""
    """Folder of a Hugging Face checkpoint; relative paths: `docs/recipes.md`."""
    model: dict[str, Any] = Field(default_factory=dict)
    """Config of a new model with random weights: fields of a Hugging Face config, and its model type as `architecture`:
    `{ architecture = "qwen3", … }`."""
    alphabet: str = ""
    """Characters that the tokenizer of a new model knows, one token each. Needed with `model`."""
    warm_start: WarmStart | None = None
    """Supervised training before version 0; none by default."""
    lora: Lora | None = None
    """Train only an adapter; by default all weights are trained. Cannot change during a run."""
    trainer: dict[str, Any] = Field(default_factory=dict)
    """Keys of `[trainer]` that differ for this policy."""

    @property
    def folder(self) -> Path:
        """The folder that `path` names, on this machine."""
        return find_path(self.path, "policies.NAME.path")

    @model_validator(mode="after")
    def _check_origin(self) -> Policy:
        if bool(self.path) == bool(self.model):
            raise ValueError("give either `path` (a Hugging Face folder) or `model` (a config to build from)")
        if self.model and not self.alphabet:
            raise ValueError("a model built from a config needs `alphabet`, the characters of its tokenizer")
        return self


class Workflow(Settings):
    """One source of tasks: an environment, how its episodes run, and the policies that play."""

    env: Named
    """Environment that gives the problems and scores the answers: `{ use = "arithmetic", … }`."""
    workflow: Named = Named(use="single_turn")
    """How an episode runs: a shipped name or `package.module:name`, with its settings as
    `{ use = "tools", max_turns = 4 }`."""
    policies: dict[str, str]
    """The policy that plays each role of the workflow, as role = policy: `{ solver = "solver" }`."""
    kind: str = ""
    """Only workers of this kind play the workflow (`docs/fleet.md`); by default all may."""

    @field_validator("policies")
    @classmethod
    def _check_some(cls, value: dict[str, str]) -> dict[str, str]:
        if not value:
            raise ValueError('name at least one role and its policy, as in `policies = { solver = "solver" }`')
        return value

    @field_serializer("workflow")
    def _keep_bare_name(self, value: Named) -> str | dict[str, Any]:
        """Write a name without settings as earlier builds do, which read nothing else."""
        return {"use": value.use, **value.settings} if value.settings else value.use


EPISODES_PER_REQUEST = 8
"""Default of `Rollout.episodes`, as a multiple of `Rollout.concurrency`."""


class Rollout(Settings):
    """How workers generate."""

    engine: Named = Named(use="torch")
    """What generates tokens. `torch`: in the worker's process. `sglang` or `vllm`: in servers (`docs/engines.md`).
    `scripted`: without a model, for tests (`producers/engines/scripted.py`). Or your own `package.module:function`."""
    device: str = "cpu"
    """Device of the in-process engine: `cpu`, `cuda`, `cuda:1`."""
    group_size: int = Field(8, ge=1, le=4096)
    """Episodes per task."""
    temperature: float = Field(1.0, ge=0.01, le=100)
    """Sampling temperature in training."""
    top_p: float = 1.0
    """Must stay 1 in training: recorded log-probabilities are those of the whole distribution."""
    top_k: int = 0
    """Must stay 0 (off) in training, for the reason that `top_p` gives."""
    min_p: float = 0.0
    """Must stay 0 (off) in training, for the reason that `top_p` gives."""
    max_tokens: int = Field(256, ge=1)
    """Most tokens that one generation may have."""
    concurrency: int = Field(256, ge=1, le=1_000_000)
    """Requests (answers of a policy) that one worker has in its engine at once (`docs/engines.md`)."""
    episodes: int = Field(0, ge=0, le=1_000_000)
    """Episodes that one worker runs at once; 0: eight times `concurrency`. Set a lower number if each needs memory."""
    episode_limit_s: float = Field(120.0, gt=0)
    """Seconds that an episode may take; a longer one fails. Waiting for room in the engine or for its turn to score
    does not count."""
    score_threads: int = Field(8, ge=1, le=256)
    """Scores that a worker runs at once. Set 1 for a scorer that is not thread-safe."""
    score_limit_s: float = Field(10.0, gt=0)
    """Seconds that the scoring of one answer may take, without its wait; after that the episode fails."""
    record_routing: bool = False
    """Record which experts computed each token, so that the trainer can replay them (`docs/moe.md`)."""
    inline_limit_bytes: int = Field(512 * 1024, ge=1024, le=4 << 20)
    """A larger group goes to the object store instead of its Kafka record."""

    @model_validator(mode="after")
    def _check_distribution(self) -> Rollout:
        if (self.top_p, self.top_k, self.min_p) != (1.0, 0, 0.0):
            raise ValueError(
                "top_p, top_k and min_p must be 1, 0 and 0 in training, because log-probabilities are recorded for the "
                "whole distribution. Only evaluation may set them to other values",
            )
        return self


class Feed(Settings):
    """Which tasks are issued, and how fast."""

    selector: OneOrSeveral = (Named(use="accept_all"),)
    """Which tasks are worth a rollout (`docs/task-selectors.md`). With a list, all must accept a task."""
    pace: Literal["any", "all"] = "any"
    """Whether a workflow's tasks are issued while `any` of its policies has fewer than (`max_staleness` + 1) x
    `groups_per_batch` groups in flight, or only while `all` have."""
    solved_share: float = Field(0.95, gt=0, le=1)
    """The tasks count as solved if more than this share of the last 500 groups were dropped for equal rewards, mostly
    above 0.5."""
    raise_tier: bool = False
    """When the tasks are solved, continue with the environment's next tier, if there is one. Otherwise the workflow
    gets no more tasks, and the run may end as `solved`."""
    reissue_after_s: float = Field(60.0, gt=0)
    """Seconds after which a lost task is issued again: workers and curators are past it, but it has no result. The wait
    doubles with each attempt."""

    @field_validator("selector")
    @classmethod
    def _check_some(cls, value: tuple[Named, ...]) -> tuple[Named, ...]:
        if not value:
            raise ValueError('name at least one selector, as in `selector = "accept_all"`')
        return value


class Curate(Settings):
    """The chain of data algorithms between rollout and training. Repeated groups are skipped before the chain."""

    chain: tuple[Named, ...] = (Named(use="validate"), Named(use="max_staleness"), Named(use="drop_zero_variance"))
    """Data algorithms, in order (`docs/data-algorithms.md`)."""
    snapshot_every_s: float = Field(3.0, gt=0)
    """Seconds between two snapshots of a curator's state, from which it resumes after a crash."""


class Reference(Settings):
    """How the reference policy of the KL term follows the policy.

    At first the reference is a copy of the policy, made before the first version that is trained with a KL term.
    """

    refresh_every: int = Field(0, ge=0)
    """Every so many versions the reference becomes a copy of the current policy. 0 for never."""
    decay: float = Field(1.0, ge=0, le=1)
    """Moving average at each version: reference = decay x reference + (1 - decay) x policy. 1 freezes the reference."""


Share: TypeAlias = Annotated[float, Field(ge=0, lt=1)]


class TrainerSettings(Settings):
    """One trainer's algorithm and pace."""

    steps: int = Field(100, ge=1)
    """Versions to train. A version is the weights after one batch; version 0 is the start."""
    groups_per_batch: int = Field(32, ge=1)
    """Groups in a batch; a multiple of `minibatches`."""
    batch_limit_s: float = Field(0.0, ge=0)
    """Seconds that an idle trainer waits for a whole batch, before it takes the groups that are there, rounded down to
    a multiple of `minibatches`. 0 waits without limit."""
    order: Literal["edf", "fifo", "lifo", "random"] = "edf"
    """Which of the waiting groups are trained next: earliest deadline (`edf`), first come (`fifo`), last come (`lifo`),
    or `random` (`docs/replay.md`)."""
    minibatches: int = Field(4, ge=1)
    """Optimizer steps per version: a batch is split into so many minibatches."""
    max_staleness: int = Field(1, ge=0)
    """Most versions between the weights that sampled a token and the weights that train on it."""
    learning_rate: float = Field(5e-6, ge=0, le=1)
    """Learning rate of AdamW. Use 0 for a control run, whose policy never changes."""
    warmup_versions: int = Field(0, ge=0)
    """Versions over which the learning rate rises linearly."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate changes after the warm-up, until version `steps`."""
    final_share: float = Field(0.1, ge=0, le=1)
    """Share of the learning rate that is left at version `steps`. Only for `linear` and `cosine`."""
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
    """Corrections for off-policy tokens, such as `tis`; none by default (`docs/losses.md`)."""
    count_rejected: bool = False
    """Count tokens that a correction rejects in the denominator of the loss."""
    kl: Named | None = None
    """KL term to the reference policy, in the loss or in the reward; none by default. It costs a forward pass per
    version."""
    entropy: float = Field(0.0, ge=0)
    """Weight of an entropy bonus."""
    reference: Reference = Reference()
    """How the reference policy of the KL term follows the policy."""
    replay_routing: bool = False
    """Send every token to the experts that computed it in the engine; needs `rollout.record_routing`."""
    router_aux: float = Field(0.0, ge=0)
    """Weight of the loss that balances the load of experts, usually 1e-3 to 1e-2; 0 for none. It costs a forward
    pass."""
    advantage: Named = Named(use="grpo")
    """Advantage estimator (`docs/advantages.md`), or your own as `package.module:function`."""
    group_by: Literal["task", "task+role", "task+role+turn"] = "task"
    """Which rewards are compared with each other."""
    weight: Literal["trajectory", "sequence"] = "trajectory"
    """What counts as one value in the statistics of rewards."""
    batch_norm: bool = False
    """Normalise advantages over all generated tokens of the batch, at the end."""
    micro_batch_tokens: int = Field(16384, ge=64)
    """Largest number of tokens in one forward pass, padding included."""
    packing: bool = True
    """Put sequences end to end instead of padding them, if the model can do it."""
    activation_checkpointing: bool = False
    """Compute each layer again in the backward pass: less memory, about a third more computation."""
    compile: bool = False
    """Compile norms and MLPs (torch.compile; on a CPU it needs a C++ compiler). `retrain` and a resume may then give
    other bits."""
    logits_mib: int = Field(256, ge=1)
    """Largest block of fp32 logits in memory, in MiB; a pass that needs more computes them in parts."""
    fused_optimizer: bool = False
    """One fused kernel for AdamW: faster, and with other last bits."""
    checkpoint_every: int = Field(10, ge=1)
    """Versions between checkpoints."""
    anchor_every: int = Field(50, ge=1)
    """One of every so many published versions is whole weights (an anchor), the others are deltas."""
    anchor_share: float = Field(1.0, ge=0)
    """An anchor comes earlier if the deltas since the last would exceed this share of its bytes."""
    processes: int = Field(1, ge=0, le=MOST_PROCESSES)
    """Processes of this trainer that `headrace up` starts; several share the model by FSDP2. With 0 you start the
    trainer yourself (`docs/trainer-backends.md`)."""
    tensor_parallel: int = Field(1, ge=1, le=MOST_PROCESSES)
    """Processes over which the matrices of every layer are split: 1, or all of the trainer's."""
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
    """The policy whose trajectories the shadow reads; may be left out if there is only one policy."""
    chain: tuple[Named, ...] | None = None
    """Data algorithms; by default those of `[curate]`."""
    trainer: dict[str, Any] = Field(default_factory=dict)
    """Keys of `[trainer]` that differ from those of the policy."""


class Evaluate(Settings):
    """Evaluations on held-out problems."""

    every: int = Field(20, ge=0)
    """Versions between evaluations; the first and the last version are evaluated too. 0 for none."""
    stop_after: int = Field(0, ge=0)
    """End the run, as `early_stop`, after this many evaluations in a row without a new best held-out reward, for all
    policies and workflows that still train. 0 for never."""
    problems: int = Field(128, ge=1)
    """Held-out problems of an evaluation, the same every time."""
    samples: int = Field(1, ge=1, le=4096)
    """Samples per problem, k. avg@k is their mean reward, pass@k the share of problems with a sample above 0.5."""
    temperature: Temperature = 1.0
    """Sampling temperature; 0 is greedy."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Share of the probability that nucleus sampling keeps."""
    kind: str = ""
    """Only workers of this kind play evaluations; by default those that may play the workflow."""

    @property
    def played_samples(self) -> int:
        """Samples per problem that are played: greedy answers are equal, so one of them is enough."""
        return self.samples if self.temperature else 1


class Recipe(Settings):
    """A whole run."""

    name: RunName
    """Name of the run. The names of all its topics begin with it."""
    about: str = ""
    """One sentence that says what the run is for."""
    seed: int = Field(1, ge=0, lt=2**32)
    """Seed of all random choices. Runs with one seed still differ by the order in which groups arrive; `headrace
    retrain` repeats one."""
    policies: dict[str, Policy]
    """Policies by name."""
    workflows: dict[str, Workflow]
    """Workflows by name."""
    rollout: Rollout = Rollout()
    """How workers generate."""
    kinds: dict[str, Kind] = Field(default_factory=dict)
    """Kinds of workers by name. Give a worker's kind by `headrace rollout --kind NAME`."""
    feed: Feed = Feed()
    """Which tasks are issued."""
    curate: Curate = Curate()
    """Which groups are kept, dropped or replayed."""
    trainer: TrainerSettings = TrainerSettings()
    """Algorithm and pace of the trainers. A policy may set its own."""
    shadows: dict[str, Shadow] = Field(default_factory=dict)
    """Shadows by name. A shadow is a second chain of data algorithms and a second trainer on the same rollouts."""
    evaluate: Evaluate = Evaluate()
    """Evaluations on held-out problems."""
    kafka: Kafka = Kafka()
    """The Kafka cluster."""
    store: Store = Store()
    """The object store."""
    regions: dict[str, Region] = Field(default_factory=dict)
    """Regions by name. Each has rollout workers beside a Kafka and a store of its own."""
    launch: Launch = Launch()
    """Processes that `headrace up` starts."""

    @model_validator(mode="after")
    def _check_names(self) -> Recipe:
        for what, names in (("policy", self.policies), ("workflow", self.workflows)):
            if not names:
                raise ValueError(f"name at least one {what}")
            for name in names:
                check_name(what, name)
        for name in self.regions:
            check_name("region", name)
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
            regions=tuple(self.regions),
            task_partitions=self.task_partitions,
            state_partitions=state_partitions,
        )

    def rollout_of(self, kind: str) -> Rollout:
        """Return `[rollout]` as it holds for workers of a kind; a kind without a table has no keys of its own."""
        own = self.kinds.get(kind, Kind())
        return self.rollout.model_copy(update={name: value for name, value in own if value})

    def kind_of(self, workflow: str, *, evaluation: bool = False) -> str:
        """Return the kind of workers that may play a workflow, or its evaluations; empty if all may."""
        return (self.evaluate.kind if evaluation else "") or self.workflows[workflow].kind

    @property
    def topics(self) -> Topics:
        """Names of the run's topics."""
        return Topics(self.name)

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams of training tasks: each workflow at home, then in every region."""
        return tuple(stream_of(workflow, region) for region in ("", *self.regions) for workflow in self.workflows)

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
            first = error.errors()[0]
            key = f"`{'.'.join(map(str, first['loc']))}`: " if first["loc"] else ""
            raise UsageError(
                f"this version of Headrace cannot read the run's recipe ({key}{first['msg']}): continue with the "
                "version that wrote it, or begin a new run"
            ) from error
