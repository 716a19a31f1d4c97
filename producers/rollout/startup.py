"""Prepares a worker for its first task: the policies' files, an engine, and weights in the engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from headrace.infra.recipe.settings import Rollout
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import StoreError
from headrace.infra.weights.files import FilesError
from headrace.infra.weights.policy_files import Tokenizer, fetch_policy_files
from headrace.producers.engines.contract import Engine
from headrace.producers.engines.registry import import_engine, open_engine
from headrace.producers.rollout.pauses import Pauses
from headrace.producers.rollout.play.engine_room import EngineRoom
from headrace.producers.rollout.play.episodes import RolloutContext
from headrace.producers.rollout.play.reachability import Reachability
from headrace.producers.rollout.play.running_episodes import RunningEpisodes
from headrace.producers.rollout.run_follower import RunFollower
from headrace.producers.rollout.weight_loader import WeightLoader

log = structlog.get_logger()

STARTUP_TURN_S = 0.1
RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class WorkerStartup:
    """Builds the rollout context in which tasks are played.

    `on_loader` gets the weight loader as soon as the engine is built; the caller closes the engine. `on_step` gets the
    next step, for the worker's status.
    """

    run: Run
    policies: tuple[str, ...]
    rollout: Rollout
    room: EngineRoom
    worker: str
    region: str
    follower: RunFollower
    pauses: Pauses
    episodes: RunningEpisodes
    on_loader: Callable[[WeightLoader], None]
    on_step: Callable[[str], None]

    async def prepare(self, folder: Path, stop: threading.Event) -> tuple[RolloutContext, WeightLoader] | None:
        """Wait for version 0 or later of every policy, and build the context; return None if `stop` is set first."""
        folders = {policy: folder / policy for policy in self.policies}
        self._report_step("reads which versions are published")
        for policy in self.policies:
            if not await self._fetch_files(policy, folders[policy], stop):
                return None
        self._report_step(f"imports the engine {self.rollout.engine.use}")
        await asyncio.to_thread(import_engine, self.rollout.engine.use)
        self._report_step("builds the engine")
        tokenizers = {policy: await asyncio.to_thread(Tokenizer, folders[policy]) for policy in self.policies}
        engine, build = await asyncio.to_thread(open_engine, folders, self.rollout, self.room.places)
        loader = WeightLoader(engine, self.follower.published, self.run.weights_cache, self.pauses)
        self.on_loader(loader)
        self._report_step(self._find_awaited(engine))
        self.follower.use_loader(loader)
        while awaited := self._find_awaited(engine):
            if stop.is_set():
                return None
            self.on_step(awaited)
            await asyncio.sleep(STARTUP_TURN_S)
        log.info("worker.ready", engine=build, versions=engine.versions())
        context = RolloutContext(
            engine=engine,
            engine_name=self.rollout.engine.use,
            engine_build=build,
            tokenizers=tokenizers,
            worker=self.worker,
            region=self.region,
            head=lambda policy: self.follower.published[policy].head,
            reachability=Reachability(self.pauses),
            running=self.episodes,
            room=self.room,
        )
        return context, loader

    def _report_step(self, what: str) -> None:
        log.info("worker.preparing", what=what)
        self.on_step(what)

    def _find_awaited(self, engine: Engine) -> str:
        """Return the policies without weights in the engine; empty if every policy has some."""
        missing = [policy for policy in self.policies if policy not in engine.versions()]
        wanted = ", ".join(f"{policy} version {self.follower.published[policy].head}" for policy in missing)
        return f"loads the weights of {wanted}" if wanted else ""

    async def _fetch_files(self, policy: str, folder: Path, stop: threading.Event) -> bool:
        """Fetch a policy's files; return False if `stop` is set before they are published."""
        what = f"files of {policy}"
        while not stop.is_set():
            if not self.follower.caught_up.is_set():
                await asyncio.sleep(STARTUP_TURN_S)
                continue
            published = await asyncio.to_thread(self.follower.find_files_record, policy)
            if published is None:
                self.pauses.begin(what, "the trainer has published no version yet")
                await asyncio.sleep(STARTUP_TURN_S)
                continue
            try:
                await asyncio.to_thread(fetch_policy_files, self.run.store, published, folder)
            except (StoreError, FilesError) as error:
                self.pauses.begin(what, error)
                await asyncio.sleep(RETRY_S)
            else:
                self.pauses.end(what)
                return True
        return False
