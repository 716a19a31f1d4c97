"""The numerical heart of a trainer: one process, fp32 masters, forward and backward on the published values."""

from __future__ import annotations

import copy
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import transformers

from infra.errors import HeadraceError, UsageError
from infra.weights.tensors import Tensor
from trainers.batch import BatchError, MicroBatch, Minibatch, TrainingSequence, minibatches, staleness
from trainers.checkpoint import Checkpoint, CheckpointError
from trainers.losses.clip import Clip, metric_sums, ppo_clip, token_mean
from trainers.losses.tokens import log_ratio
from trainers.model import deterministic, from_torch, publish_weights, to_torch, token_logprobs

StepMetrics: TypeAlias = dict[str, float]


class LossNotFinite(HeadraceError):  # says what happened, as HeadraceError's others do
    """A loss or gradient is NaN or infinite; the learner is as it was before the step."""


@dataclass(frozen=True, slots=True)
class LearnerSettings:
    """How a version is made. Raises UsageError for values out of range."""

    learning_rate: float = 5e-4
    warmup_versions: int = 5
    """The learning rate grows linearly over the first versions: version k takes k / warmup_versions of it."""
    minibatches: int = 4
    """Optimizer steps per version."""
    tokens_per_micro_batch: int = 16_384
    """With padding; bounds the memory of one forward and backward pass."""
    clip: Clip = field(default_factory=Clip)
    gradient_clip: float = 1.0
    """Global L2 norm."""
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    adam_eps: float = 1e-8
    seed: int = 1
    device: str = "cpu"

    def __post_init__(self) -> None:
        floors = {"learning_rate": 0.0, "warmup_versions": 0, "minibatches": 1, "tokens_per_micro_batch": 1}
        for name, floor in floors.items():
            if getattr(self, name) < floor:
                raise UsageError(f"trainer.{name} must be at least {floor}, got {getattr(self, name)}")
        if self.gradient_clip <= 0:
            raise UsageError(f"trainer.gradient_clip must be > 0, got {self.gradient_clip}")


