"""The numerical part of a trainer: forward and backward on published values, updates of fp32 masters."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import structlog
import torch
import transformers

from headrace.infra.errors import UsageError
from headrace.infra.recipe.settings import TrainerSettings
from headrace.infra.run.run import Run
from headrace.infra.store.object_sources import ObjectSource
from headrace.infra.weights.experts import use_plain_experts
from headrace.infra.weights.lora import map_published_names
from headrace.infra.weights.tensors import Tensor
from headrace.schemas.records import NamedObject
from headrace.trainers.batches.batch import Minibatch, TrainingSequence, count_staleness, cut_minibatches
from headrace.trainers.learner.backends.contract import Backend, SingleProcess
from headrace.trainers.learner.backends.shards import read_parts
from headrace.trainers.learner.checkpoint import Checkpoint, Storing, store_whole
from headrace.trainers.learner.chosen_loss import load_objective
from headrace.trainers.learner.limits import Limits
from headrace.trainers.learner.lora import Adapter
from headrace.trainers.learner.masters import Masters
from headrace.trainers.learner.model import deterministic, round_to_bf16, to_torch
from headrace.trainers.learner.numerics import compute_dtype, fingerprint_numerics, fingerprint_plug_ins
from headrace.trainers.learner.passes import Passes
from headrace.trainers.learner.reference import ReferencePolicy
from headrace.trainers.learner.schedule import learning_rate
from headrace.trainers.learner.shard_index import Index
from headrace.trainers.learner.state import TrainedState
from headrace.trainers.learner.step_metrics import StepMetrics, StepSums, gap_sums, ratio_sums, staleness_metrics
from headrace.trainers.losses import TrainedTokens, add_metrics

log = structlog.get_logger()

MATCHES_NO_VERSION = -2
"""A version that no token has."""


class Learner:
    """Trains version k from version k-1 and one batch; results are bit-equal for equal `fingerprint()`.

    `model` becomes the compute copy: it always holds the published (bf16-rounded) values, in fp32 on a CPU and in bf16
    on a GPU, so that engine and trainer evaluate the same function. The masters start from its unrounded values. No
    random state survives a step, so a checkpoint has only masters, moments, the version, and the reference policy if
    there is one. For a model with an adapter, these are the adapter's.
    """

    def __init__(
        self,
        model: transformers.PreTrainedModel,
        settings: TrainerSettings,
        seed: int = 1,
        adapter: Adapter | None = None,
        backend: Backend | None = None,
    ) -> None:
        self._backend = backend or SingleProcess(settings.device)
        self._device = self._backend.device
        if self._device.type == "cuda":
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with it
        self._dtype = compute_dtype(self._device)
        self._model, self._adapter, self._passes = model, adapter, Passes(model, self._backend)
        unrounded = {name: parameter.detach() for name, parameter in model.named_parameters()}
        for parameter in model.parameters():
            # model.to(dtype) would round the rotary frequencies too.
            parameter.data = parameter.data.to(self._dtype)
            parameter.grad = None  # a warm start may have left one
        self._backend.place(self._passes.scorer)
        use_plain_experts(model)  # depends on the model's device
        own, names = dict(model.named_parameters()), map_published_names(unrounded)
        parameters = {name: own[in_model] for name, in_model in names.items()}
        values = {name: self._backend.spread(unrounded[names[name]], like) for name, like in parameters.items()}
        self._spread_what_is_frozen(own, unrounded)
        self.masters = Masters(parameters, values, settings)
        self.trained = TrainedState(self.masters, parameters, self._backend)
        self._apply_settings(settings, seed)

    def apply_settings(self, settings: TrainerSettings, seed: int) -> None:
        """Use other settings from the next step on; the device stays. Raises UsageError for an unknown loss."""
        self._announce("apply_settings", settings, seed)
        self._apply_settings(settings, seed)

    def _apply_settings(self, settings: TrainerSettings, seed: int) -> None:
        self._passes.apply_settings(settings)
        self._objective = load_objective(settings)
        self._passes.has_entropy_gradient = settings.entropy > 0 or "entropies" in self._objective.needs
        self.masters.apply_settings(settings)
        self.settings, self.seed = settings, seed

    def _announce(self, command: str, *arguments: object) -> None:
        """Tell the trainer's other processes, if any, to call a method with these arguments."""

    @property
    def version(self) -> int:
        """The version that the learner holds."""
        return self.trained.version

    @property
    def model(self) -> transformers.PreTrainedModel:
        """The compute copy, holding the published values."""
        return self._model

    @property
    def limits(self) -> Limits:
        """Limits of the sequences that this model accepts; settings may change them."""
        config = self._model.config.get_text_config()
        positions = getattr(config, "max_position_embeddings", None)
        return Limits(int(config.vocab_size), positions, self._passes.routers.limits)

    def snapshot_weights(self, into: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Return a copy of the current version's weights as bf16, by HF name, which later steps do not change.

        Args:
            into: Result of an earlier call that is no longer needed; its memory is reused.
        """
        self._announce("snapshot_weights")
        if self._adapter is not None and self._adapter.is_merged:
            return self._adapter.merge(into)
        published: dict[str, Tensor] = {}
        for name, master in self.masters.values.items():
            whole = self._backend.gather(master.detach(), torch.bfloat16)
            if self._backend.leads:
                published |= round_to_bf16({name: whole}, into)
        return published

    def step(self, sequences: Sequence[TrainingSequence], version: int) -> StepMetrics:
        """Train `version` (current + 1) on a batch, in one optimizer step per minibatch of `cut_minibatches`.

        A step whose loss or gradient is not finite is skipped and counted (`steps_skipped`). If the weights are not
        finite at the end, all steps are skipped, and the new version has the old weights. Raises BatchError and any
        other error with masters, moments and published values unchanged. Memory: a second copy of masters and moments
        while it runs.
        """
        self._check(sequences, version)
        self._announce("step", list(sequences), version)
        settings, trained = self.settings, self.trained
        steps = cut_minibatches(
            sequences,
            settings.minibatches,
            settings.micro_batch_tokens,
            seed=self.seed,
            version=version,
            packed=self._passes.is_packed,
        )
        sampling_version = self._find_sampling_version(steps)
        ages = count_staleness(steps, sampling_version)
        torch.manual_seed(self.seed * 1_000_003 + version)
        before, sums = self.masters.state(), StepSums()
        try:
            with deterministic(self._device, self._dtype):
                self._set_up_reference()
                proximal = "proximal" in self._objective.needs
                known = self._passes.score_fixed_logprobs(
                    steps, sampling_version, self.masters, trained.reference, proximal=proximal
                )
                for step, tokens in zip(steps, known, strict=True):
                    self._optimize(step, tokens, sums)
                if not torch.isfinite(self.masters.norm(self._backend.gather)):
                    # The weights from before the batch replace weights that are not finite.
                    log.warning("version.not_finite", version=version)
                    self.masters.load(before)
                    sums.skip_all()
        except Exception:
            self.masters.drop_gradients()
            self.masters.load(before)
            raise
        finally:
            self._passes.routers.stop_following()
        trained.version = version
        if trained.reference is not None:
            trained.reference.follow(self.masters.values, version, settings.reference)
        rate = learning_rate(settings, version)
        return {"learning_rate": rate, **sums.means(), **staleness_metrics(ages.tolist())}

    def _check(self, sequences: Sequence[TrainingSequence], version: int) -> None:
        """Raise UsageError if the version is not the next one, and BatchError for an untrainable sequence."""
        if version != self.version + 1:
            raise UsageError(
                f"the learner is at version {self.version}, so the next can only be {self.version + 1}; got {version}"
            )
        limits = self.limits
        for sequence in sequences:
            limits.check(sequence)

    def checkpoint(self, run: Run) -> Storing:
        """Copy the checkpoint's state; return the function that stores the copy in this run's store."""
        return partial(store_whole, run, self.trained.copy())

    def load_state(self, checkpoint: Checkpoint) -> None:
        """Load a checkpoint. Raises CheckpointError, with nothing changed, if it is of another model."""
        shapes = {path: tensor.shape for path, tensor in checkpoint.tensors.items()}
        version = self.trained.check(shapes, checkpoint.metadata)
        self.trained.load_whole(version, list(shapes), lambda path: to_torch(checkpoint.tensors[path]))

    def load_stored(self, objects: ObjectSource, index: Index, parts: Sequence[NamedObject]) -> None:
        """Load a checkpoint in parts, of which this process reads the parts that it needs.

        Raises, with nothing changed: CheckpointError if it is of another model or its parts do not match the index;
        ObjectMissing, ObjectCorrupt and StoreUnavailable.
        """
        version = self.trained.check(index.shapes, index.metadata)
        self.trained.load(version, read_parts(objects, index, parts, self.trained.room(index), None))

    def fingerprint(self) -> dict[str, str]:
        """Return `fingerprint_numerics` of the device, the backend's additions, and the source hashes of plug-ins."""
        return {
            **fingerprint_numerics(str(self._device)),
            **self._backend.fingerprint,
            **fingerprint_plug_ins(self.settings),
        }

    @torch.no_grad()
    def _spread_what_is_frozen(self, own: Mapping[str, torch.Tensor], whole: Mapping[str, torch.Tensor]) -> None:
        if self._adapter is not None:
            for name, parameter in own.items():
                if not parameter.requires_grad:
                    parameter.copy_(self._backend.spread(whole[name].to(self._dtype), parameter))

    def _set_up_reference(self) -> None:
        if "reference" not in self._objective.needs:
            self.trained.reference = None
        elif self.trained.reference is None:
            self.trained.reference = ReferencePolicy(self.masters.values)

    def _find_sampling_version(self, steps: Sequence[Minibatch]) -> int:
        """Return the newest version that tokens can have: the learner's, or in a shadow the newest in the batch."""
        if not self.settings.is_shadow:
            return self.version
        return max(int(micro.versions.max()) for step in steps for micro in step.micro_batches)

    def _optimize(self, step: Minibatch, known: TrainedTokens, sums: StepSums) -> None:
        """Take an optimizer step, or skip it if loss or gradient is not finite."""
        self.masters.clear()
        objective, passes = self._objective, self._passes
        passes.routers.begin_count()
        if objective.has_lookahead or self.settings.router_aux:
            known = replace(known, logprobs=passes.score_logprobs(step.micro_batches))
        passes.routers.end_count(self._backend.total)
        bounds = objective.bounds(known)
        totals = objective.totals(known, step.sequences, bounds)
        summed: dict[str, torch.Tensor] = {}
        _, ranks = self._backend.share
        for part, micro, counts in passes.local_micro_batches(step.micro_batches):
            logprobs, entropies = passes.score_tokens(micro)
            tokens = replace(known.part(part), logprobs=logprobs, entropies=entropies)
            share, metrics = objective.compute_loss_share(tokens, totals, bounds and bounds.part(part))
            if self.settings.router_aux:
                imbalance = passes.routers.imbalance()
                share = share + self.settings.router_aux * imbalance
                # Metrics are means over tokens.
                metrics = {**metrics, "router_imbalance": imbalance.detach().double() * len(known.behaviour_logprobs)}
            # Gradients are averaged over processes, but the shares of a minibatch must be added.
            torch.autograd.backward(share * (ranks if counts else 0))
            self.masters.take_gradients()
            # Before the first update, engine and trainer should agree on tokens of exactly these weights. A shadow's
            # weights have sampled no tokens.
            gap = gap_sums(tokens, MATCHES_NO_VERSION if sums.steps or self.settings.is_shadow else self.version)
            one = {"loss": share.detach().double(), **metrics, **ratio_sums(tokens), **gap}
            summed = add_metrics(
                summed, one if counts else {name: torch.zeros_like(value) for name, value in one.items()}
            )
        summed = passes.reduce_metrics(summed)
        loss = summed.pop("loss")
        norm = self.masters.gradient_norm(self._backend.gather)
        if not (torch.isfinite(loss) and torch.isfinite(norm)):
            sums.skip()
            # Loss or gradient were not finite; the step changes no weights.
            log.warning("step.skipped", version=self.version + 1, loss=float(loss), gradient_norm=float(norm))
            return
        sums.add_step(summed, loss, norm)
        self.masters.clip(norm, self.settings.grad_clip)
        self.masters.step(learning_rate(self.settings, self.version + 1))
