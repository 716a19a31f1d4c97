"""The running requests of one weight set, as parallel arrays with one row each; rows 0..n-1 are in use.

All work per token is done here for all rows at once; a request is converted to Python objects again only when it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.producers.engines.contract import FinishReason, Generation, Sampling
from headrace.producers.engines.stop_texts import StopTexts
from headrace.producers.engines.torch import sampler

Ints = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class Request:
    """One call of `generate` on its way through the engine thread."""

    policy: str
    prompt: npt.NDArray[np.int32]
    sampling: Sampling
    seed: int
    version: int | None
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Generation]
    runs: list[tuple[int, int]] = field(default_factory=list)
    """(version, number of generated tokens before its first)"""
    stop_texts: StopTexts | None = None

    @property
    def limit(self) -> int:
        """Number of tokens, prompt included, at which it ends."""
        return len(self.prompt) + self.sampling.max_tokens

    def note_version_start(self, version: int, generated: int) -> None:
        """Note that `version` makes the tokens after the first `generated` ones."""
        if self.runs and self.runs[-1][1] == generated:
            self.runs.pop()
        self.runs.append((version, generated))

    def finish(self, outcome: Generation | BaseException) -> None:
        """Give the outcome to the waiting coroutine, from any thread."""
        with contextlib.suppress(RuntimeError):  # its event loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(self._resolve, outcome)

    def _resolve(self, outcome: Generation | BaseException) -> None:
        if self.future.done():
            return
        if isinstance(outcome, BaseException):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


class BatchRows:
    """The running requests. Arrays are [capacity, ...]; methods work on the rows in use."""

    def __init__(self, routing: Sequence[int] = (0, 0), routing_dtype: npt.DTypeLike = np.uint8) -> None:
        """Begin without rows. `routing` is (layers, experts per token), 0 each where none is recorded."""
        self.requests: list[Request] = []
        self.length: Ints = np.zeros(0, np.int64)  # tokens so far, prompt included
        self.prompt: Ints = np.zeros(0, np.int64)
        self.limit: Ints = np.zeros(0, np.int64)
        self.stream: sampler.U64 = np.zeros(0, np.uint64)
        self.is_sound = np.zeros(0, np.bool_)  # all numbers so far are finite
        self.ids = np.zeros((0, 0), np.int32)  # prompt and generated tokens
        self.logprobs = np.zeros((0, 0), np.float32)  # in the column of their token
        self.routing = np.zeros((0, 0, *routing), routing_dtype)  # in the column of the token that was routed
        self.stop = np.zeros((0, 1), np.int64)  # padded with -1
        self._index: Ints = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self.requests)

    def reserve(self, rows: int, columns: int, stop_ids: int) -> None:
        """Make room; never shrinks."""
        rows, columns = max(rows, len(self.length)), max(columns, self.ids.shape[1])
        stop_ids = max(stop_ids, self.stop.shape[1])
        for name in ("length", "prompt", "limit", "stream", "is_sound"):
            setattr(self, name, _grow(getattr(self, name), (rows,)))
        self.ids, self.logprobs = _grow(self.ids, (rows, columns)), _grow(self.logprobs, (rows, columns))
        self.routing = _grow(self.routing, (rows, columns, *self.routing.shape[2:]))
        self.stop = _grow(self.stop, (rows, stop_ids), fill=-1)
        self._index = np.arange(rows)

    def add(self, request: Request) -> None:
        """Append a row; `reserve` must have made room for it."""
        row, size = len(self.requests), len(request.prompt)
        self.requests.append(request)
        self.length[row] = self.prompt[row] = size
        self.limit[row] = request.limit
        self.is_sound[row] = True
        self.stream[row] = sampler.start_stream(request.seed)[0]
        self.ids[row, :size] = request.prompt
        self.stop[row] = -1
        self.stop[row, : len(request.sampling.stop_ids)] = request.sampling.stop_ids

    def last_tokens(self) -> tuple[Ints, Ints]:
        """Return (int64[n] the newest token of each row, int64[n] its position)."""
        n = len(self)
        positions = self.length[:n] - 1
        return self.ids[self._index[:n], positions].astype(np.int64), positions

    def uniforms(self, count: int) -> npt.NDArray[np.float64]:
        """Return float64[count, n]: the random numbers for the next tokens of each row."""
        made = (self.length - self.prompt)[: len(self)].astype(np.uint64)
        return sampler.draw_uniforms(self.stream[: len(self)], made + np.arange(count, dtype=np.uint64)[:, None])

    def extend(self, tokens: Ints, logprobs: npt.NDArray[np.float32], routing: npt.NDArray[Any] | None = None) -> None:
        """Add k tokens to each row, [n, k], and where those before each of them were routed."""
        n, count = tokens.shape
        at = self._index[:n, None], self.length[:n, None] + np.arange(count)
        self.ids[at], self.logprobs[at] = tokens, logprobs
        if routing is not None:
            self.routing[at[0], at[1] - 1] = routing
        self.length[:n] += count
        self.is_sound[:n] &= np.isfinite(logprobs).all(1)

    def find_ended(self) -> list[int]:
        """Return the rows that have ended: at the limit, by a stop token or text, or with non-finite numbers."""
        n = len(self)
        newest = self.ids[self._index[:n], self.length[:n] - 1]
        stopped = (self.stop[:n] == newest[:, None]).any(1) & (self.length[:n] > self.prompt[:n])
        for row, request in enumerate(self.requests):
            if request.stop_texts and request.stop_texts.is_in(self.ids[row, self.prompt[row] : self.length[row]]):
                stopped[row] = True
        over: list[int] = np.flatnonzero((self.length[:n] >= self.limit[:n]) | stopped | ~self.is_sound[:n]).tolist()
        return over

    def prefixes(self, first: int) -> Iterator[npt.NDArray[np.int32]]:
        """Return for each row from `first` on all tokens but the newest; the cache must hold their states."""
        for row in range(first, len(self)):
            yield self.ids[row, : self.length[row] - 1]

    def generation(self, row: int, *, cancelled: bool = False) -> Generation:
        """Return what the row has generated so far."""
        request, begin, end = self.requests[row], self.prompt[row], self.length[row]
        ids = self.ids[row, begin:end].copy()
        reason: FinishReason = "length"
        if cancelled:
            reason = "cancelled"
        elif ids.size and (int(ids[-1]) in request.sampling.stop_ids or end < self.limit[row]):
            reason = "stop"
        routing = self.routing[row, : end - 1].copy() if self.routing.size else None
        runs = _run_lengths(request.runs, ids.size)
        return Generation(ids, self.logprobs[row, begin:end].copy(), runs, reason, routing)

    def remove(self, rows: Sequence[int]) -> tuple[list[int], list[int]]:
        """Drop rows; the last ones move into the holes. Returns (sources, targets) for the cache to follow."""
        left = len(self) - len(rows)
        gone = set(rows)
        targets = [row for row in rows if row < left]
        sources = [row for row in range(left, len(self)) if row not in gone]
        flat = (self.length, self.prompt, self.limit, self.stream, self.is_sound)
        for array in (*flat, self.ids, self.logprobs, self.routing, self.stop):
            array[targets] = array[sources]
        for source, target in zip(sources, targets, strict=True):
            self.requests[target] = self.requests[source]
        del self.requests[left:]
        return sources, targets


def _run_lengths(runs: list[tuple[int, int]], total: int) -> tuple[tuple[int, int], ...]:
    ends = [begin for _, begin in runs[1:]] + [total]
    return tuple((version, end - begin) for (version, begin), end in zip(runs, ends, strict=False) if end > begin)


def _grow(array: npt.NDArray[Any], shape: tuple[int, ...], fill: int = 0) -> npt.NDArray[Any]:
    if array.shape == shape:
        return array
    grown = np.full(shape, fill, array.dtype)
    grown[tuple(slice(size) for size in array.shape)] = array
    return grown
