"""All weight sets of an engine: the served set of each policy and, while an evaluation needs them, held sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from headrace.producers.engines.contract import EngineError, EngineStats, VersionGone
from headrace.producers.engines.torch.causal_lm import CausalLM, Staged
from headrace.producers.engines.torch.weight_set import WeightSet


class WeightSets:
    """Only the engine thread may change it; any thread may read policies, versions and counters.

    Args:
        models: By policy, the model that serves it.
        max_batch: Rows of each set.
        prefill_tokens: Prompt tokens of a set, padding included, in one forward.
        max_held: Sets of a policy that are kept beside the served one.
    """

    def __init__(self, models: Mapping[str, CausalLM], *, max_batch: int, prefill_tokens: int, max_held: int) -> None:
        self._max_batch, self._prefill_tokens, self._max_held = max_batch, prefill_tokens, max_held
        self._served = {policy: self._build(lm) for policy, lm in models.items()}
        self._held: dict[tuple[str, int], WeightSet] = {}
        self._retired = EngineStats(0, 0, 0, 0, 0, 0.0)  # counters of held sets that are gone

    def _build(self, lm: CausalLM) -> WeightSet:
        return WeightSet(lm, max_batch=self._max_batch, prefill_tokens=self._prefill_tokens)

    def serving_set(self, policy: str) -> WeightSet:
        """Return the set that serves a policy. Raises EngineError for a policy that the engine does not have."""
        if policy not in self._served:
            raise EngineError(f"no policy {policy!r} in this engine; its policies are {sorted(self._served)}")
        return self._served[policy]

    def versions(self) -> dict[str, int]:
        """Return the served version of each policy that has one."""
        return {policy: served.version for policy, served in self._served.items() if served.version is not None}

    def list_sets(self) -> list[WeightSet]:
        """Return all sets, the served ones first."""
        return [*self._served.values(), *self._held.copy().values()]

    def find_for_request(self, policy: str, version: int | None) -> WeightSet:
        """Return the set of a version, or the served one for None. Raises EngineError and VersionGone."""
        served = self._served[policy]
        if version is None:
            if served.version is None:
                raise EngineError(f"policy {policy} has no weights yet; load a version first")
            return served
        held = self._held.get((policy, version))
        if held is None or held.holds == 0:
            raise VersionGone(self._gone_error(policy, version))
        return held

    def hold(self, policy: str, version: int, staged: Staged | None) -> None:
        """Hold a version that is held, served or given as weights. Raises EngineError and VersionGone."""
        held = self._held.get((policy, version))
        if held is None:
            served = self._served[policy]
            if staged is None and served.version != version:
                raise VersionGone(self._gone_error(policy, version))
            self._make_room(policy)
            with torch.inference_mode(mode=False):  # tensors made in inference mode cannot take other weights
                held = self._build(served.lm.copy())
            held.apply(staged or [], version)
            self._held[policy, version] = held
        held.holds += 1

    def release(self, policy: str, version: int) -> None:
        """Undo one hold; the unused set stays in memory until another hold needs the memory. Raises VersionGone."""
        self.find_for_request(policy, version).holds -= 1

    def count_tokens_and_requests(self) -> EngineStats:
        """Return the tokens and requests of all sets, also of removed sets; times are 0."""
        sets, gone = self.list_sets(), self._retired
        return replace(
            _add_tokens(gone, sets),
            running=sum(len(each.rows) for each in sets),
            waiting=sum(len(each.waiting) for each in sets),
        )

    def _gone_error(self, policy: str, version: int) -> str:
        held = sorted(key[1] for key, each in self._held.items() if key[0] == policy and each.holds)
        served = self._served[policy].version
        return (
            f"policy {policy} version {version} is not held by this engine (held: {held}, served: {served}): call "
            "`hold` before use"
        )

    def _make_room(self, policy: str) -> None:
        mine = [key for key in self._held if key[0] == policy]
        if len(mine) < self._max_held:
            return
        unused = [key for key in mine if self._held[key].holds == 0 and not self._held[key].is_busy]
        if not unused:
            raise EngineError(
                f"policy {policy} already holds versions {sorted(key[1] for key in mine)}, all in use; "
                f"release a version, or raise max_held ({self._max_held})"
            )
        self._retired = _add_tokens(self._retired, [self._held.pop(unused[0])])


def _add_tokens(stats: EngineStats, sets: list[WeightSet]) -> EngineStats:
    """Return the counters with the tokens of further sets added."""
    return replace(
        stats,
        generated_tokens=stats.generated_tokens + sum(each.generated_tokens for each in sets),
        prompt_tokens=stats.prompt_tokens + sum(each.prompt_tokens for each in sets),
        recomputed_tokens=stats.recomputed_tokens + sum(each.recomputed_tokens for each in sets),
    )
