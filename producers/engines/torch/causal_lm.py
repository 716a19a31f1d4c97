"""A Hugging Face causal LM as the engine uses it: built from a config or a path, masked by hand, loaded by name."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from headrace.infra.weights.experts import routers_of, split_by_files, use_plain_experts
from headrace.infra.weights.files import ADAPTER_CONFIG
from headrace.infra.weights.folder import open_weights
from headrace.infra.weights.lora import add_adapter, map_published_names
from headrace.infra.weights.tensors import Tensor
from headrace.producers.engines.contract import EngineError
from headrace.producers.engines.torch.light_modules import (
    find_unscaled_output_layer,
    install_light_modules,
    store_by_columns,
)
from headrace.producers.engines.torch.routing import RoutingRecord

_DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32, "F16": torch.float16}
SHOWN_NAMES = 5
"""Most names of parameters in a message."""


@dataclass(frozen=True, slots=True)
class Adapted:
    """A model whose weights will be adapters: its config, and the folder of its base and of `adapter_config.json`."""

    config: PreTrainedConfig
    folder: Path


ModelSource = PreTrainedConfig | str | Path | Adapted
Staged = list[tuple[str, torch.Tensor]]


class CausalLM:
    """One set of weights with the forward passes that the engine needs."""

    def __init__(self, model: Any, *, record_routing: bool = False) -> None:
        model.eval().requires_grad_(False)
        self.model = model
        config = self.model.config.get_text_config()
        self.n_layers = int(config.num_hidden_layers)
        self.vocabulary = int(self.model.get_input_embeddings().weight.shape[0])
        self.context = int(config.max_position_embeddings)
        self.device: torch.device = self.model.device
        self.dtype: torch.dtype = self.model.dtype
        use_plain_experts(self.model)
        install_light_modules(self.model, self.context)
        store_by_columns(self.model)
        self._head = find_unscaled_output_layer(self.model)
        self._names = map_published_names(self.model.state_dict())
        self._places = {name: tensor.data_ptr() for name, tensor in split_by_files(self._read_held()).items()}
        """Name in files to a place in memory, which tied parameters share. It is read once: later, another thread may
        put new weights into the model in the middle of a read, and tied parameters would seem to be separate."""
        self._kinds, self._window = _read_attention(config)
        self._columns = torch.arange(self.context, device=self.device)
        self.routing = RoutingRecord(model) if record_routing and routers_of(model) else None
        """Routing of the last forward pass; None for a model without experts too."""
        self._closed = torch.tensor(torch.finfo(self.dtype).min, dtype=self.dtype, device=self.device)
        self._open = torch.zeros((), dtype=self.dtype, device=self.device)

    @classmethod
    def build(cls, source: ModelSource, device: str, dtype: torch.dtype, *, record_routing: bool = False) -> CausalLM:
        """Build from a config (random weights, to be replaced) or a local path in HF layout. Raises EngineError."""
        if isinstance(source, Adapted):
            return cls._build_adapted(source, device, dtype, record_routing=record_routing)
        if isinstance(source, PreTrainedConfig):
            source = copy.deepcopy(source)  # transformers writes the dtype into it
            model = AutoModelForCausalLM.from_config(source, dtype=dtype)  # type: ignore[no-untyped-call]
        elif Path(source).is_dir():
            model = AutoModelForCausalLM.from_pretrained(
                str(source), dtype=dtype, local_files_only=True, trust_remote_code=False
            )
        else:
            raise EngineError(
                f"there is no folder {source}: give a model config, or a local folder in Hugging Face layout"
            )
        with torch.no_grad():
            return cls(model.to(device), record_routing=record_routing)

    @classmethod
    def _build_adapted(cls, source: Adapted, device: str, dtype: torch.dtype, *, record_routing: bool) -> CausalLM:
        """Build with the base loaded, and an adapter that is loaded later."""
        lm = cls.build(source.config, device, dtype)
        lm.apply(lm.stage(open_weights(source.folder).tensors))
        with torch.random.fork_rng(devices=[]):
            add_adapter(lm.model, json.loads((source.folder / ADAPTER_CONFIG).read_text()))
        return cls(lm.model, record_routing=record_routing)

    def copy(self) -> CausalLM:
        """Return another set of these weights. The base of an adapter is frozen, so both sets share it."""
        loaded = set(self._names.values())
        shared = {id(base): base for name, base in self.model.named_parameters() if name not in loaded}
        return CausalLM(copy.deepcopy(self.model, shared))

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, width: int, cache: Any) -> torch.Tensor:
        """Return logits float32[b, V] of the last position; ids and positions are int64[b, T], keys are 0..width-1."""
        inputs = {
            "input_ids": ids,
            "attention_mask": self._build_mask(positions, width),
            "position_ids": positions,
            "past_key_values": cache,
            "use_cache": True,
        }
        logits: torch.Tensor
        if self._head is None:
            logits = self.model(**inputs, logits_to_keep=1).logits[:, -1]
        else:
            logits = self._head(self.model.base_model(**inputs).last_hidden_state[:, -1])
        return logits.float()

    def fill(self, ids: torch.Tensor, cache: Any) -> None:
        """Fill the cache from int64[b, T] from position 0, without logits; short rows are padded on the right."""
        positions = self._columns[None, : ids.shape[1]]
        self.model.base_model(
            input_ids=ids,
            attention_mask=self._build_mask(positions, ids.shape[1]),
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
        )

    def _build_mask(self, positions: torch.Tensor, width: int) -> Any:
        """Return an additive mask [b, 1, T, width]: transformers uses 4D masks as they are, others cost time."""
        columns, rows = self._columns[:width], positions[:, None, :, None]
        future = columns > rows
        full = torch.where(future, self._closed, self._open)
        if self._window is None:
            return full
        windowed = torch.where(future | (columns <= rows - self._window), self._closed, self._open)
        return {"full_attention": full, "sliding_attention": windowed} if self._kinds else windowed

    def stage(self, weights: Mapping[str, Any]) -> Staged:
        """Check names, shapes and finiteness, and copy in the compute dtype, without use yet. Raises EngineError.

        Names are those of Hugging Face files, or for an `Adapted` model those of peft's files, which hold only the
        adapter. Values: torch tensors, `infra.weights.Tensor`, or arrays (uint16 arrays hold the bits of bfloat16). Of
        tied parameters one name is enough. This needs the memory of the weights once more, until the old ones are
        freed.
        """
        held = self._read_held()
        own = split_by_files(held)
        unknown = sorted(set(weights) - set(own))
        given = {self._places[name] for name in weights if name in own}
        missing = sorted(name for name, place in self._places.items() if name not in weights and place not in given)
        if unknown or missing:
            raise EngineError(describe_wrong_names(missing, unknown))
        staged = {
            name: torch.empty_like(tensor)
            for name, tensor in held.items()
            if any(part in weights for part in split_by_files({name: tensor}))
        }
        targets = split_by_files(staged)
        for name, value in weights.items():
            tensor = convert_to_tensor(value)
            if tensor.shape != own[name].shape:
                raise EngineError(
                    f"the tensor {name} must have shape {tuple(own[name].shape)}, as in the model; it has "
                    f"{tuple(tensor.shape)}"
                )
            if not bool(torch.isfinite(tensor).all()):
                raise EngineError(describe_not_finite(name))
            targets[name].detach().copy_(tensor)
        return [(self._names[name], tensor) for name, tensor in staged.items()]

    def _read_held(self) -> dict[str, torch.Tensor]:
        state = self.model.state_dict()
        return {name: state[in_model] for name, in_model in self._names.items()}

    def apply(self, staged: Staged) -> None:
        """Put staged weights into the model. Nothing is copied, because this is done between two tokens."""
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        buffers = dict(self.model.named_buffers())
        for name, tensor in staged:
            if name in parameters:
                parameters[name].data = tensor
            else:
                buffers[name].copy_(tensor)


def _read_attention(config: Any) -> tuple[set[str], int | None]:
    """Return (kinds of layers, window or None). Raises EngineError for layers whose state is not keys and values."""
    kinds = set(getattr(config, "layer_types", None) or ())
    strange = kinds - {"full_attention", "sliding_attention"}
    if strange:
        raise EngineError(
            f"the model ({config.model_type}) has layers of type {', '.join(sorted(strange))}; the engine torch knows "
            "only full_attention and sliding_attention: take a model with only these two types"
        )
    window = getattr(config, "sliding_window", None)
    return kinds, int(window) if window and (not kinds or "sliding_attention" in kinds) else None


def describe_wrong_names(missing: Sequence[str], unknown: Sequence[str]) -> str:
    """Return what is wrong with weights that lack parameters of the model, or have others."""
    found = [f"{what}: {_list_some(names)}" for what, names in (("missing", missing), ("unknown", unknown)) if names]
    return (
        f"the weights do not have the parameters of the model ({'; '.join(found)}). Correct what published them: it "
        "must publish each parameter of the model, by its name in Hugging Face files (of an adapter: in peft's files)"
    )


def _list_some(names: Sequence[str]) -> str:
    more = len(names) - SHOWN_NAMES
    return ", ".join(names[:SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")


def describe_not_finite(name: str) -> str:
    """Return what is wrong with weights of which one parameter holds numbers that are not finite."""
    return (
        f"the tensor {name} holds NaN or infinite values, so these weights are not served: correct what published them"
    )


def convert_to_tensor(value: Any) -> torch.Tensor:
    """Return weights as a torch tensor, the memory shared where it can be. Raises EngineError for another dtype."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, Tensor):
        if value.dtype not in _DTYPES:
            raise EngineError(
                f"weights of dtype {value.dtype} cannot be served; publish one of {', '.join(sorted(_DTYPES))}"
            )
        # torch cannot share read-only memory, such as a mapped file.
        shared = bytearray(value.data) if value.data.readonly else value.data
        return torch.frombuffer(shared, dtype=_DTYPES[value.dtype]).reshape(value.shape)
    array: npt.NDArray[Any] = np.array(value)
    if array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def pad_rows(prefixes: Sequence[npt.NDArray[np.int32]], width: int) -> npt.NDArray[np.int64]:
    """Return int64[b, width] from rows of different lengths, with zeros on the right."""
    ids = np.zeros((len(prefixes), width), np.int64)
    for row, prefix in enumerate(prefixes):
        ids[row, : len(prefix)] = prefix
    return ids
