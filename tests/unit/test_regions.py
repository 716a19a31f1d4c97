"""A run with regions: which tasks a region gets, when it is lost, and which weights it needs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from made_recipes import sums_recipe
from pydantic import ValidationError

from headrace.consumers.relay.mirror import plan_mirror
from headrace.consumers.relay.way import Published, RelayWay
from headrace.infra.embedded.data_folder import UP, DataFolder
from headrace.infra.embedded.mirror_maker import translate_client
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Connection, RunAddress
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import StoreAddress
from headrace.ops.cleaning import clean_folder
from headrace.producers.feed.pacing import Pacing, Quota
from headrace.producers.feed.silent_regions import SilentRegions
from headrace.schemas.ids import GroupId
from headrace.schemas.records import ClaimCheck, WeightsPublished

RECIPE = sums_recipe(regions={"west": {}, "east": {"lost_after_s": 60}}, kafka={"partitions": 2})


def run(bootstrap: str) -> Run:
    return Run(RunAddress(Connection(bootstrap), "t"), "r", (RECIPE,), StoreAddress("nowhere:2", "b", "key", "key"))


def test_each_workflow_has_a_stream_at_home_and_in_every_region() -> None:
    assert RECIPE.streams == ("sums", "sums.west", "sums.east")
    names = {spec.name for spec in RECIPE.topic_specs}
    assert {"t.tasks.sums", "t.tasks.sums.west", "t.tasks.sums.east", "t.eval-tasks.sums"} <= names
    with pytest.raises(ValidationError, match="must have at most 63 letters"):
        sums_recipe(regions={"a.b": {}})


def pacing(most: int) -> Pacing:
    return Pacing(dict.fromkeys(RECIPE.streams, ("solver",)), {"solver": Quota(most, 10)}, "any", partitions=2)


def test_regions_get_tasks_as_fast_as_they_answer_and_one_that_is_cut_off_gets_no_more() -> None:
    state, issued = pacing(12), {"sums": 0, "sums.west": 0, "sums.east": 0}
    for _ in range(12):
        stream = state.choose_stream()
        assert stream is not None
        issued[stream] += 1
        state.issue(stream, 0, "")
    assert issued == {"sums": 4, "sums.west": 4, "sums.east": 4}, "nobody has answered yet"
    for number in range(4, 40):
        for stream in ("sums", "sums.west"):  # home answers twice as fast, east not at all
            for _ in range(2 if stream == "sums" else number % 2):
                group = next((one for one in state.tasks if one.stream == stream), None)
                if group is not None:
                    state.acknowledge(group, "solver")
                    state.conclude(group, "solver")
        while (chosen := state.choose_stream()) is not None:
            issued[chosen] += 1
            state.issue(chosen, 0, "")
    assert issued["sums.east"] == 4
    assert issued["sums"] > issued["sums.west"] > 10


def test_the_open_tasks_of_a_region_that_stays_silent_are_issued_again_at_home() -> None:
    state, regions = pacing(4), SilentRegions({"west": 600.0, "east": 60.0})
    for stream in ("sums", "sums.west", "sums.east", "sums.east"):
        state.issue(stream, 0, "")
    assert regions.look(state.tasks, state.answers, 0).lost == {}
    assert regions.look(state.tasks, state.answers, 59).lost == {}
    state.acknowledge(GroupId("sums.east", 0), "solver")
    assert regions.look(state.tasks, state.answers, 61).lost == {}, "it has answered since"
    assert regions.look(state.tasks, state.answers, 121).lost == {"sums.east": [GroupId("sums.east", 1)]}
    group = GroupId("sums.east", 1)
    state.move_home(group)
    task = state.reissue(group)
    assert (task.find_queue("sums.east"), task.attempt) == ("sums", 1)
    assert sum(state.count_outstanding("sums.east")) == 0
    assert sum(state.count_outstanding("sums")) == 2
    assert regions.look(state.tasks, state.answers, 500).lost == {}, "it is at home now, and west has time left"
    assert regions.look(state.tasks, state.answers, 700).lost == {"sums.west": [GroupId("sums.west", 0)]}
    second = pacing(4)
    second.restore(state.snapshot(), [one for one in state.table.take_changes().values() if one is not None])
    assert second.tasks[group].is_home


def test_what_a_silent_region_holds_takes_no_room_at_home_and_one_task_shows_when_it_is_back() -> None:
    state, regions = pacing(12), SilentRegions({"west": 6000.0, "east": 60.0})

    def fill(now_s: float) -> dict[str, int]:
        silent = regions.look(state.tasks, state.answers, now_s)
        for group in (group for groups in silent.lost.values() for group in groups):
            state.move_home(group)
        state.silent, before = silent, dict(state.next)
        while (stream := state.choose_stream()) is not None:
            state.issue(stream, 0, "")
        return {stream: number - before[stream] for stream, number in state.next.items() if number > before[stream]}

    assert fill(0) == {"sums": 4, "sums.west": 4, "sums.east": 4}
    assert fill(5) == {}
    assert fill(11) == {"sums": 2, "sums.west": 2}, "the four of east take no room"
    assert fill(65) == {}, "east is lost, and its four are at home"
    for number in range(5):
        state.conclude(GroupId("sums", number), "solver")
    assert fill(66) == {"sums.east": 1}, "one task asks for it"
    assert list(fill(73)) in (["sums"], ["sums.west"]), "which takes no room either"
    for group in [one for one in state.tasks if one.stream in {"sums", "sums.east"}]:
        state.conclude(group, "solver")
    assert fill(74)["sums.east"] > 1, "it is back"


def test_after_the_end_of_a_run_nobody_waits_long_for_a_region() -> None:
    state, regions = pacing(4), SilentRegions({"west": 600.0})
    state.issue("sums.west", 0, "")
    assert regions.look(state.tasks, state.answers, 0, ended=True).lost == {}
    assert "sums.west" in regions.look(state.tasks, state.answers, 10, ended=True).lost


def published(version: int, kind: str = "delta", size: int = 1) -> WeightsPublished:
    claim = ClaimCheck("main", f"k{version}", "s", size)
    base = f"w{version - 1}" if kind == "delta" else ""
    return WeightsPublished(
        "r", "solver", version=version, kind=kind, base_hash=base, weights_hash=f"w{version}", weights=claim
    )


def way(*events: WeightsPublished, held: str = "", relayed: int = -1) -> RelayWay:
    found = RelayWay(held, relayed)
    for offset, event in enumerate(events):
        found.fold_event(offset, event)
    return found


def test_a_region_gets_every_version_while_it_follows_and_the_cheapest_way_after_it_was_cut_off() -> None:
    events = [published(0, "anchor", 10), *(published(version) for version in range(1, 4))]
    new = way(*events)
    assert [one.event.version for one in new.plan()] == [0, 1, 2, 3]
    for one in new.plan():
        new.note_relayed(one)
    assert new.plan() == []
    new.fold_event(4, published(4))
    assert [one.event.version for one in new.plan()] == [4]
    for offset in range(5, 30):
        new.fold_event(offset, published(offset))
    new.fold_event(30, published(30, "anchor", 10))
    new.fold_event(31, published(31))
    assert [one.event.version for one in new.plan()] == [30, 31], "26 deltas cost more than whole weights and a delta"


def test_a_relay_that_starts_again_goes_on_after_what_the_region_has() -> None:
    events = [published(0, "anchor", 10), *(published(version) for version in range(1, 4))]
    assert way(*events, held="w3", relayed=3).plan() == []
    assert way(*events, held="w2", relayed=2).plan() == [Published(3, events[3])]


def test_an_object_that_is_lost_at_home_is_gone_round_once_whole_weights_are_published_again() -> None:
    new = way(published(0, "anchor", 10), published(1), published(2), held="w0", relayed=0)
    new.leave_out(new.plan()[0])
    assert new.plan() == []
    new.fold_event(3, published(2, "whole", 10))
    assert [one.offset for one in new.plan()] == [3], "two deltas are cheaper, but one is lost"


def test_a_mirror_copies_committed_tasks_out_and_what_workers_write_back() -> None:
    plan = plan_mirror(run("home:1"), run("west:2"), "west")
    lines = dict(line.split("=", 1) for line in plan.render().splitlines())
    assert lines["clusters"] == "r-home,r-region-west", "another run has a group and topics of its own in both clusters"
    assert lines["r-home->r-region-west.topics"] == r"t\\.recipe,t\\.tasks\\.sums\\.west"
    back = "trajectories.solver", "eval-groups.solver", "workers", "dead-letters"
    assert lines["r-region-west->r-home.topics"].replace("\\", "") == ",".join(f"t.{name}" for name in back)
    assert {lines[f"{name}.consumer.isolation.level"] for name in lines["clusters"].split(",")} == {"read_committed"}


def test_logins_are_given_to_the_mirror_in_the_form_of_java() -> None:
    client = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": 'p"q'}
    found = translate_client({**client, "ssl.ca.location": "/ca.pem", "linger.ms": "5"}, "west")
    assert found["sasl.jaas.config"].endswith(r'PlainLoginModule required username="u" password="p\"q";')
    assert found["ssl.truststore.location"] == "/ca.pem"
    assert "linger.ms" not in found
    with pytest.raises(UsageError, match="cannot log in to the Kafka of west"):
        translate_client({"sasl.mechanism": "GSSAPI"}, "west")
    with pytest.raises(UsageError, match=r"cannot give ssl\.key\.location of the Kafka of west"):
        translate_client({"ssl.key.location": "/key.pem"}, "west")


@pytest.mark.parametrize("server", ["kafka", "store", "mirror"])
def test_clean_stops_and_removes_the_servers_that_a_region_left(tmp_path: Path, server: str) -> None:
    folder = DataFolder(tmp_path / "data")
    place = folder.regions / "west" / server
    place.mkdir(parents=True)
    with folder.hold(UP):
        pass
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", place]) as left:
        record = {"pid": left.pid, "created": psutil.Process(left.pid).create_time()}
        (place / "server.json").write_text(json.dumps(record))
        try:
            assert clean_folder(folder)[1] == []
            left.wait(10)
        finally:
            left.kill()
    assert not folder.root.exists()
