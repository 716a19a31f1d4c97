"""Checks whether a Kafka cluster fits a run. Only the functions at the end do I/O."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.infra.errors import HeadraceError, UsageError
from headrace.infra.inflection import inflect
from headrace.infra.kafka.advertised import describe_unreachable
from headrace.infra.kafka.client_settings import merge_client_settings
from headrace.infra.kafka.clients import TRANSACTION_TIMEOUT_MS, Connection, RunAddress
from headrace.infra.kafka.cluster_sight import SeenCluster, SeenTopic, look_at_cluster
from headrace.infra.kafka.run_address import parse_run
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.revisions import read_first_revision, read_topic_specs
from headrace.infra.run.run import join, list_runs
from headrace.infra.store.store_address import StoreAddress
from headrace.ops.preflight.contract import Finding
from headrace.ops.preflight.store import examine_store
from headrace.schemas.topics import Topics, TopicSpec, list_unmet

LEAST = {
    "max.message.bytes": 1_048_588,
    "message.timestamp.before.max.ms": 3_600_000,
    "message.timestamp.after.max.ms": 3_600_000,
}
"""Smallest value of each setting of a topic. The size is Kafka's default: a smaller one would refuse ordinary records.
A record may reach its topic an hour late, because it waits while a server is away."""
BROKERS_NAME = {
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
}
"""Setting of a topic to the brokers' setting that a new topic gets its value from."""
CLUSTER_PATIENCE_S = 10.0
ROUND_TRIP = "round trip"
SLOW_S = 0.1
"""Seconds of a request from which a run is slow: each turn of a component waits for several."""
RIGHTS = frozenset({"READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS", "CREATE"})
"""Rights that the parts of a run need together on every topic; CREATE only for a topic that does not exist yet."""
REPLICATED = (
    ("__transaction_state", "transaction.state.log.replication.factor", "transactions"),
    ("__consumer_offsets", "offsets.topic.replication.factor", "consumer groups"),
)
"""Kafka's own topics, made at first use with this many replicas. With fewer brokers Kafka cannot make them."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The topics, groups and transactional id that a run uses on a cluster."""

    topics: tuple[TopicSpec, ...] = ()
    groups: tuple[str, ...] = ()
    transactional_id: str = ""
    """Transactional id of the transaction that the check tries; empty to try none."""
    unbegun: str = ""
    """Name of a run that may not have begun. Its topics are not known, so only its recipe topic is checked."""


class ClusterUnfit(UsageError):
    """The cluster lacks something that the run needs."""


def find_needs(recipe: Recipe, specs: Iterable[TopicSpec]) -> Wanted:
    """Return what a run uses: its topics, its groups, and a transactional id with its name that no component has."""
    topics = recipe.topics
    groups = [topics.rollout_group(workflow) for workflow in recipe.workflows]
    groups += [topics.curate_group(one) for one in recipe.policy_variants]
    return Wanted(tuple(specs), (*groups, topics.up_group), f"{recipe.name}.look")


def find_needs_of_unbegun(run: str) -> Wanted:
    """Return what any run of that name uses, as far as it is known without a recipe."""
    recipe_topic = Topics(run).recipe
    return Wanted((TopicSpec(recipe_topic, 1),), (f"{run}.look",), f"{run}.look", unbegun=run)


def check_cluster(seen: SeenCluster, wanted: Wanted, user: str = "NAME") -> list[Finding]:
    """Return every check, each ok or with what to do. If no broker can be reached, the other checks are left out.

    Args:
        seen: What the cluster answered.
        wanted: What the run needs.
        user: Name of the Kafka user, for the commands that grant rights.
    """
    addresses = _check_addresses(seen)
    if not addresses.ok:
        return [addresses]
    return [
        addresses,
        _check_version(seen, user),
        _check_group_protocol(seen),
        _check_transactions(seen),
        _check_topics(seen, wanted),
        *_check_rights(seen, wanted, user),
        _check_groups(seen),
        _check_round_trip(seen),
    ]


def _check_addresses(seen: SeenCluster) -> Finding:
    if silent := [broker for broker in seen.brokers if broker.error]:
        return Finding("addresses", ok=False, detail=describe_unreachable(seen.bootstrap, silent))
    verb = "answer" if len(seen.brokers) > 1 else "answers"
    return Finding("addresses", ok=True, detail=f"{', '.join(map(str, seen.brokers)) or 'none'} {verb} from here")


