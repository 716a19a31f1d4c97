"""The processes of one trainer started by torchrun: the first process leads, the others follow.

Only the leader uses Kafka. Before its learner acts, it sends the command to the others, so that all processes call the
same collectives. Each process stores and reads its own part of a checkpoint, in a separate thread and process group,
in the same order everywhere, while the learners go on. A process that dies ends the others too, and torchrun's
`--max-restarts` starts all again from the newest checkpoint.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import cache, partial
from typing import Any, ClassVar, TypeAlias, cast

import structlog
import torch
import torch.distributed as dist
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from headrace.infra.environment import LOCAL_RANK_VARIABLE, RESTARTS_VARIABLE, is_single_process, read_environment
from headrace.infra.errors import HeadraceError, UsageError
from headrace.infra.process.child_process import die_with_parent
from headrace.infra.process.signals import STOPPING
from headrace.infra.recipe.plug_in_sources import check_sources, hash_sources, trainer_plug_ins
from headrace.infra.recipe.settings import Lora, TrainerSettings
from headrace.infra.run.run import Run
from headrace.infra.store.object_sources import ObjectSource
from headrace.infra.store.object_store import StoreUnavailable
from headrace.schemas.records import NamedObject
from headrace.trainers.learner.backends.contract import Backend
from headrace.trainers.learner.backends.fsdp import FullyShardedBackend
from headrace.trainers.learner.backends.shards import read_parts, store_parts
from headrace.trainers.learner.backends.tensor_parallel import TensorParallelBackend
from headrace.trainers.learner.checkpoint import Checkpoint, Stored, Storing
from headrace.trainers.learner.learner import Learner
from headrace.trainers.learner.lora import Adapter
from headrace.trainers.learner.model import empty_model, pin_threads, to_torch
from headrace.trainers.learner.numerics import fingerprint_numerics, fingerprint_plug_ins
from headrace.trainers.learner.serial_executor import SerialExecutor
from headrace.trainers.learner.shard_index import Index

log = structlog.get_logger()

_Outline: TypeAlias = Mapping[str, tuple[torch.dtype, torch.Size]]
NO_HURRY = timedelta(days=365)
"""How long a process waits for the leader's next command (the run may have nothing to train on), or for the others'
parts of a checkpoint (the store may be unreachable)."""
LOOK_UP_S = 0.2
"""Seconds between two checks, during a wait for the others, whether the upload was given up."""


@contextmanager
def lead_group() -> Iterator[None]:
    """Continue only in the leader; the other processes follow it here, and end when it leaves.

    A single process is its own leader.
    """
    if is_single_process():
        yield
        return
    _join_group()
    if dist.get_rank() > 0:
        _run_commands()
        _leave_group()
        raise SystemExit(0)
    try:
        yield
    except HeadraceError:
        with suppress(RuntimeError):  # the others may have ended by the same failure
            _send_command("leave")
        _uploads().close()
        raise
    _send_command("leave")
    _leave_group()


def build_learner(
    model: transformers.PreTrainedModel, settings: TrainerSettings, seed: int, adapter: Adapter | None = None
) -> Learner:
    """Return a learner on all processes of the group, or on this process alone if there is no group.

    The weights are those of `model` in the leader. Raises UsageError for settings that only one process supports.
    """
    if not dist.is_initialized():
        _check_process_count(settings, 1)
        return Learner(model, settings, seed, adapter)
    if adapter is not None and (adapter.is_merged or settings.tensor_parallel > 1):
        raise UsageError(
            'a trainer of several processes can train a LoRA adapter only with lora.publish = "adapter" and '
            f'trainer.tensor_parallel = 1; got "{adapter.settings.publish}" and {settings.tensor_parallel}. Change '
            "these settings; or set trainer.tensor_parallel = 1, and start the trainer without torchrun"
        )
    return LeadingLearner(model, settings, seed, adapter)


def fingerprint_here(settings: TrainerSettings) -> dict[str, str]:
    """Return the fingerprint of a learner with these settings in this process."""
    alone = {**fingerprint_numerics(settings.device), **fingerprint_plug_ins(settings)}
    if not dist.is_initialized():
        return alone
    return {**alone, **_kind(settings).fingerprint_on(dist.get_world_size())}


class LeadingLearner(Learner):
    """The leader's learner: it announces each call, and runs it with the others. Use it from one thread at a time.

    The others hold only one learner, so this one must not be used after another is built.
    """

    _newest: ClassVar[LeadingLearner | None] = None

    def __init__(
        self,
        model: transformers.PreTrainedModel,
        settings: TrainerSettings,
        seed: int = 1,
        adapter: Adapter | None = None,
    ) -> None:
        _check_process_count(settings, dist.get_world_size())
        LeadingLearner._newest = self
        _uploads().end_store_waits()
        lora = (adapter.settings, adapter.seed) if adapter is not None else None
        _send_command(
            "build",
            model.config,
            settings,
            seed,
            lora,
            torch.get_num_threads(),
            hash_sources(trainer_plug_ins(settings)),
        )
        super().__init__(model, settings, seed, adapter, backend=_build_backend(settings))

    def _announce(self, command: str, *arguments: object) -> None:
        assert LeadingLearner._newest is self, "this learner is outdated: the other processes have a newer one"  # noqa: S101 - a mistake
        _send_command(command, *arguments)

    def apply_settings(self, settings: TrainerSettings, seed: int) -> None:
        """See `Learner.apply_settings`; the call is announced to the others. The matrices stay cut as they are."""
        cut = {"tensor_parallel": self.settings.tensor_parallel}
        super().apply_settings(settings.model_copy(update=cut), seed)

    def checkpoint(self, run: Run) -> Storing:
        """See `Learner.checkpoint`: each process copies and stores its own parts."""
        self._announce("checkpoint", replace(run))
        return partial(_await_stored, _uploads().begin(run, self))

    def load_state(self, checkpoint: Checkpoint) -> None:
        """See `Learner.load_state`; the call is announced to the others."""
        shapes = {path: tensor.shape for path, tensor in checkpoint.tensors.items()}
        version = self.trained.check(shapes, checkpoint.metadata)
        whole = {path: to_torch(tensor) for path, tensor in checkpoint.tensors.items()}
        self._announce("load_from_leader", version, {path: (one.dtype, one.shape) for path, one in whole.items()})
        self.trained.load_whole(version, list(whole), whole.__getitem__)

    def load_stored(self, objects: ObjectSource, index: Index, parts: Sequence[NamedObject]) -> None:
        """See `Learner.load_stored`: each process reads its own parts."""
        run = cast("Run", objects)  # only a single process learns from an archive
        version = self.trained.check(index.shapes, index.metadata)
        self._announce("load_own_parts", replace(run), version, index, parts)
        self.trained.load(version, read_parts(run, index, parts, self.trained.room(index), _command_group()))


class _FollowingLearner(Learner):
    """A follower's learner."""

    def load_from_leader(self, version: int, outline: _Outline) -> None:
        """Take this process's parts of the tensors that the leader reads."""

        def room(path: str) -> torch.Tensor:
            dtype, shape = outline[path]
            return torch.empty(shape, dtype=dtype)

        self.trained.load_whole(version, list(outline), room)

    def checkpoint(self, run: Run) -> Storing:
        """Copy and store this process's parts. The leader reports failures."""
        return partial(_await_stored, _uploads().begin(run, self))

    def load_own_parts(self, run: Run, version: int, index: Index, parts: Sequence[NamedObject]) -> None:
        """Read this process's parts of a checkpoint."""
        with suppress(HeadraceError):  # the leader raises the same error, and may try another checkpoint
            self.trained.load(version, read_parts(run, index, parts, self.trained.room(index), _command_group()))


