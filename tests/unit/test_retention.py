"""What `headrace gc` takes for needed: names in records of any kind, versions by their rules, ages."""

from __future__ import annotations

import dataclasses
import hashlib
import typing
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from headrace.infra.durations import duration_of
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Message
from headrace.infra.run.retired import CHECKPOINTS, WEIGHTS, describe_versions
from headrace.infra.store.object_store import ListedObject
from headrace.ops.retention.collector import RETIRED, UNNAMED, CollectionRequest, Counted, Plan, plan
from headrace.ops.retention.keeping import WrittenVersion, checkpoints_to_retire, find_retired_ranges, weights_to_retire
from headrace.ops.retention.marking import Marker, Unreadable
from headrace.schemas import codec
from headrace.schemas.records import (
    RECORDS,
    CheckpointPointer,
    ClaimCheck,
    CuratedGroup,
    DeadLetter,
    EvalResult,
    NamedObject,
    ObjectsRetired,
    TrajectoryGroup,
    WeightsPublished,
)
from headrace.schemas.topics import Topics, checkpoint_key, key_of_retired

RUN, PREFIX, TOPICS = "run-1", "run-1/", Topics("r")
NOW = datetime(2026, 1, 10, tzinfo=UTC)
LONG_AGO = NOW - timedelta(days=5)
NO_AGE = CollectionRequest(older_than=timedelta(0))


def claim(what: str, kind: str = "groups", suffix: str = "") -> ClaimCheck:
    digest = hashlib.sha256(what.encode()).hexdigest()
    return ClaimCheck("main", f"{PREFIX}{kind}/{digest}{suffix}", digest, 10)


def listed(*claims: ClaimCheck, modified: datetime = LONG_AGO) -> list[ListedObject]:
    return [ListedObject(one.key, one.size_bytes, modified) for one in claims]


def message(
    record: Any, topic: str = TOPICS.trajectories("solver"), key: bytes = b"", at: datetime = LONG_AGO
) -> Message:
    value = record if isinstance(record, bytes) else codec.encode(record)
    return Message(topic, 0, 7, key, value, timestamp_ms=int(at.timestamp() * 1000))


def marker(*objects: ListedObject) -> Marker:
    return Marker(RUN, TOPICS, ["solver"], PREFIX, objects)


def unnamed(one: Marker) -> set[str]:
    return {found.key for found in one.find_unnamed()}


# ------------------------------------------------------------------------------------------------------------- marking


def with_claims(kind: Any, path: str, claims: list[ClaimCheck]) -> Any:
    """A record of this class whose every claim check is one of its own; what leads to none has its default."""
    if kind is ClaimCheck:
        claims.append(claim(path))
        return claims[-1]
    hints = typing.get_type_hints(kind)
    changes = {}
    for one in dataclasses.fields(kind):
        hint = hints[one.name]
        is_many = typing.get_origin(hint) is tuple
        inside = [part for part in typing.get_args(hint) or (hint,) if dataclasses.is_dataclass(part)]
        if inside:
            value = with_claims(inside[0], f"{path}.{one.name}", claims)
            changes[one.name] = (value,) if is_many else value
    return kind(**changes)


def test_every_object_that_any_kind_of_record_names_stays() -> None:
    found = set()
    for kind in RECORDS:
        claims: list[ClaimCheck] = []
        record = with_claims(kind, kind.__name__, claims)
        other = claim("named by nobody")
        one = marker(*listed(*claims, other))
        one.fold_message(message(record))
        assert unnamed(one) == {other.key}, kind
        found |= {kind.__name__} if claims else set()
    assert found >= {"TrajectoryGroup", "WeightsPublished", "CheckpointPointer", "WarmStartExamples"}


def test_objects_of_groups_inside_other_records_stay() -> None:
    group = TrajectoryGroup(RUN, claim=claim("inside"))
    curated = CuratedGroup(RUN, group=codec.encode(group))
    letter = DeadLetter(
        RUN, value=codec.encode(CuratedGroup(RUN, group=codec.encode(TrajectoryGroup(claim=claim("x")))))
    )
    one = marker(*listed(claim("inside"), claim("x")))
    one.fold_message(message(curated, TOPICS.curated("solver")))
    one.fold_message(message(letter, TOPICS.dead_letters))
    assert unnamed(one) == set()


def test_bytes_that_are_no_record_stop_nothing_and_spare_what_they_name() -> None:
    one = marker(*listed(claim("a"), claim("b")))
    one.fold_message(message(b"garbage about " + claim("a").key.encode()))
    one.fold_message(message(codec.encode(TrajectoryGroup(claim=claim("b")))[:-5]))
    assert (unnamed(one), one.none_of_ours) == (set(), 1)


