"""The relay, `headrace relay`: brings published weights into a region, each object once. One per region.

An object is copied into the region's store and read back there by its hash; then the event is published on the
region's own topic. So the workers of a region need nothing but their own Kafka and store. The relay resumes from the
newest event in the region, which names its offset at home. Its transactional id fences an earlier relay of the region.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog

from headrace.consumers.relay.way import Published, RelayWay
from headrace.infra.backoff import Backoff
from headrace.infra.environment import temporary_folder
from headrace.infra.kafka.clients import Message, Outgoing
from headrace.infra.kafka.decoding import read_own
from headrace.infra.kafka.run_address import parse_run
from headrace.infra.kafka.topic_reader import TopicReader, find_start_positions, read_all
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.log import configure_logging
from headrace.infra.process.signals import JOIN_PATIENCE_S, begin_attempts, stop_on_signals
from headrace.infra.run.region import move_to_region, refuse_newer_revision
from headrace.infra.run.run import Run, join
from headrace.infra.store.object_store import (
    ObjectCorrupt,
    ObjectMissing,
    StoredObject,
    StoreUnavailable,
)
from headrace.infra.weights.paths import DELTA, is_whole, list_claims
from headrace.schemas import codec
from headrace.schemas.records import ClaimCheck, WeightsPublished

log = structlog.get_logger()

HOME_OFFSET = "home_offset"
"""Header of an event in a region: the offset of the same event at home."""
POLL_S = 0.2
LONGEST_PAUSE_S = 10.0
REVISION_EVERY_S = 20.0


class PolicyRelay:
    """Relays the weights of one policy.

    Args:
        home: The run.
        region: The same run, with the Kafka and the store of the region.
        policy: The policy.
        writer: Writes to the region.
    """

    def __init__(self, home: Run, region: Run, policy: str, writer: TransactionalWriter) -> None:
        self._home, self._region, self._writer = home, region, writer
        self.policy, self.topic = policy, home.topics.weights(policy)
        self._anchor_offset = -1
        self._way = self._find_way()

    def _find_way(self) -> RelayWay:
        """Return the way from the newest event that the region has."""
        held, relayed = "", -1
        for message in read_all(self._region.connection, [self.topic]):
            event = read_own(message, WeightsPublished, self._home.run_id)
            if event is None:
                continue
            if is_whole(event):
                self._anchor_offset = message.offset
            held, relayed = event.weights_hash, read_home_offset(message)
        return RelayWay(held, relayed)

    def fold_message(self, message: Message) -> None:
        """Take in a message of the weights topic at home."""
        if (event := read_own(message, WeightsPublished, self._home.run_id)) is not None:
            self._way.fold_event(message.offset, event)

    def relay_pending(self, folder: Path) -> None:
        """Bring the newest version into the region. Raises StoreUnavailable, and what the writer raises."""
        for one in self._way.plan():
            began = time.monotonic()
            try:
                copied = sum(self._copy(claim, folder) for claim in _list_objects(one.event))
            except (ObjectMissing, ObjectCorrupt) as error:
                # An object is lost at home. Another way is taken: at the latest, the trainer publishes whole weights
                # again.
                self._way.leave_out(one)
                log.error("weights.not_relayed", policy=self.policy, version=one.event.version, why=str(error))  # noqa: TRY400 - logged
                return
            self._publish(one)
            # A version is in the region; `copied_bytes` went over the link to home.
            log.info(
                "weights.relayed",
                policy=self.policy,
                version=one.event.version,
                copied_bytes=copied,
                seconds=round(time.monotonic() - began, 2),
            )

    def _copy(self, claim: ClaimCheck, folder: Path) -> int:
        """Copy an object into the region's store and verify it there; return the bytes that were copied."""
        if self._region.store.has_object(claim.key):
            try:
                self._region.store.verify(claim.key, claim.sha256, claim.size_bytes)
            except (ObjectMissing, ObjectCorrupt) as error:
                # The region's store holds other bytes under the name of an object; they are written anew.
                log.warning("object.copied_again", key=claim.key, why=str(error))
            else:
                return 0
        path = folder / "object"
        self._home.store.get_to_file(claim.key, claim.sha256, claim.size_bytes, path)
        self._region.store.put_file(StoredObject(claim.key, claim.sha256, claim.size_bytes), path, anew=True)
        path.unlink()
        try:
            self._region.store.verify(claim.key, claim.sha256, claim.size_bytes)
        except (ObjectMissing, ObjectCorrupt) as error:
            raise StoreUnavailable(f"the region's store does not give what was just written: {error}") from error
        return claim.size_bytes

    def _publish(self, one: Published) -> None:
        event = one.event
        if event.kind == DELTA:
            event = replace(event, anchor_offset=self._anchor_offset)
        headers = [(HOME_OFFSET, str(one.offset).encode())]
        self._writer.begin()
        [ticket] = self._writer.produce(
            [Outgoing(self.topic, codec.encode(event), str(event.version).encode(), headers, 0)]
        )
        self._writer.commit()
        if is_whole(event):
            self._anchor_offset = ticket.offset
        self._way.note_relayed(one)


def read_home_offset(message: Message) -> int:
    """Return the offset at home of an event in a region; -1 if it does not say."""
    found = dict(message.headers).get(HOME_OFFSET, b"-1")
    return int(found) if found.lstrip(b"-").isdigit() else -1


def _list_objects(event: WeightsPublished) -> Iterable[ClaimCheck]:
    files = (file.claim for file in event.files)
    return dict.fromkeys(claim for claim in (*list_claims(event), *files) if claim is not None)


def relay_until(home: Run, relays: Mapping[str, PolicyRelay], stop: threading.Event) -> None:
    """Relay until `stop`. A store that is away is waited for, and said once. Raises MustRestart for a newer recipe."""
    positions = find_start_positions(home.connection, list(relays))
    backoff, is_away, looked_s = Backoff(0.2, LONGEST_PAUSE_S), False, time.monotonic()
    with (
        TopicReader(home.connection, positions, "relay") as reader,
        TemporaryDirectory(dir=temporary_folder(), prefix="headrace-relay-") as folder,
    ):
        while not stop.is_set():
            if time.monotonic() > looked_s + REVISION_EVERY_S:
                refuse_newer_revision(home)
                looked_s = time.monotonic()
            for message in reader.poll(256, POLL_S):
                relays[message.topic].fold_message(message)
            try:
                for relay in relays.values():
                    relay.relay_pending(Path(folder))
            except StoreUnavailable as error:
                if not is_away:
                    log.warning("store.waiting", error=str(error))
                is_away = True
                stop.wait(backoff.next_s())
            else:
                is_away = False
                backoff.reset()


def main(run: str, region: str) -> None:
    """Relay the weights of a run into one of its regions until a signal stops it."""
    configure_logging("relay", region=region)
    address, stop = parse_run(run), stop_on_signals()
    for attempt in begin_attempts(stop):
        with attempt, ExitStack() as stack:
            home = join(address, JOIN_PATIENCE_S, stop)
            there = move_to_region(home, region)
            topics = [home.topics.weights(policy) for policy in home.recipe.policies]
            writer = TransactionalWriter(there.connection, f"{address.run}.relay.{region}", topics)
            stack.enter_context(closing(writer))
            there.store.ensure_bucket()
            relays = [PolicyRelay(home, there, policy, writer) for policy in home.recipe.policies]
            relay_until(home, {one.topic: one for one in relays}, stop)
