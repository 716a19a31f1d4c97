"""The engine that uses generation servers: it chooses the server of each request, and handles dead servers.

Every policy has its own servers for training, and others for exact versions (evaluations). A request whose server
fails waits for that server or moves to another, and continues from the tokens that its episode has.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import structlog
from cachetools import LRUCache

from headrace.producers.engines.contract import (
    KV_ON_SWAP,
    LOGPROB_CONVENTION,
    Capabilities,
    EngineError,
    EngineStats,
    FinishReason,
    Generation,
    KvOnSwap,
    LogprobConvention,
    Sampling,
    check_request,
)
from headrace.producers.engines.owned_folder import OwnedFolder
from headrace.producers.engines.served.generation_server import LOOK_AT_SERVER_S, GenerationServer
from headrace.producers.engines.served.request_gate import TURN_S
from headrace.producers.engines.served.served_policy import ServedPolicy
from headrace.producers.engines.served.server_api import OTHER_WEIGHTS, Answer, ServerAway
from headrace.producers.engines.served.weight_folders import WeightFolders

log = structlog.get_logger()

MOST_SESSIONS = 65_536
WAIT_FOR_SERVER_S = 0.1
ABORT_S = 10.0
"""Seconds for a server to cancel a request; after that its tokens count as lost."""
MOST_DEATHS_OF_REQUEST = 3
"""Servers that may fail during one request; after that the request fails, because it may be the cause."""


class ServedEngine:
    """See `headrace.producers.engines.contract.Engine`.

    Args:
        policies: What it serves.
        folders: Weight folders of the policies; closed with the engine.
        logprob_convention: Convention of the servers' log-probabilities.
        logs: Folder of the server processes' logs; None for servers given by URL.
    """

    kv_on_swap: KvOnSwap = KV_ON_SWAP

    def __init__(
        self,
        policies: Sequence[ServedPolicy],
        folders: WeightFolders,
        logprob_convention: LogprobConvention = LOGPROB_CONVENTION,
        logs: OwnedFolder | None = None,
    ) -> None:
        self.logprob_convention: LogprobConvention = logprob_convention
        self._policies, self._folders, self._logs = {one.name: one for one in policies}, folders, logs
        held = min(policy.held_versions for policy in policies)
        self.capabilities = Capabilities(held_versions=held, keeps_sessions=True, is_seeded=False)
        self._sessions: LRUCache[tuple[str, int], GenerationServer] = LRUCache(MOST_SESSIONS)
        self._generated = self._prompts = self._reused = self._seen_tokens = 0
        self._swap_s = self._busy_s = 0.0
        self._waiting = 0
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(2 * len(self.list_servers()) + 1, thread_name_prefix="engine-servers")
        self._supervisor = threading.Thread(target=self._supervise, name="engine-supervisor", daemon=True)
        self._supervisor.start()

    # ------------------------------------------------------------------------------------------------------- requests

    async def generate(  # noqa: PLR0913 - as `Engine.generate`
        self,
        policy: str,
        ids: Sequence[int],
        sampling: Sampling,
        *,
        seed: int,  # noqa: ARG002 - a server draws by itself
        version: int | None = None,
        deadline_s: float | None = None,
        session: int | None = None,
    ) -> Generation:
        """See `Engine.generate`; all requests of a session go to the server that caches their prefix."""
        served = self._find_policy(policy)
        prompt, sampling = check_request(
            ids, sampling, vocabulary=served.shapes.vocabulary, context=served.shapes.context
        )
        end = None if deadline_s is None else time.monotonic() + deadline_s
        pieces: list[Answer] = []
        deaths = 0
        goes_on = False
        self._prompts += len(prompt)
        while True:
            server = await self._find_server(policy, served, version, session, end, goes_on=goes_on)
            if server is None:
                return _join_answers(pieces, "cancelled")
            if not goes_on:
                server.gate.admission.note_request(len(prompt) + sampling.max_tokens)
            goes_on = False
            made = sum(len(piece.ids) for piece in pieces)
            whole = [*prompt.tolist(), *(token for piece in pieces for token in piece.ids.tolist())]
            left = replace(sampling, max_tokens=sampling.max_tokens - made)
            try:
                answer = await self._send_request(server, whole, left, version, end)
                _check_answer(server, answer, served.shapes.vocabulary, served.loaded if version is None else {version})
                pieces.append(answer)
                self._generated += len(answer.ids)
                self._reused += answer.cached_tokens
                ended = _find_end(answer, made + len(answer.ids) >= sampling.max_tokens, end)
                if ended is not None:
                    return _join_answers(pieces, ended)
                await asyncio.sleep(WAIT_FOR_SERVER_S)  # the server cancelled it by itself: ask again soon
                goes_on = True
            except ServerAway as away:
                server.note_gone(away)
                deaths += 1
                if deaths >= MOST_DEATHS_OF_REQUEST:
                    raise EngineError(_describe_deaths(deaths, away)) from away
                goes_on = True
            finally:
                server.gate.leave(goes_on=goes_on)  # not before the sleep: another request would take its place

    async def _send_request(
        self, server: GenerationServer, ids: list[int], sampling: Sampling, version: int | None, end: float | None
    ) -> Answer:
        """Send a request to a server; cancel it at the deadline or when the caller is cancelled. Raises ServerAway."""
        request_id = uuid.uuid4().hex
        api = server.api
        asking = asyncio.ensure_future(api.generate(request_id, ids, sampling, version))
        try:
            while not asking.done() and not self._over.is_set():
                left_s = TURN_S if end is None else min(TURN_S, end - time.monotonic())
                if left_s <= 0:
                    break
                await asyncio.wait({asking}, timeout=left_s)
            if self._over.is_set():
                raise EngineError("the engine is closed")
            if not asking.done():
                await api.abort(request_id)
                await asyncio.wait({asking}, timeout=ABORT_S)
            if not asking.done():
                raise ServerAway(f"{server.title} was asked to abort a request, and did not within {ABORT_S:.0f} s")
            return asking.result()
        except asyncio.CancelledError:
            with suppress(ServerAway):
                await api.abort(request_id)
            raise
        finally:
            asking.cancel()

    async def _find_server(
        self,
        policy: str,
        served: ServedPolicy,
        version: int | None,
        session: int | None,
        end: float | None,
        *,
        goes_on: bool,
    ) -> GenerationServer | None:
        """Return the server for a request, with a place at its gate; None if the deadline passes first.

        Raises VersionGone, and EngineError for a policy without weights and for a closed engine.
        """
        self._waiting += 1
        try:
            while True:
                if self._over.is_set():
                    raise EngineError("the engine is closed")
                if version is None and served.newest is None:
                    raise EngineError(f"policy {policy} has no weights yet; load a version first")
                server = self._choose_server(policy, served, session) if version is None else served.find_held(version)
                if server is not None and await server.gate.wait_for_place(
                    lambda one=server: served.is_serving(one, version),  # type: ignore[misc]
                    end,
                    goes_on=goes_on,
                ):
                    return server
                if end is not None and time.monotonic() >= end:
                    return None
                if server is None:
                    await asyncio.sleep(WAIT_FOR_SERVER_S)
        finally:
            self._waiting -= 1

    def _choose_server(self, policy: str, served: ServedPolicy, session: int | None) -> GenerationServer | None:
        """Return the session's server if it is up, or the one with most room; None when all are down."""
        known = self._sessions.get((policy, session)) if session is not None else None
        if known is not None and known.version is not None:
            return known
        chosen = min(
            (one for one in served.servers if one.version is not None), key=lambda one: one.gate.crowding, default=None
        )
        if chosen is not None and session is not None:
            self._sessions[policy, session] = chosen
        return chosen

    # -------------------------------------------------------------------------------------------------------- weights

    def load(self, policy: str, version: int, weights: Mapping[str, Any]) -> None:
        """See `Engine.load`. Raises EngineError before any server reads weights that do not fit the model."""
        served = self._find_policy(policy)
        if self._over.is_set():
            raise EngineError("the engine is closed")
        self._swap_s += served.load(version, weights, self._pool)

    def hold(self, policy: str, version: int, weights: Mapping[str, Any] | None = None) -> None:
        """See `Engine.hold`: the version is loaded into a server that training does not use."""
        self._find_policy(policy).hold(version, weights)

    def release(self, policy: str, version: int) -> None:
        """See `Engine.release`. Raises VersionGone."""
        self._find_policy(policy).release(version)

    def versions(self) -> dict[str, int]:
        """See `Engine.versions`."""
        return {name: one.newest.version for name, one in self._policies.items() if one.newest is not None}

    # -------------------------------------------------------------------------------------------------- state and end

    def stats(self) -> EngineStats:
        """See `Engine.stats`. Tokens of running requests are an estimate, by what fills the servers' caches."""
        servers = self.list_servers()
        running = sum(server.gate.under_way for server in servers)
        in_caches = sum(server.load.used_tokens for server in servers)
        self._seen_tokens = max(self._seen_tokens, self._generated)
        if running:
            self._seen_tokens = max(self._seen_tokens, self._generated + in_caches)
        return EngineStats(
            generated_tokens=self._generated,
            prompt_tokens=self._prompts,
            recomputed_tokens=0,  # servers do not report it
            reused_tokens=self._reused,
            running=running,
            waiting=self._waiting,
            busy_s=self._busy_s,
            swap_s=self._swap_s,
            progress=self._seen_tokens,
            trouble="; ".join(server.trouble for server in servers if server.trouble),
        )

    def close(self) -> None:
        """See `Engine.close`. Safe to call twice. The log of a server that did not start is kept."""
        if self._over.is_set():
            return
        self._over.set()
        self._supervisor.join()
        has_trouble = any(server.trouble for server in self.list_servers())
        _close_servers(self.list_servers(), self._folders, self._pool)
        self._pool.shutdown()
        self._folders.close()
        if self._logs is not None:
            self._logs.close(keeps_folder=has_trouble)

    def list_servers(self) -> list[GenerationServer]:
        """Return the servers of all policies, for each policy those for exact versions last."""
        return [server for policy in self._policies.values() for server in (*policy.servers, *policy.evaluators)]

    def _find_policy(self, policy: str) -> ServedPolicy:
        if policy not in self._policies:
            raise EngineError(f"no policy {policy!r} in this engine; its policies are {sorted(self._policies)}")
        return self._policies[policy]

    def _supervise(self) -> None:
        """Look after every server until the end; each in a thread of the pool, as a start takes minutes."""
        looks: dict[str, Any] = {}
        while not self._over.wait(LOOK_AT_SERVER_S):
            for served in self._policies.values():
                for server in (*served.servers, *served.evaluators):
                    if server.name not in looks or looks[server.name].done():
                        looks[server.name] = self._pool.submit(self._look_after_server, served, server)
            if any(server.gate.under_way for server in self.list_servers()):
                self._busy_s += LOOK_AT_SERVER_S
        for look in looks.values():
            look.cancel()

    def _look_after_server(self, served: ServedPolicy, server: GenerationServer) -> None:
        try:
            server.look(served.find_weights_of(server))
            served.load_missing(server)
        except Exception:
            # The check of a server raised; it is checked again.
            log.exception("engine.look_failed", server=server.name)


