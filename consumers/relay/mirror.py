"""The mirror, `headrace mirror`: keeps a MirrorMaker 2 running between the Kafka of a run and that of a region.

It copies the region's tasks and the recipe out; trajectories, evaluations, workers' statuses and dead letters back.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import structlog

from headrace.infra.backoff import Backoff
from headrace.infra.embedded.mirror_maker import MirrorMaker, MirrorPlan
from headrace.infra.embedded.server_process import ServerError
from headrace.infra.environment import cache_folder
from headrace.infra.kafka.run_address import parse_run
from headrace.infra.kafka.topic_admin import ensure_topics
from headrace.infra.log import configure_logging
from headrace.infra.process.signals import JOIN_PATIENCE_S, begin_attempts, stop_on_signals
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.region import move_to_region, refuse_newer_revision
from headrace.infra.run.run import Run, join
from headrace.schemas.topics import TopicSpec, stream_of

log = structlog.get_logger()

LOOK_EVERY_S, REVISION_EVERY_S = 1.0, 20.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
LONG_LIFE_S = 60.0
"""After so long a life the next start has no pause."""


def list_region_topics(recipe: Recipe, region: str) -> tuple[TopicSpec, ...]:
    """Return every topic in the Kafka of a region, as it should be."""
    names = tuple(recipe.workflows), tuple(recipe.policies)
    return recipe.topics.in_region(region, *names, recipe.kafka.partitions, recipe.task_partitions)


def plan_mirror(home: Run, there: Run, region: str) -> MirrorPlan:
    """Return what is mirrored for a region."""
    topics, policies = home.topics, home.recipe.policies
    return MirrorPlan(
        home.run_id,
        home.connection,
        region,
        there.connection,
        out=(topics.recipe, *(topics.tasks(stream_of(workflow, region)) for workflow in home.recipe.workflows)),
        back=(
            *(topics.trajectories(policy) for policy in policies),
            *(topics.eval_groups(policy) for policy in policies),
            topics.workers,
            topics.dead_letters,
        ),
    )


def main(run: str, region: str, folder: Path | None) -> None:
    """Mirror a run's topics to and from one of its regions until a signal stops it."""
    configure_logging("mirror", region=region)
    address, stop = parse_run(run), stop_on_signals()
    for attempt in begin_attempts(stop):
        with attempt:
            home = join(address, JOIN_PATIENCE_S, stop)
            there = move_to_region(home, region)
            ensure_topics(there.connection, list_region_topics(home.recipe, region))
            place = folder or cache_folder() / "mirrors" / f"{home.run_id}-{region}"
            maker = MirrorMaker(place, plan_mirror(home, there, region))
            pauses = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
            try:
                while not stop.is_set():
                    _run_once(maker, home, pauses, stop)
            finally:
                maker.stop()


def _run_once(maker: MirrorMaker, home: Run, pauses: Backoff, stop: threading.Event) -> None:
    """Start MirrorMaker, and watch it until it ends or must be started again; then wait, longer after short lives.

    Raises MustRestart for a newer recipe.
    """
    began_s = looked_s = time.monotonic()
    try:
        maker.start()
        while maker.is_alive() and not stop.wait(LOOK_EVERY_S):
            if why := maker.find_dead_task():
                maker.stop()
                # One of MirrorMaker's tasks has died, and by itself it would not begin again.
                log.warning("mirror.task_died", why=why)
                break
            if time.monotonic() > looked_s + REVISION_EVERY_S:
                refuse_newer_revision(home)
                looked_s = time.monotonic()
        else:
            if not stop.is_set():
                # The process has ended by itself; it is started again.
                log.warning("mirror.died", log=str(maker.folder / "mirror.log"))
    except ServerError as error:
        # MirrorMaker does not start; it is tried again.
        log.warning("mirror.not_started", error=str(error))
    if time.monotonic() - began_s > LONG_LIFE_S:
        pauses.reset()
    stop.wait(pauses.next_s())
