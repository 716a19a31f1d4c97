"""A joined run, as known from the `recipe` topic alone."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import structlog

from headrace.infra.backoff import Backoff
from headrace.infra.environment import cache_folder
from headrace.infra.errors import HeadraceError, Unavailable, UsageError
from headrace.infra.kafka.advertised import refuse_unreachable
from headrace.infra.kafka.clients import Connection, KafkaAway, KafkaRefused, Message, RunAddress
from headrace.infra.kafka.cluster_topics import NotLetIn, fetch_topics
from headrace.infra.kafka.decoding import read_record
from headrace.infra.kafka.topic_offsets import fetch_end_offsets
from headrace.infra.kafka.topic_reader import PartitionId, read_all, read_range
from headrace.infra.process.signals import MustRestart, StopRequested
from headrace.infra.recipe.plug_in_sources import newest_sources
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.recorded_data import newest_environments
from headrace.infra.store.object_cache import ObjectCache, Uncached
from headrace.infra.store.object_store import Content, Kind, ObjectCorrupt, ObjectMissing, ObjectStore, StoreAddress
from headrace.infra.store.store_address import read_kept_keys
from headrace.schemas import codec
from headrace.schemas.avro import SchemaError
from headrace.schemas.records import ClaimCheck, RecipeRevision, UsedEnvironment
from headrace.schemas.topics import Topics, TopicSpec, policy_of, state_partition, variant_of

log = structlog.get_logger()

T = TypeVar("T")

STORE_AWAY_S = 60.0
"""Longest wait for the store while a group is read."""
LONGEST_PAUSE_S = 5.0
RUNS_LISTING_S = 5.0
"""Least patience in seconds; a client's first request may take three."""
KEYS_FILE = "keys_file"
"""Key in a store's JSON for the file with an embedded store's keys."""
STORE_NAME = "main"
"""Name of the run's store in claim checks."""
LARGEST_GROUP_BYTES = 256 << 20
"""Most bytes of a group in the store: two hundred trajectories of 128k tokens."""


class NoSuchRun(HeadraceError):
    """The cluster holds no run of that name."""


class RunEnded(HeadraceError):
    """The run has ended, so nobody would process the request."""


