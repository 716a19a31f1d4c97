"""Is anything lost, or trained twice? A subtraction over small records, from the topics alone.

Per policy: numbers issued = trained (first use) + discarded (whole groups) + dead + in flight. Evaluations close by
themselves and are left out; replays and discarded single trajectories are counted apart.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from infra.kafka import Message, RunAddress
from infra.run import Run, join, read_revisions
from infra.settings import Recipe
from infra.topic_reader import read_all
from schemas import codec
from schemas.avro import SchemaError
from schemas.headers import HeaderError, Stamp
from schemas.records import BatchTrained, DeadLetter, Outcome, Snapshot
from schemas.topics import Topics, is_eval

FEEDER_KEY = b"feed"
"""Key of the feeder's snapshots; their JSON holds, as `next`, the next training number of every stream."""
DRAIN_S = 30.0
"""So long after its end a run must have concluded all its numbers; it takes 10 s to drain."""

Numbered = tuple[str, int]
"""(stream, number)."""
Use = tuple[str, int, int]
"""(stream, number, use)."""
Said = tuple[str, str, str]
"""(component, verdict, reason)."""


@dataclass(frozen=True, slots=True)
class PolicyAudit:
    """Training numbers of one policy."""

    issued: int = 0
    trained: int = 0
    """First uses."""
    discarded: dict[str, int] = field(default_factory=dict)
    """Whole groups by reason."""
    dead: int = 0
    in_flight: int = 0
    lost: int = 0
    """Numbers that can no longer conclude, and numbers that concluded without having been issued."""
    doubled: int = 0
    """Uses trained twice, trained and discarded, or discarded in two ways."""
    replayed: int = 0
    """Uses after the first that were trained."""
    trajectories_discarded: int = 0
    """Single trajectories of groups that were kept."""


@dataclass(frozen=True, slots=True)
class Audit:
    """Of a whole run."""

    ok: bool
    lost: int
    doubled: int
    policies: dict[str, PolicyAudit]


class PolicyFold:
    """What the topics say of one policy's numbers, whatever the order of the records.

    A record is known by the place where it stands, so the same record read twice is one, and two equal records are two.
    """

    def __init__(self) -> None:
        self._trained: dict[Use, set[tuple[object, int]]] = {}
        """Use to the (record, place in the batch) that trained it."""
        self._kept: dict[Use, set[object]] = {}
        """Use to the records that kept it."""
        self._discarded: dict[Use, dict[object, Said]] = {}
        """Use to what the records that discarded it said."""
        self._dead: set[Numbered] = set()
        self._trajectories: set[tuple[str, int, str]] = set()

    def train(self, batch: BatchTrained, record: object) -> None:
        """Take in a batch; `record` is where it stands."""
        for place, group in enumerate(batch.groups):
            self._trained.setdefault((group.stream, group.number, group.use), set()).add((record, place))

    def conclude(self, outcome: Outcome, record: object) -> None:
        """Take in what became of a group or a trajectory; `record` is where it stands."""
        if is_eval(outcome.stream):
            return
        use = (outcome.stream, outcome.number, outcome.use)
        if outcome.level == "trajectory":
            self._trajectories.add((outcome.stream, outcome.number, outcome.trajectory_id))
        elif outcome.verdict == "kept":
            self._kept.setdefault(use, set()).add(record)
        else:
            said = (outcome.component, outcome.verdict, outcome.reason)
            self._discarded.setdefault(use, {})[record] = said

    def bury(self, stream: str, number: int) -> None:
        """Take in a dead number."""
        self._dead.add((stream, number))

    def audit(self, issued: Mapping[str, int], seen: Mapping[str, int], *, drained: bool) -> PolicyAudit:
        """Count.

        Args:
            issued: Next number of every stream that trains this policy, as the feeder keeps it.
            seen: The same as the tasks topics show it; smaller where tasks were deleted.
            drained: Whether nothing more can conclude.
        """
        firsts = {use: said for use, said in self._discarded.items() if not use[2]}
        trained = {(s, n) for s, n, use in self._trained if not use}
        discarded = {(s, n): said for (s, n, _), said in firsts.items() if (s, n) not in trained}
        dead = self._dead - trained - discarded.keys()
        total = sum(issued.values())
        concluded = {*trained, *discarded, *dead}
        known = {one for one in concluded if one[1] < issued.get(one[0], 0)}
        in_flight = total - len(known)
        unissued = len(concluded) - len(known) + sum(max(seen[s] - issued.get(s, 0), 0) for s in seen)
        return PolicyAudit(
            issued=total,
            trained=len(trained),
            discarded=dict(sorted(Counter(_reason(said) for said in discarded.values()).items())),
            dead=len(dead),
            in_flight=in_flight,
            lost=unissued + (in_flight if drained else 0),
            doubled=self._doubled(),
            replayed=sum(1 for _, _, use in self._trained if use),
            trajectories_discarded=len(self._trajectories),
        )

    def _doubled(self) -> int:
        uses = self._trained.keys() | self._discarded.keys()
        twice = sum(len(self._trained.get(use, ())) + len(self._discarded.get(use, ())) > 1 for use in uses)
        kept = sum(len(records) > 1 for records in self._kept.values())
        buried = sum(not use and (stream, number) in self._dead for stream, number, use in uses)
        return twice + kept + buried