def test_a_record_of_a_newer_build_stops_everything_and_is_named() -> None:
    with pytest.raises(Unreadable, match=r"r\.trajectories\.solver\[0\]@7 cannot be read: unknown schema.*nothing is"):
        marker().fold_message(message(codec.AVRO_MAGIC + b"\x01" * 8 + b"whatever"))


def test_a_version_that_cannot_be_read_stops_everything() -> None:
    for topic, key in (
        (TOPICS.weights("solver"), b"3"),
        (TOPICS.state, checkpoint_key("solver", 3)),
        (TOPICS.state, key_of_retired("solver", WEIGHTS)),
    ):
        with pytest.raises(Unreadable, match="nothing is deleted"):
            marker().fold_message(message(codec.encode(WeightsPublished(RUN, "solver"))[:-5], topic, key))
        one = marker(*listed(claim("a")))
        one.fold_message(message(b"garbage about " + claim("a").key.encode(), topic, key))
        assert (unnamed(one), one.none_of_ours) == (set(), 1), "no build wrote it, and it announces no version"


def test_what_is_not_named_as_an_object_is_left_alone() -> None:
    keys = ["run-1/notes.txt", "run-1/a/b/" + "0" * 64, "run-10/groups/" + "0" * 64, "run-1/groups/" + "0" * 63]
    one = marker(*(ListedObject(key, 1, LONG_AGO) for key in keys))
    assert (unnamed(one), [found.key for found in one.foreign]) == (set(), keys)


# ------------------------------------------------------------------------------------------------------------ versions


def versions(count: int, anchor_every: int, at_ms: int = 0) -> dict[int, WrittenVersion]:
    return {v: WrittenVersion(0, at_ms, "delta" if v % anchor_every else "anchor") for v in range(count)}


def test_what_a_worker_begins_with_stays_and_the_first_version_and_anchors_at_checkpoints() -> None:
    found = weights_to_retire(versions(200, 25), checkpoints=(0, 50, 110), keep=1, before_ms=0)
    # the newest 64 are 136 to 199, the anchor before them is 125
    assert found == set(range(1, 125)) - {50}


def test_the_version_of_the_highest_held_out_reward_stays_with_what_leads_to_it() -> None:
    found = weights_to_retire(versions(200, 25), (), keep=1, before_ms=0, best=53)
    assert found == set(range(1, 125)) - {50, 51, 52, 53}
    one = marker()
    for version, reward in ((20, 0.5), (53, 0.6), (90, 0.4)):
        result = EvalResult(run_id=RUN, policy="solver", version=version, avg_at_k=reward, played=8)
        one.fold_message(message(result, TOPICS.evals("solver")))
    one.fold_message(message(EvalResult(run_id="of another", version=7, avg_at_k=1.0), TOPICS.evals("solver")))
    one.policies["solver"].weights.update(versions(200, 25))
    plans = plan(one, CollectionRequest(keep_versions=1), datetime.now(UTC), PREFIX)
    assert plans.added["solver", "weights"] == ((1, 49), (54, 124))


def test_the_best_version_is_the_best_of_those_that_are_left_by_what_was_settled() -> None:
    def planned(*results: tuple[int, str, float, datetime]) -> Plan:
        one = marker()
        one.policies["solver"].weights.update(versions(200, 25))
        for version, workflow, reward, at in results:
            result = EvalResult(RUN, "solver", "", workflow, version, avg_at_k=reward, played=8)
            one.fold_message(message(result, TOPICS.evals("solver"), at=at))
        retired = ObjectsRetired(RUN, "solver", what=WEIGHTS, versions=np.array([30, 30], np.int32))
        one.fold_message(message(retired, TOPICS.state, key_of_retired("solver", WEIGHTS)))
        return plan(one, CollectionRequest(keep_versions=1), NOW, PREFIX)

    settled = [(30, "a", 0.9, LONG_AGO), (50, "a", 0.7, LONG_AGO), (90, "a", 0.5, LONG_AGO)]
    assert planned(*settled).added["solver", WEIGHTS] == ((1, 29), (31, 49), (51, 124)), "30 is retired already"
    slower = [(50, "b", 0.8, LONG_AGO), (90, "b", 0.5, LONG_AGO), (150, "a", 0.6, NOW), (160, "a", 0.9, NOW)]
    assert planned(*settled, *slower).added == planned(*settled).added, "b is still to be evaluated"


def test_more_versions_can_be_kept_and_no_fewer_than_a_worker_reads() -> None:
    assert weights_to_retire(versions(200, 25), (), keep=150, before_ms=0) == set(range(1, 50))
    for count, gone in ((0, set()), (64, set()), (65, set()), (66, {1})):
        assert weights_to_retire(versions(count, 1), (), keep=1, before_ms=0) == gone
    no_whole = {v: WrittenVersion(0, 0, "delta") for v in range(200)}
    assert weights_to_retire(no_whole, (), keep=1, before_ms=0) == set()