class _Uploads:
    """Uploads of checkpoints from all processes to the store, one after the other, in the background."""

    def __init__(self) -> None:
        self._group: Any = dist.new_group(backend="gloo", timeout=NO_HURRY)
        self._executor = SerialExecutor("checkpoint")
        self._given_up = threading.Event()

    def begin(self, run: Run, learner: Learner) -> Future[Stored | None]:
        """Copy the learner's state in this process, and store it when earlier uploads are done."""
        parts, metadata, given_up = learner.trained.parts(), {"version": learner.version}, self._given_up
        return self._executor.submit(lambda: store_parts(run, parts, metadata, self._group, given_up))

    def end_store_waits(self) -> None:
        """Stop waiting for an unreachable store, in all processes, until the next upload begins."""
        self._given_up.set()
        self._given_up = threading.Event()

    def close(self) -> None:
        """Give up, and return when no upload is running."""
        self.end_store_waits()
        self._executor.close(wait=True)


def _await_stored(storing: Future[Stored | None], given_up: threading.Event | None) -> Stored:
    """Return, in the leader, the parts of all processes. Raises an error of any process, or StoreUnavailable."""
    while not wait([storing], LOOK_UP_S).done:
        if given_up is not None and given_up.is_set():
            raise StoreUnavailable(
                "the trainer gave up storing a checkpoint before all processes had stored their parts: if this "
                "repeats, check that the object store answers"
            )
    stored = storing.result()
    assert stored is not None  # noqa: S101 - the first process has it
    return stored


