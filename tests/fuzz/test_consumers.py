"""The consumers themselves, given what a broken or hostile producer sends: an outcome, a dead letter, or a warning.

No broker: each is the object that the run loop drives, and its store is a dictionary behind the real checks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from made_recipes import sums_recipe
from minio.error import S3Error
from mutations import INTS, TEXTS, Fuzz, altered, altered_headers, altered_json, distorted, example, memory_limit

from headrace.app.views.chart import chart
from headrace.consumers.curate.context import CuratorContext, UnknownRevision
from headrace.consumers.curate.curator import CuratorPartition
from headrace.consumers.evaluate.evaluator import Evaluator
from headrace.envs.contract import Problem, Score, Split
from headrace.envs.payload import PayloadError, problem_from_json
from headrace.infra.errors import HeadraceError
from headrace.infra.kafka.clients import MESSAGE_BYTES, Connection, Message, Outgoing, RunAddress
from headrace.infra.kafka.dead_letters import build_dead_letter
from headrace.infra.kafka.decoding import Refusal
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.own_positions import OwnPositions
from headrace.infra.run.run import Run
from headrace.infra.stopwatch import Stopwatch
from headrace.infra.store.bucket import Bucket
from headrace.infra.store.object_store import ObjectStore, StoreAddress, StoreError
from headrace.infra.weights.delta import encode_delta
from headrace.infra.weights.delta_header import Label
from headrace.infra.weights.policy_weights import BadWeights, PolicyWeights
from headrace.infra.weights.tensor_file import encode_safetensors
from headrace.infra.weights.tensors import WeightsError, hash_weights
from headrace.ledger.ledger import Ledger
from headrace.ledger.run_streams import RunStreams
from headrace.ops.figures.figures import Figures
from headrace.ops.figures.pulse import compute_mean_rates, find_pulse
from headrace.ops.plain_json import plain
from headrace.producers.feed.feed_state import FeedState
from headrace.producers.feed.feeder import Feeder
from headrace.producers.feed.selectors.contract import AcceptAll
from headrace.producers.feed.task_source import TaskSource
from headrace.producers.rollout.intake.slots import Reservation
from headrace.producers.rollout.intake.task_intake import Subscription, TaskIntake
from headrace.producers.rollout.pauses import Pauses
from headrace.producers.rollout.published_weights import PublishedWeights
from headrace.producers.rollout.run_follower import RunFollower
from headrace.schemas import codec
from headrace.schemas.avro import schema_of
from headrace.schemas.headers import HeaderError, Stamp, task_stamp
from headrace.schemas.records import (
    BatchTrained,
    ClaimCheck,
    CuratedGroup,
    DeadLetter,
    EvalResult,
    GroupUse,
    NamedObject,
    Outcome,
    Position,
    RecipeRevision,
    Routing,
    Sampling,
    ScalingDecision,
    Sequence,
    Span,
    Task,
    Trajectory,
    TrajectoryGroup,
    WeightsPublished,
    WorkerStatus,
)
from headrace.trainers.batches.batch import cut_minibatches
from headrace.trainers.batches.first_use_cache import FirstUseCache
from headrace.trainers.batches.groups import build_batch_sequences
from headrace.trainers.intake import Intake
from headrace.trainers.learner.limits import Limits
from headrace.trainers.learner.routing import Routers
from headrace.trainers.messages import TrainerMessages
from headrace.trainers.scheduler import Scheduler
from headrace.trainers.trainer import Trainer, build_handlers
from headrace.trainers.versions.batch_offsets import BatchOffsets
from headrace.trainers.versions.pipeline import Pipeline

pytestmark = pytest.mark.timeout(1200)  # seconds, on a machine that does nothing else

RECIPE = sums_recipe(
    rollout={"record_routing": True},
    trainer={"max_staleness": 2, "groups_per_batch": 2, "minibatches": 1, "replay_routing": True},
    evaluate={"problems": 3, "samples": 2},
    store={"cache_gib": 0},
)


class Drawer(Bucket):
    """A bucket whose objects lie in a dictionary."""

    def __init__(self, address: StoreAddress, objects: dict[str, bytes]) -> None:
        super().__init__(address, timeout_s=1)
        self._objects = objects

    @contextmanager
    def open_object(self, key: str, offset: int, length: int) -> Iterator[Any]:
        if key not in self._objects:
            response = cast("Any", SimpleNamespace(status=404))
            raise S3Error(response, "NoSuchKey", "no such key", key, "", "")
        yield SimpleNamespace(stream=lambda size: iter([self._objects[key]]))


class Shelf(ObjectStore):
    """A store of a drawer; keys, sizes and hashes are checked as ever."""

    def __init__(self) -> None:
        address = StoreAddress("127.0.0.1:1", "shelf", "a", "b")
        super().__init__(address)
        self.objects: dict[str, bytes] = {}
        self._bucket = Drawer(address, self.objects)

    def shelve(self, data: bytes, kind: str) -> ClaimCheck:
        """Return the claim check of an object."""
        digest = sha256(data).hexdigest()
        self.objects[f"{kind}/{digest}"] = data
        return ClaimCheck("main", f"{kind}/{digest}", digest, len(data))


SHELF = Shelf()


def made_run() -> Run:
    run = Run(RunAddress(Connection("127.0.0.1:1"), "t"), "run-1", (RECIPE,), SHELF.address)
    run.__dict__["store"] = SHELF
    return run


RUN = made_run()
OWN = cast("OwnPositions", SimpleNamespace(restored=None))


def sequence() -> Sequence:
    return Sequence(
        ids=np.array([5, 6, 7, 1], np.int32),
        logprobs=np.array([0, 0, -0.5, -0.25], np.float32),
        version_runs=np.array([-1, 2, 3, 2], np.int32),
        spans=(Span("prompt", 2), Span("generated", 2, finish_reason="stop", sampling=Sampling())),
        routing=routed([0, 1, 2, 0, 1, 3]),
    )


def routed(experts: list[int], layers: int = 1) -> Routing:
    """Where two tokens, or three, went: to two of four experts each."""
    return Routing(bytes(experts), "uint8", len(experts) // 2 // layers, layers, 2)


def group(number: int = 0, **more: Any) -> TrajectoryGroup:
    trajectories = tuple(Trajectory(f"sums:{number}:{i}", float(i), {"right": 1.0}, (sequence(),)) for i in range(3))
    made = TrajectoryGroup(
        run_id="run-1",
        stream="sums",
        number=number,
        policy="solver",
        n_asked=3,
        trajectories=trajectories,
        head_version=3,
    )
    return replace(made, **more)


def nonsense(rng: Random, valid: TrajectoryGroup) -> bytes:
    """Return a group that is well-formed nonsense, or no group, or behind a claim check of either kind."""
    made = replace(distorted(rng, valid), number=valid.number) if rng.random() < 0.8 else valid
    data = codec.encode(made)
    if rng.random() < 0.3:
        data = altered(rng, data)
    if rng.random() < 0.2:
        claim = SHELF.shelve(data, "groups")
        claim = distorted(rng, claim) if rng.random() < 0.7 else claim
        data = codec.encode(replace(valid, trajectories=(), claim=claim))
    return data


def fits(outgoing: Outgoing) -> Any:
    """Return the record, which any of our readers must be able to read, from a message that the broker takes."""
    size = len(outgoing.value) + len(outgoing.key) + sum(len(name) + len(value) for name, value in outgoing.headers)
    assert size < MESSAGE_BYTES
    return codec.decode_any(outgoing.value)


def recipe_of(revision: int) -> Recipe:
    if revision:
        raise UnknownRevision(f"no revision {revision}")
    return RECIPE


def test_a_curator_gives_an_outcome_or_a_dead_letter_for_everything(fuzz: Fuzz) -> None:
    context = CuratorContext("run-1", "solver", RUN.topics, recipe_of, RUN.get_group)
    partition_id = (RUN.topics.trajectories("solver"), 0)
    partition, number = CuratorPartition(context, partition_id, 2), 0

    def make(rng: Random) -> Message:
        nonlocal number
        number += 2
        valid = group(number)
        headers = Stamp("run-1", "sums", number, policy="solver", head_version=3).to_headers()
        if rng.random() < 0.2:
            headers = altered_headers(rng, headers)
        return Message(*partition_id, number, b"sums:1", nonsense(rng, valid), headers)

    def check(message: Message) -> None:
        told = [fits(outgoing) for outgoing in partition.handle(message)]
        assert all(isinstance(record, Outcome | CuratedGroup | DeadLetter) for record in told)
        assert not blames_an_algorithm(told)
        with suppress(HeaderError):
            if Stamp.from_headers(message.headers).number == message.offset:
                assert told, "nothing disappears silently"

    fuzz.run("curator", 0.03, make, check)
    again = CuratorPartition(context, partition_id, 2)
    again.restore(partition.snapshot())
    assert again.snapshot() == partition.snapshot()
    assert len(partition.snapshot()) < 1 << 20


HEADERS = Stamp("run-1", "sums", 0, policy="solver").to_headers()
TWO = group().trajectories[:2]
ENDLESS = Span("generated", 2**62)
VAST = (2**31 - 1, 2**40, 2**62)


def spanned(*spans: Span) -> tuple[Trajectory, ...]:
    """Return three trajectories, one of them with these spans and a run of versions as long as any."""
    runs = np.array([-1, 2**31 - 1, 3, 2], np.int32)
    return (*TWO, Trajectory("c", 1.0, {}, (replace(sequence(), spans=spans, version_runs=runs),)))


WOULD_STOP_A_CURATOR: tuple[tuple[tuple[str, bytes] | None, dict[str, Any]], ...] = (
    (("number", str(2**63).encode()), {}),
    (("number", str(2**62).encode()), {"number": 2**62}),
    (("stream", b"x" * 100_000), {"stream": "x" * 100_000}),
    (None, {"task_id": "x" * (1 << 20), "trajectories": (*TWO, *(Trajectory(str(i)) for i in range(500)))}),
    (None, {"n_asked": 2**62, "head_version": 2**62}),
    (None, {"claim": ClaimCheck("main", "../x", "0" * 64, 2**60)}),
    (None, {"claim": ClaimCheck("elsewhere", "groups/x", "0" * 64, 5)}),
    (None, {"trajectories": (Trajectory(sequences=(replace(sequence(), spans=(ENDLESS,) * 4),)),) * 2}),
    *((None, {"trajectories": spanned(Span("prompt", length), Span("generated", 2))}) for length in VAST),
    *((None, {"trajectories": spanned(Span("prompt", 2), Span("generated", length))}) for length in VAST),
    *((None, {"trajectories": spanned(Span("prompt", 2), Span("generated", 2), Span("x", n))}) for n in VAST),
    (None, {"trajectories": (Trajectory(reward=float("nan")), Trajectory(reward=float("inf")))}),
    (None, {"trajectories": (Trajectory(),) * 5000}),
)


def test_what_would_have_stopped_a_curator_is_an_outcome_or_a_dead_letter() -> None:
    context = CuratorContext("run-1", "solver", RUN.topics, recipe_of, RUN.get_group)
    for case, (header, changed) in enumerate(WOULD_STOP_A_CURATOR):
        partition = CuratorPartition(context, (RUN.topics.trajectories("solver"), 0), 1)
        headers = [h for h in HEADERS if not header or h[0] != header[0]] + ([header] if header else [])
        given = Message("t", 0, 0, b"", codec.encode(group(**changed)), headers)
        with memory_limit(1 << 30):
            told = [fits(outgoing) for outgoing in partition.handle(given)]
        # Outcomes of rejected trajectories come before that of their group.
        kinds = [type(record) for record in told if type(record) is not Outcome or not record.trajectory_id]
        assert kinds in ([Outcome], [DeadLetter], [Outcome, CuratedGroup]), case
        assert not blames_an_algorithm(told), case


def blames_an_algorithm(told: list[Any]) -> bool:
    """Return whether an algorithm failed: eight such groups in a row end a curator."""
    return any(isinstance(record, DeadLetter) and record.reason == "algorithm_failed" for record in told)


def test_a_curator_takes_back_its_snapshot_or_refuses_it(fuzz: Fuzz) -> None:
    context = CuratorContext("run-1", "solver", RUN.topics, recipe_of, RUN.get_group)
    partition = CuratorPartition(context, ("t.trajectories.solver", 0), 1)
    list(partition.handle(Message("t", 0, 0, b"", codec.encode(group()), HEADERS)))
    plain = json.loads(partition.snapshot())

    def check(text: str) -> None:
        with suppress(ValueError, LookupError, TypeError, AttributeError, RecursionError, HeadraceError):
            CuratorPartition(context, ("t.trajectories.solver", 0), 1).restore(text.encode())

    fuzz.run("curator's snapshots", 0.005, lambda rng: altered_json(rng, plain), check)


def test_an_evaluator_folds_a_group_or_gives_a_dead_letter(fuzz: Fuzz) -> None:
    evaluator, number = Evaluator(RUN, OWN), 0
    topic = RUN.topics.eval_groups("solver")

    def make(rng: Random) -> Message:
        nonlocal number
        number += 1
        valid = group(number, stream="eval.sums", purpose="eval", asked_version=number // 3)
        headers = Stamp("run-1", "eval.sums", number, purpose="eval", policy="solver", min_version=3).to_headers()
        return Message(topic, 0, number, b"", nonsense(rng, valid), headers)

    def check(message: Message) -> None:
        for outgoing in evaluator.handle(message):
            record = fits(outgoing)
            assert isinstance(record, EvalResult | DeadLetter)
            if isinstance(record, EvalResult):
                assert 0 <= record.avg_at_k <= 1 if record.has_reward else math.isnan(record.avg_at_k)
        json.dumps(evaluator.fold.snapshot())

    fuzz.run("evaluator", 0.01, make, check)


# -------------------------------------------------------------------------------------------------------------- trainer


class OneTopKRouter(torch.nn.Module):
    """As transformers' routers are, with equal gates."""

    num_experts, top_k, norm_topk_prob = 4, 2, True

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(4, 8))

    def forward(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        shape = (len(states), 2)
        return torch.zeros(len(states), 4), torch.full(shape, 0.5), torch.arange(2).expand(shape)


def routers() -> Routers:
    model = torch.nn.ModuleList([OneTopKRouter()])
    model.config = cast("Any", SimpleNamespace(model_type="one"))
    made = Routers(cast("Any", model))
    made.apply_settings(RECIPE.trainer_of("solver"))
    return made


ROUTERS = routers()


def trainer() -> Trainer:
    """A trainer without a model or a topic: all that taking groups in needs."""
    made, limits = Trainer.__new__(Trainer), Limits(32, 64, ROUTERS.limits)
    made.run, made.policy_variant, made.settings = RUN, "solver", RECIPE.trainer_of("solver")
    made._watch, made.scheduler = Stopwatch(), Scheduler(made.settings, 0, 1)
    made._messages = TrainerMessages(RUN, "solver", 0, {}, "", {}, BatchOffsets())
    made._intake = Intake(RUN, "solver", limits, (), made._watch, lambda: 3)
    made._intake._first_uses = FirstUseCache(RUN)
    made._intake._first_uses._read = lambda *_: None  # type: ignore[method-assign]  # no log to look for a first use in
    made._handlers = build_handlers(made)
    made._pipeline = cast(Pipeline, SimpleNamespace(list_under_way=lambda: iter(())))
    return made


def test_a_trainer_takes_in_what_can_be_trained_on_and_buries_the_rest(fuzz: Fuzz) -> None:
    one, number = trainer(), 0

    def make(rng: Random) -> Message:
        nonlocal number
        number += 1
        whole = nonsense(rng, group(number)) if rng.random() < 0.7 else codec.encode(group(number))
        made = CuratedGroup("run-1", "sums", number, 0, whole, 5, 3, 0, (0, 1, 2), (0.0, 1.0, 2.0))
        made = distorted(rng, made) if rng.random() < 0.6 else made
        data = codec.encode(made)
        return Message(RUN.topics.curated("solver"), 0, number, b"", altered(rng, data) if rng.random() < 0.1 else data)

    def check(message: Message) -> None:
        told = [fits(outgoing) for outgoing in one.handle(message)]
        assert all(isinstance(record, DeadLetter | BatchTrained) for record in told)
        for entry in one.scheduler.window.pop(len(one.scheduler.window)) or []:
            sequences = build_batch_sequences([entry.payload], one.settings)
            assert cut_minibatches(sequences, 1, 4096, seed=1, version=4)

    fuzz.run("trainer", 0.02, make, check)


ONE = group().trajectories[0]


def of_sequence(**changed: Any) -> TrajectoryGroup:
    return group(trajectories=(replace(ONE, sequences=(replace(sequence(), **changed),)), ONE, ONE))


WOULD_STOP_A_TRAINER: tuple[tuple[TrajectoryGroup, dict[str, Any]], ...] = (
    (of_sequence(spans=(Span("prompt", 2), ENDLESS)), {}),
    (of_sequence(spans=(Span("prompt", 2), Span("generated", 3), Span("generated", -1))), {}),
    (of_sequence(version_runs=np.array([-1, 2, 3, 2**31 - 1], np.int32)), {}),
    (of_sequence(version_runs=np.array([-1, 2, 3], np.int32)), {}),
    (of_sequence(version_runs=np.array([-1, 2, 9, 2], np.int32)), {}),
    (of_sequence(ids=np.array([5, 6, 7, 32], np.int32)), {}),
    (of_sequence(ids=np.array([5, 6, 7, -1], np.int32)), {}),
    (of_sequence(logprobs=np.array([0, 0, np.nan, 0], np.float32)), {}),
    (of_sequence(spans=(Span("prompt", 2), Span("generated", 2, sampling=Sampling(temperature=np.nan)))), {}),
    (of_sequence(routing=routed([0, 1, 2, 0, 1])), {}),
    (of_sequence(routing=routed([0, 1, 2, 0, 1, 4])), {}),
    (of_sequence(routing=routed([0, 1, 2, 2, 1, 3])), {}),
    (of_sequence(routing=routed([0, 1, 2, 0], layers=2)), {}),
    (of_sequence(routing=routed([0, 1] * 5)), {}),
    (of_sequence(routing=replace(routed([0, 1]), tokens=2**40)), {}),
    (group(), {"rewards": (0.0, 1.0)}),
    (group(), {"rewards": (1e308, -1e308, 0.0)}),
    (group(), {"rewards": (float("inf"), 0.0, 0.0)}),
    (group(), {"kept": (0, 2**60)}),
    (group(), {"kept": ()}),
    (group(trajectories=()), {"rewards": (), "kept": ()}),
)


def test_what_would_have_stopped_a_trainer_is_a_dead_letter() -> None:
    whole = CuratedGroup("run-1", "sums", 0, 0, b"", 5, 3, 0, (0, 1, 2), (0.0, 1.0, 2.0))
    for case, (made, changed) in enumerate(WOULD_STOP_A_TRAINER):
        one, curated = trainer(), replace(whole, group=codec.encode(made), **changed)
        given = Message(RUN.topics.curated("solver"), 0, 0, b"", codec.encode(curated))
        with memory_limit(1 << 30):
            told = [type(fits(outgoing)) for outgoing in one.handle(given)]
        assert told == [DeadLetter, BatchTrained], case
        assert not len(one.scheduler.window), case


# -------------------------------------------------------------------------------------------------------------- workers


class Open:
    """A gate that lets everything through, as far as its revision is known."""

    def try_admit(self, task: Task) -> Any:
        return "unknown_revision" if task.revision else Reservation(SLOTS, task.n_asked, task.n_asked)

    def is_written(self, revision: int) -> bool:
        return False


SLOTS = cast("Any", SimpleNamespace(_give=lambda n: None))


@pytest.fixture
def intake() -> Iterator[TaskIntake]:
    member = Subscription(Connection("127.0.0.1:1"), "w", "t.rollout.sums", ("t.tasks.sums",), "run-1")
    made = TaskIntake(member, Open(), lambda started: None, lambda partition_ids: None, Pauses())
    yield made
    made._consumer.close()


def test_a_worker_plays_a_task_waits_or_buries_it(fuzz: Fuzz, intake: TaskIntake) -> None:
    payload = {"task_id": "a", "prompt": "1+1", "answer": "2", "tier": "low", "extra": {}}
    valid = Task("run-1", "sums", 1, workflow="sums", payload=json.dumps(payload), n_asked=8, versions={"solver": 3})
    partition_id = ("t.tasks.sums", 0)

    def make(rng: Random) -> Message:
        made = distorted(
            rng, replace(valid, payload=altered_json(rng, payload) if rng.random() < 0.5 else valid.payload)
        )
        data = codec.encode(made)
        data = altered(rng, data) if rng.random() < 0.4 else data
        return Message(*partition_id, rng.randrange(1000), b"", data, task_stamp(valid).to_headers())

    def check(message: Message) -> None:
        intake.owned.disown({partition_id})
        intake.queue.remove({partition_id})
        intake._commits._starting = []
        intake.owned.own(partition_id, 0, "")
        if intake.owned.receive(message):
            intake._receive(message)
        intake._start()
        assert len(intake.queue) + len(intake._commits._starting) == 1
        for started in intake._commits._starting:
            if started.task is None:
                assert isinstance(
                    fits(build_dead_letter(RUN.topics, "run-1", "rollout", message, started.refusal)), DeadLetter
                )
            else:
                assert 1 <= started.task.n_asked <= 4096
                with suppress(PayloadError):
                    problem_from_json(started.task.payload)

    fuzz.run("intake", 0.02, make, check)


def test_a_worker_serves_the_weights_of_a_record_or_says_why_not(fuzz: Fuzz) -> None:
    from headrace.infra.weights.tensors import Tensor

    base, new = ({"a": Tensor("F32", (2,), memoryview(bytes([n] * 8)))} for n in (0, 1))
    anchor, delta = encode_safetensors(base), encode_delta(base, new, Label("solver", 0, 2, 3))
    claims = SHELF.shelve(anchor, "weights"), SHELF.shelve(delta, "weights")
    whole = WeightsPublished("run-1", "solver", version=2, weights_hash=hash_weights(base), weights=claims[0])
    change = WeightsPublished(
        "run-1", "solver", version=3, kind="delta", base_version=2, base_hash=hash_weights(base),
        weights_hash=hash_weights(new), weights=claims[1],
    )  # fmt: skip
    follower = RunFollower(RUN, ("solver",), "w")

    def make(rng: Random) -> Message:
        valid, data = rng.choice(((whole, anchor), (change, delta)))
        assert valid.weights is not None
        if rng.random() < 0.4:
            made = replace(valid, weights=SHELF.shelve(altered(rng, data), "weights"))
        elif rng.random() < 0.5:
            made = replace(valid, weights=distorted(rng, valid.weights))
        else:
            made = distorted(rng, valid)
        topic = rng.choice((RUN.topics.weights("solver"), RUN.topics.recipe))
        encoded = codec.encode(made)
        return Message(topic, 0, 0, b"", altered(rng, encoded) if rng.random() < 0.2 else encoded)

    def check(message: Message) -> None:
        follower.fold_message(message)
        for record in follower.published["solver"].list_ways():
            with suppress(StoreError, WeightsError, BadWeights):
                tensors = PolicyWeights(RUN.weights_cache).load_version([whole, record], record)
                assert hash_weights(tensors) == record.weights_hash
        follower.published["solver"] = PublishedWeights()

    fuzz.run("follower", 0.02, make, check)


# --------------------------------------------------------------------------------------------------- feeder and figures


class Sums:
    name = "sums"

    def size(self, split: Split) -> int | None:
        return None

    def problem(self, split: Split, index: int) -> Problem:
        return Problem(f"{split}-{index}", f"{index}?", str(index))

    def score(self, problem: Problem, text: str) -> Score:
        return Score(1.0)


VALID: Mapping[str, tuple[Any, ...]] = {
    RUN.topics.outcomes("solver"): (
        Outcome("run-1", "sums", 1, 0, "solver", verdict="dropped", reason="zero_variance", component="curate",
                rewards=(1.0, 1.0), lengths=(3, 4), n_asked=2, head_version=2),
    ),
    RUN.topics.batches("solver"): (
        BatchTrained("run-1", "solver", version=2, groups=(GroupUse("sums", 2),), positions=(Position(0, 7),),
                     metrics={"reward_mean": 0.5}),
    ),
    RUN.topics.weights("solver"): (WeightsPublished("run-1", "solver", version=2, files=(NamedObject("a.json"),)),),
    RUN.topics.dead_letters: (DeadLetter("run-1", "curate", reason="undecodable", stream="sums", number=3),),
}  # fmt: skip
SHOWN: Mapping[str, tuple[Any, ...]] = {
    **VALID,
    RUN.topics.evals("solver"): (EvalResult("run-1", "solver", workflow="sums", version=2, avg_at_k=0.5),),
    RUN.topics.workers: (WorkerStatus("run-1", "w", "sums", state="rolling", versions={"solver": 2}),),
    RUN.topics.scaling: (ScalingDecision("run-1", "rollout-sums", 1, 2, "it waits", "solver", 2),),
    RUN.topics.recipe: (RecipeRevision("run-1"),),
}


def said(rng: Random, offset: int, valid: Mapping[str, tuple[Any, ...]]) -> Message:
    """Return nonsense on one of the small topics."""
    topic = rng.choice(list(valid))
    [record] = valid[topic]
    if rng.random() < 0.1:
        record = example(schema_of(type(record)))
    data = codec.encode(distorted(rng, record))
    data = altered(rng, data) if rng.random() < 0.2 else data
    return Message(topic, 0, offset, b"feed", data, Stamp("run-1", "sums", 1).to_headers(), rng.choice((0, 10**12)))


def test_a_feeder_learns_from_a_record_or_gives_a_dead_letter(fuzz: Fuzz) -> None:
    source = TaskSource("sums", lambda more: Sums(), AcceptAll(1))
    feeder, offset = Feeder(RUN, OWN, FeedState(RECIPE, RecipeRevision("run-1"), {"sums": source})), 0

    def make(rng: Random) -> Message:
        nonlocal offset
        offset += 1
        return said(rng, offset, VALID)

    def check(message: Message) -> None:
        for outgoing in feeder.handle(message):
            assert isinstance(fits(outgoing), DeadLetter)
        assert len(feeder.state.plan()) <= 256 + 3
        state = json.loads(json.dumps(feeder.state.snapshot()))
        json.dumps(feeder.state.take_changes())
        assert set(state["pacing"]["versions"]) <= {"solver"}
        assert feeder.state.pacing.versions.get("solver", 0) <= 10**6

    fuzz.run("feeder", 0.02, make, check)


def test_the_page_shows_whatever_was_said(fuzz: Fuzz) -> None:
    figures, offset = Figures(Ledger(None, "run-1", RunStreams(RECIPE))), 0

    def make(rng: Random) -> Message:
        nonlocal offset
        offset += 1
        return said(rng, offset, SHOWN)

    def check(message: Message) -> None:
        figures.ledger.add([message])
        if message.offset % 50 == 0:
            now = figures.compute_figures({}, 10**12)
            json.dumps(plain(now))
            chart([point.reward for point in now.rewards["solver"]], 60, 8)
            chart([result.avg_at_k for result in now.evals], 60, 8)
            find_pulse(figures.ledger, 10**12)
            compute_mean_rates(figures.ledger, 1.0)

    fuzz.run("page", 0.02, make, check)


# --------------------------------------------------------------------------------------------------------- claim checks


def test_a_claim_check_gives_the_bytes_that_it_names_or_is_refused(fuzz: Fuzz) -> None:
    data = codec.encode(group())
    claim = SHELF.shelve(data, "groups")
    keys = (
        *TEXTS,
        "groups/../../x",
        f"groups/./{claim.sha256}",
        f"/{claim.key}",
        f"{claim.key}/",
        "a" * 2000,
        claim.key,
    )

    def make(rng: Random) -> ClaimCheck:
        made = distorted(rng, claim)
        made = replace(made, key=rng.choice(keys)) if rng.random() < 0.5 else made
        return replace(made, size_bytes=rng.choice((*INTS, len(data), len(data) - 1, len(data) + 1)))

    def check(given: ClaimCheck) -> None:
        with suppress(StoreError):
            assert RUN.get_group(given) == data

    fuzz.run("claims", 0.02, make, check)


def test_no_key_leaves_the_store() -> None:
    SHELF.objects.update(
        dict.fromkeys(("../x", "a/../x", "/x", "a//x", "", ".", "a\x00", "a\\..\\x", "a?b", "a%2e"), b"x")
    )
    digest = SHELF.shelve(b"x", "probe").sha256
    for key in SHELF.objects.copy():
        if key.partition("/")[0] not in ("probe", "groups", "weights"):
            with pytest.raises(StoreError, match="is not a valid object key"):
                SHELF.get(key, digest, 1)


def test_a_letter_fits_into_a_message_whatever_it_is_about() -> None:
    huge = Message("t.x", 0, 5, bytes(1 << 20), bytes(MESSAGE_BYTES), [("\U0001f600" * 9, bytes(1 << 20))] * 3)
    outgoing = build_dead_letter(RUN.topics, "run-1", "curate", huge, Refusal("undecodable", "\ud800" * 9000))
    letter = fits(outgoing)
    assert (letter.topic, letter.offset) == ("t.x", 5)
    assert letter.value
