"""Two chains of three processes over one broker: Headrace's own stages, and what bare confluent-kafka needs for them.

Both: produce to `trajectories`; relay to `curated` and `outcomes` in transactions of up to 64 groups (or 150 ms); read
`curated` to the end. Same topics, partitions, bytes, keys, headers, records per transaction and client settings, but
that the raw chain has as many requests under way as librdkafka allows with the same promise. It decodes nothing, its
messages are made beforehand, and it holds no state.

Each stage is the target of a process of its own; `reports` carries (word, monotonic time) to the one who measures.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
from confluent_kafka import TopicPartition

from headrace.infra.kafka.clients import Outgoing, open_consumer, open_producer
from headrace.infra.kafka.run_address import parse_run
from headrace.infra.kafka.run_loop import run_loop
from headrace.infra.kafka.topic_reader import find_start_positions
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.log import configure_logging
from headrace.infra.process.signals import stop_on_signals
from headrace.infra.run.run import Run, join
from headrace.infra.stopwatch import Stopwatch
from headrace.producers.rollout.admission import MOST_UNDELIVERED
from headrace.producers.rollout.group_records import build_outgoing, encode_group
from headrace.producers.rollout.record_producer import RecordProducer
from headrace.producers.rollout.worker import fetch_group_partitions
from headrace.schemas import codec
from headrace.schemas.records import Outcome, Sampling, Sequence, Span, Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from headrace.trainers.learner.learner import Learner

POLICY = "solver"
STREAM = "sums"
SAMPLES = 8
TOKENS = 2048
PROMPT_TOKENS = 256
VOCABULARY = 32_000
BEST_IN_FLIGHT = 5
"""Requests that the bare chain has under way on a connection: the most that an idempotent producer may have."""
DISTINCT = 16
"""Groups are made beforehand and sent in turn, each time under a new number."""

Reports: TypeAlias = "Queue[tuple[str, float]]"


@dataclass(frozen=True, slots=True)
class Load:
    """What goes through a chain."""

    address: str
    """Of the run."""
    warm_up: int
    """Groups before the clock starts: every partition assigned, every cache filled."""
    groups: int
    """Groups that count."""


# ---------------------------------------------------------------------------------------------------------- the groups


def made_groups(run_id: str) -> list[TrajectoryGroup]:
    """Return groups of 8 x 2,048 tokens, two versions in each, half of them right.

    Ids are uniform below 32,000 and log-probabilities random, which leaves a compressor little more than the two zero
    bytes of an id and the prompt that the eight share.
    """
    return [_group(run_id, np.random.default_rng(seed)) for seed in range(DISTINCT)]


def _group(run_id: str, draw: np.random.Generator) -> TrajectoryGroup:
    prompt = draw.integers(0, VOCABULARY, PROMPT_TOKENS, np.int32)
    return TrajectoryGroup(
        run_id=run_id,
        stream=STREAM,
        policy=POLICY,
        task_id="sums/7f3a",
        tier="sum2",
        episode_ids=tuple(f"{STREAM}:0:{sample}" for sample in range(SAMPLES)),
        n_asked=SAMPLES,
        trajectories=tuple(
            Trajectory(
                f"{STREAM}:0:{sample}", float(sample % 2), {"answer": float(sample % 2)}, (_played(prompt, draw),)
            )
            for sample in range(SAMPLES)
        ),
        head_version=1,
        env="arithmetic",
        tokenizer_hash="",
        engine="torch",
        engine_build="0.0",
        worker="worker-0",
        started_ms=1_700_000_000_000,
        finished_ms=1_700_000_009_000,
    )


def _played(prompt: npt.NDArray[np.int32], draw: np.random.Generator) -> Sequence:
    written = TOKENS - PROMPT_TOKENS
    logprobs = np.zeros(TOKENS, np.float32)
    logprobs[PROMPT_TOKENS:] = -draw.exponential(0.7, written)
    return Sequence(
        ids=np.concatenate([prompt, draw.integers(0, VOCABULARY, written, np.int32)]),
        logprobs=logprobs,
        version_runs=np.array([-1, PROMPT_TOKENS, 0, written // 2, 1, written - written // 2], np.int32),
        role=POLICY,
        spans=(
            Span("prompt", PROMPT_TOKENS),
            Span("generated", written, finish_reason="stop", sampling=Sampling(max_tokens=written, stop_ids=(1,))),
        ),
    )


def _outcome() -> Outcome:
    """Of the size that a curator's has."""
    return Outcome(
        run_id="run-1",
        stream=STREAM,
        number=1000,
        policy=POLICY,
        verdict="kept",
        component="curate",
        task_id="sums/7f3a",
        tier="sum2",
        rewards=(0.0, 1.0) * (SAMPLES // 2),
        lengths=(TOKENS - PROMPT_TOKENS,) * SAMPLES,
        n_asked=SAMPLES,
        min_version=0,
        max_version=1,
        head_version=1,
    )


def _begin(load: Load) -> tuple[Run, threading.Event]:
    """Do what every process does first: say little, hear signals, join."""
    configure_logging("benchmark")
    stop = stop_on_signals()
    return join(parse_run(load.address)), stop


def _tell(reports: Reports, load: Load, taken: int) -> None:
    if taken == load.warm_up:
        reports.put(("warm", time.monotonic()))
    elif taken == load.warm_up + load.groups:
        reports.put(("last", time.monotonic()))


# ------------------------------------------------------------------------------------------------------------ Headrace


def produce(load: Load, reports: Reports, go: Event) -> None:
    """Encode and send as the rollout worker does, with as many groups undelivered as it allows."""
    run, stop = _begin(load)
    groups = made_groups(run.run_id)
    partitions = fetch_group_partitions(run, (POLICY,))
    producer = RecordProducer(run.connection, "benchmark.groups", Stopwatch())

    async def lane(numbers: Iterator[int]) -> None:
        for number in numbers:
            group, value = encode_group(replace(groups[number % DISTINCT], number=number))
            await producer.send([build_outgoing(run.topics, group, value, partitions)])

    async def send(numbers: Iterator[int]) -> None:
        await asyncio.gather(*(lane(numbers) for _ in range(MOST_UNDELIVERED)))

    asyncio.run(send(iter(range(load.warm_up))))
    go.wait()
    reports.put(("first", time.monotonic()))
    asyncio.run(send(iter(range(load.warm_up, load.warm_up + load.groups))))
    stop.wait()
    producer.close()


def curate(load: Load, _reports: Reports, _go: Event) -> None:
    """Be the curator, whole."""
    from headrace.consumers.curate.curator import main

    main(load.address, POLICY)


def take_in(load: Load, reports: Reports, _go: Event) -> None:
    """Be the trainer up to a batch: poll, decode, window, cut, decode the groups inside."""
    from headrace.trainers.trainer import Trainer
    from headrace.trainers.versions.publisher import VersionAnnouncer, VersionUploader
    from headrace.trainers.versions.resume import ResumedTrainer
    from headrace.trainers.versions.step_note import open_step_note

    class Intake(Trainer):
        """A trainer that has its batch and makes nothing of it."""

        taken = 0

        def tick(self) -> list[Outgoing]:
            while batch := self.scheduler.window.pop(self.settings.groups_per_batch):
                groups = [entry.payload.decoded for entry in batch]
                assert {len(g.trajectory_group.trajectories) for g in groups} == {SAMPLES}  # noqa: S101 - or it was not this task
                self.taken += len(groups)
                _tell(reports, load, self.taken)
            return []

    (run, stop), watch = _begin(load), Stopwatch()
    positions = find_start_positions(run.connection, [run.topics.curated(POLICY)])
    begun = ResumedTrainer(
        _smallest_learner(run), VersionUploader(run, POLICY, ()), VersionAnnouncer(run, POLICY), 0, "", positions
    )
    intake = Intake(run, POLICY, begun, watch, open_step_note(run, POLICY))
    writer = TransactionalWriter(run.connection, f"{run.address.run}.train.{POLICY}")
    run_loop(intake, writer, stop, watch)
    intake.close()
    writer.close()


def _smallest_learner(run: Run) -> Learner:
    """Return a real learner of version 1, which the groups' tokens name; it is asked for its limits and never steps."""
    import transformers

    from headrace.trainers.learner.learner import Learner

    config = transformers.Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=TOKENS,
    )
    learner = Learner(transformers.Qwen3ForCausalLM(config), run.recipe.trainer_of(POLICY))
    learner.trained.version = 1
    return learner