def _join_group() -> None:
    die_with_parent()  # torchrun gives each process a new session, so no signal for its group reaches them
    has_gpu = torch.cuda.is_available()
    if has_gpu:
        torch.cuda.set_device(int(read_environment(LOCAL_RANK_VARIABLE, "0")))
    store, rank, size = next(rendezvous("env://"))
    # torchrun keeps its store over a restart, so new processes would look for dead ones at old addresses.
    attempt = PrefixStore(read_environment(RESTARTS_VARIABLE, "0"), store)
    dist.init_process_group("cpu:gloo,cuda:nccl" if has_gpu else "gloo", store=attempt, rank=rank, world_size=size)
    _command_group()
    _uploads()
    # The processes of one trainer are connected.
    log.info("group.joined", rank=dist.get_rank(), processes=dist.get_world_size())


def _run_commands() -> None:
    """Run the leader's commands until it leaves. Ignore signals: the leader handles them for all processes."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    learner: _FollowingLearner | None = None
    while (command := _receive_command())[0] != "leave":
        name, *arguments = command
        if name == "build":
            _uploads().end_store_waits()
            learner = None  # free its memory before the next learner is built
            learner = _build(*arguments)
        else:
            getattr(learner, name)(*arguments)


def _leave_group() -> None:
    _uploads().close()
    _uploads.cache_clear()
    _command_group.cache_clear()
    dist.destroy_process_group()


def _build(
    config: transformers.PreTrainedConfig,
    settings: TrainerSettings,
    seed: int,
    lora: tuple[Lora, int] | None,
    threads: int,
    plug_ins: Mapping[str, str],
) -> _FollowingLearner:
    pin_threads(threads)
    check_sources(plug_ins, trainer_plug_ins(settings))
    model = empty_model(config)
    adapter = None if lora is None else Adapter(model, *lora)
    return _FollowingLearner(model, settings, seed, adapter, _build_backend(settings))


def _check_process_count(settings: TrainerSettings, processes: int) -> None:
    asked = settings.tensor_parallel
    if asked not in {1, processes}:
        raise UsageError(
            f"trainer.tensor_parallel = {asked} needs a trainer of {asked} processes, but this one has {processes}: "
            f"start it by `torchrun --nproc-per-node {asked} --no-python -- headrace train ...`, or set "
            "trainer.tensor_parallel = 1"
        )


def _build_backend(settings: TrainerSettings) -> Backend:
    device = torch.device(settings.device)
    if device.type == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    return _kind(settings)(init_device_mesh(device.type, (dist.get_world_size(),)), device)


def _kind(settings: TrainerSettings) -> type[FullyShardedBackend | TensorParallelBackend]:
    return TensorParallelBackend if settings.tensor_parallel > 1 else FullyShardedBackend


@cache
def _command_group() -> Any:
    return dist.new_group(backend="gloo", timeout=NO_HURRY)


@cache
def _uploads() -> _Uploads:
    return _Uploads()


def _send_command(*command: object) -> None:
    dist.broadcast_object_list([command], 0, _command_group())


def _receive_command() -> tuple[Any, ...]:
    received: list[Any] = [None]
    dist.broadcast_object_list(received, 0, _command_group())
    return tuple(received[0])
