"""Turns records of the curated topic into groups for the window, or into the reason why they are refused."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import cached_property

from blake3 import blake3

from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.decoding import MessageRefused
from headrace.infra.run.run import Run
from headrace.infra.stopwatch import Stopwatch
from headrace.infra.store.object_store import ObjectCorrupt, ObjectMissing
from headrace.infra.weights.files import TOKENIZER_FILE
from headrace.schemas.avro import SchemaError
from headrace.schemas.digests import compute_digest
from headrace.schemas.ids import UseId
from headrace.schemas.records import CuratedGroup, NamedObject
from headrace.trainers.advantages import RewardError
from headrace.trainers.batches.batch import BatchError
from headrace.trainers.batches.estimator import AdvantageError
from headrace.trainers.batches.first_use_cache import FirstUseCache, LoggedFirstUses
from headrace.trainers.batches.groups import PreparedGroup, decode_group
from headrace.trainers.batches.window import Waiting, WindowEviction
from headrace.trainers.checked_groups import prepare_checked_group
from headrace.trainers.learner.limits import Limits

UNUSABLE = (SchemaError, ObjectMissing, ObjectCorrupt, BatchError, RewardError, AdvantageError)
"""Errors of decoding a group that cannot be trained on."""
MOST_FAILURES = 8
"""Groups in a row for which the advantage may fail, so that rollouts are not wasted without end. For the same reason a
run ends if it has no version and all its groups, two batches and at least so many, were refused."""


class Intake:
    """Decodes curated groups when they arrive, to find unusable groups before their batch.

    Args:
        run: The run whose curated topic and store hold the groups.
        policy_variant: The policy or shadow that is trained.
        limits: Limits of its model.
        files: Config and tokenizer of the policy.
        watch: Measures the time of fetching and decoding.
        newest_version: Returns the newest version that the trainer has made.
    """

    def __init__(
        self,
        run: Run,
        policy_variant: str,
        limits: Limits,
        files: tuple[NamedObject, ...],
        watch: Stopwatch,
        newest_version: Callable[[], int],
    ) -> None:
        self._run, self._limits, self._files, self._watch = run, limits, files, watch
        self._settings = run.recipe.trainer_of(policy_variant)
        self._newest_version = newest_version
        self._first_uses = FirstUseCache(LoggedFirstUses(run, policy_variant))
        self._arrivals = 0
        self.arrived_at = time.monotonic()
        """When the last group arrived."""
        self._advantage_failures = 0
        """Number of groups in a row for which the advantage failed."""
        self._has_taken, self._refused = False, 0
        """Whether this process accepted a group, and how many it refused before."""
        self._head = -1
        """In a shadow: the highest `head_version` of the groups read."""

    @property
    def version_now(self) -> int:
        """Version from which staleness is counted: the trainer's, or in a shadow the version of the engines."""
        return self._head if self._settings.is_shadow else self._newest_version()

    def build_entry_or_eviction(
        self, message: Message, curated: CuratedGroup
    ) -> Waiting[PreparedGroup] | WindowEviction[PreparedGroup]:
        """Return a group as a window entry; a replay gets the group of its first use.

        A replay whose first use has left the log is evicted as `missing`. Raises MessageRefused with reason `unusable`;
        and UsageError when the advantage has failed for MOST_FAILURES groups in a row, or before the first version if
        every group was refused.
        """
        self._arrivals += 1
        self.arrived_at = time.monotonic()
        try:
            with self._watch.measure("consume"):
                found = self._first_uses.complete(message, curated)
            if found is None:
                empty = PreparedGroup.of_record(curated)
                return WindowEviction(self._build_waiting(message, curated, empty), "missing")
            with self._watch.measure("decode"):
                return self._build_waiting(message, curated, self._prepare(found))
        except UNUSABLE as error:
            self._count_refused(error)
            raise MessageRefused("unusable", str(error)) from error

    def _count_refused(self, error: Exception) -> None:
        """Count a refused group. Raises UsageError after so many that no version will come."""
        if isinstance(error, AdvantageError):
            self._advantage_failures += 1
            if self._advantage_failures >= MOST_FAILURES:  # a restart would only refuse as many groups more
                raise UsageError(
                    f"the advantage failed for {self._advantage_failures} groups in a row; the last error: {error}"
                ) from error
        elif isinstance(error, BatchError | RewardError) and not self._has_taken and self._newest_version() <= 0:
            self._refused += 1
            if self._refused >= max(MOST_FAILURES, 2 * self._settings.groups_per_batch):
                raise UsageError(
                    f"no version can be made: each of the first {self._refused} groups was refused. The last error: "
                    f"{error}"
                ) from error

    def _build_waiting(self, message: Message, curated: CuratedGroup, payload: PreparedGroup) -> Waiting[PreparedGroup]:
        return Waiting(
            use_id=UseId.of(curated),
            min_version=curated.min_version,
            deadline_version=curated.deadline_version,
            arrival=self._arrivals,
            partition=message.partition,
            offset=message.offset,
            payload=payload,
            size_bytes=payload.size_bytes,
            digest=compute_digest(message.value),
        )

    def _prepare(self, curated: CuratedGroup) -> PreparedGroup:
        """Return a group as the learner gets it. Raises the error that makes it unusable."""
        group = decode_group(self._run, curated)
        known = math.inf if self._settings.is_shadow else self._newest_version()
        found = prepare_checked_group(group, self._limits, self._settings, lambda: self._tokenizer_hash, known)
        self._has_taken = True
        self._advantage_failures = 0
        if self._settings.is_shadow:
            self._head = max(self._head, found.newest, group.trajectory_group.head_version)
        return found

    @cached_property
    def _tokenizer_hash(self) -> str:
        """BLAKE3 of the policy's tokenizer; empty if none was published."""
        found = (file.claim for file in self._files if file.name == TOKENIZER_FILE)
        claim = next(found, None)
        return "" if claim is None else blake3(self._run.get(claim)).hexdigest()
