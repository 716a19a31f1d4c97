"""Decides which versions are evaluated and when their tasks may be issued, without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One version of one policy in one workflow."""

    workflow: str
    policy: str
    versions: dict[str, int]
    """Version of every policy of the workflow: the evaluated version, and the newest versions of the other policies."""


class EvaluationSchedule:
    """`take_ready` returns every due (workflow, policy, version) exactly once, also across restarts.

    Due versions are the first version seen, the first version published at or after every multiple of `every` (a
    trainer may skip publishing a version), and the last version.

    Args:
        policies_of: Workflow to the policies that it trains.
        steps: Policy to its last version.
        every: Versions between evaluations; 0 for none at all.
    """

    def __init__(self, policies_of: Mapping[str, tuple[str, ...]], steps: Mapping[str, int], every: int) -> None:
        self.policies_of = dict(policies_of)
        self.steps = dict(steps)
        self.every = every
        self.newest: dict[str, int] = {}
        """Newest published version by policy."""
        self._noted: dict[tuple[str, str], int] = {}
        self._waiting: list[tuple[str, str, int]] = []

    @property
    def is_settled(self) -> bool:
        """Whether no due evaluation waits for another policy's first version."""
        return not self._waiting

    def is_last_version_published(self, policy: str) -> bool:
        """Return whether a policy's last version is published."""
        return self.newest.get(policy, -1) >= self.steps[policy]

    def note_published(self, policy: str, version: int) -> None:
        """Take in a published version."""
        self.newest[policy] = max(version, self.newest.get(policy, -1))
        for workflow, policies in self.policies_of.items():
            if policy in policies and self._is_due(workflow, policy, version):
                self._make_due(workflow, policy, version)

    def close(self) -> None:
        """Make the newest versions due, because no later ones will come."""
        for workflow, policies in self.policies_of.items():
            for policy in policies:
                newest = self.newest.get(policy, -1)
                if self.every and newest > self._noted.get((workflow, policy), -1):
                    self._make_due(workflow, policy, newest)

    def take_ready(self) -> list[Evaluation]:
        """Return and forget the due evaluations that can run: every policy of the workflow has a version."""
        able = [w for w, policies in self.policies_of.items() if all(p in self.newest for p in policies)]
        found = [
            Evaluation(w, policy, {p: self.newest[p] for p in self.policies_of[w]} | {policy: version})
            for w, policy, version in self._waiting
            if w in able
        ]
        self._waiting = [one for one in self._waiting if one[0] not in able]
        return found

    def _is_due(self, workflow: str, policy: str, version: int) -> bool:
        last = self._noted.get((workflow, policy))
        if not self.every or (last is not None and version <= last):
            return False
        return last is None or version // self.every > last // self.every or version >= self.steps[policy]

    def _make_due(self, workflow: str, policy: str, version: int) -> None:
        self._noted[workflow, policy] = version
        self._waiting.append((workflow, policy, version))

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON has it."""
        noted = [[workflow, policy, version] for (workflow, policy), version in self._noted.items()]
        return {"newest": dict(self.newest), "noted": noted, "waiting": [list(one) for one in self._waiting]}

    def restore(self, state: dict[str, Any]) -> None:
        """Take the state that `snapshot` returned, without workflows and policies that the recipe no longer has."""
        self.newest = dict(state["newest"])
        self._noted = {(workflow, policy): version for workflow, policy, version in state["noted"]}
        self._waiting = [
            (workflow, policy, version)
            for workflow, policy, version in state["waiting"]
            if policy in self.policies_of.get(workflow, ())
        ]
