"""Checks that no record says of a version that a run still needs that its objects may be deleted. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headrace.infra.run.retired import CHECKPOINTS, WEIGHTS, Retired
from headrace.ops.audit.weights_chain import WeightsChain


def find_wrongly_retired(retired: Retired, chains: Mapping[str, WeightsChain], *, still: bool) -> Iterator[str]:
    """Yield the versions that `headrace gc` never retires, but a record in `state` does.

    They are the first version, whose weights and checkpoint are kept for ever; the newest checkpoint, from which a
    trainer resumes; and the newest weights back to whole weights, which new workers fetch.

    Args:
        retired: All retired versions.
        chains: Policy or shadow to its versions, read before `retired` was complete.
        still: Whether no process writes now; else the newest weights may be newer than those in `chains`.
    """
    for policy, chain in chains.items():
        way = dict.fromkeys(chain.find_way_to_newest(), "on the way from whole weights to the newest version")
        way |= dict.fromkeys([*way][:1], "the newest version")
        needed = {
            CHECKPOINTS: {0: "the first version", max(chain.checkpoints, default=0): "the newest version"},
            WEIGHTS: {0: "the first version"} | (way if still else {}),
        }
        for what, versions in needed.items():
            for version, which in versions.items():
                if retired.has_version(policy, what, version):
                    yield (
                        f"a record in `state` says that the {what} of version {version} of {policy} may be deleted, "
                        f"but it is {which}, which nothing may delete"
                    )
