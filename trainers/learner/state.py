"""The state of a learner in a checkpoint: masters, moments, reference policy and version."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from headrace.trainers.learner.backends.contract import Backend
from headrace.trainers.learner.checkpoint import Checkpoint, CheckpointError, Json
from headrace.trainers.learner.masters import Masters, WeightState
from headrace.trainers.learner.model import TORCH_DTYPES, from_torch
from headrace.trainers.learner.reference import ReferencePolicy
from headrace.trainers.learner.shard_index import Index
from headrace.trainers.learner.tensor_shapes import describe_wrong_shape


class TrainedState:
    """All state that a later version depends on, besides its batch and the settings.

    Args:
        masters: Masters of the model.
        parameters: Parameters of the compute copy by the masters' names; checkpoint tensors are placed in the same way.
        backend: Backend that distributes loaded tensors.
    """

    def __init__(self, masters: Masters, parameters: Mapping[str, torch.Tensor], backend: Backend) -> None:
        self.version = 0
        self.masters = masters
        self.reference: ReferencePolicy | None = None
        """The reference policy; None if the objective needs none."""
        self._parameters, self._backend = parameters, backend

    def copy(self) -> Checkpoint:
        """Return a copy of the state of a learner with one process."""
        tensors = {path: from_torch(part) for path, part in self.parts().items()}
        return Checkpoint(tensors, {"version": self.version})

    def parts(self) -> dict[str, torch.Tensor]:
        """Return CPU copies of this process's parts of a checkpoint's tensors, named `kind/name`."""
        state = self.masters.state()
        if self.reference is not None:
            state["reference"] = {name: value.clone() for name, value in self.reference.values.items()}
        return {f"{kind}/{name}": one.cpu() for kind, named in state.items() for name, one in named.items()}

    def check(self, shapes: Mapping[str, tuple[int, ...]], metadata: Mapping[str, Json]) -> int:
        """Return the version of a checkpoint. Raises CheckpointError if it has none or is of another model."""
        own = {name: tuple(master.shape) for name, master in self.masters.values.items()}
        counts: dict[str, tuple[int, ...]] = dict.fromkeys(own, ())
        known = {**dict.fromkeys(("masters", "reference", "exp_avg", "exp_avg_sq"), own), "step": counts}
        moments = {"exp_avg", "exp_avg_sq", "step"}
        found = {"masters"} | {path.partition("/")[0] for path in shapes}
        wanted = found | (moments if moments & found else set())
        expected = {f"{kind}/{name}": shape for kind in wanted for name, shape in known.get(kind, {}).items()}
        if misfit := describe_wrong_shape(shapes, expected):
            raise CheckpointError(f"the checkpoint does not fit the model: {misfit}")
        version = metadata.get("version")
        if not isinstance(version, int) or isinstance(version, bool):
            raise CheckpointError(f"the checkpoint's version must be an integer, got {version!r}")
        return version

    def load_whole(self, version: int, paths: Sequence[str], read: Callable[[str], torch.Tensor]) -> None:
        """Load a checked checkpoint from whole tensors; `read` returns them one by one."""
        self.load(version, {path: self._backend.spread(read(path), self._template(path)) for path in paths})

    def load(self, version: int, parts: Mapping[str, torch.Tensor]) -> None:
        """Load a checked checkpoint from this process's parts of its tensors."""
        state: WeightState = {}
        for path, part in parts.items():
            kind, _, name = path.partition("/")
            state.setdefault(kind, {})[name] = part
        reference = state.pop("reference", None)
        self.masters.load(state)
        self.reference = None if reference is None else ReferencePolicy(reference)
        self.version = version

    def room(self, index: Index) -> dict[str, torch.Tensor]:
        """Return tensors with arbitrary values for this process's parts of a checkpoint."""
        room: dict[str, torch.Tensor] = {}
        for path, cut in index.tensors.items():
            template, dtype = self._template(path), TORCH_DTYPES[cut.dtype]
            if template is None:
                room[path] = torch.empty(cut.shape, dtype=dtype)
            else:
                room[path] = torch.empty_like(template, dtype=dtype, requires_grad=False)
        return room

    def _template(self, path: str) -> torch.Tensor | None:
        """Return the sharding template of a checkpoint's tensor; None for a tensor that every process holds whole."""
        kind, _, name = path.partition("/")
        return None if kind == "step" else self._parameters[name]
