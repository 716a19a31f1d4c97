"""The sections of a recipe that name its servers and processes: Kafka, store, regions, kinds of workers, launch."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field, model_validator

from headrace.infra.kafka.bootstrap import Bootstrap
from headrace.infra.recipe.table import MOST_PARTITIONS, MOST_PROCESSES, Named, Settings
from headrace.infra.store.endpoint import BucketName, Endpoint, split_scheme


class Kafka(Settings):
    """The Kafka cluster."""

    model_config = ConfigDict(coerce_numbers_to_str=True)  # `"max.poll.interval.ms" = 45000`

    bootstrap: Bootstrap = ""
    """Address of a Kafka cluster, 4.0 or newer; empty starts an embedded one."""
    client: dict[str, str] = Field(default_factory=dict)
    """Further librdkafka settings; secrets belong in `HEADRACE_KAFKA_CLIENT`."""
    partitions: int = Field(8, ge=1, le=MOST_PARTITIONS)
    """Partitions of each topic of tasks, trajectories, curated groups and outcomes, and of `state` (at most 64). Cannot
    change during a run."""
    task_partitions: int = Field(0, ge=0, le=MOST_PARTITIONS)
    """The same for tasks alone, which limits the workers of a workflow; 0: as `partitions`."""
    compression: Literal["none", "lz4", "zstd", "snappy", "gzip"] = "lz4"
    """Compression of the batches that producers send."""


class RegionKafka(Settings):
    """The Kafka cluster of a region."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    bootstrap: Bootstrap = ""
    """Address of the region's Kafka; empty starts an embedded one."""
    client: dict[str, str] = Field(default_factory=dict)
    """Further librdkafka settings; secrets belong in `HEADRACE_KAFKA_CLIENT`."""


class Store(Settings):
    """The object store."""

    endpoint: Endpoint = ""
    """`host:port` of an S3 store, with `https://` before it for TLS; empty starts an embedded one. Keys and
    certificates come from the environment: `docs/object-store.md`."""
    bucket: BucketName = "headrace"
    """Bucket; created if it is missing."""
    secure: bool = False
    """Use TLS, as with `https://` before the endpoint."""
    region: str = "us-east-1"
    """Region of the bucket."""
    cache_gib: float = Field(20.0, ge=0)
    """GiB of downloaded weights that a machine caches, in `$HEADRACE_CACHE/weights`. 0 for no cache."""

    @model_validator(mode="before")
    @classmethod
    def _check_scheme(cls, given: Any) -> Any:
        return split_scheme(given) if isinstance(given, dict) else given


class Region(Settings):
    """A region: a Kafka, an object store and rollout workers of its own (`docs/regions.md`)."""

    kafka: RegionKafka = RegionKafka()
    """The region's Kafka cluster."""
    store: Store = Store()
    """The region's object store."""
    workers: int = Field(1, ge=0, le=MOST_PROCESSES)
    """Rollout workers per workflow that `headrace up` starts in the region; 0 if you start them there."""
    lost_after_s: float = Field(600.0, gt=0)
    """Seconds without any group from the region, while it has open tasks, after which these tasks are issued again at
    home. Answers that still come later are dropped as repetitions."""


class Kind(Settings):
    """A kind of rollout workers that differ from `[rollout]` in these keys (`docs/fleet.md`)."""

    engine: Named | None = None
    """As `rollout.engine`, which is the default."""
    device: str = ""
    """As `rollout.device`, which is the default."""
    concurrency: int = Field(0, ge=0, le=1_000_000)
    """As `rollout.concurrency`; 0: equal to it."""
    episodes: int = Field(0, ge=0, le=1_000_000)
    """As `rollout.episodes`; 0: equal to it."""


class Launch(Settings):
    """How many processes `headrace up` starts."""

    workers: int = Field(1, ge=0, le=MOST_PROCESSES)
    """Rollout workers per workflow; 0 if you start them yourself."""
    curators: int = Field(1, ge=0, le=MOST_PROCESSES)
    """Curators per policy; 0 if you start them yourself (`docs/processes.md`). A shadow always gets one curator."""
    feeder: bool = True
    """Whether the feeder is started; false if you start it yourself."""
    most_short_lives: int = Field(8, ge=1)
    """If a component dies so many times in a row, each time within a minute of its start, `up` stops the run."""
    all_failed_limit_s: float = Field(300.0, ge=0)
    """Seconds after which the run is given up, with exit code 1, if no episode of it has ever succeeded. 0 for
    never."""
    fork: bool = True
    """Fork components from a process that has imported their modules, which saves seconds at each start."""