class AuditFold:
    """The audit of a run from the messages of its topics, in any order: pure.

    Args:
        run_id: Records of other runs are passed over; whoever consumed them made them dead letters.
        recipe: Says which policies a stream trains.
    """

    def __init__(self, run_id: str, recipe: Recipe) -> None:
        self.run_id = run_id
        self.recipe = recipe
        self.issued: dict[str, int] = {}
        """Next number of every stream, from the feeder's newest snapshot."""
        self._seen: dict[str, int] = {}
        self._folds = {policy: PolicyFold() for policy in recipe.policies}
        self._kinds = kinds_of(recipe.topics, recipe)

    def take(self, message: Message) -> None:
        """Take in a message of a topic of `kinds_of` or of a tasks topic; unreadable ones are passed over."""
        kind = self._kinds.get(message.topic)
        if kind is None:
            self._see(message)
        elif kind is not Snapshot or message.key == FEEDER_KEY:
            try:
                self.take_record(codec.decode(message.value, kind), (message.topic, message.partition, message.offset))
            except SchemaError:
                return

    def take_record(self, record: BatchTrained | Outcome | DeadLetter | Snapshot, place: object) -> None:
        """Take in a record that stands at a place; the snapshot must be the feeder's, the newest last."""
        if record.run_id != self.run_id:
            return
        if isinstance(record, Snapshot):
            self.issued = {stream: int(number) for stream, number in json.loads(record.body)["next"].items()}
        elif isinstance(record, DeadLetter):
            self._bury(record)
        elif record.policy in self._folds:
            fold = self._folds[record.policy]
            fold.train(record, place) if isinstance(record, BatchTrained) else fold.conclude(record, place)

    def _bury(self, letter: DeadLetter) -> None:
        if letter.number < 0 or is_eval(letter.stream):
            return
        for policy in [letter.policy] if letter.policy else self._policies_of(letter.stream):
            if policy in self._folds:
                self._folds[policy].bury(letter.stream, letter.number)

    def _see(self, message: Message) -> None:
        """Note the number of a task, from its headers."""
        try:
            stamp = Stamp.from_headers(message.headers)
        except HeaderError:
            return
        if stamp.run_id == self.run_id and stamp.purpose == "train":
            self._seen[stamp.stream] = max(self._seen.get(stamp.stream, 0), stamp.number + 1)

    def _policies_of(self, stream: str) -> tuple[str, ...]:
        workflow = stream.partition(".")[0]
        return self.recipe.policies_of(workflow) if workflow in self.recipe.workflows else ()

    def audit(self, *, drained: bool) -> Audit:
        """Return the audit of what was taken in so far."""
        policies = {}
        for policy, fold in self._folds.items():
            issued = {s: n for s, n in self.issued.items() if policy in self._policies_of(s)}
            seen = {s: n for s, n in self._seen.items() if policy in self._policies_of(s)}
            policies[policy] = fold.audit(issued, seen, drained=drained)
        lost, doubled = (sum(getattr(p, name) for p in policies.values()) for name in ("lost", "doubled"))
        return Audit(not lost and not doubled, lost, doubled, policies)


def kinds_of(topics: Topics, recipe: Recipe) -> dict[str, type[Any]]:
    """Return the record class of every topic that tells of numbers, conclusions first and the feeder's state last."""
    kinds: dict[str, type[Any]] = {}
    for policy in recipe.policies:
        kinds |= {topics.outcomes(policy): Outcome, topics.batches(policy): BatchTrained}
    return kinds | {topics.dead_letters: DeadLetter, topics.state: Snapshot}


def _reason(said: Mapping[object, Said]) -> str:
    _, verdict, reason = min(said.values())
    return reason or verdict


def audit(run: Run, *, drained: bool | None = None) -> Audit:
    """Audit a run from its topics, live or stopped.

    Conclusions are read before the tasks, and the feeder's state last, so that a number that concludes meanwhile is
    never taken for one that nobody issued.

    Args:
        run: The run.
        drained: Whether nothing more can conclude, so that what is in flight is lost. By default that is so half a
            minute after the run's end.
    """
    topics, fold = run.topics, AuditFold(run.run_id, run.recipe)
    tasks = [topics.tasks(workflow) for workflow in run.recipe.workflows]
    for part in (list(kinds_of(topics, run.recipe))[:-1], tasks, [topics.state]):
        for message in read_all(run.connection, part):
            fold.take(message)
    if drained is None:
        newest = read_revisions(run.address)[-1]
        drained = bool(newest.ended) and time.time() - newest.created_ms / 1000 > DRAIN_S
    return fold.audit(drained=drained)


def report(run_address: RunAddress) -> dict[str, Any]:
    """Return what `headrace audit --json` prints. Raises NoSuchRun, KafkaAway or KafkaRefused."""
    return asdict(audit(join(run_address)))
