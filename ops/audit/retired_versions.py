"""Checks that no record says of a version that a run still needs that its objects may be deleted. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headrace.infra.run.retired import CHECKPOINTS, WEIGHTS, Retired
from headrace.ops.audit.weights_chain import WeightsChain


def find_wrongly_retired(retired: Retired, chains: Mapping[str, WeightsChain], *, still: bool) -> Iterator[str]:
    """Yield the versions that `headrace gc` never retires, but a record in `state` does.

    They are the first version, whose weights and checkpoint are kept for ever; the newest checkpoint, from which a
    trainer resumes; and the newest weights, which new workers fetch.

    Args:
        retired: All retired versions.
        chains: Policy or shadow to its versions, read before `retired` was complete.
        still: Whether no process writes now; else the newest weights may be newer than those in `chains`.
    """
    for policy, chain in chains.items():
        needed = {
            CHECKPOINTS: {0: "the first", max(chain.checkpoints, default=0): "the newest"},
            WEIGHTS: {0: "the first"} | ({chain.newest_event: "the newest"} if still else {}),
        }
        for what, versions in needed.items():
            for version, which in versions.items():
                if retired.has_version(policy, what, version):
                    yield (
                        f"a record in `state` says that the {what} of version {version} of {policy} may be deleted, "
                        f"but it is {which} version, which nothing may delete"
                    )
