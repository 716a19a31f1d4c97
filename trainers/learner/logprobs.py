"""Log-probabilities and entropies of trained tokens, without holding the logits of all tokens at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import transformers

from headrace.trainers.batches.batch import MicroBatch, TrainingSequence, pad
from headrace.trainers.learner.attention import Packing, PackingError, enable_packing
from headrace.trainers.learner.layers import decoder_of

LOGITS_MIB = 256
"""Most fp32 logits in memory at a time."""
_Scores: TypeAlias = tuple[torch.Tensor, torch.Tensor]


def compute_token_logprobs(
    model: transformers.PreTrainedModel,
    micro: MicroBatch,
    *,
    logits_mib: int = LOGITS_MIB,
    entropy_gradient: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities float32[N] of the trained tokens at their temperatures, and entropies float32[N].

    Only the N trained positions are projected onto the vocabulary. Padding is on the right and attention is causal, so
    no attention mask is needed. Packed sequences need a model on which `enable_packing` was called.

    Args:
        model: In evaluation mode: dropout would make the ratio of an unchanged policy differ from 1.
        micro: The micro-batch with the tokens.
        logits_mib: If the logits of all N tokens need more memory, they are computed in equal parts, and again in the
        backward pass. The cut depends only on N and the vocabulary; gradients of the parts are summed in fp32.
        entropy_gradient: Whether the entropies carry a gradient.
    """
    device = model.device
    inputs: dict[str, Any] = {"input_ids": torch.from_numpy(micro.ids).to(device), "use_cache": False}
    if micro.lengths:
        inputs["position_ids"] = torch.from_numpy(micro.position_ids).to(device)
        inputs |= Packing(micro.lengths, device).inputs()
    outputs = decoder_of(model)(**inputs)
    states = outputs.last_hidden_state.flatten(0, 1).index_select(0, torch.from_numpy(micro.positions).to(device))
    targets = torch.from_numpy(micro.targets).to(device)
    temperatures = torch.from_numpy(micro.temperatures).to(device)
    head = _Head(model, outputs, entropy_gradient)
    most = max(1, logits_mib * 2**20 // (4 * model.config.get_text_config().vocab_size))
    parts = -(-len(targets) // most)
    if parts == 1:
        return head.scores(states, targets, temperatures)
    cut = _Cut(head, -(-len(targets) // parts))
    scored: _Scores = _InParts.apply(cut, states, targets, temperatures, *head.parameters())
    return scored


@torch.no_grad()
def compute_answer_logprobs(
    model: transformers.PreTrainedModel, prompt: Sequence[int], answer: npt.NDArray[np.int32], temperature: float
) -> npt.NDArray[np.float32]:
    """Return float32[T]: a model's log-probabilities of the T tokens of an answer to a prompt."""
    ids = np.concatenate([np.asarray(prompt, np.int32), answer])
    mask = np.arange(ids.size) >= len(prompt)
    blank = np.zeros(ids.size, np.float32)
    one = TrainingSequence(ids, mask, blank, np.where(mask, 0, -1).astype(np.int32), 0.0, temperature)
    logprobs, _ = compute_token_logprobs(model, pad([one]))
    found: npt.NDArray[np.float32] = logprobs.float().cpu().numpy()
    return found


class TokenScorer(torch.nn.Module):
    """`compute_token_logprobs` of a model as a module, because sharding hooks into module calls."""

    def __init__(self, model: transformers.PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, micro: MicroBatch, logits_mib: int, entropy_gradient: bool) -> _Scores:
        """Return `compute_token_logprobs`."""
        return compute_token_logprobs(self.model, micro, logits_mib=logits_mib, entropy_gradient=entropy_gradient)

    def try_packing(self) -> str:
        """Enable packing for the model; return why it cannot pack, or an empty text."""
        try:
            enable_packing(self.model)
        except PackingError as error:
            return str(error)
        return ""


@dataclass(frozen=True, slots=True)
class _Head:
    """Turns final states into scores with the model's own code, as architectures scale and soft-cap differently."""

    model: transformers.PreTrainedModel
    outputs: Any
    """Outputs of the base model; their final states are replaced by the given ones."""
    entropy_gradient: bool

    def scores(self, states: torch.Tensor, targets: torch.Tensor, temperatures: torch.Tensor) -> _Scores:
        """Return log-probabilities and entropies, float32[n] each, of final states float[n, size]."""
        with self._replace_base_output(states):
            logits = self.model(use_cache=False).logits[0]
        logits = logits.float() / temperatures[:, None]
        log_normaliser = logits.logsumexp(-1)
        logprobs = logits.gather(-1, targets[:, None]).squeeze(-1) - log_normaliser
        if self.entropy_gradient:
            return logprobs, log_normaliser - (logits.softmax(-1) * logits).sum(-1)
        with torch.no_grad():
            return logprobs, log_normaliser - logits.softmax(-1).mul_(logits).sum(-1)

    def parameters(self) -> list[torch.nn.Parameter]:
        """Return the trained parameters outside the base model, such as the output layer's."""
        output: torch.nn.Module = self.model.get_output_embeddings()  # type: ignore[no-untyped-call]  # untyped there
        inside = {id(parameter) for parameter in decoder_of(self.model).parameters()}
        outside = [parameter for parameter in self.model.parameters() if id(parameter) not in inside]
        return [parameter for parameter in dict.fromkeys([*output.parameters(), *outside]) if parameter.requires_grad]

    @contextmanager
    def _replace_base_output(self, states: torch.Tensor) -> Iterator[None]:
        given = type(self.outputs)(**{**self.outputs, "last_hidden_state": states[None]})
        base = decoder_of(self.model)
        base.forward = lambda *_, **__: given
        try:
            yield
        finally:
            del base.forward


class _Cut(NamedTuple):
    head: _Head
    size: int

    def parts(self, *vectors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
        return zip(*(torch.split(vector, self.size) for vector in vectors), strict=True)


class _InParts(torch.autograd.Function):
    """Scores of states float[N, size], computed a part at a time in the forward and the backward pass."""

    @staticmethod
    def forward(ctx: Any, cut: _Cut, *tensors: torch.Tensor) -> _Scores:
        ctx.cut = cut
        ctx.save_for_backward(*tensors)
        scored = [cut.head.scores(*part) for part in cut.parts(*tensors[:3])]
        logprobs, entropies = (torch.cat(values) for values in zip(*scored, strict=True))
        if not cut.head.entropy_gradient:
            ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        cut: _Cut = ctx.cut
        states, targets, temperatures, *parameters = ctx.saved_tensors
        wanted = gradients if cut.head.entropy_gradient else gradients[:1]
        sums = [torch.zeros_like(parameter, dtype=torch.float32) for parameter in parameters]
        of_states = []
        for state, target, temperature, *of_scores in cut.parts(states, targets, temperatures, *wanted):
            with torch.enable_grad():
                leaf = state.detach().requires_grad_()
                scores = cut.head.scores(leaf, target, temperature)[: len(of_scores)]
            first, *rest = torch.autograd.grad(scores, [leaf, *parameters], of_scores)
            of_states.append(first)
            for total, gradient in zip(sums, rest, strict=True):
                total.add_(gradient)
        of_parameters = (total.to(parameter.dtype) for total, parameter in zip(sums, parameters, strict=True))
        return (None, torch.cat(of_states), None, None, *of_parameters)
