"""The compactor, `headrace compact`: merges many deltas into one, for a worker that joins far behind.

It merges deltas, uploads the result, and publishes a WeightsPublished of kind `merged`: a further way between two
versions, not a new version. No process waits for it. Its whole state is in the topics, so after a crash it continues
from what is published. Two compactors at once make the same bytes and the same records, and an object that was
uploaded but not published gets the same name again.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import structlog
from confluent_kafka import KafkaError, KafkaException

from headrace.infra.failpoints import reach
from headrace.infra.kafka.clients import KafkaAway, Message, open_producer, translate_error
from headrace.infra.kafka.decoding import read_record
from headrace.infra.kafka.topic_reader import TopicReader, find_start_positions
from headrace.infra.log import configure_logging, warn_in_sentences
from headrace.infra.process.signals import JOIN_PATIENCE_S, begin_attempts, stop_on_signals
from headrace.infra.run.revisions import join_and_write_schemas
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import ObjectCorrupt, ObjectMissing
from headrace.infra.weights.delta import Delta, read_delta
from headrace.infra.weights.merging import merge_deltas
from headrace.infra.weights.paths import MERGED
from headrace.infra.weights.policy_weights import BadWeights, claim_of, fetch_delta, name_of
from headrace.infra.weights.tensors import WeightsError
from headrace.ops.compaction.compaction import Compaction
from headrace.ops.opened_run import OpenedRun, open_run
from headrace.schemas import codec
from headrace.schemas.ids import now_ms
from headrace.schemas.records import WeightsPublished

log = structlog.get_logger()

COMPACTOR = "compact"
COMPACTOR_TURN_S = 0.5
ANNOUNCE_S = 30.0


class Compactor:
    """Follows the weights of some policies from their beginning, and merges what is due.

    Args:
        run: The run.
        policies: Policies to compact.
        every: Number of deltas that may stay unmerged; see `Compaction`.
        stop: When it is set, an upload is given up while the store is unreachable.
    """

    def __init__(self, run: Run, policies: Sequence[str], every: int, stop: threading.Event) -> None:
        self._stop = stop
        self._run, self._objects = run, run.weights_cache
        self._chains = {run.topics.weights(policy): Compaction(every) for policy in policies}
        self._policies = dict(zip(self._chains, policies, strict=True))
        self._producer = open_producer(run.connection, COMPACTOR)
        self._reader = TopicReader(run.connection, find_start_positions(run.connection, self._chains), COMPACTOR)

    def read_published_events(self) -> None:
        """Read all events that are published until now."""
        for message in self._reader.catch_up():
            self._fold_event(message)

    def read_new_events(self, timeout_s: float) -> None:
        """Read new events, waiting at most that long for one."""
        found = self._reader.poll(256, timeout_s)
        while found:
            for message in found:
                self._fold_event(message)
            found = self._reader.poll(256, 0)

    def _fold_event(self, message: Message) -> None:
        event, chain = read_record(message, WeightsPublished), self._chains[message.topic]
        if event is None or event.run_id != self._run.run_id:
            return
        before = chain.left_out
        chain.fold_event(event)
        if chain.left_out and not before:
            log.warning("deltas.left_out", policy=event.policy, until="the next anchor", why=chain.left_out)

    def merge_due(self) -> list[WeightsPublished]:
        """Merge, upload and publish the due deltas of every policy; return the published events.

        An object that is missing, damaged or mislabelled is logged and left out. Raises Unavailable if the store or
        Kafka is unreachable; events that were published before stay valid.
        """
        announced = []
        for topic, chain in self._chains.items():
            while parts := chain.deltas_to_merge():
                event = self._merge_and_upload(chain, parts)
                if event is not None:
                    self._announce(topic, event)
                    chain.fold_event(event)
                    announced.append(event)
        return announced

    def explain_no_merge(self) -> dict[str, str]:
        """Return policy to why nothing is to be merged."""
        return {policy: self._chains[topic].explain_no_merge() for topic, policy in self._policies.items()}

    def _merge_and_upload(self, chain: Compaction, parts: tuple[WeightsPublished, ...]) -> WeightsPublished | None:
        """Return the event of a merged delta that is in the store; None when one of its parts is bad."""
        begin, deltas = time.monotonic(), []
        for part in parts:
            try:
                deltas.append(self._fetch(part))
            except (ObjectMissing, ObjectCorrupt, WeightsError, BadWeights) as error:
                log.warning("delta.refused", policy=part.policy, what=name_of(part), why=str(error))
                chain.mark_bad(part, f"{name_of(part)}: {error}")
                return None
        fetched = time.monotonic()
        try:
            data = merge_deltas(deltas)
        except WeightsError as error:
            log.warning("deltas.left_out", policy=parts[-1].policy, until="the next anchor", why=str(error))
            chain.stop_until_anchor(str(error))
            return None
        encoded = time.monotonic()
        reach("compact.before_upload")
        claim = self._run.put(data, "weights", ".delta", self._stop)
        reach("compact.after_upload")
        uploaded = time.monotonic()
        first, last = parts[0], parts[-1]
        event = replace(
            last,
            kind=MERGED,
            base_version=first.base_version,
            base_hash=first.base_hash,
            weights=claim,
            files=(),
            final=False,
            created_ms=now_ms(),
            metrics={
                "full_bytes": last.metrics.get("full_bytes", 0.0),
                "density": read_delta(data).header.density,
                "encode_s": encoded - fetched,
                "upload_s": uploaded - encoded,
            },
        )
        log.info(
            "deltas.merged",
            policy=event.policy,
            base_version=event.base_version,
            version=event.version,
            objects=len(parts),
            read_bytes=sum(claim_of(part).size_bytes for part in parts),
            bytes=claim.size_bytes,
            seconds=round(uploaded - begin, 2),
        )
        return event

    def _fetch(self, event: WeightsPublished) -> Delta:
        try:
            return fetch_delta(self._objects, event)
        except WeightsError:  # this machine's copy may be damaged: fetch the object again
            self._objects.drop(claim_of(event))
            return fetch_delta(self._objects, event)

    def _announce(self, topic: str, event: WeightsPublished) -> None:
        """Write the event and return when the cluster has it.

        It needs no transaction: it is a single record that stays true, and a second copy does no harm.
        """
        failed: list[KafkaError] = []
        self._producer.produce(
            topic,
            codec.encode(event),
            f"{event.version}".encode(),
            partition=0,
            on_delivery=lambda error, _message: failed.append(error) if error is not None else None,
        )
        doing = f"publishing {name_of(event)}"
        if self._producer.flush(ANNOUNCE_S):
            raise KafkaAway(f"{doing}: Kafka did not confirm the record within {ANNOUNCE_S:.0f} s")
        if failed:
            raise translate_error(KafkaException(failed[0]), doing)
        reach("compact.announced")

    def close(self) -> None:
        """Close the connections; an event that was not delivered is lost, and will be made again."""
        self._producer.purge()
        self._reader.close()


def compact(opened: OpenedRun, policy: str | None, every: int, stop: threading.Event, *, once: bool) -> list[str]:
    """Merge what is due until `stop` is set, or only `once`. Raises what `Compactor.merge_due` raises.

    Returns the result of each policy, as lines of text; none if `stop` was set.
    """
    run = join_and_write_schemas(opened.run.address, JOIN_PATIENCE_S, stop)
    if opened.is_alone:  # its store was started for this command, and its address may differ from the recipe's
        run = replace(run, store_address=opened.run.store_address)
    policies = [run.resolve(policy)] if policy else list(run.recipe.policies)
    with closing(Compactor(run, policies, every, stop)) as compactor:
        compactor.read_published_events()
        while not stop.is_set():
            announced = compactor.merge_due()
            if once:
                stop.set()
                return describe_merges(announced, compactor.explain_no_merge())
            compactor.read_new_events(COMPACTOR_TURN_S)
    return []


def describe_merges(announced: Sequence[WeightsPublished], why_nothing: Mapping[str, str]) -> list[str]:
    """Return a line for every merged delta, and for every other policy the reason why nothing was merged."""
    lines = [
        f"{one.policy}: merged versions {one.base_version} to {one.version} into {claim_of(one).size_bytes:,} bytes"
        for one in announced
    ]
    idle = why_nothing.keys() - {one.policy for one in announced}
    return lines + [f"{policy}: nothing to merge: {why_nothing[policy]}" for policy in sorted(idle)]


def main(run: str | None, data: Path | None, policy: str | None, every: int, *, once: bool) -> None:
    """Compact a run, given by its address or folder, until a signal or, with `once`, until nothing is due."""
    report: list[str] = []
    if once:
        warn_in_sentences()
    else:
        configure_logging(COMPACTOR)
    with open_run(run, data, store=True) as opened:
        stop = stop_on_signals()
        for attempt in begin_attempts(stop):
            with attempt:
                report += compact(opened, policy, every, stop, once=once)
    sys.stdout.writelines(f"{line}\n" for line in report)
