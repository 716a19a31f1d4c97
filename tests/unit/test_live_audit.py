"""What an audit of a run that goes on meanwhile is not misled by."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from made_logs import LogOfOnePartition
from made_recipes import sums_recipe

from headrace.infra.kafka.clients import Connection, Message, RunAddress
from headrace.infra.kafka.group_offsets import Commit
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import StoreAddress
from headrace.ops.audit import commits
from headrace.ops.audit.audited_log import AuditedLog
from headrace.ops.audit.report import report
from headrace.ops.audit.whole_audit import AuditRequest, WholeAudit
from headrace.schemas import codec
from headrace.schemas.headers import Stamp, task_key
from headrace.schemas.records import Outcome, RecipeRevision, Snapshot

RECIPE = sums_recipe(kafka={"partitions": 1})
TOPICS = RECIPE.topics
TASKS, GROUPS = TOPICS.tasks("sums"), TOPICS.trajectories("solver")
CURATED, OUTCOMES = TOPICS.curated("solver"), TOPICS.outcomes("solver")
RUN = Run(RunAddress(Connection("nowhere:1"), "t"), "r", (RECIPE,), StoreAddress("nowhere:2", "b", "key", "key"))
BODY = json.dumps({"next": {"sums": 1}}).encode()


class GoingOn(LogOfOnePartition):
    """The log of a run whose only task is played while its tasks or its groups are read, whichever are first.

    Then the worker commits, and the feeder deletes the task.
    """

    def __init__(self) -> None:
        stamp = Stamp("r", "sums", 0, policy="solver")
        key = task_key("sums", 0)
        self._group = Message(GROUPS, 0, 0, key, b"", stamp.to_headers())
        feeder = Message(TOPICS.state, 0, 0, b"feed", codec.encode(Snapshot("r", "feed", body=BODY)))
        self._messages = {TASKS: [Message(TASKS, 0, 0, key, b"", stamp.to_headers())], TOPICS.state: [feeder]}

    def revisions(self) -> list[tuple[str, RecipeRevision]]:
        return [("t.recipe[0]@0", RecipeRevision("r", recipe=RECIPE.to_json()))]

    def topics(self) -> set[str]:
        return {TASKS, GROUPS, TOPICS.state}

    def read_uncounted(self, topics: Iterable[str]) -> Iterator[Message]:
        for topic in topics:
            yield from self._messages.get(topic, [])

    def read(self, topics: Iterable[str], what: str) -> Iterator[Message]:
        yield from self.read_uncounted(topics)
        if what in {"tasks", "groups"}:
            self._messages |= {TASKS: [], GROUPS: [self._group]}

    read_in_order = read

    def fetch_committed(self, groups: Iterable[commits.Group]) -> Mapping[commits.Group, commits.Committed]:
        bound = {(TASKS, 0): 0}
        return {
            group: commits.Committed(bound, {(TASKS, 0): Commit(0)}, bound) for group in groups if not group.component
        }


def test_a_task_that_is_played_and_deleted_while_the_audit_reads_is_not_lost() -> None:
    log: Any = GoingOn()
    report = WholeAudit.of(RUN, AuditRequest(use_store=False), Path(), cast("AuditedLog", log)).perform()
    assert (report.lost, report.groups.produced) == (0, 1)
    assert not [what for what in map(str, report.problems) if "in flight" in what]


@pytest.mark.parametrize("is_shared", [False, True])
def test_no_run_rests_of_which_components_may_run_on_other_machines(
    is_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = {"partitions": 1, "bootstrap": "shared:9092"} if is_shared else {"partitions": 1}
    asked: list[AuditRequest] = []

    def note(_run: Run, request: AuditRequest, *_: object) -> Any:
        asked.append(request)
        return SimpleNamespace(perform=lambda: None)

    monkeypatch.setattr(WholeAudit, "of", note)
    run = Run(RUN.address, "r", (sums_recipe(kafka=kafka),), RUN.store_address)
    report(run, rests=True, log=cast("AuditedLog", None))
    report(run, log=cast("AuditedLog", GoingOn()))
    assert [one.rests for one in asked] == [not is_shared, False]


class Ended(GoingOn):
    """The log of a run that ended in 1970 with one task, and nothing moves while it is read.

    Args:
        played: Whether the workers have committed past the task.
        curated: Whether the curators have committed past its group.
        kept: Whether the curators have kept the group, which the trainer has not read.
    """

    def __init__(self, *, played: bool, curated: bool, kept: bool = False) -> None:
        super().__init__()
        self._commits = {TASKS: int(played), GROUPS: int(curated)}
        self._messages[GROUPS] = [self._group] if played else []
        if kept:
            outcome = Outcome("r", "sums", 0, policy="solver", verdict="kept", component="curate")
            self._messages[CURATED] = [replace(self._group, topic=CURATED)]
            self._messages[OUTCOMES] = [Message(OUTCOMES, 0, 0, b"", codec.encode(outcome))]

    def revisions(self) -> list[tuple[str, RecipeRevision]]:
        return [("t.recipe[0]@0", RecipeRevision("r", recipe=RECIPE.to_json(), ended="steps", created_ms=1))]

    def topics(self) -> set[str]:
        return {TASKS, GROUPS, CURATED, OUTCOMES, TOPICS.state}

    def read(self, topics: Iterable[str], _what: str) -> Iterator[Message]:
        return self.read_uncounted(topics)

    read_in_order = read

    def fetch_committed(self, groups: Iterable[commits.Group]) -> Mapping[commits.Group, commits.Committed]:
        return {
            group: commits.Committed(
                {(group.topic, 0): 0}, {(group.topic, 0): Commit(self._commits[group.topic])}, {(group.topic, 0): 1}
            )
            for group in groups
        }


def test_what_may_still_come_of_a_run_that_ended_long_ago_is_not_lost_and_what_may_not_is() -> None:
    for log, lost in (
        (Ended(played=False, curated=False), 0),
        (Ended(played=True, curated=False), 0),
        (Ended(played=True, curated=True, kept=True), 0),
        (Ended(played=True, curated=True), 1),
    ):
        report = WholeAudit.of(RUN, AuditRequest(use_store=False), Path(), cast("AuditedLog", log)).perform()
        assert (report.lost, report.policies["solver"].in_flight) == (lost, 1), vars(log)


class Unreadable(Ended):
    """The log of a run whose next task or next answer of an evaluation cannot be read.

    Args:
        topic: Topic of the record.
        passed: Offset that its reader had reached before the audit began.
    """

    def __init__(self, topic: str, passed: int) -> None:
        super().__init__(played=False, curated=False)
        position = {f"{topic}[0]": passed} if topic == TOPICS.eval_groups("solver") else {}
        evaluator = codec.encode(Snapshot("r", "evaluate", body=b'{"done": []}', positions=position))
        self._messages[TOPICS.state].append(Message(TOPICS.state, 0, 1, b"evaluate", evaluator))
        headers = [] if topic == TASKS else Stamp("r", "eval.sums", 0, policy="judge").to_headers()
        self._messages[topic] = [Message(topic, 0, 0, b"", b"", headers)]
        self._commits |= {topic: passed, TOPICS.tasks("eval.sums"): 0}

    def topics(self) -> set[str]:
        return {*super().topics(), TOPICS.eval_groups("solver"), TOPICS.eval_groups("judge")}


def test_a_live_audit_waits_until_workers_and_evaluator_have_read_what_cannot_be_read() -> None:
    two = sums_recipe(policies={"solver": {"path": "x"}, "judge": {"path": "y"}}, kafka={"partitions": 1})
    run = replace(RUN, revisions=(two,))
    for topic in (TASKS, TOPICS.eval_groups("solver")):
        for passed, rests, told in ((0, False, False), (1, False, True), (0, True, True)):
            log = cast("AuditedLog", Unreadable(topic, passed))
            report = WholeAudit.of(run, AuditRequest(rests=rests, use_store=False), Path(), log).perform()
            said = [what for what in report.problems if f"{topic}[0]@0 cannot be used, but has no dead letter" in what]
            assert bool(said) == told, (topic, passed, rests, report.problems)
