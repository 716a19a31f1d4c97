"""The mirror, `headrace mirror`: keeps a MirrorMaker 2 running between the Kafka of a run and that of a region.

It copies the region's tasks and the recipe out; trajectories, evaluations, workers' statuses and dead letters back.
"""

from __future__ import annotations

import threading
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
from headrace.infra.run.region import move_to_region
from headrace.infra.run.run import Run, join
from headrace.schemas.topics import TopicSpec, stream_of

log = structlog.get_logger()

LOOK_EVERY_S = 1.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0


def list_region_topics(recipe: Recipe, region: str) -> tuple[TopicSpec, ...]:
    """Return every topic in the Kafka of a region, as it should be."""
    names = tuple(recipe.workflows), tuple(recipe.policies)
    return recipe.topics.in_region(region, *names, recipe.kafka.partitions, recipe.task_partitions)


def plan_mirror(home: Run, there: Run, region: str) -> MirrorPlan:
    """Return what is mirrored for a region."""
    topics, policies = home.topics, home.recipe.policies
    return MirrorPlan(
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
            _keep_running(MirrorMaker(place, plan_mirror(home, there, region)), stop)


def _keep_running(maker: MirrorMaker, stop: threading.Event) -> None:
    """Start MirrorMaker again whenever it has ended, with longer pauses while it does not start."""
    pauses = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
    try:
        while not stop.is_set():
            if maker.is_alive():
                stop.wait(LOOK_EVERY_S)
                continue
            try:
                maker.start()
            except ServerError as error:
                # MirrorMaker does not start; it is tried again.
                log.warning("mirror.not_started", error=str(error))
                stop.wait(pauses.next_s())
            else:
                pauses.reset()
    finally:
        maker.stop()