def test_what_is_new_makes_nothing_dispensable_yet() -> None:
    """A worker may just be fetching what left the newest 64 an hour ago."""
    young = versions(200, 25) | {v: WrittenVersion(0, 1, "delta") for v in range(120, 200)}
    assert weights_to_retire(young, (), keep=1, before_ms=0) == set(range(1, 50))


def test_the_first_checkpoint_the_newest_and_the_last_of_every_epoch_stay() -> None:
    taken = {v: WrittenVersion(epoch=int(v > 30), written_ms=0) for v in range(0, 100, 10)}
    assert checkpoints_to_retire(taken, keep=2, before_ms=0) == {10, 20, 40, 50, 60, 70}
    late = taken | {90: WrittenVersion(1, written_ms=1)}
    assert checkpoints_to_retire(late, keep=2, before_ms=0) == {10, 20, 40, 50, 60}


def test_ranges_hold_no_version_that_is_kept() -> None:
    assert find_retired_ranges([0, 1, 2, 4, 5, 9, 10], {1, 2, 4, 9}) == ((1, 4), (9, 9))
    assert describe_versions([4, 0, 5, 6]) == "0, 4 to 6"


# ---------------------------------------------------------------------------------------------------------------- plan


def publish(one: Marker, version: int, weights: ClaimCheck, kind: str = "anchor", *shards: ClaimCheck) -> None:
    named = tuple(NamedObject(f"model-{number}.safetensors", shard) for number, shard in enumerate(shards))
    files = (NamedObject("config.json", claim("config", "files")),)
    event = WeightsPublished(RUN, "solver", version=version, kind=kind, weights=weights, shards=named, files=files)
    one.fold_message(message(event, TOPICS.weights("solver")))


def take_checkpoint(one: Marker, version: int) -> None:
    pointer = CheckpointPointer(RUN, "solver", version=version, checkpoint=claim(f"c{version}", "checkpoints"))
    one.fold_message(message(pointer, TOPICS.state, checkpoint_key("solver", version)))


def whole_run() -> Marker:
    """70 anchors, a checkpoint at every tenth version."""
    weights = [claim(f"w{version}", "weights", ".safetensors") for version in range(70)]
    checkpoints = [claim(f"c{version}", "checkpoints") for version in range(0, 70, 10)]
    one = marker(*listed(*weights, *checkpoints, claim("config", "files"), claim("left")))
    for version in range(70):
        publish(one, version, weights[version])
    for version in range(0, 70, 10):
        take_checkpoint(one, version)
    return one


def of(done: Plan) -> Iterator[tuple[str, str]]:
    return ((one.kind, one.why) for one in done.doomed)


def test_old_versions_and_what_nobody_names_go_and_what_goes_by_version_is_said() -> None:
    one = whole_run()
    done = plan(one, dataclasses.replace(NO_AGE, keep_checkpoints=2), NOW, PREFIX)
    assert sorted(of(done)) == sorted(
        [("groups", UNNAMED)] + [("weights", RETIRED[WEIGHTS])] * 5 + [("checkpoints", RETIRED[CHECKPOINTS])] * 4
    )
    assert done.retired == {("solver", WEIGHTS): ((1, 5),), ("solver", CHECKPOINTS): ((10, 40),)}
    assert done.kept["named"].objects == 65 + 3 + 1
    assert plan(one, NO_AGE, NOW, PREFIX).retired == {("solver", WEIGHTS): ((1, 5),)}, "checkpoints go only when asked"


def test_the_parts_of_a_checkpoint_stay_and_go_with_it() -> None:
    """The index and two parts of each; of the second checkpoint and the last, one part is the same object."""
    parts = {version: [claim(f"p{version}"), claim("frozen")] for version in (0, 10, 20)}
    indices = {version: claim(f"c{version}", "checkpoints", ".json") for version in parts}
    one = marker(*listed(*indices.values(), *(part for some in parts.values() for part in some[:1]), claim("frozen")))
    for version, some in parts.items():
        named = tuple(NamedObject(f"{number}.safetensors", part) for number, part in enumerate(some))
        pointer = CheckpointPointer(RUN, "solver", version=version, checkpoint=indices[version], parts=named)
        one.fold_message(message(pointer, TOPICS.state, checkpoint_key("solver", version)))
    assert not plan(one, NO_AGE, NOW, PREFIX).doomed
    done = plan(one, dataclasses.replace(NO_AGE, keep_checkpoints=1), NOW, PREFIX)
    assert {doomed.one.key for doomed in done.doomed} == {indices[10].key, parts[10][0].key}


