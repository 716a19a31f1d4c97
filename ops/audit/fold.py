"""The audit of a run as a fold over the messages of its topics, the partitions in any order. No I/O.

Per policy: numbers issued = trained (first use) + discarded (whole groups) + dead + in flight. Evaluations close by
themselves and are left out; replays and discarded single trajectories are counted apart. The same holds for a shadow,
which hears of every number of its policy; only what a worker could not read is dead for it, as it writes no letters.

What it holds: two bytes for every number and policy or shadow, some hundred for every version, the newest snapshot of
every component, a byte for every record around one that could not be read, and one for every dead letter. Nothing else
grows with the run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.dead_letters import REDRIVEN
from headrace.infra.kafka.topic_reader import Place
from headrace.infra.recipe.settings import Recipe
from headrace.infra.weights.paths import is_version
from headrace.ops.audit.numbers import PolicyAudit, PolicyNumbers, Scope
from headrace.ops.audit.problems import Problems
from headrace.ops.audit.revisions import RevisionSpans
from headrace.ops.audit.unread import Unnumbered, Unread
from headrace.ops.audit.weights_chain import Link, WeightsChain
from headrace.schemas import codec
from headrace.schemas.avro import SchemaError
from headrace.schemas.headers import HeaderError
from headrace.schemas.records import BatchTrained, CheckpointPointer, DeadLetter, Outcome, Snapshot, WeightsPublished
from headrace.schemas.topics import Topics, checkpoint_prefix, is_eval, line_of, policy_of, variant_of

FEEDER_KEY = b"feed"
"""Key of the feeder's snapshots; their JSON holds, as `next`, the next training number of every stream, and, as
`revisions`, from which number on it issued under which recipe revision."""
CURATOR_KEY = b"curate."
"""Beginning of the keys of the curators' snapshots."""

Spot = tuple[str, int, int]
"""(topic, partition, offset)."""


@dataclass(frozen=True, slots=True)
class Fields:
    """Takes the few fields that the audit needs out of a record, be it one of ours or the dict that Avro gives."""

    batch: Callable[[Any], tuple[Any, ...]]
    eviction: Callable[[Any], tuple[Any, ...]]
    outcome: Callable[[Any], tuple[Any, ...]]
    position: Callable[[Any], tuple[Any, ...]]
    use: Callable[[Any], tuple[Any, ...]]


def _fields(get: Callable[..., Callable[[Any], tuple[Any, ...]]]) -> Fields:
    return Fields(
        batch=get("version", "epoch", "base_hash", "weights_hash", "groups", "evictions", "positions"),
        eviction=get("verdict", "group"),
        outcome=get("stream", "number", "use", "level", "verdict", "reason", "component", "revision"),
        position=get("partition", "offset"),
        use=get("stream", "number", "use"),
    )


OF_RECORD, OF_PLAIN = _fields(attrgetter), _fields(itemgetter)


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """Training tasks of the run; one may train several policies."""

    issued: int = 0
    concluded: int = 0
    """Concluded for every policy that they train."""


@dataclass(frozen=True, slots=True)
class GroupTotals:
    """Groups of all policies together: one of each task for every policy that it trains. See `PolicyAudit`."""

    produced: int = 0
    duplicates: int = 0
    kept: int = 0
    trained: int = 0
    discarded: int = 0
    dead: int = 0
    in_flight: int = 0


@dataclass(frozen=True, slots=True)
class Audit:
    """Of a whole run."""

    ok: bool
    lost: int
    doubled: int
    policies: dict[str, PolicyAudit]
    shadows: dict[str, PolicyAudit] = field(default_factory=dict)
    """By `policy.variant`; in the sums below they are counted in `lost` and `doubled` alone."""
    tasks: TaskCounts = TaskCounts()
    groups: GroupTotals = GroupTotals()
    weights_chain_ok: bool = True
    unreadable_letters: int = 0
    """Records on `dead-letters` that are none; what they say is not known, and they conclude nothing."""
    unnumbered_letters: dict[str, int] = field(default_factory=dict)
    """Dead letters by reason that no count of `groups` holds: they name no training number of the run, as where the
    headers could not be read either, or where the groups themselves concluded it (poison). Without those sent back."""
    problems: Problems = field(default_factory=Problems)


