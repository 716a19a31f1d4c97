"""What a component knows of its run after joining it: all from the `recipe` topic, no other file."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeVar

import structlog

from headrace.infra.environment import cache_folder
from headrace.infra.errors import HeadraceError, Unavailable, UsageError
from headrace.infra.kafka.clients import (
    Connection,
    KafkaAway,
    KafkaRefused,
    Message,
    RunAddress,
    end_offsets,
    open_admin,
    patiently,
)
from headrace.infra.kafka.decoding import read_record
from headrace.infra.kafka.topic_reader import read_all, read_range
from headrace.infra.process.signals import MustRestart, ToldToStop
from headrace.infra.recipe.settings import Recipe
from headrace.infra.store.access import find_keys
from headrace.infra.store.object_cache import ObjectCache, Uncached
from headrace.infra.store.object_store import Content, Kind, ObjectCorrupt, ObjectMissing, ObjectStore, StoreAddress
from headrace.schemas import codec
from headrace.schemas.avro import SchemaError
from headrace.schemas.records import ClaimCheck, RecipeRevision
from headrace.schemas.topics import Topics, policy_of, variant_of

log = structlog.get_logger()

T = TypeVar("T")

STORE_PATIENCE_S = 60.0
LONGEST_PAUSE_S = 5.0
LISTING_S = 5.0
"""A client's first question may take three of them."""
STORE_NAME = "main"
"""Name of the run's store in claim checks."""
LARGEST_GROUP_BYTES = 256 << 20
"""Behind a claim check; two hundred trajectories of 128k tokens."""


class NoSuchRun(HeadraceError):
    """The cluster holds no run of that name."""


class RunEnded(HeadraceError):
    """The run is over: nobody would work off what is asked for."""


class Objects(Protocol):
    """Where the objects are that records name: a run, which has a store, or an archive."""

    def get(self, claim: ClaimCheck) -> bytes:
        """Return an object's bytes, verified. Raises ObjectMissing, ObjectCorrupt, and what else ends the reading."""
        ...

    def get_group(self, claim: ClaimCheck) -> bytes:
        """`get` for an encoded group. Raises ObjectCorrupt for one that is too large to be held."""
        ...


@dataclass(frozen=True)
class Run:
    """A run, joined."""

    address: RunAddress
    run_id: str
    revisions: tuple[Recipe, ...]
    """Every revision of the recipe, by number."""
    store_address: StoreAddress
    ended: str = ""
    """Why the run is over; empty while it goes on."""
    told: bool = True
    """Whether every schema that this build writes in stands on the recipe topic."""
    recipe_end: int = 0
    """Next offset of the recipe topic: whoever follows it begins there, and never takes an old end for a new one."""
    source: str = ""
    """Of an offline experiment: name of the run, on the same cluster, over whose batches it was trained."""

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

    @property
    def topics(self) -> Topics:
        """Names of its topics."""
        return Topics(self.address.run)

    @property
    def topic_names(self) -> tuple[str, ...]:
        """All its topics."""
        return tuple(spec.name for spec in self.recipe.topic_specs)

    @cached_property
    def store(self) -> ObjectStore:
        """Its object store."""
        return ObjectStore(self.store_address)

    @cached_property
    def weights_cache(self) -> ObjectCache | Uncached:
        """Objects of weights that this machine shares, or those of the store where it is to keep none."""
        most_bytes = int(self.recipe.store.cache_gib * 2**30)
        return ObjectCache(self.store, cache_folder() / "weights", most_bytes) if most_bytes else Uncached(self.store)

    def policy(self, asked: str | None) -> str:
        """Return the policy asked for, or the only one, or the shadow of that name. Raises UsageError."""
        known = tuple(self.recipe.policies)
        if asked is None and len(known) == 1:
            return known[0]
        if asked not in self.recipe.lines:
            raise UsageError(f"--policy {asked or 'is missing'}: name one of the run's policies, {', '.join(known)}")
        return asked

    def line(self, policy: str | None, variant: str | None) -> str | None:
        """Return what `--policy` and `--variant` name, for `policy`. Raises UsageError when there is no such shadow."""
        if not variant:
            return policy
        found = [line for line in self.recipe.shadow_lines if variant_of(line) == variant]
        if not found or policy not in {None, policy_of(found[0])}:
            there = ", ".join(self.recipe.shadow_lines) or "none"
            of = f" of policy {policy}" if policy else ""
            raise UsageError(f"--variant {variant}: the run has no such shadow{of}; it has {there}")
        return found[0]

    def put(self, data: Content, kind: Kind, suffix: str = "", given_up: threading.Event | None = None) -> ClaimCheck:
        """Store bytes, waiting as long as the store is away; return the claim check that a record carries.

        Raises StoreUnavailable when that is given up.
        """
        stored = self.store.name(data, kind, suffix)
        _waiting(lambda: self.store.put_named(stored, data), math.inf, given_up)
        return ClaimCheck(STORE_NAME, stored.key, stored.sha256, stored.size_bytes)

    def get(self, claim: ClaimCheck) -> bytes:
        """Return the bytes behind a claim check, verified, waiting while the store is away.

        Only for a minute, then it raises StoreUnavailable: a member of a group must poll now and then. Raises as
        `ObjectStore.get`, and ObjectMissing for a claim on another store.
        """
        if claim.store != STORE_NAME:
            raise ObjectMissing(f"the claim is on store {claim.store[:80]!r}, and this run has one, {STORE_NAME!r}")
        return _waiting(lambda: self.store.get(claim.key, claim.sha256, claim.size_bytes), STORE_PATIENCE_S)

    def get_group(self, claim: ClaimCheck) -> bytes:
        """`get` for an encoded group. Raises ObjectCorrupt for one that is too large to be held."""
        refuse_large_group(claim)
        return self.get(claim)