# ----------------------------------------------------------------------------------------------------------------- raw


def raw_produce(load: Load, reports: Reports, go: Event) -> None:
    """Send messages that were made beforehand, as many undelivered as the worker has: with more the chain is slower."""
    run, stop = _begin(load)
    records = _raw_records(run, load)
    producer = open_producer(run.connection, "raw.groups", message_timeout_ms=0, max_in_flight=BEST_IN_FLIGHT)

    def send(some: list[Outgoing]) -> None:
        for record in some:
            while len(producer) >= MOST_UNDELIVERED:
                producer.poll(0.005)
            producer.produce(record.topic, record.value, record.key, record.partition, headers=list(record.headers))
        producer.flush()

    send(records[: load.warm_up])
    go.wait()
    reports.put(("first", time.monotonic()))
    send(records[load.warm_up :])
    stop.wait()


def _raw_records(run: Run, load: Load) -> list[Outgoing]:
    partitions = fetch_group_partitions(run, (POLICY,))
    encoded = [encode_group(group) for group in made_groups(run.run_id)]
    numbered = ((number, encoded[number % DISTINCT]) for number in range(load.warm_up + load.groups))
    return [build_outgoing(run.topics, replace(group, number=n), value, partitions) for n, (group, value) in numbered]


def raw_relay(load: Load, _reports: Reports, _go: Event) -> None:
    """Hand every group on, with a record of an outcome's size, in transactions with the group's offsets."""
    run, stop = _begin(load)
    topics, connection, outcome = run.topics, run.connection, codec.encode(_outcome())
    source, curated, outcomes = topics.trajectories(POLICY), topics.curated(POLICY), topics.outcomes(POLICY)
    name = f"{run.address.run}.raw"
    producer = open_producer(connection, name, transactional_id=name, max_in_flight=BEST_IN_FLIGHT)
    producer.init_transactions(30)
    consumer = open_consumer(connection, "raw.relay", f"{run.address.run}.raw")
    consumer.subscribe([source])
    while not stop.is_set():
        found = consumer.consume(64, 0.15)
        metadata = consumer.consumer_group_metadata()
        if not found:
            continue
        producer.begin_transaction()
        ends: dict[int, int] = {}
        for raw in found:
            assert raw.error() is None  # noqa: S101 - or the figures would be of another task
            partition, key, headers = raw.partition() or 0, raw.key(), raw.headers()
            producer.produce(outcomes, outcome, key, partition, headers=headers)
            producer.produce(curated, raw.value(), key, partition, headers=headers)
            ends[partition] = (raw.offset() or 0) + 1
        producer.flush()
        offsets = [TopicPartition(source, partition, end) for partition, end in ends.items()]
        producer.send_offsets_to_transaction(offsets, metadata)
        producer.commit_transaction()
    consumer.close()


def raw_read(load: Load, reports: Reports, _go: Event) -> None:
    """Count what arrives."""
    run, stop = _begin(load)
    consumer = open_consumer(run.connection, "raw.read")
    partition_ids = find_start_positions(run.connection, [run.topics.curated(POLICY)])
    consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in partition_ids])
    taken = 0
    while not stop.is_set():
        for raw in consumer.consume(256, 0.05):
            assert raw.error() is None  # noqa: S101 - or the figures would be of another task
            taken += len(raw.value() or b"") > 0
            _tell(reports, load, taken)
    consumer.close()


HEADRACE = (produce, curate, take_in)
RAW = (raw_produce, raw_relay, raw_read)
