"""The in-process engine: Hugging Face causal LMs on one thread, continuous batching, weights swapped in flight.

The engine thread owns all models, caches and requests. Other threads enqueue commands, which it runs between two
tokens; results go back through `call_soon_threadsafe` or a future. Each policy has its served weight set and, while an
evaluation needs them, held sets. Each set is a separate batch, and the thread computes one token of each busy set in
turn.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import structlog
import torch

from headrace.producers.engines.contract import (
    KV_ON_SWAP,
    LOGPROB_CONVENTION,
    Capabilities,
    EngineError,
    EngineStats,
    Generation,
    KvOnSwap,
    LogprobConvention,
    Sampling,
    TextCodec,
    check_request,
)
from headrace.producers.engines.stop_texts import StopTexts
from headrace.producers.engines.torch.batch import Request
from headrace.producers.engines.torch.causal_lm import CausalLM, ModelSource, Staged
from headrace.producers.engines.torch.weight_set import WeightSet
from headrace.producers.engines.torch.weight_sets import WeightSets

log = structlog.get_logger()
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TorchEngineSettings:
    """How the engine computes."""

    max_batch: int = 128
    """Rows per weight set; further requests wait, first come first served."""
    device: str = "cpu"
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Published weights are bf16; float32 holds them exactly and computes in float32."""
    prefill_tokens: int = 8192
    """Prompt tokens, padding included, in one forward."""
    max_held: int = 2
    """Weight sets per policy kept beside the served one."""
    record_routing: bool = False
    """Report the experts of every token, if a policy has experts; held sets do not, as they serve evaluations only."""

    def __post_init__(self) -> None:
        for name in ("max_batch", "prefill_tokens", "max_held"):
            if getattr(self, name) < 1:
                raise EngineError(f"{name} is {getattr(self, name)}; it must be at least 1")


@dataclass(frozen=True, slots=True)
class _Command:
    run: Callable[[], None]
    fail: Callable[[EngineError], None]