def refuse_large_group(claim: ClaimCheck) -> None:
    """Raise ObjectCorrupt for a group that is too large to be held."""
    if claim.size_bytes > LARGEST_GROUP_BYTES:
        raise ObjectCorrupt(f"a group of {claim.size_bytes} bytes is larger than {LARGEST_GROUP_BYTES}")


def _waiting(call: Callable[[], T], patience_s: float, given_up: threading.Event | None = None) -> T:
    """Wait for a store that is away, which is said once; at the end of patience its error is raised."""
    began, pause, said, given_up = time.monotonic(), 0.1, False, given_up or threading.Event()
    while True:
        try:
            found = call()
        except Unavailable as error:
            if time.monotonic() - began > patience_s:
                raise
            if not said:
                log.warning("store.waiting", error=str(error))
            said = True
            if given_up.wait(pause):
                raise
            pause = min(2 * pause, LONGEST_PAUSE_S)
        else:
            if said:
                log.info("store.resumed", seconds=round(time.monotonic() - began, 1))
            return found


def join(address: RunAddress, patience_s: float = 0, stop: threading.Event | None = None) -> Run:
    """Read a run's recipe from its topic, waiting for broker and recipe as long as the patience lasts.

    A `stop` that is set ends the wait.

    Raises NoSuchRun when there is no recipe, KafkaAway or KafkaRefused when the topic cannot be read, ToldToStop.
    """
    begin = time.monotonic()
    end, said = begin + patience_s, False
    while True:
        try:
            return _join(address)
        except (NoSuchRun, KafkaAway, KafkaRefused) as error:
            if time.monotonic() > end:
                raise
            if stop is not None and stop.is_set():
                raise ToldToStop("told to stop while waiting for the run") from error
            if not said and time.monotonic() - begin > 3:
                # Who waits for servers begins to wait again; a run that is not there is an error at the end.
                ends = {} if isinstance(error, KafkaAway) else {"gives_up_after_s": patience_s}
                log.warning("run.waiting", run=str(address), why=str(error), **ends)
                said = True
            time.sleep(0.2)


def _join(address: RunAddress) -> Run:
    require_run(address, run_names(address.connection, LISTING_S))
    messages = list(read_all(address.connection, [Topics(address.run).recipe]))
    told = [revision for message in messages if (revision := _read_and_learn(message)) is not None]
    found = _of_one_run([revision for revision in told if revision.recipe])
    if not found:
        raise NoSuchRun(f"{address} has no recipe yet: start it with `headrace up`, or check the run's name")
    recipes = {revision.revision: Recipe.from_json(revision.recipe) for revision in found}
    store = store_of(found[-1])
    revisions = tuple(recipe for _, recipe in sorted(recipes.items()))
    own = Connection(address.connection.bootstrap, address.connection.client, revisions[-1].kafka.compression)
    end = messages[-1].offset + 1
    at = RunAddress(own, address.run)
    codec.on_unknown(RecipeNews(at, end).look)
    ended, source = found[-1].ended, found[0].source
    return Run(at, found[0].run_id, revisions, store, ended, not untold(told), end, source)


