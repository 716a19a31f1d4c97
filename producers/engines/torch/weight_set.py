"""One set of weights and the requests that run on it, one token at a time for all rows.

When a request joins, its slot is filled with the states of its prompt without the last token. That token goes through
the common step, like the newest token of any other row. A swap refills all running slots in the same way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.producers.engines.contract import EngineError, Generation
from headrace.producers.engines.torch.batch import BatchRows, Request
from headrace.producers.engines.torch.causal_lm import CausalLM, Staged, pad_rows
from headrace.producers.engines.torch.kv_slots import SlotCache, place_on_device
from headrace.producers.engines.torch.routing import RoutingRecord
from headrace.producers.engines.torch.sampler import Draw
from headrace.producers.engines.torch.stride import Stride, choose_draw

Ended = list[tuple[Request, Generation | EngineError]]


class WeightSet:
    """Lives in the engine thread; only the counters are read elsewhere."""

    def __init__(self, lm: CausalLM, *, max_batch: int, prefill_tokens: int) -> None:
        self.lm = lm
        self.version: int | None = None
        self.holds = 0
        self.generated_tokens = 0
        self.prompt_tokens = 0
        self.recomputed_tokens = 0
        self.waiting: deque[Request] = deque()
        self.rows = BatchRows() if lm.routing is None else BatchRows(lm.routing.shape, lm.routing.dtype)
        self._max_batch = max_batch
        self._prefill_tokens = prefill_tokens
        self._cache = SlotCache(lm.n_layers)
        self._draw: Draw | None = None  # None: the batch has changed
        self._stride: Stride | None = None  # None: the next step begins one

    @property
    def is_busy(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self.waiting) or len(self.rows) > 0

    def apply(self, staged: Staged, version: int) -> None:
        """Swap the weights between two tokens; running sequences get their cache recomputed."""
        self._end_stride()
        self.lm.apply(staged)
        self.version = version
        for row, request in enumerate(self.rows.requests):
            request.note_version_start(version, int(self.rows.length[row] - self.rows.prompt[row]))
        self.recomputed_tokens += self._fill(0, is_again=True)

    def step(self) -> Ended:
        """Let waiting requests join, then compute one token of every running request; return those that ended."""
        if self.waiting and len(self.rows) < self._max_batch:
            self._admit_waiting()
        if self._stride is None:
            if self._draw is None:
                self._draw = choose_draw([request.sampling for request in self.rows.requests], self.lm.device)
            self._stride = Stride(self.rows, self.lm, self._cache, self._draw)
        is_over = self._stride.step()
        self.generated_tokens += len(self.rows)
        if not is_over:
            return []
        self._end_stride()
        over = self.rows.find_ended()
        return self._end_requests(over) if over else []

    def remove(self, request: Request) -> Generation | None:
        """Take out a running or waiting request; return its tokens so far, or None if it is not in this set."""
        if request in self.waiting:
            self.waiting.remove(request)
            return Generation(np.zeros(0, np.int32), np.zeros(0, np.float32), (), "cancelled")
        if request not in self.rows.requests:
            return None
        self._end_stride()
        row = self.rows.requests.index(request)
        generation = self.rows.generation(row, cancelled=True)
        self._remove_rows([row])
        return generation

    def _end_stride(self) -> None:
        """End the stride under way, so that the rows hold every token."""
        if self._stride is not None:
            self._stride.hand_tokens_to(self.rows)
            self._stride = None

    def _admit_waiting(self) -> None:
        self._end_stride()
        first = len(self.rows)
        count = min(len(self.waiting), self._max_batch - first)
        joining = [self.waiting.popleft() for _ in range(count)]
        columns = min(_round_up_to_power_of_two(max(request.limit for request in joining), 64), self.lm.context)
        slots = min(_round_up_to_power_of_two(first + count, 8), self._max_batch)
        self.rows.reserve(slots, columns, max(len(request.sampling.stop_ids) for request in joining))
        self._cache.reserve(slots, columns)
        assert self.version is not None  # noqa: S101 - the engine admits no request before the first weights
        for request in joining:
            request.note_version_start(self.version, 0)
            self.rows.add(request)
            self.prompt_tokens += len(request.prompt)
        self._draw = None
        self._fill(first)

    def _fill(self, first: int, *, is_again: bool = False) -> int:
        """Compute the cached states of all rows from `first` on, equal prefixes once; return the tokens computed."""
        prefixes = list(self.rows.prefixes(first))
        computed, begin = 0, 0
        while begin < len(prefixes):
            # As many rows as fit the token budget, at least one.
            end, width = begin, 0
            while end < len(prefixes):
                wider = max(width, len(prefixes[end]))
                if end > begin and wider * (end + 1 - begin) > self._prefill_tokens:
                    break
                end, width = end + 1, wider
            if width:
                distinct = {prefix.tobytes(): prefix for prefix in prefixes[begin:end]}
                order = {key: row for row, key in enumerate(distinct)}
                share = np.array([order[prefix.tobytes()] for prefix in prefixes[begin:end]])
                self._cache.expect_prefill(first + begin, place_on_device(share, self.lm.device), width)
                self.lm.fill(place_on_device(pad_rows(list(distinct.values()), width), self.lm.device), self._cache)
                if self.lm.routing is not None and not is_again:
                    # A recomputed token keeps its first experts, which predicted the token after it.
                    self._keep_routing(self.lm.routing, first + begin, share, width)
                computed += sum(map(len, distinct.values()))
            begin = end
        return computed

    def _keep_routing(self, record: RoutingRecord, first: int, share: npt.NDArray[np.int64], width: int) -> None:
        """Record the experts of the prefixes just computed; row first+i has prefix share[i]."""
        chosen = record.chosen_experts().cpu().numpy()
        by_prefix = chosen.reshape(-1, width, *chosen.shape[1:])
        self.rows.routing[first : first + len(share), :width] = by_prefix[share]

    def _end_requests(self, over: list[int]) -> Ended:
        ended: Ended = []
        for row in over:
            request = self.rows.requests[row]
            if self.rows.is_sound[row]:
                ended.append((request, self.rows.generation(row)))
                continue
            why = (
                f"the logits of {request.policy} version {self.version} are not finite (NaN or infinite). If those of "
                "version 0 were finite, training has diverged: lower trainer.learning_rate"
            )
            ended.append((request, EngineError(why)))
        is_poisoned = not self.rows.is_sound[over].all()
        self._remove_rows(over)
        if is_poisoned:
            self._cache.wipe(len(self.rows))
        return ended

    def _remove_rows(self, rows: Sequence[int]) -> None:
        width = int(self.rows.length[: len(self.rows)].max())
        sources, targets = self.rows.remove(rows)
        if sources:
            self._cache.move(sources, targets, width)
        self._draw = None


def _round_up_to_power_of_two(at_least: int, smallest: int) -> int:
    return max(smallest, 1 << (at_least - 1).bit_length())
