"""Dead letters and their way back on a real broker and store: once, after a fix, beside good events."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from made_run import make_run, tiny_recipe
from said import say
from stoppable import until

from headrace.consumers.curate.curator import open_curator
from headrace.consumers.curate.issued_numbers import IssuedNumbers
from headrace.consumers.curate.published_versions import PublishedVersions
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Fenced, Outgoing
from headrace.infra.kafka.run_loop import run_loop
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.process.signals import begin_attempts
from headrace.infra.run.run import STORE_NAME, Run, read_revisions
from headrace.infra.stopwatch import Stopwatch
from headrace.infra.store.object_store import ObjectStore
from headrace.ops.audit.report import report
from headrace.ops.dead_letters.listing import listing, read_detail
from headrace.ops.dead_letters.redrive import redrive
from headrace.ops.plain_json import plain
from headrace.producers.feed.feed_state import FeedState
from headrace.producers.feed.feeder import open_feeder
from headrace.producers.feed.pacing import Pacing
from headrace.schemas import codec
from headrace.schemas.headers import Stamp
from headrace.schemas.records import (
    BatchTrained,
    ClaimCheck,
    CuratedGroup,
    GroupUse,
    Sampling,
    Sequence,
    Span,
    Trajectory,
    TrajectoryGroup,
)

QUOTA = 8
"""(max_staleness 1 + 1) * 4 groups per batch."""


@pytest.fixture
def make(bootstrap: str, store: ObjectStore, run_name: str) -> Callable[..., Run]:
    return lambda **tables: make_run(bootstrap, store, tiny_recipe(run_name, **tables))


@contextmanager
def curating(run: Run, slot: str = "0") -> Iterator[None]:
    """A curator, in a thread."""
    stop = threading.Event()
    writer = TransactionalWriter(run.connection, f"{run.topics.curate_group('solver')}.{slot}")
    published, issued = PublishedVersions(run, "solver"), IssuedNumbers(run)
    with closing(writer), closing(open_curator(run, "solver", published, issued)) as consumer:
        loop = threading.Thread(target=run_loop, args=(consumer, writer, stop, Stopwatch()), daemon=True)
        loop.start()
        try:
            yield
        finally:
            stop.set()
            loop.join(120)


@contextmanager
def feeding(run: Run) -> Iterator[Callable[[], Pacing]]:
    """A feeder, in a thread, built anew when it has to be; what it knows is to be looked at only."""
    stop, newest = threading.Event(), [FeedState(run.recipe, read_revisions(run.address)[-1], {}).pacing]

    def feed() -> None:
        for attempt in begin_attempts(stop):
            with attempt:
                writer = TransactionalWriter(run.connection, f"{run.address.run}.feed")
                with closing(writer), closing(open_feeder(run, writer)) as feeder:
                    newest.append(feeder.state.pacing)
                    run_loop(feeder, writer, stop, Stopwatch())

    loop = threading.Thread(target=feed, daemon=True)
    loop.start()
    try:
        yield lambda: newest[-1]
    finally:
        stop.set()
        loop.join(120)


def group(run: Run, number: int) -> TrajectoryGroup:
    ids = np.array([5, 6, 7, 1], np.int32)
    logprobs = np.array([0, 0, -0.5, -0.25], np.float32)
    spans = (Span("prompt", 2), Span("generated", 2, finish_reason="stop", sampling=Sampling()))
    sequence = Sequence(ids, logprobs, np.array([-1, 2, 0, 2], np.int32), spans=spans)
    members = tuple(Trajectory(f"sums:{number}:{i}", float(i % 2), {}, (sequence,)) for i in range(4))
    return TrajectoryGroup(
        run_id=run.run_id,
        stream="sums",
        number=number,
        policy="solver",
        n_asked=4,
        trajectories=members,
        head_version=0,
    )


def claimed(run: Run, whole: TrajectoryGroup) -> TrajectoryGroup:
    """The group with its trajectories in an object that is not there yet: `run.put` is the fix."""
    data = codec.encode(whole)
    digest = hashlib.sha256(data).hexdigest()
    claim = ClaimCheck(STORE_NAME, run.store.key("groups", digest), digest, len(data))
    return replace(whole, trajectories=(), claim=claim)


def sent(run: Run, made: TrajectoryGroup) -> Outgoing:
    stamp = Stamp(run.run_id, "sums", made.number, policy="solver", min_version=0, max_version=0, head_version=0)
    return Outgoing(
        run.topics.trajectories("solver"), codec.encode(made), stamp.key, stamp.to_headers(), made.number % 4
    )


def of(run: Run, topic: str, kind: type[Any]) -> list[Any]:
    return [codec.decode(message.value, kind) for message in read_all(run.connection, [topic])]


def kept(run: Run) -> list[int]:
    return sorted(group.number for group in of(run, run.topics.curated("solver"), CuratedGroup))


def open_numbers(pacing: Pacing) -> set[int]:
    return {number for _, number in pacing.tasks.copy()}


def test_a_group_whose_object_was_missing_is_sent_back_after_the_fix_and_is_trained_on_once(
    make: Callable[..., Run],
) -> None:
    run = make()
    with feeding(run) as pacing:
        until(lambda: pacing().count_open("solver") == QUOTA, "tasks")
        wholes = [group(run, number) for number in range(4)]
        with curating(run):
            say(run, sent(run, claimed(run, wholes[1])), *(sent(run, wholes[n]) for n in (0, 2, 3)))
            until(lambda: kept(run) == [0, 2, 3] and len(plain(listing(run))) == 1, "letter beside good groups")
        [letter] = plain(listing(run, "missing_object"))
        assert (letter["topic"], letter["partition"]) == (run.topics.trajectories("solver"), 1)
        assert (letter["component"], letter["number"], letter["redriven"]) == ("curate.solver", 1, None)
        one = plain(read_detail(run, letter["offset"]))
        assert (one["key"], one["headers"]["stream"], one["decoded"]["record"]) == ("sums:1", "sums", "TrajectoryGroup")
        assert one["decoded"]["fields"]["number"] == 1
        until(lambda: 1 not in open_numbers(pacing()), "the number is dead")
        run.put(codec.encode(wholes[1]), "groups")  # the fix

        planned = plain(redrive(run, (), None, dry_run=True))
        assert planned["redriven"][0]["stands_at"] is None
        assert plain(listing(run))[0]["redriven"] is None, "a dry run sends nothing"
        done = plain(redrive(run, (), None))
        assert [each["number"] for each in done["redriven"]] == [1]
        again = plain(redrive(run, [letter["offset"]], None))
        assert (again["redriven"], again["already"]) == ([], [letter["offset"]])
        until(lambda: 1 in open_numbers(pacing()), "the number is open again")
        assert report(run, use_store=False).policies["solver"].in_flight > 0
        with curating(run, "1"):
            until(lambda: kept(run) == [0, 1, 2, 3], "the group that was sent back")
        groups = tuple(GroupUse("sums", number) for number in range(4))
        trained = BatchTrained(run_id=run.run_id, policy="solver", version=1, groups=groups)
        say(run, Outgoing(run.topics.batches("solver"), codec.encode(trained), partition=0))
        until(lambda: not open_numbers(pacing()) & {0, 1, 2, 3}, "conclusions")
    back = [m for m in read_all(run.connection, [run.topics.trajectories("solver")]) if dict(m.headers).get("redrive")]
    assert [(m.key, m.partition, dict(m.headers)["redrive"]) for m in back] == [(b"sums:1", 1, b"0")]
    notice = plain(read_detail(run, plain(listing(run))[0]["redriven"]))
    assert (notice["reason"], notice["redrives"], notice["source_offset"]) == ("redriven", 0, back[0].offset)
    assert [one["offset"] for one in plain(listing(run, "redriven"))] == [notice["offset"]]
    with pytest.raises(UsageError, match="no dead letter at offset 999"):
        redrive(run, [999], None)


@pytest.mark.curation
def test_of_two_redrives_at_once_one_sends_and_one_is_fenced(make: Callable[..., Run]) -> None:
    run = make()
    with curating(run):
        say(run, sent(run, claimed(run, group(run, 1))))
        until(lambda: len(plain(listing(run))) == 1, "letter")
    first = TransactionalWriter(run.connection, f"{run.address.run}.redrive")
    first.begin()
    first.produce([sent(run, group(run, 1))])
    first.flush()
    assert len(plain(redrive(run, (), None))["redriven"]) == 1
    with pytest.raises(Fenced):
        first.commit()
    with suppress(Fenced):
        first.close()
    topic = run.topics.trajectories("solver")
    assert len(list(read_all(run.connection, [topic]))) == 2, "the letter's message and one copy"
