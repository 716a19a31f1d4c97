"""What an audit says of committed offsets beside the snapshots that they name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.group_offsets import Commit
from headrace.ops.audit import commits
from headrace.schemas import codec
from headrace.schemas.records import Snapshot

TOPIC = "t.trajectories.solver"
PARTITION_ID = (TOPIC, 0)
GROUP = commits.Group("t.curate.solver", TOPIC, "curate.solver")
KEY = f"curate.solver|{TOPIC}|0".encode()

COMMIT = Commit(8, json.dumps({"snapshot": 5}))
SNAPSHOT = Snapshot("r", "curate.solver", TOPIC, 0, {f"{TOPIC}[0]": 6})


@dataclass(frozen=True)
class Case:
    """A curator that has committed offset 8 and snapshot 5, which is of position 6; its topic holds 2 to 9."""

    commit: Commit | None = COMMIT
    snapshot: Snapshot | None = SNAPSHOT
    at: int = 5
    has_others: bool = False
    """Whether the group has committed another partition."""
    curated_to: Mapping[tuple[str, str, int], int] = field(default_factory=dict)
    is_older: bool = False
    """Whether the commit was there before the snapshots were read."""

    def said(self) -> list[str]:
        others = {(TOPIC, 1): Commit(0)} if self.has_others else {}
        mine = {PARTITION_ID: self.commit} if self.commit else {}
        asked = commits.Committed({PARTITION_ID: 2, (TOPIC, 1): 0}, mine | others, {PARTITION_ID: 9, (TOPIC, 1): 0})
        found = {KEY: Message("t.state", 0, self.at, KEY, codec.encode(self.snapshot))} if self.snapshot else {}
        return list(
            commits.problems({GROUP: asked}, found, "r", {GROUP: asked} if self.is_older else {}, self.curated_to)
        )


def moved(case: Case, offset: int) -> Case:
    assert case.commit is not None
    return replace(case, commit=replace(case.commit, offset=offset))


def of(case: Case, **changes: object) -> Case:
    assert case.snapshot is not None
    return replace(case, snapshot=replace(case.snapshot, **changes))  # type: ignore[arg-type]


COMMITTED = f"consumer group t.curate.solver has committed offset {{}} of {TOPIC}[0], "
SAYS: list[tuple[Callable[[Case], Case], str]] = [
    (lambda case: moved(case, 10), COMMITTED.format(10) + "but the offsets of that partition are 2 to 9"),
    (
        lambda case: of(moved(case, 1), positions={f"{TOPIC}[0]": 1}),
        COMMITTED.format(1) + "but the offsets of that partition are 2 to 9",
    ),
    (
        lambda case: moved(case, 5),
        COMMITTED.format(5) + "but its snapshot t.state[0]@5 was taken at the later offset 6",
    ),
    (
        lambda case: replace(case, snapshot=None),
        f"restores {TOPIC}[0] from the snapshot at offset 5 of `state`, but that snapshot is missing",
    ),
    (
        lambda case: replace(case, at=7),
        f"for {TOPIC}[0] names the snapshot at offset 5 of `state`, but the snapshot t.state[0]@7 is newer",
    ),
    (
        lambda case: replace(case, commit=Commit(8)),
        f"for {TOPIC}[0] names no snapshot, but the snapshot t.state[0]@5 is newer",
    ),
    (
        lambda case: replace(case, at=4, is_older=True),
        "names the snapshot at offset 5 of `state`, but that snapshot is missing: the newest one is t.state[0]@4",
    ),
    (
        lambda case: replace(case, curated_to={("solver", TOPIC, 0): 9}),
        COMMITTED.format(8) + "but the group delivered at offset 8 has an outcome: it would be curated again",
    ),
    (
        lambda case: of(case, run_id="other"),
        f"the snapshot t.state[0]@5 of {TOPIC}[0] is of another run, with the id 'other'",
    ),
    (
        lambda case: of(case, positions={}),
        f"the snapshot t.state[0]@5 of {TOPIC}[0] cannot be read: it does not give the offset up to which",
    ),
]


def test_of_a_commit_that_its_group_can_go_on_from_nothing_is_said() -> None:
    assert Case().said() == []
    assert replace(Case(), commit=Commit(8), snapshot=None).said() == [], "it may have written none yet"
    assert replace(Case(), is_older=True).said() == []
    assert replace(Case(), curated_to={("solver", TOPIC, 0): 8, ("solver.free", TOPIC, 0): 9}).said() == []
    assert replace(Case(), at=6, commit=Commit(8, '{"snapshot": 6}'), is_older=True).said() == []
    assert replace(Case(), at=4).said() == [], "the curator has written the next one since"


def test_of_a_group_whose_offsets_kafka_has_forgotten_nothing_is_said() -> None:
    assert replace(Case(), commit=None).said() == [], "it goes on from its snapshots"
    [what] = replace(Case(), commit=None, has_others=True).said()
    assert (
        f"has no committed offset of {TOPIC}[0], but its snapshot t.state[0]@5 was taken at offset 6 of that partition"
        in what
    )


def test_a_commit_that_its_group_cannot_go_on_from_is_named() -> None:
    for change, sentence in SAYS:
        [what] = change(Case()).said()
        assert sentence in what