class TorchEngine:
    """See `headrace.producers.engines.contract.Engine`. Constructing it builds the models and starts the thread.

    A policy given by config has no weights to serve until `load`; one given by a local path serves those as version 0.
    The number of torch threads is the process's own (OMP_NUM_THREADS). `codecs` are the tokenizers by policy;
    without them a generation goes on after stop texts, and the actor cuts it.
    """

    logprob_convention: LogprobConvention = LOGPROB_CONVENTION
    kv_on_swap: KvOnSwap = KV_ON_SWAP

    def __init__(
        self,
        policies: Mapping[str, ModelSource],
        settings: TorchEngineSettings | None = None,
        codecs: Mapping[str, TextCodec] | None = None,
    ) -> None:
        self._settings = settings or TorchEngineSettings()
        self.capabilities = Capabilities(dtype=self._settings.compute_dtype)
        dtype = getattr(torch, self._settings.compute_dtype)
        models = {
            policy: CausalLM.build(source, self._settings.device, dtype, record_routing=self._settings.record_routing)
            for policy, source in policies.items()
        }
        self._sets = WeightSets(
            models,
            max_batch=self._settings.max_batch,
            prefill_tokens=self._settings.prefill_tokens,
            max_held=self._settings.max_held,
        )
        for policy, source in policies.items():
            if isinstance(source, str | Path):
                self._sets.serving_set(policy).version = 0
        self._codecs = codecs or {}
        self._busy_s = self._swap_s = 0.0
        self._commands: deque[_Command] = deque()
        self._open: set[Request] = set()  # every call of generate that has not returned
        self._lock = threading.Lock()  # guards _commands, _open and _end
        self._wake = threading.Event()
        self._end: EngineError | None = None
        self._thread = threading.Thread(target=self._run, name="torch-engine", daemon=True)
        self._thread.start()

    async def generate(
        self,
        policy: str,
        ids: Sequence[int],
        sampling: Sampling,
        *,
        seed: int,
        version: int | None = None,
        deadline_s: float | None = None,
    ) -> Generation:
        """See `Engine.generate`."""
        lm = self._sets.serving_set(policy).lm
        prompt, sampling = check_request(ids, sampling, vocabulary=lm.vocabulary, context=lm.context)
        loop = asyncio.get_running_loop()
        request = Request(policy, prompt, sampling, seed, version, loop, loop.create_future())
        if sampling.stop and policy in self._codecs:
            request.stop_texts = StopTexts(sampling.stop, self._codecs[policy])
        self._enqueue_command(_Command(partial(self._admit, request), request.finish), request)
        # All coroutines that are ready now enqueue their requests before the thread looks, so they join together.
        loop.call_soon(self._wake.set)
        timer = loop.call_later(deadline_s, self._withdraw, request) if deadline_s is not None else None
        try:
            return await request.future
        except asyncio.CancelledError:
            self._withdraw(request)
            raise
        finally:
            with self._lock:
                self._open.discard(request)
            if timer is not None:
                timer.cancel()

    def load(self, policy: str, version: int, weights: Mapping[str, Any]) -> None:
        """See `Engine.load`. Checks the weights in the calling thread; raises EngineError before anything changes."""
        served = self._sets.serving_set(policy)
        staged = served.lm.stage(weights)
        started = time.perf_counter()
        running = self._run_in_thread(lambda: self._swap(served, staged, version))
        # `running` requests were in progress at the change of weights.
        log.debug("engine.loaded", policy=policy, version=version, running=running, s=time.perf_counter() - started)

    def hold(self, policy: str, version: int, weights: Mapping[str, Any] | None = None) -> None:
        """See `Engine.hold`."""
        served = self._sets.serving_set(policy)
        staged = served.lm.stage(weights) if weights is not None else None
        self._run_in_thread(lambda: self._sets.hold(policy, version, staged))

    def release(self, policy: str, version: int) -> None:
        """See `Engine.release`. The unused set stays in memory until another hold needs the memory."""
        self._run_in_thread(lambda: self._sets.release(policy, version))

    def versions(self) -> dict[str, int]:
        """See `Engine.versions`."""
        return self._sets.versions()

    def stats(self) -> EngineStats:
        """See `Engine.stats`."""
        return replace(self._sets.count_tokens_and_requests(), busy_s=self._busy_s, swap_s=self._swap_s)

    def close(self) -> None:
        """See `Engine.close`. Safe to call twice."""
        self._set_end(EngineError("the engine is closed"))
        self._wake.set()
        self._thread.join()

    # From here to the line `The engine thread`: any thread may call.

    def _enqueue_command(self, command: _Command, request: Request | None = None) -> None:
        with self._lock:
            if self._end is not None:
                raise self._end_error()
            self._commands.append(command)
            if request is not None:
                self._open.add(request)

    def _run_in_thread(self, action: Callable[[], T]) -> T:
        """Run in the engine thread between two tokens; wait for the result."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()

        def run() -> None:
            try:
                result = action()
            except EngineError as error:
                future.set_exception(error)
            except BaseException as crash:
                future.set_exception(_crash_error(crash))
                raise
            else:
                future.set_result(result)

        self._enqueue_command(_Command(run, future.set_exception))
        self._wake.set()
        return future.result()

    def _withdraw(self, request: Request) -> None:
        """Free the request's slot and end it as cancelled; does nothing if it has ended."""
        with self._lock:
            if self._end is None:
                self._commands.append(_Command(partial(self._remove, request), lambda _: None))
        self._wake.set()

    def _end_error(self) -> EngineError:
        error = EngineError(str(self._end))
        error.__cause__ = self._end
        return error

    def _set_end(self, reason: EngineError) -> None:
        with self._lock:
            self._end = self._end or reason

    # ---- The engine thread.

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                while self._end is None:
                    while self._commands:
                        self._commands.popleft().run()
                    busy = [each for each in self._sets.list_sets() if each.is_busy]
                    if not busy:
                        self._wake.wait()
                        self._wake.clear()
                        continue
                    started = time.perf_counter()
                    for each in busy:
                        for request, outcome in each.step():
                            request.finish(outcome)
                    self._busy_s += time.perf_counter() - started
        except BaseException as crash:  # of any kind: callers must get the error and never hang
            self._set_end(_crash_error(crash))
            self._fail_all()
            # The thread of the torch engine ended with an error.
            log.exception("engine.crashed")  # last, so that nobody waits for a log that cannot be written
        else:
            self._fail_all()

    def _fail_all(self) -> None:
        with self._lock:
            commands, requests = list(self._commands), list(self._open)
            self._commands.clear()
        for command in commands:
            command.fail(self._end_error())
        for request in requests:
            request.finish(self._end_error())

    def _admit(self, request: Request) -> None:
        if request.future.cancelled():
            return
        try:
            self._sets.find_for_request(request.policy, request.version).waiting.append(request)
        except EngineError as error:
            request.finish(error)

    def _remove(self, request: Request) -> None:
        for each in self._sets.list_sets():
            generation = each.remove(request)
            if generation is not None:
                request.finish(generation)
                return

    def _swap(self, served: WeightSet, staged: Staged, version: int) -> int:
        started = time.perf_counter()
        served.apply(staged, version)
        self._swap_s += time.perf_counter() - started
        return len(served.rows)


def _crash_error(cause: BaseException) -> EngineError:
    why = f"{type(cause).__name__}: {cause}".removesuffix(": ")
    error = EngineError(
        f"the thread that generates tokens crashed ({why}): this worker cannot go on, and must be started again"
    )
    error.__cause__ = cause
    return error
