"""Consecutive tokens of a batch that does not change, computed with tensors alone.

A stride ends when a request joins, leaves or is swapped to other weights, and after at most `STRIDE` tokens. Only then
its tokens go to the rows' arrays. The tokens of a row do not depend on where strides end.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from headrace.producers.engines.contract import Sampling
from headrace.producers.engines.torch.batch import BatchRows
from headrace.producers.engines.torch.causal_lm import CausalLM
from headrace.producers.engines.torch.kv_slots import SlotCache, place_on_device
from headrace.producers.engines.torch.sampler import Draw, Filters, sample

STRIDE = 32


class Stride:
    """The state between two tokens of all rows, on the device."""

    def __init__(self, rows: BatchRows, lm: CausalLM, cache: SlotCache, draw: Draw) -> None:
        tokens, positions = rows.last_tokens()
        count = min(STRIDE, int((rows.limit - rows.length)[: len(rows)].min()))
        self._lm, self._cache, self._draw = lm, cache, draw
        self._ids = place_on_device(tokens, lm.device)[:, None]
        self._positions = place_on_device(positions, lm.device)[:, None]
        self._cells = place_on_device(cache.cells(positions), lm.device)
        self._width = int(positions.max()) + 1
        self._uniforms = list(place_on_device(rows.uniforms(count), lm.device))
        stop = rows.stop[: len(rows)]
        self._stop = place_on_device(stop, lm.device) if stop.max() >= 0 else None
        self._tokens: list[torch.Tensor] = []
        self._logprobs: list[torch.Tensor] = []
        self._routing: list[torch.Tensor] = []

    def step(self) -> bool:
        """Draw one token for each row; return whether the stride is over."""
        self._cache.expect_tokens(self._cells, self._width)
        logits = self._lm.forward(self._ids, self._positions, self._width, self._cache)
        tokens, logprobs = sample(logits, self._draw, self._uniforms[len(self._tokens)])
        self._tokens.append(tokens)
        self._logprobs.append(logprobs)
        if self._lm.routing is not None:
            self._routing.append(self._lm.routing.chosen_experts())
        self._ids = tokens[:, None]
        self._positions += 1
        self._cells += 1
        self._width += 1
        if len(self._tokens) == len(self._uniforms):
            return True
        return self._stop is not None and bool((self._stop == self._ids).any())

    def hand_tokens_to(self, rows: BatchRows) -> None:
        """Hand the tokens to the rows."""
        if self._tokens:
            routing = torch.stack(self._routing, 1).cpu().numpy() if self._routing else None
            tokens, logprobs = torch.stack(self._tokens, 1), torch.stack(self._logprobs, 1)
            rows.extend(tokens.cpu().numpy(), logprobs.cpu().numpy(), routing)


def choose_draw(samplings: Sequence[Sampling], device: torch.device) -> Draw:
    """Return how to draw this batch, without the filters that no row uses."""

    def column(name: str) -> torch.Tensor:
        return torch.tensor([[float(getattr(sampling, name))] for sampling in samplings], device=device)

    temperature, top_p, top_k, min_p = (column(name) for name in ("temperature", "top_p", "top_k", "min_p"))
    greedy = temperature[:, 0] == 0
    temperature = torch.where(temperature == 0, 1.0, temperature)
    filters = Filters(top_p, top_k, min_p) if bool(((top_p < 1) | (top_k > 0) | (min_p > 0)).any()) else None
    return Draw(
        temperature=temperature if bool((temperature != 1).any()) else None,
        greedy=greedy if bool(greedy.any()) else None,
        filters=filters,
    )
