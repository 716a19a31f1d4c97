"""The numerical heart of a trainer: forward and backward on the published values, gradients to fp32 masters."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import structlog
import torch
import transformers

from headrace.infra.errors import UsageError
from headrace.infra.recipe.settings import Trainer
from headrace.infra.run.run import Objects, Run
from headrace.infra.weights.experts import compute_experts_plainly
from headrace.infra.weights.lora import published_names
from headrace.infra.weights.tensors import Tensor
from headrace.schemas.records import NamedObject
from headrace.trainers.batches.batch import MicroBatch, Minibatch, TrainingSequence, minibatches, staleness
from headrace.trainers.learner.backends.contract import Backend, SingleProcess
from headrace.trainers.learner.backends.shards import read_parts
from headrace.trainers.learner.checkpoint import Checkpoint, CheckpointError, Json, Storing, store_whole
from headrace.trainers.learner.chosen_loss import objective_for
from headrace.trainers.learner.layers import arrange_layers
from headrace.trainers.learner.limits import Limits
from headrace.trainers.learner.logprobs import Scorer
from headrace.trainers.learner.lora import Adapter
from headrace.trainers.learner.masters import Masters, State
from headrace.trainers.learner.model import TORCH_DTYPES, deterministic, from_torch, publish_weights, to_torch
from headrace.trainers.learner.numerics import compute_dtype, numerics
from headrace.trainers.learner.reference import ReferencePolicy
from headrace.trainers.learner.routing import Routers
from headrace.trainers.learner.schedule import learning_rate
from headrace.trainers.learner.shard_index import Index
from headrace.trainers.learner.step_metrics import StepMetrics, StepSums, gap_sums, ratio_sums, staleness_metrics
from headrace.trainers.losses import TrainedTokens, added

log = structlog.get_logger()

NO_VERSION = -2
"""Of which no token is."""


class Learner:
    """Turns version k-1 into k from one batch, bit-equally wherever `fingerprint()` is equal.

    `model` becomes the compute copy: it always holds the published (bf16-rounded) values, in fp32 on a CPU and in bf16
    on a GPU, so that engine and trainer evaluate the same function. The masters start from its unrounded values.
    Nothing depends on a random state that survives a step, so a checkpoint is masters, moments, the reference policy
    where there is one, and the version. Of a model with an adapter these are of the adapter alone.
    """

    def __init__(
        self,
        model: transformers.PreTrainedModel,
        settings: Trainer,
        seed: int = 1,
        adapter: Adapter | None = None,
        backend: Backend | None = None,
    ) -> None:
        self.version = 0
        self._backend = backend or SingleProcess(settings.device)
        self._device = self._backend.device
        if self._device.type == "cuda":
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with it
        self._dtype = compute_dtype(self._device)
        self._model, self._adapter, self._scorer = model, adapter, Scorer(model)
        self._routers = Routers(model)
        unrounded = {name: parameter.detach() for name, parameter in model.named_parameters()}
        for parameter in model.parameters():
            # Not model.to(dtype): that would round the rotary frequencies too.
            parameter.data = parameter.data.to(self._dtype)
            parameter.grad = None  # a warm start may have left one
        self._backend.place(self._scorer)
        compute_experts_plainly(model)  # it asks where the model computes
        own, names = dict(model.named_parameters()), published_names(unrounded)
        self._parameters = {name: own[in_model] for name, in_model in names.items()}
        values = {name: self._backend.spread(unrounded[names[name]], like) for name, like in self._parameters.items()}
        self._spread_what_is_frozen(own, unrounded)
        self.masters = Masters(self._parameters, values, settings)
        self._reference: ReferencePolicy | None = None
        self._packed = False
        self._arrangement = (False, False, False)
        self._take(settings, seed)

    def use(self, settings: Trainer, seed: int) -> None:
        """Go on with other settings from the next step on; the device stays. Raises UsageError for an unknown loss."""
        self._take(settings, seed)

    def _take(self, settings: Trainer, seed: int) -> None:
        self._routers.use(settings)
        self.settings, self._seed = settings, seed
        self._objective = objective_for(settings)
        self._needs = self._objective.needs
        self.masters.use(settings)
        self._arrange()

    @property
    def seed(self) -> int:
        """Of the recipe."""
        return self._seed

    @property
    def model(self) -> transformers.PreTrainedModel:
        """The compute copy, holding the published values."""
        return self._model

    @property
    def limits(self) -> Limits:
        """What sequences this model can be given; other settings may change it."""
        config = self._model.config
        positions = getattr(config, "max_position_embeddings", None)
        return Limits(int(config.vocab_size), positions, self._routers.limits)

    def published(self, into: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Return the current version's weights as bf16, by HF name: a copy that later steps leave alone.

        Args:
            into: What an earlier call returned; its memory is written to, where it is not needed any more.
        """
        if self._adapter is not None and self._adapter.is_merged:
            return self._adapter.merged(into)
        published: dict[str, Tensor] = {}
        for name, master in self.masters.values.items():
            whole = self._backend.gather(master.detach(), torch.bfloat16)
            if self._backend.leads:
                published |= publish_weights({name: whole}, into)
        return published

    def step(self, sequences: Sequence[TrainingSequence], version: int) -> StepMetrics:
        """Make `version` (the one after the current) from a batch, in up to `minibatches` optimizer steps.

        A step whose loss or gradient is not finite is skipped and counted (`steps_skipped`); where the weights are not
        finite at the end, all of them are, and the version has the weights of the one before. Raises BatchError, and
        whatever fails in between, with masters, moments and published values as they were. Memory: a second copy of
        masters and moments while it runs.
        """
        self.check(sequences, version)
        return self.make(sequences, version)

    def make(self, sequences: Sequence[TrainingSequence], version: int) -> StepMetrics:
        """Do what `step` does with what was checked."""
        settings = self.settings
        steps = minibatches(
            sequences,
            settings.minibatches,
            settings.micro_batch_tokens,
            seed=self._seed,
            version=version,
            packed=self._packed,
        )
        sampled_by = self._sampled_by(steps)
        ages = staleness(steps, sampled_by)
        torch.manual_seed(self._seed * 1_000_003 + version)
        before, sums = self.masters.state(), StepSums()
        try:
            with deterministic(self._device, self._dtype):
                self._have_reference()
                for step, tokens in zip(steps, self._known(steps, sampled_by), strict=True):
                    self._optimize(step, tokens, sums)
                if not torch.isfinite(self.masters.norm(self._backend.gather)):
                    log.warning("version.not_finite", version=version)
                    self.masters.load(before)
                    sums.skip_all()
        except Exception:
            self.masters.drop_gradients()
            self.masters.load(before)
            raise
        finally:
            self._routers.rest()
        self.version = version
        if self._reference is not None:
            self._reference.follow(self.masters.values, version, settings.reference)
        rate = learning_rate(settings, version)
        return {"learning_rate": rate, **sums.means(), **staleness_metrics(ages.tolist())}

    def check(self, sequences: Sequence[TrainingSequence], version: int) -> None:
        """Raise UsageError for a version that is not the next, BatchError for a sequence that cannot be trained on."""
        if version != self.version + 1:
            raise UsageError(f"the learner is at version {self.version} and cannot make version {version}")
        limits = self.limits
        for sequence in sequences:
            limits.check(sequence)

    def checkpoint(self, run: Run) -> Storing:
        """Copy all that a checkpoint holds; return what stores the copy, in this run's store."""
        return partial(store_whole, run, self.state())

    def state(self) -> Checkpoint:
        """Copy all that `load_state` needs, of a learner of one process."""
        tensors = {path: from_torch(part) for path, part in self.parts().items()}
        return Checkpoint(tensors, {"version": self.version})

    def parts(self) -> dict[str, torch.Tensor]:
        """Copy what this process holds of a checkpoint's tensors, `kind/name`; on a CPU."""
        state = self.masters.state()
        if self._reference is not None:
            state["reference"] = {name: value.clone() for name, value in self._reference.values.items()}
        return {f"{kind}/{name}": one.cpu() for kind, named in state.items() for name, one in named.items()}

    def load_state(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint. Raises CheckpointError, with nothing changed, when it is of another model."""
        shapes = {path: tensor.shape for path, tensor in checkpoint.tensors.items()}
        version = self.check_state(shapes, checkpoint.metadata)
        self.load_tensors(version, list(shapes), lambda path: to_torch(checkpoint.tensors[path]))

    def load_stored(self, objects: Objects, index: Index, parts: Sequence[NamedObject]) -> None:
        """Go on from a checkpoint in parts, of which this process reads what it needs.

        Raises CheckpointError for one of another model, and for parts that do not hold what the index says;
        ObjectMissing, ObjectCorrupt and StoreUnavailable. Nothing is changed then.
        """
        version = self.check_state(index.shapes, index.metadata)
        self.load_parts(version, read_parts(objects, index, parts, self.room(index), None))

    def check_state(self, shapes: Mapping[str, tuple[int, ...]], metadata: Mapping[str, Json]) -> int:
        """Return the version of a checkpoint. Raises CheckpointError when it names none, or is of another model."""
        own = {name: tuple(master.shape) for name, master in self.masters.values.items()}
        found: dict[str, dict[str, tuple[int, ...]]] = {"masters": {}}
        for path, shape in shapes.items():
            kind, _, name = path.partition("/")
            found.setdefault(kind, {})[name] = shape
        counts = dict.fromkeys(own, ())
        known = {**dict.fromkeys(("masters", "reference", "exp_avg", "exp_avg_sq"), own), "step": counts}
        moments = {"exp_avg", "exp_avg_sq", "step"} & found.keys()
        if any(named != known.get(kind) for kind, named in found.items()) or len(moments) not in {0, 3}:
            raise CheckpointError("the checkpoint's weights differ from the model's in name or shape: another model's")
        version = metadata.get("version")
        if not isinstance(version, int) or isinstance(version, bool):
            raise CheckpointError(f"the checkpoint names no version: {version!r}")
        return version

    def load_tensors(self, version: int, paths: Sequence[str], read: Callable[[str], torch.Tensor]) -> None:
        """Go on from tensors of a checkpoint that was checked; `read` is asked for each, one after the other."""
        found = {path: self._backend.spread(read(path), self._lies_as(path)) for path in paths}
        self.load_parts(version, found)

    def room(self, index: Index) -> dict[str, torch.Tensor]:
        """Return tensors for our parts of a checkpoint's, whose values are anything."""
        room: dict[str, torch.Tensor] = {}
        for path, cut in index.tensors.items():
            like, dtype = self._lies_as(path), TORCH_DTYPES[cut.dtype]
            if like is None:
                room[path] = torch.empty(cut.shape, dtype=dtype)
            else:
                room[path] = torch.empty_like(like, dtype=dtype, requires_grad=False)
        return room

    def load_parts(self, version: int, found: Mapping[str, torch.Tensor]) -> None:
        """Go on from our parts of a checkpoint's tensors."""
        state: State = {}
        for path, part in found.items():
            kind, _, name = path.partition("/")
            state.setdefault(kind, {})[name] = part
        reference = state.pop("reference", None)
        self.masters.load(state)
        self._reference = None if reference is None else ReferencePolicy(reference)
        self.version = version

    def _lies_as(self, path: str) -> torch.Tensor | None:
        """Return what a checkpoint's tensor lies like; None for what every process has whole."""
        kind, _, name = path.partition("/")
        return None if kind == "step" else self._parameters[name]

    def fingerprint(self) -> dict[str, str]:
        """Return `numerics` of the learner's device, and what the backend adds."""
        return {**numerics(str(self._device)), **self._backend.fingerprint}

    @torch.no_grad()
    def _spread_what_is_frozen(self, own: Mapping[str, torch.Tensor], whole: Mapping[str, torch.Tensor]) -> None:
        if self._adapter is not None:
            for name, parameter in own.items():
                if not parameter.requires_grad:
                    parameter.copy_(self._backend.spread(whole[name].to(self._dtype), parameter))

    def _arrange(self) -> None:
        """Make the model pack, checkpoint and compile as the settings say; pad, and say so, if it cannot be packed."""
        settings = self.settings
        arrangement = settings.packing, settings.activation_checkpointing, settings.compile
        if arrangement == self._arrangement:
            return
        self._arrangement, self._packed = arrangement, settings.packing
        arrange_layers(self._model, checkpointing=False, compiled=False)
        if settings.packing and (reason := self._scorer.try_packing()):
            self._packed = False
            log.warning("learner.pads", reason=reason)
        arrange_layers(self._model, checkpointing=settings.activation_checkpointing, compiled=settings.compile)

    def _have_reference(self) -> None:
        if "reference" not in self._needs:
            self._reference = None
        elif self._reference is None:
            self._reference = ReferencePolicy(self.masters.values)

    def _sampled_by(self, steps: Sequence[Minibatch]) -> int:
        """Return the version that the newest tokens can be of: this one, or in a shadow the newest that they name."""
        if not self.settings.is_shadow:
            return self.version
        return max(int(micro.versions.max()) for step in steps for micro in step.micro_batches)

    @torch.no_grad()
    def _known(self, steps: Sequence[Minibatch], sampled_by: int) -> list[TrainedTokens]:
        """Return all trained tokens of each minibatch, with what is known of them when the version begins."""
        known = [self._given(step.micro_batches, sampled_by) for step in steps]
        if "proximal" in self._needs:
            proximal = [self._logprobs(step.micro_batches) for step in steps]
            known = [replace(tokens, proximal=one) for tokens, one in zip(known, proximal, strict=True)]
        if self._reference is not None:
            with self._reference.in_place_of(self.masters):
                reference = [self._logprobs(step.micro_batches) for step in steps]
            known = [replace(tokens, reference=one) for tokens, one in zip(known, reference, strict=True)]
        return known

    def _given(self, micro_batches: Sequence[MicroBatch], sampled_by: int) -> TrainedTokens:
        def joined(parts: Iterable[npt.NDArray[Any]]) -> torch.Tensor:
            return torch.from_numpy(np.concatenate(list(parts))).to(self._device)

        firsts = np.cumsum([0, *(micro.sequences[-1] + 1 for micro in micro_batches)])
        behaviour = joined(micro.behaviour for micro in micro_batches)
        return TrainedTokens(
            logprobs=behaviour,  # until they are evaluated, as the entropies
            entropies=torch.zeros_like(behaviour),
            behaviour=behaviour,
            advantages=joined(micro.advantages for micro in micro_batches),
            sequences=joined(micro.sequences + first for micro, first in zip(micro_batches, firsts, strict=False)),
            versions=joined(micro.versions for micro in micro_batches),
            version=sampled_by,
        )

    @torch.no_grad()
    def _logprobs(self, micro_batches: Sequence[MicroBatch]) -> torch.Tensor:
        """Return those of all trained tokens, from whichever process evaluates them."""
        logprobs = torch.zeros(sum(micro.targets.size for micro in micro_batches), device=self._device)
        for part, micro, counts in self._ours(micro_batches):
            evaluated, _ = self._evaluated(micro, counts=counts)
            if counts:
                logprobs[part] = evaluated
        return self._backend.total(logprobs)

    def _evaluated(self, micro: MicroBatch, *, counts: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
        with self._routers.following(micro, self._device, counts=counts):
            scores: tuple[torch.Tensor, torch.Tensor] = self._scorer(
                micro, self.settings.logits_mib, self.settings.entropy > 0
            )
        return scores

    def _ours(self, micro_batches: Sequence[MicroBatch]) -> Iterator[tuple[slice, MicroBatch, bool]]:
        """Yield our micro-batches, where their tokens stand among all, and whether they count.

        All processes meet in every pass, so each takes as many: one that has none left takes another's, for nothing.
        """
        rank, ranks = self._backend.share
        ends = np.cumsum([micro.targets.size for micro in micro_batches]).tolist()
        for first in range(0, len(micro_batches), ranks):
            place = min(first + rank, len(micro_batches) - 1)
            micro = micro_batches[place]
            yield slice(ends[place] - micro.targets.size, ends[place]), micro, first + rank == place

    def _optimize(self, step: Minibatch, known: TrainedTokens, sums: StepSums) -> None:
        """Take an optimizer step, or none where loss or gradient is not finite."""
        self.masters.clear()
        objective = self._objective
        self._routers.begin_count()
        if objective.looks_ahead or self.settings.router_aux:
            known = replace(known, logprobs=self._logprobs(step.micro_batches))
        self._routers.end_count(self._backend.total)
        bounds = objective.bounds(known)
        totals = objective.totals(known, step.sequences, bounds)
        told: dict[str, torch.Tensor] = {}
        _, ranks = self._backend.share
        for part, micro, counts in self._ours(step.micro_batches):
            logprobs, entropies = self._evaluated(micro)
            tokens = replace(known.part(part), logprobs=logprobs, entropies=entropies)
            share, metrics = objective.share(tokens, totals, bounds and bounds.part(part))
            if self.settings.router_aux:
                imbalance = self._routers.imbalance()
                share = share + self.settings.router_aux * imbalance
                # Metrics are means over tokens.
                metrics = {**metrics, "router_imbalance": imbalance.detach().double() * len(known.behaviour)}
            # Gradients are averaged over processes, and the shares of a minibatch are to be added up.
            torch.autograd.backward(share * (ranks if counts else 0))
            self.masters.take_gradients()
            # Before the first update, at tokens of these very weights, engine and trainer should agree. A shadow's
            # weights have sampled none.
            gap = gap_sums(tokens, NO_VERSION if sums.steps or self.settings.is_shadow else self.version)
            one = {"loss": share.detach().double(), **metrics, **ratio_sums(tokens), **gap}
            told = added(told, one if counts else {name: torch.zeros_like(value) for name, value in one.items()})
        told = self._over_processes(told)
        loss = told.pop("loss")
        norm = self.masters.gradient_norm(self._backend.gather)
        if not (torch.isfinite(loss) and torch.isfinite(norm)):
            sums.skip()
            log.warning("step.skipped", version=self.version + 1, loss=float(loss), gradient_norm=float(norm))
            return
        sums.add_step(told, loss, norm)
        self.masters.clip(norm, self.settings.grad_clip)
        self.masters.step(learning_rate(self.settings, self.version + 1))

    def _over_processes(self, told: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return metrics of all processes' micro-batches, as `added` puts two together."""
        pooled: dict[str, torch.Tensor] = {}
        for largest in (False, True):
            names = [name for name in told if name.endswith("_max") == largest]
            values = self._backend.total(torch.stack([told[name].double() for name in names]), largest=largest)
            pooled |= dict(zip(names, values.unbind(), strict=True))
        return pooled
