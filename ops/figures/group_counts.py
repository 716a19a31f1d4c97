"""Counts of the numbers of each policy, from the ledger, without reading trajectories."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from headrace.ledger.feeder_snapshot import NO_SNAPSHOT, read_begins, read_issued
from headrace.ledger.ledger import Ledger
from headrace.ledger.tallies import count_concluded, count_numbers, count_reasons, recount
from headrace.ops.audit.numbers import PolicyAudit, list_reasons
from headrace.ops.figures.run_figures import Selection, read_selection
from headrace.schemas.topics import policy_of

LEAST, LARGEST = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True)
class Issued:
    """What the feeder's snapshot tells."""

    next_numbers: Mapping[str, int] = field(default_factory=dict)
    """Next number of every stream."""
    begins: Mapping[str, list[list[int]]] = field(default_factory=dict)
    """Stream to (revision, the first number issued under it)."""
    selection: Mapping[str, Selection] = field(default_factory=dict)
    """Stream to the counts of its selector's decisions."""


def read_feeder(ledger: Ledger, before: Issued) -> Issued:
    """Return what the feeder's newest snapshot tells; if it cannot be read, `before`: the audit reports it."""
    with suppress(*NO_SNAPSHOT):
        if (snapshot := ledger.feeder.decode()) is None or snapshot.run_id != ledger.run_id:
            return before
        state: dict[str, Any] = json.loads(snapshot.body)
        selection = {stream: read_selection(source) for stream, source in state.get("sources", {}).items()}
        return Issued(read_issued(state), read_begins(state), selection)
    return before


def count_policies(ledger: Ledger, issued: Issued) -> dict[str, PolicyAudit]:
    """Return the counts of every policy and shadow."""
    recount(ledger)
    return {variant: _count(ledger, variant, issued) for variant in ledger.streams.variants}


def _count(ledger: Ledger, variant: str, issued: Issued) -> PolicyAudit:
    policy, streams = policy_of(variant), ledger.streams.trained
    ends = {s: end for s, end in issued.next_numbers.items() if policy in streams.policies_of(s)}
    forgettable = streams.find_forgettable(policy, issued.next_numbers, issued.begins)
    tallies = count_numbers(ledger, variant)
    firsts, replays = [one for one in tallies if not one.is_replay], [one for one in tallies if one.is_replay]
    outside = sum(_count_outside(ledger, variant, one.stream, ends.get(one.stream, 0)) for one in firsts)
    total = sum(ends.values()) - sum(
        _count_forgotten(ledger, variant, stream, min(end, forgettable.get(stream, 0))) for stream, end in ends.items()
    )
    [(trajectories,)] = ledger.query("SELECT count(*) FROM outcome WHERE variant = ? AND level = 'trajectory'", variant)
    return PolicyAudit(
        issued=total,
        kept=sum(one.kept for one in firsts),
        trained=sum(one.trained for one in firsts),
        discarded=_count_discarded(ledger, variant),
        dead=sum(one.dead for one in firsts),
        in_flight=total - (sum(one.concluded for one in firsts) - outside),
        lost=outside,
        doubled=sum(one.doubled for one in tallies),
        replays=sum(one.kept for one in replays),
        replayed=sum(one.trained for one in replays),
        replays_discarded=sum(one.untrained for one in replays),
        trajectories_discarded=trajectories,
    )


def _count_outside(ledger: Ledger, variant: str, stream: str, end: int) -> int:
    """Count the concluded numbers of a stream that were never issued."""
    return count_concluded(ledger, variant, stream, LEAST, -1) + count_concluded(ledger, variant, stream, end, LARGEST)


def _count_forgotten(ledger: Ledger, variant: str, stream: str, end: int) -> int:
    """Count the tasks below a number that the feeder may have forgotten, and that nobody has played or concluded."""
    return end - count_concluded(ledger, variant, stream, 0, end - 1, or_kept=True) if end > 0 else 0


def _count_discarded(ledger: Ledger, variant: str) -> dict[str, int]:
    words = Counter[str]()
    for (_, verdict, reason), groups in count_reasons(ledger, variant).items():
        words[reason or verdict] += groups
    return list_reasons(words)
