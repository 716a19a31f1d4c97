"""A cluster with users and rights: who may use the run's names alone runs, and what is missing is told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AclOperation, ResourceType
from guarded_kafka import GuardedKafka
from stoppable import until

from headrace.infra.kafka.clients import Connection, Outgoing
from headrace.infra.kafka.cluster_topics import NotLetIn, fetch_topics
from headrace.infra.kafka.topic_admin import ensure_topics
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.recipe.settings import Recipe
from headrace.ops.preflight.cluster import (
    ClusterUnfit,
    examine_cluster,
    find_needs,
    find_needs_of_unbegun,
    refuse_unfit,
)
from headrace.ops.preflight.contract import Finding

pytestmark = pytest.mark.servers

TOPIC, GROUP, TRANSACTIONS = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
NEEDED = (
    (TOPIC, AclOperation.CREATE),
    (TOPIC, AclOperation.DESCRIBE_CONFIGS),
    (TOPIC, AclOperation.READ),
    (TOPIC, AclOperation.WRITE),
    (GROUP, AclOperation.READ),
    (TRANSACTIONS, AclOperation.WRITE),
)
"""The rights that docs/shared-cluster.md lists; those that others hold are left out."""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedKafka]:
    with GuardedKafka(tmp_path_factory.mktemp("guarded")) as server:
        yield server


def name_rights(findings: list[Finding]) -> list[str]:
    return [
        one.detail.removeprefix("the right ").partition(" is missing")[0] for one in findings if one.what == "rights"
    ]


def write_and_read(connection: Connection, recipe: Recipe) -> list[bytes]:
    """Write a record in a transaction, and return all records of its topic."""
    writer = TransactionalWriter(connection, f"{recipe.name}.feed")
    writer.begin()
    writer.produce([Outgoing(recipe.topics.dead_letters, b"one")])
    writer.commit()
    writer.close()
    return [message.value for message in read_all(connection, [recipe.topics.dead_letters])]


def test_who_is_not_let_in_is_told_what_to_set(guarded: GuardedKafka) -> None:
    with pytest.raises(NotLetIn, match=r"Invalid username or password.*: correct sasl\.mechanism, sasl\.username"):
        fetch_topics(guarded.connect("alice", "wrong"), 60)
    with pytest.raises(
        NotLetIn,
        match=r"uses SASL_PLAINTEXT \(PLAIN\), but this client uses PLAINTEXT: set .*HEADRACE_KAFKA_CLIENT",
    ):
        fetch_topics(Connection(guarded.address), 60)
    with pytest.raises(NotLetIn, match="but this client uses SSL"):
        fetch_topics(Connection(guarded.address, {"security.protocol": "SSL"}), 60)
    fetch_topics(guarded.connect("alice"), 60)


def test_over_tls_who_trusts_the_certificate_reads_and_writes_and_who_does_not_is_told(
    guarded: GuardedKafka, run_name: str
) -> None:
    with pytest.raises(NotLetIn, match=r"certificate.*ssl\.ca\.location"):
        fetch_topics(guarded.connect_encrypted("alice"), 60)
    guarded.allow("alice", run_name, NEEDED)
    connection = guarded.connect_encrypted("alice", guarded.certificate)
    recipe = load_recipe("arithmetic", [f"name={run_name}"])
    ensure_topics(connection, recipe.topic_specs)
    assert write_and_read(connection, recipe) == [b"one"]


def test_with_the_rights_that_are_written_down_a_run_is_begun_written_and_read(
    guarded: GuardedKafka, run_name: str
) -> None:
    guarded.allow("alice", run_name, NEEDED)
    connection = guarded.connect("alice")
    recipe = load_recipe("arithmetic", [f"name={run_name}"])
    wanted = find_needs(recipe, recipe.topic_specs)
    refuse_unfit(connection, wanted)
    ensure_topics(connection, recipe.topic_specs)
    refuse_unfit(connection, wanted)
    assert name_rights(examine_cluster(connection, wanted)) == [
        f"Delete on topic {wanted.topics[0].name} and {len(wanted.topics) - 1} more"
    ]

    assert write_and_read(connection, recipe) == [b"one"]


def test_each_right_that_is_missing_is_named_with_the_option_that_grants_it(
    guarded: GuardedKafka, run_name: str
) -> None:
    recipe = load_recipe("arithmetic", [f"name={run_name}"])
    wanted = find_needs(recipe, recipe.topic_specs)
    first, more = wanted.topics[0].name, len(wanted.topics) - 1
    stranger = guarded.connect("bob")
    assert name_rights(examine_cluster(stranger, find_needs_of_unbegun(run_name))) == [
        *(f"{operation} on topic {run_name}.recipe" for operation in ("Create", "Delete", "Describe", "Read", "Write")),
        f"Read on group {run_name}.look",
        f"Write on transactional id {run_name}.look",
    ]

    guarded.allow("carol", run_name, NEEDED)
    ensure_topics(guarded.connect("carol"), recipe.topic_specs)
    guarded.allow("bob", run_name, [(TOPIC, AclOperation.READ), (GROUP, AclOperation.DESCRIBE)])
    until(lambda: first in fetch_topics(stranger, 60).topics, "the broker knows its rights")
    found = examine_cluster(stranger, wanted)
    assert name_rights(found) == [
        f"Delete on topic {first} and {more} more",
        f"DescribeConfigs on topic {first} and {more} more",
        f"Write on topic {first} and {more} more",
        f"Read on group {wanted.groups[0]} and {len(wanted.groups) - 1} more",
        f"Write on transactional id {run_name}.look",
    ]
    with pytest.raises(
        ClusterUnfit,
        match=rf"--add --allow-principal User:\S+ --operation Write --topic {run_name}\. --resource-pattern-type pre",
    ):
        refuse_unfit(stranger, wanted)
