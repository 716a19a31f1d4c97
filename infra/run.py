"""What a component knows of its run after joining it: all from the `recipe` topic, no other file."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import structlog

from infra.errors import HeadraceError, Unavailable, UsageError
from infra.kafka import Connection, KafkaAway, KafkaRefused, Message, RunAddress
from infra.object_store import ObjectStore, StoreAddress
from infra.process import MustRestart
from infra.settings import Recipe
from infra.topic_reader import read_all
from schemas import codec
from schemas.avro import SchemaError
from schemas.records import ClaimCheck, RecipeRevision
from schemas.topics import Topics

log = structlog.get_logger()

T = TypeVar("T")

STORE_PATIENCE_S = 60.0
LONGEST_PAUSE_S = 5.0
STORE_NAME = "main"
"""Name of the run's store in claim checks."""


class NoSuchRun(HeadraceError):
    """The cluster holds no run of that name."""


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
    recipe_end: int = 0
    """Next offset of the recipe topic: whoever follows it begins there, and never takes an old end for a new one."""

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

    @cached_property
    def store(self) -> ObjectStore:
        """Its object store."""
        return ObjectStore(self.store_address)

    def policy(self, asked: str | None) -> str:
        """Return the policy asked for, or the only one. Raises UsageError."""
        known = tuple(self.recipe.policies)
        if asked is None and len(known) == 1:
            return known[0]
        if asked not in known:
            raise UsageError(f"--policy {asked or 'is missing'}: name one of the run's policies, {', '.join(known)}")
        return asked

    def put(self, data: bytes, kind: str, suffix: str = "") -> ClaimCheck:
        """Store bytes, waiting as long as the store is away; return the claim check that a record carries."""
        stored = _waiting(lambda: self.store.put(data, kind, suffix), math.inf)
        return ClaimCheck(STORE_NAME, stored.key, stored.sha256, stored.size_bytes)

    def get(self, claim: ClaimCheck) -> bytes:
        """Return the bytes behind a claim check, verified, waiting while the store is away.

        Only for a minute, then it raises StoreUnavailable: a member of a group must poll now and then.
        """
        return _waiting(lambda: self.store.get(claim.key, claim.sha256, claim.size_bytes), STORE_PATIENCE_S)


def _waiting(call: Callable[[], T], patience_s: float) -> T:
    """Wait for a store that is away, which is said once; at the end of patience its error is raised."""
    began, pause, said = time.monotonic(), 0.1, False
    while True:
        try:
            found = call()
        except Unavailable as error:
            if time.monotonic() - began > patience_s:
                raise
            if not said:
                log.warning("store.waiting", error=str(error))
            said = True
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
        else:
            if said:
                log.info("store.resumed", seconds=round(time.monotonic() - began, 1))
            return found


def join(address: RunAddress, patience_s: float = 0, stop: threading.Event | None = None) -> Run:
    """Read a run's recipe from its topic, waiting for broker and recipe as long as the patience lasts.

    A `stop` that is set ends the patience.

    Raises NoSuchRun when there is no recipe, KafkaAway or KafkaRefused when the topic cannot be read.
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
                raise KafkaAway("told to stop while waiting for the run") from error
            if not said and time.monotonic() - begin > 3:
                log.warning("run.waiting", run=str(address), for_s=patience_s, why=str(error))
                said = True
            time.sleep(0.2)


def _join(address: RunAddress) -> Run:
    messages = list(read_all(address.connection, [Topics(address.run).recipe]))
    found = [revision for message in messages if (revision := read_revision(message)) is not None]
    if not found:
        raise NoSuchRun(f"{address} has no recipe yet: start it with `headrace up`, or check the run's name")
    for revision in found:
        codec.learn(revision.schemas)
    recipes = {revision.revision: Recipe.from_json(revision.recipe) for revision in found}
    where = json.loads(found[-1].store)
    store = StoreAddress.from_url(where["url"], access_key=where["access_key"], secret_key=where["secret_key"])
    revisions = tuple(recipe for _, recipe in sorted(recipes.items()))
    own = Connection(address.connection.bootstrap, address.connection.client, revisions[-1].kafka.compression)
    end = messages[-1].offset + 1
    return Run(RunAddress(own, address.run), found[0].run_id, revisions, store, found[-1].ended, end)


def refuse_replaced(run: Run) -> None:
    """Raise MustRestart when the topics by now hold a later run of the same name, whose records are not ours to judge.

    Raises KafkaAway when nobody can tell.
    """
    found = join(run.address).run_id
    if found != run.run_id:
        raise MustRestart(f"{run.address} is run {found} by now, and this process joined run {run.run_id}")


def read_revision(message: Message) -> RecipeRevision | None:
    """Return what stands in a message of the recipe topic; None, and a warning, when it cannot be read."""
    try:
        return codec.decode(message.value, RecipeRevision)
    except SchemaError as error:
        log.warning("message.unreadable", topic=message.topic, offset=message.offset, detail=str(error))
        return None


def read_revisions(address: RunAddress) -> list[RecipeRevision]:
    """Return what stands on a run's recipe topic, oldest first: revisions, and words that the run is over."""
    messages = read_all(address.connection, [Topics(address.run).recipe])
    return [revision for message in messages if (revision := read_revision(message)) is not None]


def store_text(address: StoreAddress, *, with_keys: bool) -> str:
    """Return what a recipe revision says of the store; keys only for an embedded one, which is on loopback."""
    keys = (address.access_key, address.secret_key) if with_keys else ("", "")
    return json.dumps({"url": address.to_url(), "access_key": keys[0], "secret_key": keys[1]})
