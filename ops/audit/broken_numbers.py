"""What may be wrong with task numbers: sentences, each with its condition over the table of numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class Scope:
    """The state of a run that decides which problems are checked."""

    drained: bool = False
    """Nothing more can conclude: groups in flight are lost."""
    still: bool = False
    """No process is writing now, so all topics show the same moment."""
    whole: bool = False
    """Trajectories and curated groups were read too."""
    offline: bool = False
    """An offline experiment: its groups are those of another run, and it has only batches."""


When: TypeAlias = Literal["whole", "still", "drained", "running", "moving", "offline"]


@dataclass(frozen=True, slots=True)
class Check:
    """A sentence, and the condition under which it is said of a row of the table `number`."""

    what: str
    """The sentence; `{reason}` is that of a discard."""
    where: str
    """Condition in SQL."""
    when: tuple[When, ...] = ()
    """Parts of the scope that must hold; `moving`: some process writes. `offline` says that it also holds offline."""

    def is_made_in(self, scope: Scope) -> bool:
        """Return whether the check is made in a scope."""
        if scope.offline and "offline" not in self.when:
            return False
        state = {
            "whole": scope.whole,
            "still": scope.still,
            "drained": scope.drained,
            "moving": not scope.still,
            "offline": True,
            "running": not scope.drained,
        }
        return all(state[one] for one in self.when)


_DUE = "due AND NOT reopened AND issued"
CHECKS = (
    Check("was trained more than once", "trained > 1 AND NOT discarded", ("offline",)),
    Check("was both trained and discarded ({reason})", "trained AND discarded"),
    Check("was discarded more than once ({reason})", "discarded > 1 AND NOT trained"),
    Check("was kept more than once", "kept > 1"),
    Check("is a dead letter, but was also trained or discarded", "died AND trained + discarded > 0"),
    Check("was discarded without a reason", "no_reason"),
    Check("was evicted by the trainer more than once", "evicted > 1"),
    Check("was evicted by the trainer for another reason than its outcome gives ({reason})", "odd_verdict"),
    Check("was concluded, but never issued", "concluded AND NOT issued"),
    Check("was trained, but no outcome says that it was kept", "trained AND NOT kept"),
    Check("was evicted by the trainer, but no outcome says so", "evicted AND NOT discarded AND NOT died"),
    Check(
        "was discarded by the trainer ({reason}), but no batch record says so", "by_trainer AND NOT evicted", ("still",)
    ),
    Check("was trained after its deadline", "late"),
    Check("was trained into a version that is not newer than the version that sampled its newest token", "early"),
    Check(
        "was read by the trainer and is past its deadline, but was neither trained nor evicted",
        "overdue AND NOT concluded AND NOT evicted",
    ),
    Check("was produced, but never issued", "produced AND reached AND NOT issued AND NOT concluded", ("whole",)),
    Check(
        "was read by the curators, but has no outcome and no dead letter",
        f"{_DUE} AND NOT (kept OR discarded OR curated OR died)",
        ("whole", "running"),
    ),
    Check(
        "has a curated record, but no outcome says that it was kept",
        f"curated AND {_DUE} AND NOT kept",
        ("whole", "moving"),
    ),
    Check("has its curated record at another offset than its batch record gives", "misplaced", ("whole",)),
    Check("has more than one curated record", "curated_again", ("whole",)),
    Check("was kept, but has no curated record", "kept AND NOT curated", ("whole",)),
    Check(
        "has an outcome of a group that no worker delivered: the digests of the records differ", "altered", ("whole",)
    ),
    Check("was curated, but no worker produced it", "use = 0 AND (kept OR discarded) AND NOT produced", ("whole",)),
    Check("has a curated record, but no outcome says that it was kept", "curated AND NOT kept", ("whole", "still")),
    Check(
        "is a replay, but the same group's use before this replay was never kept",
        "use > 0 AND kept AND NOT EXISTS (SELECT 1 FROM number AS before WHERE before.kept"
        " AND (before.variant, before.stream, before.use, before.number)"
        " = (number.variant, number.stream, number.use - 1, number.number))",
    ),
    Check(
        "was read by the trainer, but neither trained nor evicted",
        "use > 0 AND kept AND passed AND NOT concluded",
        ("drained",),
    ),
)


def describe_open(kept: int, produced: int) -> str:
    """Return what is wrong with a number that is still open when nothing more can conclude."""
    if kept:
        return "was kept, but neither trained nor evicted"
    return "was produced, but has no outcome and no dead letter" if produced else "was issued, but never concluded"