@dataclass(frozen=True)
class Run:
    """A run, joined."""

    address: RunAddress
    run_id: str
    revisions: tuple[Recipe, ...]
    """All revisions of the recipe, by number."""
    store_address: StoreAddress
    ended: str = ""
    """Why the run has ended; empty while it goes on."""
    has_schemas: bool = True
    """Whether the recipe topic has every schema that this build writes in."""
    recipe_end: int = 0
    """Next offset of the recipe topic, from which followers read, so that they see no old end as new."""
    source: str = ""
    """Offline experiments: name of the run on the same cluster whose batches it was trained on."""
    plug_ins: Mapping[str, str] = field(default_factory=dict)
    """The newest recorded source hash of each plug-in's top-level module."""
    environments: Mapping[int, tuple[UsedEnvironment, ...]] = field(default_factory=dict)
    """Recorded environments and data by revision; none in older runs."""
    asks_for_published: bool = False
    """Whether curators refuse groups that name an unpublished version; false in older runs."""
    asks_for_issued: bool = False
    """Whether curators refuse groups whose number was never issued; false in older runs."""
    state_partitions: int = 1
    """Number of partitions of `state`; fixed for a run."""
    parent: str = ""
    """For a branch: run id and versions that it began with, `RUN-ID solver@40`."""
    regions: Mapping[str, str] = field(default_factory=dict)
    """Region to its servers as JSON, as RecipeRevision has them."""
    region: str = ""
    """Region whose store it uses; empty at home."""

    @property
    def connection(self) -> Connection:
        """The cluster."""
        return self.address.connection

    @property
    def recipe(self) -> Recipe:
        """The revision in force."""
        return self.revisions[-1]

    @property
    def revision(self) -> int:
        """Number of the revision in force."""
        return len(self.revisions) - 1

    def environments_at(self, revision: int) -> tuple[UsedEnvironment, ...]:
        """Return the recorded environment and data of each workflow under a revision."""
        numbers = sorted(number for number in self.environments if number <= revision)
        return newest_environments(self.environments[number] for number in numbers)

    @property
    def partitions(self) -> int:
        """Number of partitions of the topics of groups, fixed for a run."""
        return self.revisions[0].kafka.partitions

    @property
    def topics(self) -> Topics:
        """Names of its topics."""
        return Topics(self.address.run)

    def state_partition_id(self, component: str) -> PartitionId:
        """Return the partition of `state` for a component."""
        return self.topics.state, state_partition(component, self.state_partitions)

    @property
    def topic_specs(self) -> tuple[TopicSpec, ...]:
        """Specifications of all its topics."""
        return self.recipe.build_topic_specs(self.state_partitions)

    @property
    def topic_names(self) -> tuple[str, ...]:
        """Names of all its topics."""
        return tuple(spec.name for spec in self.recipe.topic_specs)

    @cached_property
    def store(self) -> ObjectStore:
        """Its object store."""
        return ObjectStore(self.store_address)

    @cached_property
    def weights_cache(self) -> ObjectCache | Uncached:
        """Source of weight objects: this machine's shared cache, or the store if the cache is off."""
        store = self.recipe.regions[self.region].store if self.region else self.recipe.store
        most_bytes = int(store.cache_gib * 2**30)
        return ObjectCache(self.store, cache_folder() / "weights", most_bytes) if most_bytes else Uncached(self.store)

    def resolve(self, policy: str | None, variant: str | None = None) -> str:
        """Return the policy variant that `--policy` and `--variant` name; without both, the only policy.

        `policy` may itself be a policy variant. Raises UsageError for an unknown name, or without a name if the run has
        several policies.
        """
        if variant:
            return self._find_shadow(policy, variant)
        known = tuple(self.recipe.policies)
        if policy is None and len(known) == 1:
            return known[0]
        if policy not in self.recipe.policy_variants:
            raise UsageError(f"--policy {policy or 'is missing'}: name one of the run's policies, {', '.join(known)}")
        return policy

    def _find_shadow(self, policy: str | None, variant: str) -> str:
        found = [name for name in self.recipe.shadow_variants if variant_of(name) == variant]
        if not found or policy not in {None, policy_of(found[0])}:
            there = ", ".join(self.recipe.shadow_variants) or "none"
            of = f" of policy {policy}" if policy else ""
            raise UsageError(f"--variant {variant}: the run has no shadow {variant}{of}; its shadows: {there}")
        return found[0]

    def put(
        self,
        data: Content,
        kind: Kind,
        suffix: str = "",
        given_up: threading.Event | None = None,
        *,
        anew: bool = False,
    ) -> ClaimCheck:
        """Store bytes, waiting while the store is unreachable; return the claim check for a record.

        With `anew` they are sent even if the store has the object, which may be damaged. Raises StoreUnavailable if the
        upload is given up.
        """
        stored = self.store.compute_stored_object(data, kind, suffix)
        _wait_for_store(lambda: self.store.put_named(stored, data, anew=anew), math.inf, given_up)
        return ClaimCheck(STORE_NAME, stored.key, stored.sha256, stored.size_bytes)

    def get(self, claim: ClaimCheck) -> bytes:
        """Return the bytes behind a claim check, verified, waiting while the store is unreachable.

        After a minute, or half of max.poll.interval.ms, it raises StoreUnavailable, because a member of a group must
        keep polling. Raises as `ObjectStore.get`, and ObjectMissing for a claim on another store.
        """
        if claim.store != STORE_NAME:
            raise ObjectMissing(
                f"the claim check names store {claim.store[:80]!r}, but this run has only {STORE_NAME!r}"
            )
        patience_s = limit_store_wait(self.connection)
        return _wait_for_store(lambda: self.store.get(claim.key, claim.sha256, claim.size_bytes), patience_s)

    def get_group(self, claim: ClaimCheck) -> bytes:
        """`get` for an encoded group. Raises ObjectCorrupt for a too large group."""
        refuse_large_group(claim)
        return self.get(claim)


def refuse_large_group(claim: ClaimCheck) -> None:
    """Raise ObjectCorrupt for a too large group."""
    if claim.size_bytes > LARGEST_GROUP_BYTES:
        raise ObjectCorrupt(f"a group must have at most {LARGEST_GROUP_BYTES} bytes; got {claim.size_bytes}")


def limit_store_wait(connection: Connection) -> float:
    """Return how long to wait for the store within one turn, in seconds.

    At most half of max.poll.interval.ms, as the last try may take some seconds more. A member that polls too late loses
    its partitions, and its process would end as if its data algorithms were too slow.
    """
    interval_ms = float(connection.client.get("max.poll.interval.ms", "inf"))
    return min(STORE_AWAY_S, interval_ms / 2000)