def _close_servers(servers: Sequence[GenerationServer], folders: WeightFolders, pool: ThreadPoolExecutor) -> None:
    closing = pool.map(lambda server: server.close(), servers)
    if all(server.is_ours for server in servers):  # others go on, and may still read them
        folders.close()  # at once: this process may be killed before its servers have ended
    list(closing)


def _describe_deaths(deaths: int, last: ServerAway) -> str:
    return (
        f"servers failed {deaths} times while they had this request, so it may be the cause and is not sent again; the "
        f"last time: {last}. Look into the servers' logs"
    )


def _check_answer(server: GenerationServer, answer: Answer, vocabulary: int, expected: set[int]) -> None:
    """Raise EngineError for tokens that the policy cannot have generated: of other weights or another vocabulary."""
    if (largest := answer.ids.max(initial=0)) >= vocabulary:
        raise EngineError(
            f"{server.title} answered with token id {largest}, but the policy's vocabulary has {vocabulary} tokens: "
            "the server serves another model. Start it with the policy's model"
        )
    if not np.isfinite(answer.logprobs).all():
        raise EngineError(
            f"{server.title} answered with log-probabilities that are not finite (NaN or infinite), so the answer is "
            "not used: compare the server with a plain forward pass by `headrace check-engine RECIPE`"
        )
    made_by = {version for version, _ in answer.version_runs}
    if made_by - expected:
        versions = ", ".join(map(str, sorted(made_by - expected)))
        raise EngineError(
            f"{server.title} answered with weights of version {versions}, but this worker did not ask for them: "
            f"{OTHER_WEIGHTS}"
        )


