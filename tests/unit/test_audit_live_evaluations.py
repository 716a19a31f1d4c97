"""What an audit says of the evaluations of a run that goes on meanwhile, and of what its evaluator would do next."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from made_logs import LogOfOnePartition
from made_recipes import sums_recipe

from headrace.infra.kafka.clients import Connection, Message, RunAddress
from headrace.infra.kafka.group_offsets import Commit
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import StoreAddress
from headrace.ops.audit import commits
from headrace.ops.audit.audited_log import AuditedLog
from headrace.ops.audit.fold import AuditFold
from headrace.ops.audit.whole_audit import AuditRequest, WholeAudit, begin
from headrace.schemas import codec
from headrace.schemas.headers import Stamp, task_key
from headrace.schemas.records import DeadLetter, EvalResult, RecipeRevision, Snapshot

RECIPE = sums_recipe(kafka={"partitions": 1}, evaluate={"problems": 2})
TOPICS = RECIPE.topics
STREAM = "eval.sums"
TASKS, ANSWERS, RESULTS = TOPICS.tasks(STREAM), TOPICS.eval_groups("solver"), TOPICS.evals("solver")
GONE = "of solver was issued and is not answered, but its task is not on the eval-tasks topic"


class Log(LogOfOnePartition):
    """The log of a run whose feeder has issued an evaluation of two problems, which no worker has played."""

    def __init__(self, recipes: tuple[Recipe, ...] = (RECIPE,)) -> None:
        self.recipes = recipes
        self.messages: dict[str, list[Message]] = {}
        self.played = 0
        self.done: list[int] = []
        """Versions that have a result."""
        self.meanwhile: dict[str, Callable[[], object]] = {}
        """What happens once these were read."""
        for number in (0, 1):
            self.say(TASKS, b"", task_key(STREAM, number), Stamp("r", STREAM, number, purpose="eval"))
        self.feed(2)

    def say(self, topic: str, value: bytes, key: bytes = b"", stamp: Stamp | None = None) -> None:
        headers = stamp.to_headers() if stamp else []
        found = self.messages.setdefault(topic, [])
        found.append(Message(topic, 0, found[-1].offset + 1 if found else 0, key, value, headers))

    def feed(self, evaluations: int, **more: Any) -> None:
        state = {"next": {"sums": 0}, "next_evaluation": {"sums": evaluations}, **more}
        self.say(TOPICS.state, codec.encode(Snapshot("r", "feed", body=json.dumps(state).encode())), b"feed")

    def answer(self, number: int, policy: str = "solver") -> None:
        stamp = Stamp("r", STREAM, number, purpose="eval", policy=policy, min_version=3, max_version=3)
        self.say(TOPICS.eval_groups(policy), b"", task_key(STREAM, number), stamp)

    def conclude(self, version: int = 3) -> None:
        """Write a result and the snapshot that counts it, as the evaluator does."""
        self.say(RESULTS, codec.encode(EvalResult("r", "solver", workflow="sums", version=version)))
        self.done.append(version)
        body = json.dumps({"open": [], "done": [["sums", "solver", one] for one in self.done]}).encode()
        self.say(TOPICS.state, codec.encode(Snapshot("r", "evaluate", body=body)), b"evaluate")

    def said(self, *, rests: bool = False) -> list[str]:
        run = Run(RunAddress(Connection("nowhere:1"), "t"), "r", self.recipes, StoreAddress("nowhere:2", "b", "k", "k"))
        audit = WholeAudit.of(run, AuditRequest(rests=rests, use_store=False), Path(), cast("AuditedLog", self))
        found = audit.perform().problems
        return [what for what in found if "does not exist" not in what and "written with a schema" not in what]

    # ---------------------------------------------------------------------------------------------- what the audit asks

    def revisions(self) -> list[tuple[str, RecipeRevision]]:
        found = (RecipeRevision("r", number, recipe=recipe.to_json()) for number, recipe in enumerate(self.recipes))
        return [(f"t.recipe[0]@{revision.revision}", revision) for revision in found]

    def topics(self) -> set[str]:
        return {*self.messages, ANSWERS, RESULTS, TOPICS.state}

    def read_uncounted(self, topics: Iterable[str]) -> Iterator[Message]:
        for topic in topics:
            yield from list(self.messages.get(topic, []))

    def read(self, topics: Iterable[str], what: str) -> Iterator[Message]:
        yield from self.read_uncounted(topics)
        self.meanwhile.pop(what, lambda: None)()

    read_in_order = read

    def fetch_committed(self, groups: Iterable[commits.Group]) -> Mapping[commits.Group, commits.Committed]:
        mine = {(TASKS, 0): Commit(self.played)}
        return {
            group: commits.Committed({(TASKS, 0): 0}, mine, {(TASKS, 0): 9}) for group in groups if group.topic == TASKS
        }


def test_an_evaluation_task_that_is_gone_before_it_is_played_is_named() -> None:
    for rests in (False, True):
        assert Log().said(rests=rests) == []
        log = Log()
        del log.messages[TASKS][1]
        assert log.said(rests=rests) == [f"eval.sums:1 {GONE}"]
        log.answer(1)
        assert log.said(rests=rests) == [], "it was played"


def test_an_evaluation_task_that_a_worker_could_not_read_is_not_gone() -> None:
    log = Log()
    del log.messages[TASKS][1]
    letter = DeadLetter("r", "rollout", TASKS, 0, 1, "undecodable", stream=STREAM, number=1)
    log.say(TOPICS.dead_letters, codec.encode(letter))
    assert log.said() == []


def test_an_evaluation_task_that_is_issued_or_played_while_the_audit_reads_is_not_gone() -> None:
    def issue(log: Log) -> None:
        log.say(TASKS, b"", task_key(STREAM, 2), Stamp("r", STREAM, 2, purpose="eval"))
        log.feed(3)

    def play(log: Log) -> None:
        for number in (0, 1):
            log.answer(number)
        log.played, log.messages[TASKS] = 2, []

    for what in ("batches", "outcomes", "groups", "evaluations", "answers", "weights"):
        for happens in (issue, play):
            log = Log()
            log.meanwhile[what] = lambda log=log, happens=happens: happens(log)  # type: ignore[misc]
            assert log.said() == [], (what, happens)


def test_no_evaluation_task_is_gone_of_a_feeder_that_has_told_nothing_of_them_yet() -> None:
    for body in (None, {"next_evaluation": {}}):
        log = Log()
        log.messages = {}
        if body is not None:  # a release that did not count evaluations
            log.feed(0, **body)
        log.meanwhile["groups"] = lambda log=log: Log.__init__(log)  # type: ignore[misc]
        assert log.said() == []


def test_of_a_running_feeder_without_a_snapshot_no_training_number_counts_as_issued_before() -> None:
    fold = AuditFold("r", RECIPE)
    begin(cast("AuditedLog", Log()), fold, TOPICS.recipe)
    assert fold.account.known.issued_before == {}
    begin(cast("AuditedLog", Log()), fold, TOPICS.state)
    assert fold.account.known.issued_before == {"sums": 0}
    begin(cast("AuditedLog", Log()), AuditFold("other", RECIPE), TOPICS.state)


def with_judge() -> Recipe:
    """The recipe in which a second policy came to the workflow."""
    tables = RECIPE.model_dump(mode="json")
    both = tables["workflows"]["sums"] | {"policies": {"s": "solver", "j": "judge"}}
    policies = {**tables["policies"], "judge": {"path": "y"}}
    return Recipe.model_validate({**tables, "policies": policies, "workflows": {"sums": both}})


def test_a_policy_that_came_with_a_later_recipe_has_not_lost_the_tasks_before_it() -> None:
    later = with_judge()
    log = Log((RECIPE, later))
    log.messages[TASKS] = []
    for number in (0, 1):
        log.answer(number)
    assert [what for what in log.said() if "of judge" in what] == []
    log = Log((later,))
    log.messages[TASKS] = []
    for number in (0, 1):
        log.answer(number)
    assert len([what for what in log.said() if "of judge was issued and is not answered" in what]) == 2


def test_a_policy_that_came_with_a_later_recipe_must_answer_from_its_first_answer_on() -> None:
    later = with_judge()
    log = Log((RECIPE, later))
    for number in (2, 3):
        log.say(TASKS, b"", task_key(STREAM, number), Stamp("r", STREAM, number, purpose="eval"))
    log.feed(4)
    log.played = 4
    for number in range(4):
        log.answer(number)
    log.answer(2, "judge")
    assert [what for what in log.said() if "of judge" in what] == [
        "eval.sums:3 of judge was issued, but never answered"
    ]
    log.answer(3, "judge")
    assert [what for what in log.said() if "of judge" in what] == []


# ---------------------------------------------------------------------------------------------- what is published again

AGAIN = "so the evaluator may publish it again when it starts"