def _wait_for_store(call: Callable[[], T], patience_s: float, given_up: threading.Event | None = None) -> T:
    """Call until the store answers, and log the wait once; raise its error after `patience_s`."""
    began, logged, given_up = time.monotonic(), False, given_up or threading.Event()
    backoff = Backoff(0.1, LONGEST_PAUSE_S)
    while True:
        try:
            found = call()
        except Unavailable as error:
            if time.monotonic() - began > patience_s:
                raise
            if not logged:
                # The object store does not answer; the request is tried again.
                log.warning("store.waiting", error=str(error))
            logged = True
            if given_up.wait(backoff.next_s()):
                raise
        else:
            if logged:
                log.info("store.resumed", seconds=round(time.monotonic() - began, 1))
            return found


JOIN_PAUSE_S = 0.2
"""Seconds between two attempts to find a run."""
LONGEST_JOIN_PAUSE_S = 10.0
"""The same if the cluster refuses the user, because wrong passwords may lock accounts."""


def join(address: RunAddress, patience_s: float = 0, stop: threading.Event | None = None) -> Run:
    """Read a run's recipe from its topic, waiting for broker and recipe up to `patience_s`.

    Setting `stop` ends the wait.

    Raises NoSuchRun without a recipe, KafkaAway or KafkaRefused if the topic cannot be read, StopRequested, and
    AddressUnreachable if the brokers' advertised addresses do not answer.
    """
    begin = time.monotonic()
    end, logged, pauses = begin + patience_s, False, Backoff(JOIN_PAUSE_S, LONGEST_JOIN_PAUSE_S)
    while True:
        try:
            return _join(address)
        except (NoSuchRun, KafkaAway, KafkaRefused) as error:
            if time.monotonic() > end:
                if isinstance(error, KafkaAway):
                    refuse_unreachable(address.connection)
                raise
            if stop is not None and stop.is_set():
                raise StopRequested("stopped while waiting for the run") from error
            is_refused = isinstance(error, NotLetIn)
            if not logged and (is_refused or time.monotonic() - begin > 3):
                # A wait for servers begins to wait again; a run that is not there is an error at the end.
                ends = {} if isinstance(error, KafkaAway) else {"gives_up_after_s": patience_s}
                # Kafka is not reached, or the run is not there; in the second case the process ends after
                # `gives_up_after_s`.
                log.warning("run.waiting", run=str(address), why=str(error), **ends)
                logged = True
            (stop or threading.Event()).wait(pauses.next_s() if is_refused else JOIN_PAUSE_S)


def _join(address: RunAddress) -> Run:
    require_run(address, list_runs(address.connection, RUNS_LISTING_S))
    messages = list(read_all(address.connection, [Topics(address.run).recipe]))
    read = [revision for message in messages if (revision := _read_and_learn(message)) is not None]
    found = _keep_first_run([revision for revision in read if revision.recipe])
    if not found:
        raise NoSuchRun(f"{address} has no recipe yet: start it with `headrace up`, or check the run's name")
    recipes = {revision.revision: Recipe.from_json(revision.recipe) for revision in found}
    store = parse_store(found[-1])
    revisions = tuple(recipe for _, recipe in sorted(recipes.items()))
    own = Connection(address.connection.bootstrap, address.connection.client, revisions[-1].kafka.compression)
    end = messages[-1].offset + 1
    at = RunAddress(own, address.run)
    codec.set_unknown_hook(RecipeNews(at, end).look)
    ended, source = found[-1].ended, found[0].source
    return Run(
        address=at,
        run_id=found[0].run_id,
        revisions=revisions,
        store_address=store,
        ended=ended,
        has_schemas=not find_missing_schemas(read),
        recipe_end=end,
        source=source,
        plug_ins=newest_sources(found),
        environments={one.revision: one.environments for one in found if one.environments},
        asks_for_published=found[0].asks_for_published,
        asks_for_issued=found[0].asks_for_issued,
        state_partitions=found[0].state_partitions or 1,
        parent=found[0].parent,
        regions=found[-1].regions,
    )


def list_runs(connection: Connection, patience_s: float) -> list[str]:
    """Return the runs of a cluster, from its visible recipe topics. Raises as `fetch_topics`."""
    topics = fetch_topics(connection, patience_s, 5).topics
    parted = (name.partition(".") for name in topics)
    return sorted(run for run, _, kind in parted if kind == "recipe")


def require_run(address: RunAddress, runs: Collection[str]) -> None:
    """Raise NoSuchRun, with the cluster's runs, unless this run is among them."""
    if address.run not in runs:
        there = f"the runs there are {', '.join(runs)}"
        if not runs:
            there = (
                "no run has begun there, its topics were deleted, or this user may not see them: `headrace doctor "
                f"--run {address}` shows the rights that this user lacks"
            )
        raise NoSuchRun(f"there is no run {address.run!r} on {address.connection.bootstrap}: {there}")


