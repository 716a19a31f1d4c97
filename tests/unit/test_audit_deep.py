"""What a deep audit says of values: held against their headers, their digests and the store."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from typing import Any, cast

from made_groups import group
from made_recipes import sums_recipe

from headrace.infra.kafka.clients import Connection, Message, RunAddress
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import StoreAddress
from headrace.ops.audit.broken_numbers import Scope
from headrace.ops.audit.deep_look import DeepLook
from headrace.ops.audit.evaluations import Evaluations
from headrace.ops.audit.fold import AuditFold
from headrace.ops.audit.objects import ObjectChecks
from headrace.schemas import codec
from headrace.schemas.digests import compute_digest
from headrace.schemas.headers import Stamp, outcome_stamp, task_key, task_stamp
from headrace.schemas.records import (
    Attachment,
    BatchTrained,
    ClaimCheck,
    CuratedGroup,
    DeadLetter,
    Failure,
    GroupUse,
    Outcome,
    Snapshot,
    Task,
    TrajectoryGroup,
    WeightsPublished,
)

RECIPE = sums_recipe(
    trainer={"max_staleness": 4},
    curate={"chain": ["validate", {"use": "replay_latest", "max_uses": 2, "max_staleness": 6}]},
    kafka={"partitions": 1},
)
TOPICS = RECIPE.topics
RUN = Run(RunAddress(Connection("nowhere:1"), "t"), "r", (RECIPE,), StoreAddress("nowhere:2", "b", "key", "key"))
OF_TOKENS = {"min_version": 3, "max_version": 3, "head_version": 3}


class NoObject:
    """Checks of objects that find none."""

    def claim(self, claim: ClaimCheck | None) -> Iterator[str]:
        yield f"{claim and claim.key} does not exist"


class Scene:
    """Sum 0 was dropped. Of sum 1 one of two trajectories was kept, and trained into version 4; then once more."""

    def __init__(self) -> None:
        made = {n: replace(group([1.0, 0.0], number=n), run_id="r", task_id=f"q{n}") for n in (0, 1)}
        self.groups: dict[int, TrajectoryGroup] = made
        """As workers delivered them."""
        self.first = CuratedGroup("r", "sums", 1, 0, codec.encode(made[1]), 7, 3, 0, (0,), (1.0, 0.0))
        self.again = CuratedGroup("r", "sums", 1, 1, b"", 9, 3, first_back=1)
        self.outcomes = [
            self.outcome(0, verdict="dropped", reason="zero_variance"),
            self.outcome(1, verdict="kept"),
            self.outcome(1, verdict="kept", use=1),
            self.outcome(
                1, level="trajectory", trajectory_id=made[1].trajectories[1].id, verdict="dropped", reason="length"
            ),
        ]
        self.others: list[CuratedGroup] = []
        """Further curated records."""
        self.issued = 2
        self.tasks = {n: Task("r", "sums", n, task_id=f"q{n}") for n in (0, 1)}
        self.positions = [(0, 0), (0, 1)]
        self.versions = [4, 5]
        self.letters: list[DeadLetter] = []
        self.stamps: dict[str, dict[str, Any]] = {}
        """By topic, what else the headers of its records of sum 1 say."""
        self.keys: dict[str, bytes] = {}
        self.objects: NoObject | None = None
        self.stored: dict[str, bytes] = {}
        self.is_sent_back = False
        """Whether the first use is there twice: refused, and then sent back."""

    def outcome(self, number: int, **more: Any) -> Outcome:
        common: dict[str, Any] = {"run_id": "r", "stream": "sums", "policy": "solver", "component": "curate"}
        facts = {"rewards": (1.0, 0.0), "lengths": (1, 1), "n_asked": 2, "task_id": f"q{number}"}
        digest = compute_digest(codec.encode(self.groups[number])) if not {"use", "level"} & more.keys() else ""
        return Outcome(**{**common, **facts, "number": number, "group_digest": digest, **more})

    def batches(self) -> Iterator[BatchTrained]:
        for use, (version, position) in enumerate(zip(self.versions, self.positions, strict=True)):
            used = (GroupUse("sums", 1, use, *position),)
            yield BatchTrained("r", "solver", "", version, 0, 0, used, (), (), f"w{version - 1}", f"w{version}")

    def messages(self) -> Iterator[tuple[str, bytes, Stamp]]:
        stamp = Stamp("r", "sums", 1, policy="solver", **OF_TOKENS)
        for batch in self.batches():
            yield TOPICS.batches("solver"), codec.encode(batch), stamp
        for outcome in self.outcomes:
            yield TOPICS.outcomes("solver"), codec.encode(outcome), outcome_stamp(outcome)
        for letter in self.letters:
            yield TOPICS.dead_letters, codec.encode(letter), stamp
        for curated in (self.first, *((self.first,) if self.is_sent_back else ()), self.again, *self.others):
            of = replace(stamp, number=curated.number, use=curated.use)
            yield TOPICS.curated("solver"), codec.encode(curated), of
        for number, one in self.groups.items():
            yield TOPICS.trajectories("solver"), codec.encode(one), replace(stamp, number=number)
        for number, task in self.tasks.items():
            yield TOPICS.tasks("sums"), codec.encode(task), replace(task_stamp(task), number=number)
        for version in (3, *self.versions):
            event = WeightsPublished("r", "solver", version=version, weights_hash=f"w{version}")
            yield TOPICS.weights("solver"), codec.encode(event), stamp
        yield TOPICS.state, codec.encode(Snapshot("r", "feed", body=b'{"next": {"sums": %d}}' % self.issued)), stamp

    def get(self, key: str, sha256: str, size_bytes: int) -> bytes:
        """As the real store does it."""
        return self.stored[key]

    def said(self) -> list[str]:
        fold = AuditFold("r", RECIPE)
        RUN.__dict__["store"] = self
        objects = cast("ObjectChecks | None", self.objects)
        deep = DeepLook(RUN, fold.account, Evaluations((RECIPE,)), objects)
        ends: dict[str, int] = {}
        for topic, value, stamp in self.messages():
            if stamp.number == 1:
                stamp = replace(stamp, **self.stamps.get(topic, {}))  # noqa: PLW2901 - the headers of this one
            key = b"feed" if topic == TOPICS.state else self.keys.get(topic, task_key("sums", stamp.number))
            again = self.is_sent_back and topic == TOPICS.curated("solver") and ends.get(topic) == 1
            headers = [*stamp.to_headers(), *((("redrive", b"0"),) if again else ())]
            message = Message(topic, 0, ends.get(topic, 0), key, value, headers)
            ends[topic] = message.offset + 1
            counts = fold.fold_message(message)
            if topic in fold.groups:
                deep.check_group(message, counts=counts)
            else:
                deep.check_record(message)
        fold.fold_feeder_snapshot()
        found = fold.account.audit(Scope(still=True, whole=True)).problems.listed
        return [*map(str, found), *deep.problems()]


def better(one: TrajectoryGroup) -> TrajectoryGroup:
    first, *others = one.trajectories
    return replace(one, trajectories=(replace(first, reward=2.0), *others))


def replaced(what: str, at: int | None = None, /, **changes: Any) -> Callable[[Scene], None]:
    """Give an attribute of the scene, or what it holds at a number, other fields."""

    def damage(scene: Scene) -> None:
        held = getattr(scene, what)
        if at is None:
            setattr(scene, what, replace(held, **changes))
        else:
            held[at] = replace(held[at], **changes)

    return damage


def put(what: str, key: Any, value: Any) -> Callable[[Scene], None]:
    """Put another value into what the scene holds at a key."""
    return lambda scene: getattr(scene, what).__setitem__(key, value)


def other_reward(scene: Scene) -> None:
    scene.groups[0] = better(scene.groups[0])


def altered_afterwards(scene: Scene) -> None:
    scene.first = replace(scene.first, group=codec.encode(better(scene.groups[1])))


def claimed(scene: Scene, **fields: Any) -> None:
    """The group of sum 0 is in the store, and its record says other things."""
    data = codec.encode(scene.groups[0])
    claim = ClaimCheck("main", "k", sha256(data).hexdigest(), len(data))
    scene.objects = NoObject()
    scene.stored[claim.key] = data
    scene.groups[0] = replace(scene.groups[0], trajectories=(), claim=claim, **fields)
    scene.outcomes[0] = scene.outcome(0, verdict="dropped", reason="zero_variance")


def other_use(scene: Scene) -> None:
    scene.first = replace(scene.first, use=2, group=b"")
    scene.stamps[TOPICS.curated("solver")] = {"use": 0}


def longer_runs(scene: Scene) -> None:
    first, *others = scene.groups[0].trajectories
    runs = first.sequences[0].version_runs.copy()
    runs[-1] += 1
    first = replace(first, sequences=(replace(first.sequences[0], version_runs=runs),))
    scene.groups[0] = replace(scene.groups[0], trajectories=(first, *others))


def kept_twice(scene: Scene) -> None:
    """Sum 2 was kept too, after sum 1."""
    scene.groups[2] = replace(group([1.0, 0.0], number=2), run_id="r", task_id="q2")
    scene.outcomes.append(scene.outcome(2, verdict="kept"))
    scene.issued = 3
    scene.others = [CuratedGroup("r", "sums", 2, 0, codec.encode(scene.groups[2]), 7, 3, 0, (0, 1), (1.0, 0.0))]


def with_failure(scene: Scene) -> None:
    """An episode of sum 1 failed, and counts as a reward of 0."""
    made = replace(scene.groups[1], n_asked=3, failures=(Failure(2, "error"),))
    scene.groups[1] = made
    scene.first = replace(scene.first, group=codec.encode(made), rewards=(1.0, 0.0, 0.0))
    scene.outcomes[1] = scene.outcome(1, verdict="kept", n_asked=3, failures=1)


def attached(scene: Scene) -> None:
    scene.objects = NoObject()
    scene.groups[0] = replace(scene.groups[0], attachments=(Attachment("image", ClaimCheck("main", "k")),))


def letter(offset: int, value: bytes) -> Callable[[Scene], None]:
    said = DeadLetter("r", "curate", TOPICS.trajectories("solver"), 0, offset, "undecodable", value=value)
    return lambda scene: scene.letters.append(said)


ELSEWHERE = "has its curated record at another offset than its batch record gives"
OTHERS = "sums:0 of solver has an outcome of a group that no worker delivered"
SAYS: list[tuple[Callable[[Scene], None], str]] = [
    (other_reward, OTHERS),
    (replaced("outcomes", 0, group_digest="another"), OTHERS),
    (
        altered_afterwards,
        r"curated.solver\[0\]@0 .* it holds another group than the one that its outcome gives the digest",
    ),
    (put("positions", 0, (0, 7)), f"sums:1 of solver {ELSEWHERE}"),
    (put("positions", 1, (0, 7)), rf"sums:1 of solver \(use 1\) {ELSEWHERE}"),
    (put("versions", 1, 11), r"sums:1 of solver \(use 1\) was trained after its deadline"),
    (
        lambda scene: claimed(scene, worker="another"),
        "the group in the object store does not match the record that points to it",
    ),
    (other_use, "no dead letter: its use is 0 by its headers, but 2 by its value$"),
    (
        replaced("first", kept=(0, 2)),
        r"each of its 2 trajectories, .* but it has 2 rewards, and `kept` is \(0, 2\)",
    ),
    (replaced("first", rewards=(math.nan, 0.0)), r"the rewards of its kept trajectories \[0\] are not finite"),
    (longer_runs, "a sequence has 3 tokens, but its version_runs give versions to 4 tokens"),
    (
        put("stamps", TOPICS.trajectories("solver"), {"min_version": 2}),
        "its tokens are of versions 3 to 3, but its headers say 2 to 3",
    ),
    (replaced("groups", 0, policy="judge"), "its policy is 'solver' by its headers, but 'judge' by its value"),
    (replaced("groups", 0, number=7), "no dead letter: its number is 0 by its headers, but 7 by its value$"),
    (
        put("stamps", TOPICS.tasks("sums"), {"attempt": 3}),
        r"tasks.sums\[0\]@1 .* its attempt is 3 by its headers, but 0 by its value$",
    ),
    (put("keys", TOPICS.tasks("sums"), b"sums:5"), "its key is b'sums:5', but its headers name sums:0"),
    (
        put("keys", TOPICS.outcomes("solver"), b"sums:5"),
        r"outcomes.solver\[0\]@0 .* its key is b'sums:5', but its value names sums:0",
    ),
    (
        put("stamps", TOPICS.outcomes("solver"), {"number": 0}),
        "its number is b'0' by its headers, but b'1' by its value",
    ),
    (
        letter(0, b"other"),
        r"dead letter t.dead-letters\[0\]@0 holds other bytes than its record t.trajectories.solver\[0\]@0",
    ),
    (letter(9, b"x"), r"t.dead-letters\[0\]@0 is about t.trajectories.solver\[0\]@9, but there is no record there"),
    (attached, "attachment image: k does not exist"),
]


def test_of_values_that_are_as_they_should_be_nothing_is_said() -> None:
    assert Scene().said() == []
    whole = Scene()
    claimed(whole)
    assert whole.said() == []
    for change in (with_failure, kept_twice):
        scene = Scene()
        change(scene)
        assert scene.said() == []


def sent_back(scene: Scene) -> None:
    refused = DeadLetter("r", "train.solver", TOPICS.curated("solver"), 0, 0, "missing_object")
    refused = replace(refused, value=codec.encode(scene.first), policy="solver", stream="sums", number=1)
    scene.letters = [refused, replace(refused, component="redrive", offset=1, reason="redriven", redrives=0)]
    scene.is_sent_back, scene.positions = True, [(0, 1), (0, 2)]


def test_a_curated_record_that_was_refused_and_sent_back_is_trained_where_its_copy_is() -> None:
    scene = Scene()
    sent_back(scene)
    scene.again = replace(scene.again, first_back=1)
    assert scene.said() == []
    scene.positions[0] = (0, 0)
    assert scene.said() == [], "or where it was, if its trainer had not refused it"
    scene.positions[0] = (0, 7)
    assert any(ELSEWHERE in what for what in scene.said())


def test_a_dead_letter_about_a_record_that_no_group_is_in_is_right() -> None:
    scene = Scene()
    about = DeadLetter("r", "feed", TOPICS.outcomes("solver"), 0, 1, "undecodable", value=b"x")
    scene.letters.append(about)
    assert scene.said() == []


def test_a_value_that_is_not_as_it_should_be_is_named() -> None:
    for damage, sentence in SAYS:
        scene = Scene()
        damage(scene)
        said = scene.said()
        assert any(re.search(sentence, what) for what in said), (sentence, said)


def test_a_delivery_with_other_headers_than_its_group_is_named() -> None:
    for header, value in (("attempt", 3), ("revision", 1), ("head_version", 2), ("purpose", "eval")):
        scene = Scene()
        scene.stamps[TOPICS.trajectories("solver")] = {header: value}
        assert any(f"its {header} is" in what and "by its headers, but" in what for what in scene.said()), header
    scene = Scene()
    scene.stamps[TOPICS.trajectories("solver")] = {"use": 1}
    assert any("its headers say use 1, but only curated records" in what for what in scene.said())