def _check_version(seen: SeenCluster, user: str) -> Finding:
    if seen.settings is None:
        why = seen.refused.get("settings", "it was not asked")
        grant = f"; {build_grant_command(user, 'DESCRIBE_CONFIGS', 'cluster')} allows it" if is_forbidden(why) else ""
        detail = f"not known: the brokers' settings cannot be read ({why}){grant}"
        return Finding("version", ok=True, detail=detail, is_note=True)
    if (protocol := seen.settings.get("inter.broker.protocol.version")) is not None:  # brokers have none from 4.0 on
        return Finding("version", ok=False, detail=f"the brokers must be of Kafka 4.0 or newer; they are of {protocol}")
    return Finding("version", ok=True, detail="4.0 or newer")


def _check_round_trip(seen: SeenCluster) -> Finding:
    took = f"a request takes {seen.round_trip_s * 1000:.0f} ms"
    if seen.round_trip_s < SLOW_S:
        return Finding(ROUND_TRIP, ok=True, detail=took)
    detail = (
        f"{took}, and each turn of a component waits for several: start feeder, curators and trainers near Kafka, and "
        "put workers that are far from it into a region (docs/regions.md)"
    )
    return Finding(ROUND_TRIP, ok=True, detail=detail, is_note=True)


def _check_group_protocol(seen: SeenCluster) -> Finding:
    protocols = (seen.settings or {}).get("group.coordinator.rebalance.protocols")
    if protocols is not None and "consumer" not in protocols.replace(" ", "").split(","):
        detail = f"group.coordinator.rebalance.protocols of the brokers is {protocols}: add consumer to it (KIP-848)"
        return Finding("group protocol", ok=False, detail=detail)
    return Finding(
        "group protocol", ok=True, detail="consumer (KIP-848)" if protocols else "not known", is_note=not protocols
    )


def _check_transactions(seen: SeenCluster) -> Finding:
    settings, lacking = seen.settings or {}, []
    for topic, key, what in REPLICATED:
        if topic not in seen.topics and int(settings.get(key, 1)) > len(seen.brokers):
            lacking.append(
                f"{key} is {settings[key]}, but the cluster has {len(seen.brokers)} broker(s), so {what} cannot work: "
                f"set it to {len(seen.brokers)}, or add brokers"
            )
    most_ms = int(settings.get("transaction.max.timeout.ms", TRANSACTION_TIMEOUT_MS))
    if most_ms < TRANSACTION_TIMEOUT_MS:
        lacking.append(f"transaction.max.timeout.ms must be {TRANSACTION_TIMEOUT_MS} or more; it is {most_ms}")
    why = seen.refused.get("transactions", "")
    lacking += [why] if why and not lacking and not is_forbidden(why) else []
    tried = "not tried: see rights" if why else "work"
    return Finding("transactions", ok=not lacking, detail="; ".join(lacking) or tried, is_note=bool(why))


def _check_topics(seen: SeenCluster, wanted: Wanted) -> Finding:
    specs = wanted.topics
    there = [spec for spec in specs if spec.name in seen.topics]
    lacking = [words for spec in there for words in _find_differences(spec, seen.topics[spec.name])]
    lacking += _find_wrong_defaults(seen.settings or {}, [spec for spec in specs if spec.name not in seen.topics])
    lacking += [f"{name} cannot be made: {why}" for name, why in seen.unmakeable.items()]
    if lacking:
        return Finding("topics", ok=False, detail="; ".join(lacking))
    if wanted.unbegun:
        detail = f"not checked: `headrace topics RECIPE` lists the topics that run {wanted.unbegun} needs"
        return Finding("topics", ok=True, detail=detail, is_note=True)
    missing = len(specs) - len(there)
    unread = sum(seen.topics[spec.name].config is None for spec in there)
    words = (
        [f"{len(there)} {inflect(len(there), 'is', 'are')} as the run needs {'them' if len(there) > 1 else 'it'}"]
        if there
        else []
    )
    words += [f"{missing} {inflect(missing, 'is', 'are')} missing and will be created"] if missing else []
    words += [f"the settings of {unread} cannot be read ({seen.refused.get('topics', '')})"] if unread else []
    wishes = [
        f"{spec.name} has {key}={config[key]}, better is {spec.made_with[key]}"
        for spec in there
        for config in [seen.topics[spec.name].config or {}]
        for key in list_unmet(spec.made_with, config)
    ]
    detail = ", ".join(words + wishes) or "the run needs none"
    return Finding("topics", ok=True, detail=detail, is_note=unread > 0 or bool(wishes))


