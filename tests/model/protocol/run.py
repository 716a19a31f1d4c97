"""The run that everybody is part of: its recipe, its topics, and how a process joins it."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np

from headrace.infra.kafka.clients import Outgoing, RunAddress
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.revisions import build_revision
from headrace.infra.run.run import Run, describe_store, read_revisions
from headrace.infra.store.object_cache import Uncached
from headrace.infra.store.store_address import StoreAddress
from headrace.schemas import codec
from headrace.schemas.records import RecipeRevision, Sampling, Sequence, Span, Trajectory, TrajectoryGroup
from headrace.schemas.topics import Topics
from protocol.broker import STAGE, Broker, Cluster
from protocol.store import Store

NAME, RUN_ID, POLICY, STREAM = "m", "m-1", "solver", "sums"
TOPICS = Topics(NAME)
ADDRESS = RunAddress(Cluster(), NAME)  # type: ignore[arg-type]  # it stands in for a connection
STORE = StoreAddress("store", "bucket", keys_file="nowhere")
REISSUE_S = 30.0
GROUP = 2
"""Trajectories of a group."""


def recipe(steps: int = 2, max_staleness: int = 1, **trainer: Any) -> Recipe:
    """Return a recipe of one policy and two partitions, with a batch of one group."""
    return Recipe.model_validate(
        {
            "name": NAME,
            "policies": {POLICY: {"path": "/models/any"}},
            "workflows": {STREAM: {"env": {"use": "scripted"}, "policies": {POLICY: POLICY}}},
            "rollout": {"group_size": GROUP},
            "curate": {"chain": ["validate", "max_staleness"], "snapshot_every_s": 1000.0},
            "feed": {"reissue_after_s": REISSUE_S},
            "evaluate": {"every": 0},
            "kafka": {"partitions": 2},
            "trainer": {
                "steps": steps,
                "groups_per_batch": 1,
                "minibatches": 1,
                "max_staleness": max_staleness,
                "checkpoint_every": 2,
                "anchor_share": 1000.0,
                **trainer,
            },
        }
    )


def began(chosen: Recipe) -> Broker:
    """Return a broker with the topics of a run and its recipe."""
    broker = STAGE.broker = Broker({spec.name: spec.partitions for spec in chosen.topic_specs})
    write_revision(chosen, 0)
    return broker


def write_revision(chosen: Recipe, number: int) -> None:
    """Write a revision of the recipe, as the launcher does."""
    made = build_revision(RUN_ID, number, chosen, describe_store(STORE))
    revision = replace(made, asks_for_published=True, asks_for_issued=True)
    STAGE.broker.append(Outgoing(TOPICS.recipe, codec.encode(revision), str(number).encode(), partition=0))


def join() -> Run:
    """Return the run as a process that starts now finds it."""
    return run_of(read_revisions(ADDRESS))


def run_of(found: list[RecipeRevision]) -> Run:
    """Return the run by the records of its recipe topic."""
    recipes = {revision.revision: Recipe.from_json(revision.recipe) for revision in found}
    run = Run(
        address=ADDRESS,
        run_id=RUN_ID,
        revisions=tuple(chosen for _, chosen in sorted(recipes.items())),
        store_address=None,  # type: ignore[arg-type]  # the store is the broker's
        ended=found[-1].ended,
        recipe_end=STAGE.broker.end((TOPICS.recipe, 0)),
        asks_for_published=found[0].asks_for_published,
        asks_for_issued=found[0].asks_for_issued,
    )
    store = Store()
    vars(run).update(store=store, weights_cache=Uncached(store))
    return run


NEVER = threading.Event()
"""A stop that is not asked for."""


def played(number: int, version: int, head: int, **named: Any) -> TrajectoryGroup:
    """Return the group of a number, each token of one version, as a worker makes it that knows of `head`."""
    sequence = Sequence(
        ids=np.array([5, 6, 7, 1], np.int32),
        logprobs=np.array([0, 0, -0.5, -0.25], np.float32),
        version_runs=np.array([-1, 2, version, 2], np.int32),
        spans=(Span("prompt", 2), Span("generated", 2, finish_reason="stop", sampling=Sampling())),
    )
    names = [f"{STREAM}:{number}:{sample}" for sample in range(GROUP)]
    found = tuple(Trajectory(name, float(at), {}, (sequence,)) for at, name in enumerate(names))
    return TrajectoryGroup(
        run_id=RUN_ID, stream=STREAM, number=number, policy=POLICY, n_asked=GROUP, trajectories=found,
        head_version=head, **named,
    )  # fmt: skip
