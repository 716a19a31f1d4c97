"""What an audit says of a run whose object store cannot be read: nothing about the run itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import cast

from drawn_page import drawn
from made_recipes import sums_recipe

from headrace.app.views.tables import audit_table
from headrace.infra.kafka.clients import Connection, Message, RunAddress
from headrace.infra.run.retired import Retired
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import StoreAddress
from headrace.ops.audit.audited_log import AuditedLog
from headrace.ops.audit.findings import AuditReport
from headrace.ops.audit.objects import ObjectChecks, StoreAway
from headrace.ops.audit.whole_audit import AuditRequest, WholeAudit
from headrace.schemas import codec
from headrace.schemas.records import ClaimCheck, RecipeRevision, WeightsPublished

RECIPE = sums_recipe(kafka={"partitions": 1})
TOPICS = RECIPE.topics
RUN = Run(RunAddress(Connection("nowhere:1"), "t"), "r", (RECIPE,), StoreAddress("nowhere:2", "bucket", "key", "key"))


class FirstVersionLog:
    """The log of an offline experiment that has published its first version."""

    records, seconds = 1, 1.0

    def __init__(self) -> None:
        event = WeightsPublished(
            "r", "solver", version=0, weights_hash="w0", weights=ClaimCheck("main", "w/0", "00", 2)
        )
        self._first = Message(TOPICS.weights("solver"), 0, 0, b"", codec.encode(event))

    def revisions(self) -> list[tuple[str, RecipeRevision]]:
        return [("t.recipe[0]@0", RecipeRevision("r", recipe=RECIPE.to_json(), source="another run"))]

    def topics(self) -> set[str]:
        return {TOPICS.batches("solver"), TOPICS.weights("solver"), TOPICS.state}

    def find_shortened(self, _: Iterable[str]) -> Iterator[str]:
        return iter(())

    def read(self, topics: Iterable[str], _what: str) -> Iterator[Message]:
        yield from (self._first for topic in topics if topic == self._first.topic)

    def read_uncounted(self, topics: Iterable[str]) -> Iterator[Message]:
        return self.read(topics, "")

    def schemas(self) -> list[RecipeRevision]:
        return [RecipeRevision("r", schemas=codec.schema_texts())]

    def read_retired(self) -> Retired:
        return Retired("r", ())


class AwayChecks:
    """Checks of objects whose store is away, from the first object on or after one that is missing."""

    count, seconds = 1, 0.5

    def __init__(self, *missing: str) -> None:
        self._missing = missing

    def check(self, _message: Message, _kind: object) -> Iterator[str]:
        raise StoreAway("no answer from 127.0.0.1:1")

    def find_unretired(self, _read_retired: Callable[[], Retired]) -> Iterator[str]:
        yield from self._missing


def audit(*missing: str, use_store: bool = True) -> AuditReport:
    one = WholeAudit.of(RUN, AuditRequest(rests=True), Path(), cast("AuditedLog", FirstVersionLog()))
    one.objects = cast("ObjectChecks", AwayChecks(*missing)) if use_store else None
    return one.perform()


def test_a_store_that_is_away_says_nothing_against_the_run() -> None:
    assert audit(use_store=False).ok
    report = audit()
    assert (report.ok, report.problems, report.weights_chain_ok, report.store) == (False, (), True, "away")
    assert report.unchecked.startswith("the object store cannot be read, so no further objects are checked")
    assert report.unchecked.endswith("no answer from 127.0.0.1:1")
    page = drawn(audit_table(report))
    assert "No verdict: the object store cannot be read" in page
    assert "does not close" not in page


def test_what_was_found_before_the_store_went_away_stays_a_problem() -> None:
    report = audit("version 0 of solver: w/0 does not exist")
    assert (report.ok, report.weights_chain_ok) == (False, False)
    assert report.problems == ("version 0 of solver: w/0 does not exist",)
    page = drawn(audit_table(report))
    assert "does not close" in page
    assert "the object store cannot be read" in page
