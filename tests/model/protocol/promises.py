"""What must hold in each state, and what must hold at the end. Both are read from the log alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Any

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.dead_letters import REDRIVEN
from headrace.infra.kafka.decoding import read_own
from headrace.infra.recipe.settings import Recipe
from headrace.infra.weights.paths import is_version
from headrace.schemas.records import BatchTrained, DeadLetter, Outcome, RecipeRevision, Task, WeightsPublished
from protocol.audit import complaints
from protocol.broker import Broker, Harm
from protocol.run import POLICY, RUN_ID, STREAM, TOPICS
from protocol.world import State, World

MOST_WASTED = 4
"""Numbers that may be issued beyond those that are trained and those that may be open."""
LOST, DOUBLED = "lost", "doubled"
"""Kinds of harm."""
LOUD = ("LogTruncated",)
"""What may end a process for good: people are to look."""


@dataclass(slots=True)
class Facts:
    """What a log says."""

    attempts: Counter[int] = field(default_factory=Counter)
    """Attempts of each number that was issued."""
    conclusions: defaultdict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    trained: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    versions: list[int] = field(default_factory=list)
    """Of the batches, in the order of the log."""
    published: list[int] = field(default_factory=list)
    hashes: defaultdict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Of each version, as batch and event give them."""
    contents: defaultdict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Of each revision."""
    ended: str = ""

    @property
    def open(self) -> set[int]:
        """Numbers that were issued and have not concluded."""
        return self.attempts.keys() - {number for number, found in self.conclusions.items() if found}


@lru_cache(maxsize=1 << 16)
def _decoded(topic: str, value: bytes, kind: type[Any]) -> Any:
    return read_own(Message(topic, 0, 0, b"", value), kind, RUN_ID)


def facts_of(broker: Broker) -> Facts:
    """Read a log."""
    facts = Facts()
    takers: dict[str, tuple[type[Any], Callable[[Facts, Any], None]]] = {
        TOPICS.tasks(STREAM): (Task, _take_task),
        TOPICS.batches(POLICY): (BatchTrained, _take_batch),
        TOPICS.outcomes(POLICY): (Outcome, _take_outcome),
        TOPICS.dead_letters: (DeadLetter, _take_dead_letter),
        TOPICS.weights(POLICY): (WeightsPublished, _take_event),
        TOPICS.recipe: (RecipeRevision, _take_revision),
    }
    for topic, (kind, take) in takers.items():
        for message in broker.committed_messages(topic):
            record = _decoded(topic, message.value, kind)  # type: ignore[arg-type]  # a class can be hashed
            if record is not None:
                take(facts, record)
    return facts


def _take_task(facts: Facts, task: Task) -> None:
    facts.attempts[task.number] = max(facts.attempts[task.number], task.attempt + 1)


def _take_outcome(facts: Facts, outcome: Outcome) -> None:
    if outcome.level == "group" and not outcome.use and outcome.verdict != "kept":
        facts.conclusions[outcome.number].append(f"{outcome.verdict} ({outcome.component})")


def _take_dead_letter(facts: Facts, dead: DeadLetter) -> None:
    if dead.number < 0 or dead.use:
        return
    if dead.reason == REDRIVEN:
        facts.conclusions[dead.number] = [one for one in facts.conclusions[dead.number] if one[:4] != "dead"]
    else:
        facts.conclusions[dead.number].append(f"dead of {dead.reason} ({dead.component})")


def _take_event(facts: Facts, event: WeightsPublished) -> None:
    if is_version(event):
        facts.published.append(event.version)
    facts.hashes[event.version].add(event.weights_hash)


def _take_revision(facts: Facts, revision: RecipeRevision) -> None:
    facts.contents[revision.revision].add(revision.recipe)
    facts.ended = revision.ended


def _take_batch(facts: Facts, batch: BatchTrained) -> None:
    if batch.version >= 0:
        facts.versions.append(batch.version)
        facts.hashes[batch.version].add(batch.weights_hash)
    for group in batch.groups:
        facts.trained[group.stream, group.number, group.use] += 1
        if not group.use:
            facts.conclusions[group.number].append(f"trained as version {batch.version}")


def broken(world: World, state: State) -> str:
    """Return the promise that is broken in a state; empty where all hold."""
    if state.broker not in world.verdicts:
        broker = world.thaw(state)
        world.verdicts[state.broker] = _broken(world.recipe, broker, facts_of(broker)), _is_done(world.recipe, broker)
    return world.verdicts[state.broker][0]


def is_done(world: World, state: State) -> bool:
    """Tell whether the run has come to its end: the last version is published and every number has concluded."""
    broken(world, state)
    return world.verdicts[state.broker][1]


def _is_done(recipe: Recipe, broker: Broker) -> bool:
    facts = facts_of(broker)
    if any(mark.startswith("loud") for mark in broker.marks):
        return True
    if broker.harm is not None and broker.harm.kind == LOST:
        return is_named(broker, broker.harm)
    return bool(facts.ended) and not facts.open and recipe.trainer_of(POLICY).steps in facts.published


def _broken(recipe: Recipe, broker: Broker, facts: Facts) -> str:
    trainer = recipe.trainer_of(POLICY)
    most = trainer.steps + (trainer.max_staleness + 1) * trainer.groups_per_batch + MOST_WASTED
    found = chain(_ended(broker), _versions(facts), _reissued(broker, facts), _audited(broker, facts))
    if broker.harm is None or broker.harm.kind != DOUBLED:
        found = chain(_numbers(facts, most), found)
    return next(found, "")


def _ended(broker: Broker) -> Iterator[str]:
    """A process ends for good only where people have to look."""
    for mark in broker.marks:
        if mark.startswith("loud") and not any(reason in mark for reason in LOUD):
            yield f"a process ends for good: {mark}"


def _numbers(facts: Facts, most: int) -> Iterator[str]:
    """Each number concludes once, is trained once, and no more are issued than are needed."""
    for use, times in facts.trained.items():
        if times > 1:
            yield f"{use} was trained {times} times"
    for number, conclusions in sorted(facts.conclusions.items()):
        if len(conclusions) > 1:
            yield f"number {number} concluded {len(conclusions)} times: {', '.join(conclusions)}"
        if conclusions and number not in facts.attempts:
            yield f"number {number} was never issued, and is {conclusions[0]}"
    if len(facts.attempts) > most:
        yield f"{len(facts.attempts)} numbers were issued, where {most} are enough"


def _versions(facts: Facts) -> Iterator[str]:
    """Versions come in order, each once and with one content; so do revisions of the recipe."""
    if facts.versions != list(range(1, len(facts.versions) + 1)):
        yield f"versions were made in the order {facts.versions}"
    if sorted(set(facts.published)) != facts.published:
        yield f"versions were published in the order {facts.published}"
    for what, found in (("version", facts.hashes), ("revision", facts.contents)):
        for number, contents in found.items():
            if len(contents) > 1:
                yield f"{what} {number} has {len(contents)} contents"


def _reissued(broker: Broker, facts: Facts) -> Iterator[str]:
    """No number is issued again while a group of it waits for its curator."""
    topic, group = TOPICS.trajectories(POLICY), broker.groups.get(TOPICS.curate_group(POLICY))
    commits = {} if group is None else group.commits
    for number, attempts in facts.attempts.items():
        partition_id = topic, number % broker.partitions[topic]
        read, key = commits.get(partition_id, (0, ""))[0], f"{STREAM}:{number}".encode()
        waits = [e for e in broker.log[partition_id] if e.message.key == key and e.message.offset >= read]
        if attempts > 1 and len(waits) > 1:
            yield f"number {number} was issued {attempts} times, and {len(waits)} groups of it wait for their curator"


def _audited(broker: Broker, facts: Facts) -> Iterator[str]:
    """The production audit closes in every state of a run that nobody has harmed, and names a harm in time."""
    harm = broker.harm
    if harm is None:
        yield from (f"the audit says: {what}" for what in complaints(broker))
    elif harm.in_words and len(facts.versions) >= harm.named_by and not is_named(broker, harm):
        yield f"number {harm.number} is {harm.kind}, and the audit does not say: {harm.in_words}"


def is_named(broker: Broker, harm: Harm) -> bool:
    """Tell whether the audit says what was done to a run."""
    return any(what.startswith(f"{STREAM}:{harm.number} ") and harm.in_words in what for what in complaints(broker))