def _find_wrong_defaults(settings: Mapping[str, str], to_be_made: Sequence[TopicSpec]) -> Iterator[str]:
    """Yield the brokers' settings with which new topics would refuse ordinary records, or old ones grow for ever."""
    if settings.get("log.cleaner.enable") == "false":
        yield "the brokers have log.cleaner.enable=false, so compacted topics grow for ever: set it to true"
    for key, least in LEAST.items():
        name = BROKERS_NAME[key]
        taking = [spec.name for spec in to_be_made if key not in spec.config]
        if taking and int(settings.get(name, least)) < least:
            yield (
                f"the brokers have {name}={settings[name]}, and new topics such as {taking[0]} would inherit it: set "
                f"it to {least} or more"
            )
    replicas = int(settings.get("default.replication.factor", 1))
    if to_be_made and int(settings.get("min.insync.replicas", 1)) > replicas:
        yield (
            f"the brokers have min.insync.replicas={settings['min.insync.replicas']} and default.replication.factor="
            f"{replicas}, so new topics refuse all records: lower min.insync.replicas, or raise "
            "default.replication.factor"
        )


def _find_differences(spec: TopicSpec, topic: SeenTopic) -> Iterator[str]:
    """Yield what is wrong with a topic, and the setting to change."""
    if topic.partitions != spec.partitions:
        there = f"{topic.partitions} {inflect(topic.partitions, 'partition')}"
        yield (
            f"{spec.name} has {there}, but the run needs {spec.partitions}. The number is fixed for a run: "
            "begin a new run with --set name=NAME; if this run has begun, add --branch to keep its weights"
        )
    config = topic.config or {}
    for key in list_unmet(spec.config, config):
        yield f"{spec.name} has {key}={config[key]}: set it to {spec.config[key]}"
    for key, least in LEAST.items():
        if key not in spec.config and int(config.get(key, least)) < least:
            yield f"{spec.name} has {key}={config[key]}: set it to {least} or more"
    if int(config.get("min.insync.replicas", 1)) > topic.replicas:
        yield (
            f"{spec.name} has min.insync.replicas={config['min.insync.replicas']}, but {topic.replicas} "
            f"{inflect(topic.replicas, 'replica')}, so it refuses all records: lower the setting, or add replicas"
        )


def _check_rights(seen: SeenCluster, wanted: Wanted, user: str) -> list[Finding]:
    """Return a check for each right that is missing, with the `kafka-acls` command that grants it."""
    lacking: dict[tuple[str, str], list[str]] = {}
    for spec in wanted.topics:
        for operation in sorted(_find_forbidden(seen, spec.name)):
            lacking.setdefault((operation, "topic"), []).append(spec.name)
    for name, group in seen.groups.items():
        if group.operations is not None and "READ" not in group.operations:
            lacking.setdefault(("READ", "group"), []).append(name)
    if is_forbidden(seen.refused.get("transactions", "")):
        lacking["WRITE", "transactional-id"] = [wanted.transactional_id]
    found = [
        Finding(
            "rights",
            ok=operation == "DELETE",
            detail=_describe_right(user, operation, kind, names),
            is_note=operation == "DELETE",
        )
        for (operation, kind), names in lacking.items()
    ]
    return found or [Finding("rights", ok=True, detail="all rights that a run needs, as far as Kafka shows them")]


def _find_forbidden(seen: SeenCluster, topic: str) -> frozenset[str]:
    """Return the operations on a topic that a run needs, or would use to delete, and has no right to."""
    if topic not in seen.topics:
        return seen.forbidden.get(topic, frozenset())
    operations = seen.topics[topic].operations
    return frozenset() if operations is None else (RIGHTS - {"CREATE"} | {"DELETE"}) - operations