class Learner:
    """Turns version k-1 into k from one batch, bit-equally wherever `fingerprint()` is equal.

    `model` becomes the compute copy: it always holds the published (bf16-rounded) values, in fp32 on a CPU and in bf16
    on a GPU, so that engine and trainer evaluate the same function. The masters start from its unrounded values.
    Nothing depends on a random state that survives a step, so a checkpoint is masters, moments and the version.
    """

    def __init__(self, model: transformers.PreTrainedModel, settings: LearnerSettings) -> None:
        self.settings = settings
        self.version = 0
        self._device = torch.device(settings.device)
        if self._device.type == "cuda":
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with it
        self._dtype = compute_dtype(self._device)
        torch.nn.Module.to(model, self._device)
        self._model = model
        self._parameters = dict(model.named_parameters())
        self._masters = {name: p.detach().to(torch.float32, copy=True) for name, p in self._parameters.items()}
        self._gradients = {name: torch.zeros_like(master) for name, master in self._masters.items()}
        for name, master in self._masters.items():
            master.grad = self._gradients[name]
        for parameter in self._parameters.values():
            # Not model.to(dtype): that would round the rotary frequencies too.
            parameter.data = parameter.data.to(self._dtype)
            parameter.grad = None  # a warm start may have left one
        # fused=True gives other bits than the plain loop; the loop is what every device and torch build has.
        self._optimizer = torch.optim.AdamW(
            self._masters.values(),
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.adam_eps,
            weight_decay=settings.weight_decay,
            foreach=False,
            fused=False,
        )
        self._round()

    def use(self, settings: LearnerSettings) -> None:
        """Go on with other settings from the next step on; the device stays."""
        self.settings = settings
        for group in self._optimizer.param_groups:
            group |= {
                "betas": settings.betas,
                "eps": settings.adam_eps,
                "weight_decay": settings.weight_decay,
            }

    @property
    def model(self) -> transformers.PreTrainedModel:
        """The compute copy, holding the published values."""
        return self._model

    def check_ids(self, ids: npt.NDArray[np.int32]) -> None:
        """Raise BatchError for token ids, int32[T], that this model has no embedding or no position for."""
        vocabulary = int(self._model.config.vocab_size)
        positions = getattr(self._model.config, "max_position_embeddings", None) or ids.size
        if ids.min() < 0 or ids.max() >= vocabulary or ids.size > positions:
            raise BatchError(
                f"{ids.size} tokens from id {ids.min()} to {ids.max()}: this model has {vocabulary} ids and "
                f"{positions} positions"
            )

    def published(self, into: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Return the current version's weights as bf16, by HF name: a copy that later steps leave alone.

        Args:
            into: What an earlier call returned; its memory is written to, where it is not needed any more.
        """
        return publish_weights(self._masters, into)

    def step(self, sequences: Sequence[TrainingSequence], version: int) -> StepMetrics:
        """Make `version` (the one after the current) from a batch, in up to `minibatches` optimizer steps.

        Raises LossNotFinite and BatchError with masters, moments and published values as they were. Memory: a second
        copy of masters and moments while it runs.
        """
        if version != self.version + 1:
            raise UsageError(f"the learner is at version {self.version} and cannot make version {version}")
        settings = self.settings
        steps = minibatches(
            sequences, settings.minibatches, settings.tokens_per_micro_batch, seed=settings.seed, version=version
        )
        ages = staleness(steps, self.version)
        torch.manual_seed(settings.seed * 1_000_003 + version)
        for group in self._optimizer.param_groups:
            group["lr"] = self.learning_rate(version)
        before = self._snapshot()
        sums = _Sums()
        try:
            with deterministic(self._device, self._dtype):
                for number, minibatch in enumerate(steps):
                    self._optimize(minibatch, number, sums)
        except Exception:
            self._restore(before)
            raise
        self.version = version
        return {"learning_rate": self.learning_rate(version), **sums.means(), **_staleness_metrics(ages.tolist())}

    def learning_rate(self, version: int) -> float:
        """Of one version: linear warm-up over `warmup_versions`, then constant."""
        return self.settings.learning_rate * min(1.0, version / max(1, self.settings.warmup_versions))

    def state(self) -> Checkpoint:
        """Copy all that `load_state` needs; add what else must be kept to its metadata."""
        tensors = {f"masters/{name}": from_torch(master.clone()) for name, master in self._masters.items()}
        for name, master in self._masters.items():
            for kind, value in self._optimizer.state[master].items():
                tensors[f"{kind}/{name}"] = from_torch(value.clone())
        return Checkpoint(tensors, {"version": self.version})

    def load_state(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint. Raises CheckpointError, with nothing changed, when it is of another model."""
        found: dict[str, dict[str, Tensor]] = {}
        for path, tensor in checkpoint.tensors.items():
            kind, _, name = path.partition("/")
            found.setdefault(kind, {})[name] = tensor
        masters = found.pop("masters", {})
        shapes = {name: tuple(master.shape) for name, master in self._masters.items()}
        if {name: tensor.shape for name, tensor in masters.items()} != shapes:
            raise CheckpointError("the checkpoint's weights differ from the model's in name or shape: another model's")
        version = checkpoint.metadata.get("version")
        if not isinstance(version, int):
            raise CheckpointError(f"the checkpoint names no version: {version!r}")
        moments = {
            # Copied into memory of torch's own alignment: no kernel's result may depend on where bytes came from.
            index: {kind: to_torch(named[name]).clone() for kind, named in found.items() if name in named}
            for index, name in enumerate(self._masters)
        }
        state = {index: values for index, values in moments.items() if values}
        self._restore(([to_torch(masters[name]) for name in self._masters], state))
        self.version = version

    def fingerprint(self) -> dict[str, str]:
        """Return `numerics` of the learner's device."""
        return numerics(str(self._device))

    def _optimize(self, minibatch: Minibatch, number: int, sums: _Sums) -> None:
        for gradient in self._gradients.values():
            gradient.zero_()
        loss = torch.zeros((), dtype=torch.float64, device=self._device)
        for micro in minibatch.micro_batches:
            loss += self._backward(micro, minibatch.tokens, sums, fresh=number == 0)
        norm = torch.nn.utils.clip_grad_norm_(self._masters.values(), self.settings.gradient_clip, foreach=False)
        if not (torch.isfinite(loss) and torch.isfinite(norm)):
            raise LossNotFinite(
                f"version {self.version + 1}, minibatch {number}: loss {float(loss)}, gradient norm {float(norm)}; "
                "the version was not made. Lower the learning rate or look for extreme advantages in this batch"
            )
        sums.add_step(loss, norm, minibatch.tokens)
        self._optimizer.step()
        self._round()

    def _backward(self, micro: MicroBatch, total_tokens: int, sums: _Sums, *, fresh: bool) -> torch.Tensor:
        """Add one micro-batch's gradient to the masters'; the detached share of the loss."""
        logprobs, entropies = token_logprobs(self._model, micro)
        behaviour = torch.from_numpy(micro.behaviour).to(self._device)
        advantages = torch.from_numpy(micro.advantages).to(self._device)
        delta = log_ratio(logprobs, behaviour)
        loss = token_mean(ppo_clip(delta, advantages, self.settings.clip), total_tokens)
        torch.autograd.backward(loss)
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                # Summed in fp32 here, not by autograd, which would sum micro-batches in bf16 on a GPU.
                self._gradients[name] += parameter.grad
                parameter.grad = None
        sums.add(metric_sums(delta, advantages, self.settings.clip))
        sums.add({"entropy": entropies.double().sum()})
        if fresh:
            # Before the first update, at tokens of these very weights, engine and trainer should agree.
            same = torch.from_numpy(micro.versions == self.version).to(self._device)
            sums.add_gap((logprobs.detach() - behaviour)[same].abs().double())
        return loss.detach().double()

    @torch.no_grad()
    def _round(self) -> None:
        for name, master in self._masters.items():
            self._parameters[name].copy_(master.to(torch.bfloat16))

    def _snapshot(self) -> _Snapshot:
        state = copy.deepcopy(self._optimizer.state_dict()["state"])
        return [master.clone() for master in self._masters.values()], state

    @torch.no_grad()
    def _restore(self, snapshot: _Snapshot) -> None:
        values, state = snapshot
        for parameter in self._parameters.values():
            parameter.grad = None
        for master, value in zip(self._masters.values(), values, strict=True):
            master.copy_(value)
        self._optimizer.load_state_dict({"state": state, "param_groups": self._optimizer.state_dict()["param_groups"]})
        self._round()


_Snapshot: TypeAlias = tuple[list[torch.Tensor], dict[int, dict[str, torch.Tensor]]]


class _Sums:
    """Sums on the device over a version's tokens; one synchronisation, at the end."""

    def __init__(self) -> None:
        self._tokens = 0
        self._sums: dict[str, torch.Tensor] = {}
        self._norms: list[torch.Tensor] = []
        self._gaps: list[torch.Tensor] = []

    def add(self, sums: Mapping[str, torch.Tensor]) -> None:
        for name, value in sums.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value

    def add_step(self, loss: torch.Tensor, norm: torch.Tensor, tokens: int) -> None:
        self._tokens += tokens
        self.add({"loss": loss * tokens})
        self._norms.append(norm)

    def add_gap(self, gaps: torch.Tensor) -> None:
        self._gaps.append(gaps)

    def means(self) -> StepMetrics:
        """Without the gap's entries when no token came from the newest weights."""
        metrics = {name: float(value) / self._tokens for name, value in self._sums.items()}
        norms = torch.stack(self._norms)
        metrics |= {"tokens": float(self._tokens), "optimizer_steps": float(len(norms))}
        metrics |= {"grad_norm_mean": float(norms.mean()), "grad_norm_max": float(norms.max())}
        gaps = torch.cat(self._gaps)
        metrics["logprob_gap_tokens"] = float(gaps.numel())
        if gaps.numel():
            metrics |= {"logprob_gap_mean": float(gaps.mean()), "logprob_gap_max": float(gaps.max())}
        return metrics


def _staleness_metrics(histogram: list[int]) -> StepMetrics:
    total = sum(histogram)
    shares = {f"staleness_share_{age}": tokens / total for age, tokens in enumerate(histogram)}
    mean = sum(age * tokens for age, tokens in enumerate(histogram)) / total
    return {"staleness_mean": mean, "staleness_max": float(len(histogram) - 1), **shares}


def compute_dtype(device: torch.device) -> torch.dtype:
    """Return the type in which a device evaluates the published values."""
    return torch.float32 if device.type == "cpu" else torch.bfloat16


def numerics(name: str) -> dict[str, str]:
    """Return what bit-equality depends on besides batch and settings; versions compare only where it is equal.

    `name` is a device as a recipe names it. One that this machine lacks is said to be missing.
    """
    device = torch.device(name)
    build = {line.strip() for line in torch.__config__.show().splitlines()}
    found = {
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
        "mkl": next((line for line in build if "Math Kernel Library" in line), "- none").removeprefix("- "),
        "onednn": next((line for line in build if "MKL-DNN" in line), "- none").removeprefix("- "),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpu": _cpu_name(),
        "threads": str(torch.get_num_threads()),
        "device": device.type,
        "compute_dtype": str(compute_dtype(device)).removeprefix("torch."),
    }
    if device.type == "cuda":
        found["device"] = torch.cuda.get_device_name(device) if torch.cuda.is_available() else f"{name} is missing"
        found["cuda"] = str(torch.version.cuda)
    return found


def other_parts(expected: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """Return `part: expected -> here` for every part in which two fingerprints differ."""
    return [
        f"{part}: {expected.get(part, 'none')} -> {here.get(part, 'none')}"
        for part in dict.fromkeys((*expected, *here))
        if expected.get(part) != here.get(part)
    ]


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