def test_what_was_retired_before_stays_retired_whatever_is_to_be_kept_now() -> None:
    """Its objects may be gone already, or are deleted now: whoever retired them may have been killed before it did."""
    one = whole_run()
    said = ObjectsRetired(RUN, "solver", what=WEIGHTS, versions=np.array([1, 3], np.int32))
    one.fold_message(message(said, TOPICS.state, key_of_retired("solver", WEIGHTS)))
    done = plan(one, dataclasses.replace(NO_AGE, keep_versions=500), NOW, PREFIX)
    assert sorted(of(done)) == sorted([("groups", UNNAMED)] + [("weights", RETIRED[WEIGHTS])] * 3)
    assert done.retired == {}, "it was said"
    more = plan(one, NO_AGE, NOW, PREFIX)
    assert (more.retired, more.added) == ({("solver", WEIGHTS): ((1, 5),)}, {("solver", WEIGHTS): ((4, 5),)})


def test_the_files_of_an_anchor_go_and_stay_together_and_what_two_versions_share_stays() -> None:
    shards = [claim(what, "weights", ".safetensors") for what in ("3a", "3b", "60a", "60b")]
    weights = {version: claim(f"w{version}", "weights") for version in range(70)} | {2: claim("w69", "weights")}
    one = marker(*listed(*shards, weights[2], weights[3], weights[60]))
    for version, own in weights.items():
        publish(one, version, own, "anchor", *{3: shards[:2], 60: shards[2:]}.get(version, []))
    done = plan(one, NO_AGE, NOW, PREFIX)
    assert {found.one.key for found in done.doomed} == {weights[3].key, shards[0].key, shards[1].key}


def test_a_merged_delta_goes_with_the_version_that_it_leads_to() -> None:
    one = marker(*listed(claim("to 3", "weights"), claim("to 60", "weights")))
    for version in range(70):
        publish(one, version, claim(f"w{version}", "weights"))
    publish(one, 3, claim("to 3", "weights"), "merged")
    publish(one, 60, claim("to 60", "weights"), "merged")
    done = plan(one, NO_AGE, NOW, PREFIX)
    assert [found.one.key for found in done.doomed] == [claim("to 3", "weights").key]
    assert done.retired == {("solver", WEIGHTS): ((1, 5),)}


def test_what_another_record_names_as_well_stays() -> None:
    one = whole_run()
    one.fold_message(message(DeadLetter(RUN, detail=claim("w2", "weights").key), TOPICS.dead_letters))
    publishes_elsewhere = WeightsPublished("run-2", "solver", version=1, weights=claim("w3", "weights"))
    one.fold_message(message(publishes_elsewhere, "beside.weights.solver"))
    assert sum(kind == "weights" for kind, _ in of(plan(one, NO_AGE, NOW, PREFIX))) == 3


def test_what_is_young_stays() -> None:
    age = timedelta(days=1)
    old, young = claim("old"), claim("young")
    objects = [*listed(old, modified=NOW - age), *listed(young, modified=NOW - age + timedelta(seconds=1))]
    done = plan(marker(*objects), CollectionRequest(), NOW, PREFIX)
    assert [one.one.key for one in done.doomed] == [old.key]
    assert (done.kept["young"], done.kept["named"].objects) == (Counted(1, 10), 0)


def test_an_age_is_a_number_and_a_unit() -> None:
    for text, hours in (("0s", 0), ("90m", 1.5), ("36h", 36), ("2d", 48)):
        assert duration_of(text) == timedelta(hours=hours)
    for text in ("", "1", "d", "1.5h", "-1d", "1w"):
        with pytest.raises(UsageError, match="36h"):
            duration_of(text)


def test_versions_of_a_shadow_are_kept_and_retired_beside_those_of_its_policy() -> None:
    """The first version of both is one object: it goes when neither needs it."""
    shared, own = claim("version 0", "weights"), claim("its version 1", "weights")
    found = Marker(RUN, TOPICS, ["solver", "solver.free"], PREFIX, listed(shared, own))
    event = WeightsPublished(run_id=RUN, policy="solver", version=0, weights=shared)
    found.fold_message(message(event, TOPICS.weights("solver")))
    for version, weights in ((0, shared), (1, own)):
        beside = dataclasses.replace(event, variant="free", version=version, weights=weights)
        found.fold_message(message(beside, TOPICS.weights("solver.free")))
    retired = ObjectsRetired(
        run_id=RUN, policy="solver", variant="free", what=WEIGHTS, versions=np.array([0, 0], np.int32)
    )
    found.fold_message(message(retired, TOPICS.state, key_of_retired("solver.free", WEIGHTS)))

    assert unnamed(found) == set()
    assert {one.key: refs for one, refs in found.find_named_by_versions()} == {
        shared.key: {("solver", WEIGHTS, 0), ("solver.free", WEIGHTS, 0)},
        own.key: {("solver.free", WEIGHTS, 1)},
    }
    assert found.retired.has_version("solver.free", WEIGHTS, 0)
    assert not found.retired.has_version("solver", WEIGHTS, 0)