def run_names(connection: Connection, patience_s: float) -> list[str]:
    """Return the runs of a cluster, by the recipe topics that it shows. Raises KafkaAway at the end of patience.

    All topics are listed: asking for one by its name may create it.
    """
    admin = open_admin(connection)
    topics = patiently(lambda: admin.list_topics(timeout=5), "listing topics", patience_s).topics
    parted = (name.partition(".") for name in topics)
    return sorted(run for run, _, kind in parted if kind == "recipe")


def require_run(address: RunAddress, names: Collection[str]) -> None:
    """Raise NoSuchRun, with the runs that the cluster has, unless this one is among them."""
    if address.run not in names:
        there = f"there are {', '.join(names)}" if names else "no run has begun there, or its topics were deleted"
        raise NoSuchRun(f"there is no run {address.run!r} on {address.connection.bootstrap}: {there}")


def groups_home(run: Run) -> Run:
    """Return the run whose topics hold the groups: of an offline experiment, the one it was trained over."""
    while run.source:
        run = join(RunAddress(run.connection, run.source))
    return run


def untold(found: Iterable[RecipeRevision]) -> dict[str, str]:
    """Return the schemas that this build writes in and no revision holds, by record."""
    known = {text for revision in found for text in revision.schemas.values()}
    return {name: text for name, text in codec.schema_texts().items() if text not in known}


class RecipeNews:
    """What came onto a run's recipe topic since an offset; read only when the topic has grown. Safe in any thread."""

    def __init__(self, address: RunAddress, begin: int) -> None:
        self._address = address
        self._next = begin
        self._lock = threading.RLock()
        self._looks = False

    def look(self) -> list[RecipeRevision]:
        """Return what is new, its schemas learnt. Raises KafkaAway."""
        place = (Topics(self._address.run).recipe, 0)
        with self._lock:
            if self._looks:  # what it reads may be unknown itself
                return []
            self._looks = True
            try:
                end = end_offsets(self._address.connection, [place])[place]
                if end <= self._next:
                    return []
                messages = list(read_range(self._address.connection, place, self._next, end))
                self._next = end
                return [revision for message in messages if (revision := read_revision(message)) is not None]
            finally:
                self._looks = False


def refuse_replaced(run: Run) -> None:
    """Raise MustRestart when the topics by now hold a later run of the same name, whose records are not ours to judge.

    Raises KafkaAway when nobody can tell.
    """
    found = join(run.address).run_id
    if found != run.run_id:
        raise MustRestart(f"{run.address} is run {found} by now, and this process joined run {run.run_id}")


def read_revision(message: Message) -> RecipeRevision | None:
    """Return what stands in a message of the recipe topic, its schemas learnt.

    None for a record that only tells schemas; None, and a warning, for one that cannot be read.
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
    """Return what stands on a run's recipe topic, oldest first: revisions, and words that the run is over."""
    messages = read_all(address.connection, [Topics(address.run).recipe])
    return _of_one_run([revision for message in messages if (revision := read_revision(message)) is not None])


def _of_one_run(found: list[RecipeRevision]) -> list[RecipeRevision]:
    """Return the revisions of the run that began the topic; a process of another run may have written there."""
    ours = [revision for revision in found if revision.run_id == found[0].run_id]
    if len(ours) < len(found):
        log.warning("message.other_run", run_id=found[0].run_id, others=len(found) - len(ours))
    return ours


def store_of(revision: RecipeRevision) -> StoreAddress:
    """Return the store that a revision names. Raises UsageError when it names none, or nobody its keys."""
    try:
        where = json.loads(revision.store)
        url, access_key, secret_key = (str(where[key]) for key in ("url", "access_key", "secret_key"))
        address = StoreAddress.from_url(url, access_key=access_key, secret_key=secret_key)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(
            f"revision {revision.revision} of the recipe names no store ({type(error).__name__}: {error}): it was not "
            "written by `headrace up`"
        ) from error
    find_keys(access_key, secret_key)  # who has none learns it now, and not at its first object
    return address


def store_text(address: StoreAddress, *, with_keys: bool) -> str:
    """Return what a recipe revision says of the store; keys only for an embedded one, which is on loopback."""
    keys = (address.access_key, address.secret_key) if with_keys else ("", "")
    return json.dumps({"url": address.to_url(), "access_key": keys[0], "secret_key": keys[1]})
