"""What a cluster lacks is found by one look, before anything starts, and said in one list."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from made_recipes import sums_recipe
from typer.testing import CliRunner

from headrace.app.cli.main import app
from headrace.infra.kafka import advertised
from headrace.infra.kafka.advertised import AddressUnreachable, Advertised, refuse_unreachable, try_addresses
from headrace.infra.kafka.clients import Connection
from headrace.infra.kafka.cluster_sight import SeenCluster, SeenGroup, SeenTopic
from headrace.ops import opened_run
from headrace.ops.preflight import cluster
from headrace.ops.preflight.cluster import ClusterUnfit, check_cluster, find_needs, refuse_unfit

RECIPE = sums_recipe()
WANTED = find_needs(RECIPE, RECIPE.topic_specs)
ALL = frozenset({"READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS", "DELETE"})
SETTINGS = {"group.coordinator.rebalance.protocols": "classic,consumer,streams", "transaction.max.timeout.ms": "900000"}
SOUND = SeenCluster(
    "k:1",
    (Advertised("k", 1),),
    SETTINGS,
    {spec.name: SeenTopic(spec.partitions, 1, {**spec.config, **spec.made_with}, ALL) for spec in WANTED.topics},
    {group: SeenGroup(operations=frozenset({"READ", "DESCRIBE"})) for group in WANTED.groups},
)
CURATED = "t.curated.solver"
BATCHES = "t.batches.solver"
GRANT = "kafka-acls --add --allow-principal User:NAME --operation"


def with_topic(name: str, **config: str) -> SeenCluster:
    topic = SOUND.topics[name]
    changed = replace(topic, config={**(topic.config or {}), **{key.replace("_", "."): v for key, v in config.items()}})
    return replace(SOUND, topics={**SOUND.topics, name: changed})


def without(topic: str, **more: Any) -> SeenCluster:
    return replace(SOUND, topics={name: seen for name, seen in SOUND.topics.items() if name != topic}, **more)


def test_of_a_sound_cluster_every_check_is_ok() -> None:
    found = check_cluster(SOUND, WANTED)
    assert [finding.what for finding in found if finding.ok] == [
        "addresses", "version", "group protocol", "transactions", "topics", "rights", "groups", "round trip",
    ]  # fmt: skip
    assert all(finding.ok for finding in check_cluster(replace(SOUND, topics={}, settings=None), WANTED))
    assert list(WANTED.groups) == ["t.rollout.sums", "t.curate.solver", "t.up"]


LACKS: list[tuple[str, Callable[[], SeenCluster], str]] = [
    ("version", lambda: replace(SOUND, settings={"inter.broker.protocol.version": "3.9-IV0"}), "4.0 or newer"),
    (
        "group protocol",
        lambda: replace(SOUND, settings={"group.coordinator.rebalance.protocols": "classic"}),
        "protocols of the brokers is classic: add consumer to it",
    ),
    (
        "transactions",
        lambda: replace(SOUND, settings={"transaction.state.log.replication.factor": "3"}),
        "but the cluster has 1 broker(s), so transactions cannot work",
    ),
    ("transactions", lambda: replace(SOUND, settings={"transaction.max.timeout.ms": "5"}), "10000 or more"),
    ("transactions", lambda: replace(SOUND, refused={"transactions": "no answer"}), "no answer"),
    (
        "rights",
        lambda: replace(SOUND, refused={"transactions": "Transactional Id authorization failed"}),
        f"id t.look is missing: {GRANT} Write --transactional-id t. --resource-pattern-type prefix",
    ),
    (
        "rights",
        lambda: without(CURATED, forbidden={CURATED: frozenset({"CREATE"})}),
        f"Create on topic {CURATED} is missing: {GRANT} Create --topic t. ",
    ),
    ("topics", lambda: without(CURATED, unmakeable={CURATED: "3 replicas, please"}), "cannot be made: 3 replicas"),
    ("topics", lambda: with_topic(CURATED, max_message_bytes="200"), f"{CURATED} has max.message.bytes=200"),
    ("topics", lambda: with_topic(BATCHES, max_message_bytes="200"), f"{BATCHES} has max.message.bytes=200"),
    ("topics", lambda: with_topic(BATCHES, message_timestamp_before_max_ms="1"), "before.max.ms=1: set it to 3600000"),
    ("topics", lambda: with_topic(BATCHES, cleanup_policy="compact"), "cleanup.policy=compact: set it to delete"),
    ("topics", lambda: with_topic(BATCHES, min_insync_replicas="2"), "refuses all records"),
    (
        "topics",
        lambda: replace(SOUND, topics={}, settings={"message.max.bytes": "20000"}),
        "message.max.bytes=20000, and new topics such as t.tasks.sums would inherit it: set it to 1048588",
    ),
    (
        "topics",
        lambda: replace(SOUND, topics={}, settings={"log.message.timestamp.before.max.ms": "1"}),
        "before.max.ms=1, and new topics such as",
    ),
    (
        "topics",
        lambda: replace(SOUND, topics={}, settings={"min.insync.replicas": "2"}),
        "new topics refuse all records",
    ),
    ("topics", lambda: replace(SOUND, settings={"log.cleaner.enable": "false"}), "grow for ever: set it to true"),
    (
        "topics",
        lambda: replace(SOUND, topics={**SOUND.topics, BATCHES: SeenTopic(4)}),
        f"{BATCHES} has 4 partitions, but the run needs 1. The number is fixed for a run: begin a new run with --set",
    ),
    (
        "rights",
        lambda: replace(
            SOUND, topics={**SOUND.topics, BATCHES: replace(SOUND.topics[BATCHES], operations=ALL - {"WRITE"})}
        ),
        f"the right Write on topic {BATCHES} is missing: {GRANT} Write --topic t. --resource-pattern-type",
    ),
    (
        "rights",
        lambda: replace(SOUND, groups={"t.curate.solver": SeenGroup(operations=frozenset({"DESCRIBE"}))}),
        f"Read on group t.curate.solver is missing: {GRANT} Read --group t. --resource-",
    ),
    (
        "groups",
        lambda: replace(SOUND, groups={"t.curate.solver": SeenGroup(is_at_work=True, is_classic=True)}),
        "another program is a member",
    ),
]


@pytest.mark.parametrize(("what", "seen", "said"), LACKS, ids=[said for _, _, said in LACKS])
def test_what_a_cluster_lacks_is_named_with_its_remedy(what: str, seen: Callable[[], SeenCluster], said: str) -> None:
    lacking = [finding for finding in check_cluster(seen(), WANTED) if not finding.ok]
    assert [finding.what for finding in lacking] == [what]
    assert said in lacking[0].detail


def test_topics_as_the_documentation_lists_them_are_fit_and_what_only_tunes_is_a_note() -> None:
    made = {
        spec.name: replace(SOUND.topics[spec.name], config={"segment.bytes": "1", **spec.config})
        for spec in WANTED.topics
    }
    made[CURATED] = with_topic(CURATED, max_message_bytes=str(64 << 20)).topics[CURATED]
    [topics] = [one for one in check_cluster(replace(SOUND, topics=made), WANTED) if one.what == "topics"]
    assert (topics.ok, topics.is_note) == (True, True)
    assert "t.state has segment.bytes=1, better is 16777216" in topics.detail
    assert CURATED not in topics.detail


def test_each_missing_right_is_a_line_and_what_a_run_can_do_without_is_no_fault() -> None:
    nothing = replace(SOUND, topics={name: replace(one, operations=frozenset()) for name, one in SOUND.topics.items()})
    rights = [finding for finding in check_cluster(nothing, WANTED) if finding.what == "rights"]
    assert [(one.ok, one.detail.partition(" on ")[0]) for one in rights] == [
        (True, "the right Delete"), (False, "the right Describe"), (False, "the right DescribeConfigs"),
        (False, "the right Read"), (False, "the right Write"),
    ]  # fmt: skip
    assert f"and {len(WANTED.topics) - 1} more is missing" in rights[-1].detail
    unseen = replace(SOUND, settings=None, refused={"settings": "Cluster authorization failed"})
    [version] = [finding for finding in check_cluster(unseen, WANTED) if finding.what == "version"]
    assert version.ok
    assert "--operation DescribeConfigs --cluster allows it" in version.detail
    assert [one.is_note for one in (rights[0], version, rights[1])] == [True, True, False]


def test_all_that_is_wrong_is_one_list_and_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = replace(with_topic(BATCHES, max_message_bytes="200"), settings={"inter.broker.protocol.version": "3.9-IV0"})
    monkeypatch.setattr(cluster, "look_at_cluster", lambda *_: seen)
    with pytest.raises(
        ClusterUnfit, match=r"(?s)^the Kafka cluster at k:1 cannot.*\n  version: .*\n  topics: "
    ) as raised:
        refuse_unfit(Connection("k:1"), WANTED)
    assert raised.value.exit_code == 2
    monkeypatch.setattr(cluster, "look_at_cluster", lambda *_: SOUND)
    refuse_unfit(Connection("k:1"), WANTED)


def test_doctor_prints_every_check_of_a_cluster_and_its_exit_code_says_whether_one_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = SOUND
    monkeypatch.setattr(cluster, "look_at_cluster", lambda *_: seen)
    monkeypatch.setattr(cluster, "list_runs", lambda *_: [])
    done = CliRunner().invoke(app, ["doctor", "--run", "kafka://k:1/t"])
    assert (done.exit_code, done.output.count("ok  "), done.output.count("note")) == (0, 7, 2), done.output
    seen = replace(SOUND, brokers=(Advertised("k", 1, "refused"),))
    done = CliRunner().invoke(app, ["doctor", "--run", "kafka://k:1/t"])
    assert (done.exit_code, "advertises k:1 (refused)" in done.output) == (1, True)


def test_who_opens_a_run_is_told_of_an_address_that_nobody_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = (Advertised("inner", 9092, "refused"),)
    monkeypatch.setattr(advertised, "look_at_advertised", lambda _: silent)
    monkeypatch.setattr(opened_run, "list_runs", lambda *_: pytest.fail("it was asked further"))
    with (
        pytest.raises(AddressUnreachable, match=r"advertises inner:9092 \(refused\)"),
        opened_run.open_run("kafka://k:1/t", None),
    ):
        pass


def test_of_a_cluster_that_advertises_an_address_nobody_reaches_nothing_else_is_asked() -> None:
    [finding] = check_cluster(SeenCluster("k:1", (Advertised("far", 9, "timed out"),)), WANTED)
    assert (finding.ok, finding.what) == (False, "addresses")
    assert "Kafka at k:1 advertises far:9 (timed out), which does not answer from here" in finding.detail


def test_addresses_are_tried_and_those_that_do_not_answer_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        here, nobody = server.getsockname()[1], closed.getsockname()[1]
        monkeypatch.setattr(advertised, "CONNECT_S", 0.5)
        asked = [("127.0.0.1", here), ("127.0.0.1", nobody), ("no-such-host.invalid", 9092)]
        found = try_addresses(Connection(f"127.0.0.1:{here}"), asked)
        [mute] = try_addresses(Connection("k:1"), [("127.0.0.1", here)])
    assert [bool(one.error) for one in found] == [False, True, True], "the first has just answered"
    assert mute.error == "the address accepts connections, but no broker answers within 0.5 s"

    listed = SimpleNamespace(
        brokers={at: SimpleNamespace(host=one.host, port=one.port) for at, one in enumerate(found)}
    )
    monkeypatch.setattr(advertised, "fetch_topics", lambda *_: listed)
    looks = iter([found, found[1:]])
    monkeypatch.setattr(advertised, "try_addresses", lambda *_: next(looks))
    with pytest.raises(AddressUnreachable, match=rf"Kafka at k:1 advertises 127\.0\.0\.1:{nobody} \(.*refused"):
        refuse_unreachable(Connection("k:1"))
    looks = iter([found, tuple(replace(one, error="") for one in found[1:])])
    refuse_unreachable(Connection("k:1"))


def test_a_slow_cluster_is_fit_and_begins_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    for took_s in (0.004, 0.32):
        monkeypatch.setattr(cluster, "look_at_cluster", lambda *_, took_s=took_s: replace(SOUND, round_trip_s=took_s))
        refuse_unfit(Connection("k:1"), WANTED, said.append)

    [sentence] = said
    assert sentence.startswith("Kafka at k:1: a request takes 320 ms")
    assert "into a region" in sentence
