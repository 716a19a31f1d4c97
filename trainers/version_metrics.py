"""The metrics of a version's record, and the health findings from them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

import structlog

from headrace.infra.stopwatch import Stopwatch, compute_log_share
from headrace.trainers.health import ENTROPY_FIRST, HEALTH_LOOK_BACK, findings
from headrace.trainers.versions.pipeline import MadeVersion

log = structlog.get_logger()


class VersionMetrics:
    """Collects the metrics of one version after the other.

    Args:
        policy_variant: The policy or shadow that is trained.
        recent: Metrics of the newest versions, oldest first.
        watch: Stopwatch of the trainer's loop.
    """

    def __init__(self, policy_variant: str, recent: Iterable[Mapping[str, float]], watch: Stopwatch) -> None:
        self._policy_variant, self._watch = policy_variant, watch
        self._recent = deque(recent, maxlen=HEALTH_LOOK_BACK)

    def of(self, made: MadeVersion) -> dict[str, float]:
        """Return a version's metrics: of its step, of its batch, and of the loop's time."""
        self._watch.seconds["train"] += made.metrics["step_s"] + made.metrics["blocked_s"]
        metrics = {**made.metrics, **made.request.metrics, "log_share": compute_log_share(self._watch.seconds)}
        metrics |= {f"seconds_{activity}": spent for activity, spent in self._watch.seconds.items()}
        metrics |= self._find_first_entropy(metrics)
        return {name: float(value) for name, value in metrics.items()}

    def _find_first_entropy(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the entropy of the first version that had one; a slow collapse is only visible against it."""
        entropies = (one.get(ENTROPY_FIRST, one.get("entropy")) for one in (*self._recent, metrics))
        first = next((entropy for entropy in entropies if entropy is not None), None)
        return {} if first is None else {ENTROPY_FIRST: first}

    def add(self, metrics: Mapping[str, float]) -> None:
        """Take in a version's metrics; log new health findings."""
        before = {finding.name for finding in findings(self._recent)}
        self._recent.append(metrics)
        for finding in findings(self._recent):
            if finding.name not in before:
                # A metric of a step is outside its healthy range.
                log.warning("health.found", policy=self._policy_variant, what=finding.name, detail=finding.sentence)
