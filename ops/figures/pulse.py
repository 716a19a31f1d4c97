"""The figures that only a live view shows, from the ledger: rates, the newest steps, published weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.infra.kafka.dead_letters import REDRIVEN
from headrace.ledger.ledger import Ledger
from headrace.trainers.health import HEALTH_LOOK_BACK

WINDOW_MS = 10_000
"""Rates are means over this many of the newest seconds."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second."""

    samples: float = 0.0
    tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class PolicyPulse:
    """The live figures of one policy."""

    recent: tuple[Mapping[str, float], ...] = ()
    """Metrics of its newest steps, oldest first."""
    published: int = 0
    """Number of published versions."""
    newest_published: int = -1

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics of its newest step."""
        return self.recent[-1] if self.recent else {}


@dataclass(frozen=True, slots=True)
class Pulse:
    """The live figures of a run."""

    policies: Mapping[str, PolicyPulse]
    rates: Rates
    dead_letters: int
    """Number of dead letters, without redrives."""


def find_pulse(ledger: Ledger, now_ms: int) -> Pulse:
    """Return the live figures; `now_ms` is wall time in ms since the epoch."""
    policies = {policy: _find_policy(ledger, policy) for policy in ledger.streams.recipe.policies}
    [(letters,)] = ledger.query("SELECT count(*) FROM dead_letter WHERE reason <> ?", REDRIVEN)
    return Pulse(policies, _find_rates(ledger, now_ms), letters)


def _find_policy(ledger: Ledger, policy: str) -> PolicyPulse:
    steps = ledger.query(
        "SELECT metrics FROM batch WHERE variant = ? AND version >= 0 ORDER BY id DESC LIMIT ?",
        policy,
        HEALTH_LOOK_BACK,
    )
    [(published, newest)] = ledger.query(
        "SELECT count(*), max(version) FROM weights WHERE variant = ? AND publishes", policy
    )
    recent = tuple(json.loads(metrics) for (metrics,) in reversed(steps))
    return PolicyPulse(recent, published, -1 if newest is None else newest)


def _find_rates(ledger: Ledger, now_ms: int) -> Rates:
    """Return the rates of the newest seconds."""
    samples, tokens, first_ms = 0, 0.0, now_ms
    for variant, stream, begin_ms in ledger.query(
        "SELECT variant, stream, min(first_ms) FROM decided WHERE variant NOT LIKE '%.%' GROUP BY 1, 2"
    ):
        [(more, more_tokens)] = ledger.query(
            "SELECT sum(samples), total(tokens) FROM outcome"
            " WHERE variant = ? AND stream = ? AND at_ms >= ? AND decides",
            variant,
            stream,
            now_ms - WINDOW_MS,
        )
        samples, tokens, first_ms = samples + (more or 0), tokens + more_tokens, min(first_ms, begin_ms)
    span_s = min(WINDOW_MS, max(1000, now_ms - first_ms)) / 1000
    return Rates(samples / span_s, tokens / span_s)


def compute_mean_rates(ledger: Ledger, wall_s: float) -> Rates:
    """Return the rates over the seconds that a run has taken; zeros if these are not known."""
    if wall_s <= 0:
        return Rates()
    [(samples, tokens)] = ledger.query("SELECT total(samples), total(tokens) FROM decided WHERE variant NOT LIKE '%.%'")
    return Rates(samples / wall_s, tokens / wall_s)
