"""Which policies a run's streams train, by all its recipes, and which tasks a later recipe abandons. No I/O.

A recipe may drop a workflow, rename it or give it another policy. Tasks in flight that a worker has played still
conclude. The feeder forgets tasks that nobody has played.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.infra.recipe.settings import Recipe

Begins = Mapping[str, Sequence[Sequence[int]]]
"""Stream to (revision, the first number issued under it)."""


class TrainedStreams:
    """The streams of a run.

    Args:
        revisions: All its recipes, by number.
    """

    def __init__(self, revisions: Sequence[Recipe]) -> None:
        self._revisions = revisions
        newest = revisions[-1]
        self.workflows = tuple(dict.fromkeys(name for recipe in (newest, *revisions) for name in recipe.workflows))
        """Streams of all recipes."""
        self._policies_of = {
            name: tuple(
                dict.fromkeys(
                    policy
                    for recipe in (newest, *revisions)
                    for policy in _find_policies(recipe, name)
                    if policy in newest.policies
                )
            )
            for name in self.workflows
        }

    def policies_of(self, stream: str) -> tuple[str, ...]:
        """Return the newest recipe's policies that a stream trains or trained before; none for an unknown stream."""
        return self._policies_of.get(_find_workflow(stream), ())

    def find_forgettable(self, policy: str, issued: Mapping[str, int], begins: Begins) -> dict[str, int]:
        """Return for each stream the number below which the feeder may have forgotten a policy's open tasks.

        These are the numbers issued before the last recipe in which the stream did not train the policy.

        Args:
            policy: A policy of the newest recipe.
            issued: Next number of every stream.
            begins: First number of each stream under each revision.
        """
        found = {}
        for stream, end in issued.items():
            without = [
                number
                for number, recipe in enumerate(self._revisions)
                if policy not in _find_policies(recipe, _find_workflow(stream))
            ]
            if without and policy in self.policies_of(stream):
                later = [first for revision, first in begins.get(stream, ()) if revision > without[-1]]
                is_gone = without[-1] == len(self._revisions) - 1
                found[stream] = min(later) if later else end if is_gone or stream in begins else 0
        return {stream: number for stream, number in found.items() if number}


def _find_policies(recipe: Recipe, workflow: str) -> tuple[str, ...]:
    return recipe.policies_of(workflow) if workflow in recipe.workflows else ()


def _find_workflow(stream: str) -> str:
    return stream.partition(".")[0]
