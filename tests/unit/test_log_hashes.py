"""What an audit says of a trainer's records whose hashes do not follow one another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace

import pytest
from made_recipes import sums_recipe

from headrace.infra.kafka.clients import Message
from headrace.ops.audit.fold import AuditFold
from headrace.ops.audit.log_hashes import count_without_digest, find_broken_log_hashes
from headrace.schemas import codec
from headrace.schemas.digests import compute_digest, compute_log_hash, digest_batch
from headrace.schemas.headers import Stamp, task_key
from headrace.schemas.records import BatchTrained, Eviction, GroupUse

RECIPE = sums_recipe(kafka={"partitions": 1})
CURATED, BATCHES = RECIPE.topics.curated("solver"), RECIPE.topics.batches("solver")


class Log:
    """Two versions of two groups each; between them a record of evictions."""

    def __init__(self) -> None:
        self.curated = [b"group %d" % number for number in range(5)]
        evicted = Eviction(GroupUse("sums", 4, 0, 0, 4), "expired")
        self.batches: list[BatchTrained] = []
        for version, numbers, evictions in ((1, (1, 0), ()), (-1, (), (evicted,)), (2, (2, 3), ())):
            uses = tuple(GroupUse("sums", number, 0, 0, number) for number in numbers)
            batch = BatchTrained("r", "solver", version=version, groups=uses, evictions=evictions)
            before = self.batches[-1].log_hash if self.batches else ""
            digests = [compute_digest(self.curated[number]) for number in numbers]
            self.batches.append(replace(batch, log_hash=compute_log_hash(before, digest_batch(asdict(batch)), digests)))

    def fold(self) -> AuditFold:
        fold = AuditFold("r", RECIPE)
        for offset, batch in enumerate(self.batches):
            fold.fold_message(Message(BATCHES, 0, offset, b"", codec.encode(batch)))
        for number, value in enumerate(self.curated):
            headers = Stamp("r", "sums", number, policy="solver").to_headers()
            fold.fold_message(Message(CURATED, 0, number, task_key("sums", number), value, headers))
        fold.account.settle()
        return fold

    def says(self) -> list[str]:
        return [
            what.partition(" of solver")[0] for what in find_broken_log_hashes(self.fold().account.ledger, "solver")
        ]


def other_bytes(log: Log) -> None:
    log.curated[3] = b"group X"


def other_order(log: Log) -> None:
    log.batches[2] = replace(log.batches[2], groups=log.batches[2].groups[::-1])


def lost_record(log: Log) -> None:
    del log.batches[1]


def other_weights(log: Log) -> None:
    log.batches[2] = replace(log.batches[2], weights_hash="other")


def other_eviction(log: Log) -> None:
    log.batches[1] = replace(log.batches[1], evictions=())


def other_place_of_an_eviction(log: Log) -> None:
    log.batches[1] = replace(log.batches[1], evictions=(Eviction(GroupUse("sums", 4, 0, 0, 3), "expired"),))


def no_hash(log: Log) -> None:
    log.batches[2] = replace(log.batches[2], log_hash="")


def test_records_that_follow_one_another_are_right() -> None:
    assert Log().says() == []


@pytest.mark.parametrize(
    ("damage", "where"),
    [
        (other_bytes, "the record of version 2"),
        (other_order, "the record of version 2"),
        (lost_record, "the record of version 2"),
        (other_weights, "the record of version 2"),
        (other_eviction, "a record of evictions"),
        (other_place_of_an_eviction, "a record of evictions"),
        (no_hash, "the record of version 2"),
    ],
)
def test_a_record_or_a_group_that_was_altered_lost_or_moved_breaks_the_hash(
    damage: Callable[[Log], object], where: str
) -> None:
    log = Log()
    damage(log)
    assert log.says() == [where]


def test_records_of_an_older_build_are_counted_and_not_checked() -> None:
    log = Log()
    log.batches[0] = replace(log.batches[0], log_hash="", groups=())
    del log.batches[1:]
    assert log.says() == []
    assert count_without_digest(log.fold().account.ledger) == 1
