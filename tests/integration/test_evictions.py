"""What a trainer discards is told once, by its outcome, over any number of restarts. In this process: quick."""

from __future__ import annotations

import io
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest
from fastavro import parse_schema, schemaless_writer
from made_records import curated
from made_run import make_run, tiny_recipe
from said import say
from stoppable import until

from headrace.infra.kafka.clients import Outgoing
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.run.run import Run
from headrace.infra.stopwatch import Stopwatch
from headrace.infra.store.object_store import ObjectStore
from headrace.ops.audit.report import report
from headrace.ops.dead_letters.listing import listing
from headrace.ops.dead_letters.redrive import redrive
from headrace.ops.plain_json import plain
from headrace.schemas import codec
from headrace.schemas.avro import schema_of
from headrace.schemas.records import BatchTrained, CuratedGroup, Outcome, RecipeRevision
from headrace.trainers.start import begin_or_resume
from headrace.trainers.trainer import Trainer
from headrace.trainers.versions.step_note import open_step_note


@contextmanager
def training(run: Run, line: str = "solver") -> Iterator[tuple[Trainer, TransactionalWriter]]:
    """A new trainer, which fences the one before."""
    writer, watch = TransactionalWriter(run.connection, f"{run.address.run}.train.{line}"), Stopwatch()
    resumed = begin_or_resume(run, line, writer, threading.Event())
    with closing(writer), closing(Trainer(run, line, resumed, watch, open_step_note(run, line))) as trainer:
        yield trainer, writer


def turn(trainer: Trainer) -> list[Outgoing]:
    """What follows from one turn of the run loop, not produced yet."""
    found = [one for message in trainer.poll(Stopwatch()) for one in trainer.handle(message)]
    return [*found, *trainer.tick()]


def outgoing(trainer: Trainer, done: Callable[[list[Outgoing]], bool]) -> list[Outgoing]:
    found: list[Outgoing] = []
    until(lambda: bool(found.extend(turn(trainer))) or done(found), "the trainer gets there")
    return found


def of_a_batch(run: Run) -> Callable[[list[Outgoing]], bool]:
    """Whether a batch is told: some turns after its step, when what belongs to it is stored."""
    return lambda told: any(one.topic == run.topics.batches("solver") for one in told)


def outcomes(run: Run) -> Counter[int]:
    found = (codec.decode(m.value, Outcome) for m in read_all(run.connection, [run.topics.outcomes("solver")]))
    return Counter(outcome.number for outcome in found)


def trained(run: Run) -> Counter[int]:
    found = (codec.decode(m.value, BatchTrained) for m in read_all(run.connection, [run.topics.batches("solver")]))
    return Counter(use.number for batch in found for use in batch.groups)


@pytest.mark.training
def test_evictions_are_told_once_by_incarnations_that_are_fenced_and_by_those_that_resume(
    bootstrap: str, store: ObjectStore, run_name: str
) -> None:
    trainer = {"steps": 1, "groups_per_batch": 4, "minibatches": 2, "max_staleness": 0}
    run = make_run(bootstrap, store, tiny_recipe(run_name, trainer=trainer))
    say(run, *curated(run, range(9)))  # six are kept: two more than the window holds
    with training(run) as (first, writer):
        told = outgoing(first, bool)
        writer.begin()
        writer.produce(told)
        writer.flush()
        with training(run) as (second, other):  # fences the first, whose transaction never ends
            assert not outcomes(run)
            told = outgoing(second, bool)
            other.begin()
            other.produce(told)
            other.commit()
            evicted = outcomes(run)
            assert evicted.total() > 0
            with training(run) as (third, last):  # the window again, without what was evicted
                told = outgoing(third, of_a_batch(run))
                last.begin()
                last.produce(told)
                last.commit()
    assert set((outcomes(run) + trained(run)).values()) == {1}
    assert not trained(run).keys() & evicted.keys()
    assert (outcomes(run) + trained(run)).total() == 6


def by_newer_build(run: Run, one: Outgoing) -> tuple[Outgoing, RecipeRevision]:
    """The curated group in a schema that nobody else has, and the word that tells the schema."""
    schema, out = schema_of(CuratedGroup), io.BytesIO()
    schema["fields"].append({"name": f"of_{run.address.run}".replace("-", "_"), "type": "string", "default": ""})
    plain = codec.FORMS[CuratedGroup].encode(codec.decode(one.value, CuratedGroup))
    schemaless_writer(out, parse_schema(schema), plain)
    value = codec.AVRO_MAGIC + codec.fingerprint_of(schema) + out.getvalue()
    return replace(one, value=value), RecipeRevision(run_id=run.run_id, schemas={"CuratedGroup": json.dumps(schema)})


@pytest.mark.training
def test_a_group_that_could_not_be_read_before_a_fix_is_trained_once_when_it_is_sent_back(
    bootstrap: str, store: ObjectStore, run_name: str
) -> None:
    trainer = {"steps": 1, "groups_per_batch": 4, "minibatches": 2, "max_staleness": 4}
    run = make_run(bootstrap, store, tiny_recipe(run_name, trainer=trainer))
    first, *others = curated(run, range(6))
    assert len(others) == 3
    newer, fix = by_newer_build(run, first)
    say(run, newer, *others[:2])
    with training(run) as (trainer_before, writer):
        said = outgoing(trainer_before, bool)
        writer.begin()
        writer.produce(said)
        writer.commit()
    assert [letter.reason for letter in listing(run)] == ["undecodable"]
    say(run, Outgoing(run.topics.recipe, codec.encode(fix), partition=0))
    codec.decode(newer.value, CuratedGroup)
    with training(run) as (trainer_after, writer):
        outgoing(trainer_after, lambda _: len(trainer_after.scheduler.window) > 1)
        assert len(plain(redrive(run, (), "undecodable"))["redriven"]) == 1
        say(run, others[2])
        said = outgoing(trainer_after, of_a_batch(run))
        writer.begin()
        writer.produce(said)
        writer.commit()
    assert set(trained(run).values()) == {1}
    assert trained(run).total() == 4
    assert report(run, use_store=False).doubled == 0