def _find_end(answer: Answer, is_whole: bool, end: float | None) -> FinishReason | None:
    """Return how a generation ended with an answer; None if it continues."""
    if answer.ended != "aborted":
        return answer.ended
    if end is not None and time.monotonic() >= end:
        return "cancelled"
    return "length" if is_whole else None


def _join_answers(pieces: list[Answer], ended: FinishReason) -> Generation:
    """Return one generation made of the answers of several requests."""
    runs: list[tuple[int, int]] = []
    for version, length in (run for piece in pieces for run in piece.version_runs):
        if runs and runs[-1][0] == version:
            runs[-1] = (version, runs[-1][1] + length)
        else:
            runs.append((version, length))
    ids = [piece.ids for piece in pieces] or [np.zeros(0, np.int32)]
    logprobs = [piece.logprobs for piece in pieces] or [np.zeros(0, np.float32)]
    return Generation(np.concatenate(ids), np.concatenate(logprobs), tuple(runs), ended, _join_routing(pieces))


def _join_routing(pieces: list[Answer]) -> npt.NDArray[np.uint8 | np.uint16] | None:
    """Return each token's experts from the first piece that contains it: a later piece may have newer weights."""
    found: list[npt.NDArray[np.uint8 | np.uint16]] = []
    for piece in pieces:
        if piece.routing is not None:
            found.append(piece.routing[sum(map(len, found)) :])
    return np.concatenate(found) if found else None