def find_groups_run(run: Run) -> Run:
    """Return the run whose topics hold the groups: for an offline experiment, its source run."""
    while run.source:
        run = join(RunAddress(run.connection, run.source))
    return run


def find_missing_schemas(found: Iterable[RecipeRevision]) -> dict[str, str]:
    """Return the schemas of this build that no revision has, by record."""
    known = {text for revision in found for text in revision.schemas.values()}
    return {name: text for name, text in codec.schema_texts().items() if text not in known}


class RecipeNews:
    """New records on a run's recipe topic since an offset, read only if the topic has grown. Thread-safe."""

    def __init__(self, address: RunAddress, begin: int) -> None:
        self._address = address
        self._next = begin
        self._lock = threading.RLock()
        self._looks = False

    def look(self) -> list[RecipeRevision]:
        """Return the new revisions after learning their schemas. Raises KafkaAway."""
        partition_id = (Topics(self._address.run).recipe, 0)
        with self._lock:
            if self._looks:  # what it reads may be unknown itself
                return []
            self._looks = True
            try:
                end = fetch_end_offsets(self._address.connection, [partition_id])[partition_id]
                if end <= self._next:
                    return []
                messages = list(read_range(self._address.connection, partition_id, self._next, end))
                self._next = end
                return [revision for message in messages if (revision := read_revision(message)) is not None]
            finally:
                self._looks = False


def refuse_replaced(run: Run) -> None:
    """Raise MustRestart if the topics now belong to a later run of the same name.

    Raises KafkaAway without an answer.
    """
    found = join(run.address).run_id
    if found != run.run_id:
        raise MustRestart(
            f"{run.address} is now a newer run with id {found}; this process joined the run with id {run.run_id}"
        )


def read_revision(message: Message) -> RecipeRevision | None:
    """Return the revision in a message of the recipe topic, after learning its schemas.

    Returns None for a record with only schemas; for an unreadable record logs a warning and returns None.
    """
    revision = _read_and_learn(message)
    return revision if revision is not None and revision.recipe else None


def _read_and_learn(message: Message) -> RecipeRevision | None:
    revision = read_record(message, RecipeRevision)
    try:
        codec.learn(revision.schemas if revision else {})
    except SchemaError as error:
        log.warning("message.unreadable", topic=message.topic, offset=message.offset, detail=str(error))
        return None
    return revision


def read_revisions(address: RunAddress) -> list[RecipeRevision]:
    """Return the records of a run's recipe topic, oldest first: revisions, and the end of the run."""
    messages = read_all(address.connection, [Topics(address.run).recipe])
    return _keep_first_run([revision for message in messages if (revision := read_revision(message)) is not None])


def _keep_first_run(found: list[RecipeRevision]) -> list[RecipeRevision]:
    """Return the revisions of the topic's first run, as a process of another run may have written there."""
    ours = [revision for revision in found if revision.run_id == found[0].run_id]
    if len(ours) < len(found):
        log.warning("message.other_run", run_id=found[0].run_id, others=len(found) - len(ours))
    return ours


def parse_store(revision: RecipeRevision) -> StoreAddress:
    """Return the store that a revision names. Raises UsageError if the store or its keys are missing.

    The keys of an embedded store are in the file that the revision names, or in the revision itself in runs of 0.1. If
    the file cannot be read, only requests to the store fail, which most commands do not make.
    """
    try:
        where = json.loads(revision.store)
        url, access_key, secret_key = (str(where[key]) for key in ("url", "access_key", "secret_key"))
        keys_file = str(where.get(KEYS_FILE, ""))
        if keys_file and not access_key:
            access_key, secret_key = read_kept_keys(keys_file)
        address = StoreAddress.from_url(url, access_key=access_key, secret_key=secret_key)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(
            f"revision {revision.revision} in the recipe topic of the run (id {revision.run_id}) does not name "
            "the store as Headrace writes it, as JSON with url, access_key and secret_key "
            f"({type(error).__name__}: {error}). Another program may have written this record: begin a run with "
            "another name"
        ) from error
    if not access_key and not keys_file:
        from headrace.infra.store.access import find_keys

        find_keys()  # report missing keys now, not at the first object
    return replace(address, keys_file=keys_file)


def describe_store(address: StoreAddress) -> str:
    """Return a store as JSON for a recipe revision, without keys, because every reader of the topic sees it."""
    text = {"url": address.to_url(), "access_key": "", "secret_key": ""}  # older builds need all three keys
    return json.dumps({**text, KEYS_FILE: address.keys_file} if address.keys_file else text)