class AuditFold:
    """What was taken in so far.

    Args:
        run_id: Records of other runs are passed over; whoever consumed them made them dead letters.
        recipe: Says which policies a stream trains.
    """

    def __init__(self, run_id: str, recipe: Recipe) -> None:
        self.run_id = run_id
        self.recipe = recipe
        self.issued: dict[str, int] = {}
        """Next number of every stream, from the feeder's newest snapshot."""
        self.unread = Unread()
        self.unreadable_letters = 0
        """Records on `dead-letters` that cannot be read."""
        self.unnumbered = Unnumbered()
        self.chains = {line: WeightsChain(line, recipe.topics.curated(line)) for line in recipe.lines}
        self.snapshots: dict[bytes, Message] = {}
        """The newest of every component, by key."""
        self.curated = frozenset(recipe.topics.curated(line) for line in recipe.lines)
        """Topics of curated groups."""
        self.begins: dict[str, list[list[int]]] = {}
        """Stream to (revision, the first number issued under it), from the same snapshot."""
        self._revisions = RevisionSpans()
        self._outcomes = {line: recipe.topics.outcomes(line) for line in recipe.lines}
        self._numbers = {line: PolicyNumbers(line) for line in recipe.lines}
        self._lines = {topic: line for line in recipe.lines for topic in _topics_of(recipe.topics, line)}
        """Topic to whose it is."""
        self._beside = {p: [line for line in recipe.lines if policy_of(line) == p] for p in recipe.policies}
        """Policy to itself, and then its shadows."""
        self._readers = {*self._lines, *(recipe.topics.trajectories(policy) for policy in recipe.policies)}
        """Topics that lines read and write."""
        self._seen: dict[str, int] = {}
        self._run_header = run_id.encode()
        self._takers = self._by_topic()
        self._found = Problems()

    def _by_topic(self) -> dict[str, Callable[[Message], bool]]:
        topics = self.recipe.topics
        takers: dict[str, Callable[[Message], bool]] = {topics.dead_letters: self._letter, topics.state: self._state}
        for workflow in self.recipe.workflows:
            takers[topics.tasks(workflow)] = self._task
        for line in self.recipe.lines:
            takers |= {
                topics.outcomes(line): self._outcome,
                topics.batches(line): self._batch,
                topics.weights(line): self._weights,
                topics.trajectories(line): self._trajectories,
                topics.curated(line): self._curated,
            }
        return takers

    # -------------------------------------------------------------------------------------------------------- messages

    def take(self, message: Message) -> bool:
        """Take in a message of any of the run's topics; tell whether it counts.

        One that cannot be read does not, nor one of another run, nor a group that was delivered before. Of groups and
        tasks the headers are read, never the value.
        """
        taker = self._takers.get(message.topic)
        if taker is None:
            return False
        try:
            return taker(message)
        except (SchemaError, HeaderError) as error:
            self.unread.record(message.topic, message.partition, message.offset, str(error))
            return False

    def take_record(self, record: BatchTrained | Outcome | DeadLetter | Snapshot, place: Spot) -> None:
        """Take in a decoded record that stands at a place; the snapshot must be the feeder's, the newest last."""
        if record.run_id != self.run_id:
            return
        if isinstance(record, Snapshot):
            self._issue(record)
        elif isinstance(record, DeadLetter):
            self._bury(record, place[2])
        elif line := self._line(place[0], record.policy):
            if isinstance(record, BatchTrained):
                self._train(line, record, OF_RECORD, place)
            else:
                self._conclude(line, record, OF_RECORD)

    def _line(self, topic: str, policy: str) -> str:
        """Return whose a record is: its topic's, if it names that policy; else an empty word."""
        line = self._lines.get(topic, "")
        return line if policy_of(line) == policy else ""

    def _outcome(self, message: Message) -> bool:
        plain = codec.decode_plain(message.value, Outcome)
        line = self._line(message.topic, plain["policy"])
        if plain["run_id"] != self.run_id or not line:
            return False
        self._conclude(line, plain, OF_PLAIN)
        return True

    def _batch(self, message: Message) -> bool:
        plain = codec.decode_plain(message.value, BatchTrained)
        line = self._line(message.topic, plain["policy"])
        if plain["run_id"] != self.run_id or not line:
            return False
        self._train(line, plain, OF_PLAIN, (message.topic, message.partition, message.offset))
        return True

    def _letter(self, message: Message) -> bool:
        try:
            letter = codec.decode(message.value, DeadLetter)
        except SchemaError:
            self.unreadable_letters += 1  # nobody may write a letter about it: that would be read here again
            return False
        if letter.run_id != self.run_id:
            return False
        self._bury(letter, message.offset)
        return True

    def _state(self, message: Message) -> bool:
        if message.key == FEEDER_KEY or message.key.startswith(CURATOR_KEY):
            self.snapshots[message.key] = message
            return True
        if not any(message.key.startswith(checkpoint_prefix(line)) for line in self.chains):
            return False
        pointer = codec.decode(message.value, CheckpointPointer)
        line = line_of(pointer.policy, pointer.variant)
        if pointer.run_id != self.run_id or line not in self.chains:
            return False
        link = Link(pointer.epoch, "", pointer.weights_hash, spot(message))
        self.chains[line].checkpoint(pointer.version, link)
        return True

    def _weights(self, message: Message) -> bool:
        event = codec.decode(message.value, WeightsPublished)
        line = self._line(message.topic, event.policy)
        if event.run_id != self.run_id or not line:
            return False
        link = Link(event.epoch, event.base_hash, event.weights_hash, spot(message))
        take = self.chains[line].event if is_version(event) else self.chains[line].merged
        take(event.version, link, event.base_version)
        return True

    def _task(self, message: Message) -> bool:
        found = dict(message.headers)
        try:
            run_id, stream, number = found["run_id"], found["stream"].decode(), int(found["number"])
            revision = int(found["revision"])
        except KeyError as error:
            raise HeaderError(f"header {error} is missing") from error
        except ValueError as error:
            raise HeaderError(f"a header is malformed: {error}") from error
        if run_id != self._run_header or is_eval(stream):
            return False
        self._seen[stream] = max(self._seen.get(stream, 0), number + 1)
        self._revisions.see(message.topic, stream, number, revision)
        return True

    def _trajectories(self, message: Message) -> bool:
        policy, stream, number, _ = self._stamp(message)
        if number % self.recipe.kafka.partitions != message.partition:
            raise HeaderError(f"number {number} does not belong on this partition")
        for shadow in self._beside[policy][1:]:
            self._numbers[shadow].produce(stream, number)
        return self._numbers[policy].produce(stream, number)

    def _curated(self, message: Message) -> bool:
        _, stream, number, use = self._stamp(message)
        line = self._lines[message.topic]
        self._numbers[line].curate(stream, number, use)
        # Batches are read first: what they told of was read by the trainer until then.
        if use and message.offset < self.chains[line].last_positions.get(message.partition, 0):
            self._numbers[line].pass_replay(stream, number, use)
        return True

    def _stamp(self, message: Message) -> tuple[str, str, int, int]:
        """Return policy, stream, number and use of a group, quicker than `Stamp` does. Raises HeaderError."""
        found = dict(message.headers)
        try:
            run_id, policy, stream = found["run_id"], found["policy"].decode(), found["stream"].decode()
            number, use, revision = int(found["number"]), int(found["use"]), int(found["revision"])
        except KeyError as error:
            raise HeaderError(f"header {error} is missing") from error
        except ValueError as error:
            raise HeaderError(f"a header is malformed: {error}") from error
        if run_id != self._run_header:
            raise HeaderError(f"it is of run {run_id!r:.60}")
        if policy not in self._beside:
            raise HeaderError(f"policy {policy!r:.60} is not one of the run's")
        if message.topic in self.curated:  # of trajectories a copy may be anybody's, and the curator's word is judged
            self._revisions.see(message.topic, stream, number, revision)
        return policy, stream, number, use

    # --------------------------------------------------------------------------------------------------------- records

    def _train(self, line: str, batch: object, fields: Fields, place: Spot) -> None:
        numbers, chain = self._numbers[line], self.chains[line]
        version, epoch, base, result, groups, evictions, positions = fields.batch(batch)
        where = f"{place[0]}[{place[1]}]@{place[2]}"
        for group in groups:
            numbers.train(*fields.use(group))
        for eviction in evictions:
            verdict, group = fields.eviction(eviction)
            if group is None:
                continue
            use = fields.use(group)
            # Of what is dead a letter tells; in a shadow an outcome, where the number is known.
            if verdict != "dead" or (variant_of(line) and use[1] >= 0):
                numbers.evict(*use)
        if version >= 0:
            chain.batch(version, Link(epoch, base, result, where))
        chain.positions([fields.position(position) for position in positions], where)

    def _conclude(self, line: str, outcome: object, fields: Fields) -> None:
        numbers = self._numbers[line]
        stream, number, use, level, verdict, reason, component, revision = fields.outcome(outcome)
        if is_eval(stream):
            return
        self._revisions.see(self._outcomes[line], stream, number, revision)
        if level == "trajectory":
            numbers.discard_trajectory()
        elif verdict == "kept":
            numbers.keep(stream, number, use)
        else:
            numbers.discard(stream, number, use, (component, verdict, reason))

    def _bury(self, letter: DeadLetter, offset: int) -> None:
        redriven, dead = letter.reason == REDRIVEN, self._buried(letter)
        if not redriven:
            self.unread.letter(letter.topic, letter.partition, letter.offset)
        elif 0 <= letter.redrives < offset:
            self.unnumbered.sent_back(letter.redrives)
        if not redriven and not dead:
            self.unnumbered.letter(offset, letter.reason)
        for line in dead:
            self._numbers[line].bury(letter.stream, letter.number, letter.use, -1 if redriven else 1)

    def _buried(self, letter: DeadLetter) -> list[str]:
        """Return the policies and shadows whose number a letter concludes, or opens again.

        A shadow's is only by that of a task, which nobody can have played. What a curator or a trainer cannot read
        their shadows read, or not, by themselves.
        """
        if letter.number < 0 or is_eval(letter.stream):
            return []
        named = [letter.policy] if letter.policy else self.policies_of(letter.stream)
        known = [policy for policy in named if policy in self._beside]
        if letter.topic in self._readers:
            return known
        return [line for policy in known for line in self._beside[policy]]

    def _issue(self, snapshot: Snapshot) -> None:
        state = json.loads(snapshot.body)
        self.issued = {stream: int(number) for stream, number in state["next"].items()}
        self.begins = {
            stream: [[int(revision), int(first)] for revision, first in begins]
            for stream, begins in state.get("revisions", {}).items()
        }

    def policies_of(self, stream: str) -> tuple[str, ...]:
        """Return the policies that a stream trains."""
        workflow = stream.partition(".")[0]
        return self.recipe.policies_of(workflow) if workflow in self.recipe.workflows else ()

    # ---------------------------------------------------------------------------------------------------------- result

    def close(self) -> None:
        """Read the feeder's newest snapshot, when all messages were taken in."""
        message = self.snapshots.get(FEEDER_KEY)
        if message is None:
            return
        try:
            snapshot = codec.decode(message.value, Snapshot)
            if snapshot.run_id == self.run_id:
                self._issue(snapshot)
        except (SchemaError, ValueError, KeyError, TypeError, AttributeError) as error:
            self._found.say(f"the feeder's snapshot {spot(message)} cannot be read: {error}")

    def policies(self, *, drained: bool) -> dict[str, PolicyAudit]:
        """Return the counts of every policy; cheap enough for a live page."""
        return self._counts(self.recipe.policies, Scope(drained=drained))

    def shadows(self, scope: Scope = Scope()) -> dict[str, PolicyAudit]:  # noqa: B008
        """Return the counts of every shadow, by `policy.variant`."""
        return self._counts(self.recipe.shadow_lines, scope)

    def _counts(self, lines: Iterable[str], scope: Scope) -> dict[str, PolicyAudit]:
        return {
            line: self._numbers[line].audit(*self._of_line(line), drained=self._scope_of(line, scope).drained)
            for line in lines
        }

    def _scope_of(self, line: str, scope: Scope) -> Scope:
        """Return what may be expected of a line: a shadow trains on after the run's end, until its last version."""
        if not variant_of(line) or self.chains[line].newest >= self.recipe.trainer_of(line).steps:
            return scope
        return replace(scope, drained=False)

    def _of_line(self, line: str) -> tuple[dict[str, int], dict[str, int]]:
        """Return what was issued and what was seen of the streams that train a policy, and its shadows."""
        policy = policy_of(line)
        issued = {s: n for s, n in self.issued.items() if policy in self.policies_of(s)}
        return issued, {s: n for s, n in self._seen.items() if policy in self.policies_of(s)}

    def audit(self, scope: Scope = Scope(), positions: Mapping[Place, int] | None = None) -> Audit:  # noqa: B008
        """Return the audit of what was taken in, with all that is wrong with it.

        Args:
            scope: What may be expected of the run now.
            positions: How far the readers of trajectories and curated groups are; what lies behind may still conclude.
        """
        policies, shadows = self.policies(drained=scope.drained), self.shadows(scope)
        problems, broken = Problems(), Problems()
        for line, numbers in self._numbers.items():
            own = self._scope_of(line, scope)
            problems.extend(numbers.problems(*self._of_line(line), own))
            broken.extend(self.chains[line].problems(still=own.still, over=own.drained))
            problems.extend(self.chains[line].backwards)
        for found in (broken, self.unread.problems(positions or {}), self._found):
            problems.extend(found)
        for what in self._revisions.problems(self.begins):
            problems.say(what)
        total = {name: sum(getattr(p, name) for p in policies.values()) for name in SUMMED}
        discarded = sum(sum(p.discarded.values()) for p in policies.values())
        return Audit(
            ok=not problems,
            lost=total.pop("lost") + sum(p.lost for p in shadows.values()),
            doubled=total.pop("doubled") + sum(p.doubled for p in shadows.values()),
            policies=policies,
            shadows=shadows,
            tasks=TaskCounts(sum(self.issued.values()), self._concluded_tasks()),
            groups=GroupTotals(discarded=discarded, **total),
            weights_chain_ok=not broken,
            unreadable_letters=self.unreadable_letters,
            unnumbered_letters=self.unnumbered.by_reason(),
            problems=problems,
        )

    def _concluded_tasks(self) -> int:
        """Count the tasks that are concluded for all policies that they train."""
        count = 0
        for stream, end in self.issued.items():
            policies = [self._numbers[policy] for policy in self.policies_of(stream)]
            for index in policies[0].indices(stream) if policies else ():
                pages = [numbers.page(stream, 0, index) for numbers in policies]
                done = np.logical_and.reduce([page.concluded for page in pages])
                count += int(np.count_nonzero(done & pages[0].below(end)))
        return count


SUMMED = ("produced", "duplicates", "kept", "trained", "dead", "in_flight", "lost", "doubled")


def _topics_of(topics: Topics, line: str) -> tuple[str, ...]:
    return topics.curated(line), topics.outcomes(line), topics.batches(line), topics.weights(line)


def spot(message: Message) -> str:
    """Return where a message stands, in words."""
    return f"{message.topic}[{message.partition}]@{message.offset}"