def _describe_right(user: str, operation: str, kind: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    said = f"the right {_name_operation(operation)} on {kind.replace('-', ' ')} {names[0]}{more} is missing"
    if operation == "DELETE":
        said += "; a run works without it, but then nothing deletes finished tasks and the topics of `headrace compare`"
    return f"{said}: {build_grant_command(user, operation, kind, names[0].partition('.')[0])}"


def build_grant_command(user: str, operation: str, kind: str, run: str = "") -> str:
    """Return the `kafka-acls` command that grants a user an operation on names that begin with the name of a run."""
    resource = f"--{kind} {run}. --resource-pattern-type prefixed" if run else f"--{kind}"
    principal = shlex.quote(f"User:{user}")
    return f"kafka-acls --add --allow-principal {principal} --operation {_name_operation(operation)} {resource}"


def _name_operation(operation: str) -> str:
    return operation.title().replace("_", "")


def is_forbidden(why: str) -> bool:
    """Return whether an error text of Kafka is about missing rights."""
    return "authorization" in why.lower()


def _check_groups(seen: SeenCluster) -> Finding:
    if foreign := [name for name, group in seen.groups.items() if group.is_classic and group.is_at_work]:
        detail = (
            f"another program is a member of consumer {inflect(len(foreign), 'group')} {', '.join(foreign)}, with the "
            "classic group protocol: stop that program"
        )
        return Finding("groups", ok=False, detail=detail)
    words = [f"{name} has members" for name, group in seen.groups.items() if group.is_at_work]
    return Finding("groups", ok=True, detail=", ".join(words) or "without members")


# ------------------------------------------------------------------------------------------------------ with a cluster


def examine_cluster(connection: Connection, wanted: Wanted) -> list[Finding]:
    """Ask a cluster once; return every check. Raises KafkaAway and KafkaRefused if no broker answers."""
    seen = look_at_cluster(connection, wanted.topics, wanted.groups, wanted.transactional_id)
    return check_cluster(seen, wanted, connection.client.get("sasl.username", "NAME"))


def examine_run(text: str) -> list[Finding]:
    """Return the checks of the cluster in `kafka://host:port/run`, and of the run's topics if the run has begun.

    Raises UsageError for another text, KafkaAway and KafkaRefused when no broker answers.
    """
    address = parse_run(text)
    found = examine_cluster(address.connection, find_needs_of_unbegun(address.run))
    is_fit = all(finding.ok for finding in found)
    if not is_fit or address.run not in list_runs(address.connection, CLUSTER_PATIENCE_S):
        why = (
            f"known before run {address.run} begins" if is_fit else "checked, because the cluster failed another check"
        )
        detail = f"not {why}: `headrace doctor RECIPE` checks the store"
        return [*found, Finding("store", ok=True, detail=detail, is_note=True)]
    run = join(address, CLUSTER_PATIENCE_S)
    found = examine_cluster(address.connection, find_needs(run.recipe, run.topic_specs))
    return [*found, examine_store(run.store_address)]


def examine_servers(recipe: Recipe) -> Iterator[Finding]:
    """Yield the checks of the servers that a recipe names."""
    kafka, store = recipe.kafka, recipe.store
    if store.endpoint:
        yield examine_store(StoreAddress(store.endpoint, store.bucket, secure=store.secure, region=store.region))
    if not kafka.bootstrap:
        return
    try:
        connection = Connection(kafka.bootstrap, merge_client_settings(kafka.client), kafka.compression)
        address = RunAddress(connection, recipe.name)
        wanted = find_needs(recipe, recipe.build_topic_specs(recipe.state_partitions))
        found = examine_cluster(connection, wanted)
        if all(finding.ok for finding in found) and recipe.name in list_runs(connection, CLUSTER_PATIENCE_S):
            specs = read_topic_specs(read_first_revision(address), recipe)
            found = examine_cluster(connection, find_needs(recipe, specs))
        yield from found
    except HeadraceError as error:
        yield Finding("addresses", ok=False, detail=str(error))


def refuse_unfit(connection: Connection, wanted: Wanted, warn: Callable[[str], object] = lambda _: None) -> None:
    """Raise ClusterUnfit with all that is wrong with a cluster, a line for each check.

    `warn` gets the sentence that the cluster is slow, if it is.
    """
    found = examine_cluster(connection, wanted)
    for finding in found:
        if finding.what == ROUND_TRIP and finding.is_note:
            warn(f"Kafka at {connection.bootstrap}: {finding.detail}")
    lacking = [finding for finding in found if not finding.ok]
    if lacking:
        lines = "\n".join(f"  {finding.what}: {finding.detail}" for finding in lacking)
        raise ClusterUnfit(f"the Kafka cluster at {connection.bootstrap} cannot be used for this run:\n{lines}")
