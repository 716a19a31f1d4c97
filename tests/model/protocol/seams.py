"""Every production name that is replaced while the model runs, and by what."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import SimpleNamespace

import pytest
import structlog

from headrace.infra.kafka import clients, cluster_topics, group_offsets, run_loop, topic_offsets, topic_reader
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run import group_consumer, revisions
from headrace.ops import swap
from headrace.producers.rollout.intake import task_commits, task_intake
from headrace.schemas import codec, ids
from headrace.trainers import start, trainer
from headrace.trainers.versions import resume
from protocol import commands, learner
from protocol.broker import STAGE, Cluster, now
from protocol.clients import Admin, Consumer, Contact, follow, offsets
from protocol.trainer import Intake, Metrics, ModelScheduler, begin

__all__ = ["STAGE", "Cluster", "in_place"]
_from_json = Recipe.from_json.__func__  # type: ignore[attr-defined]  # a class method's function


@lru_cache
def _recipe(text: str) -> Recipe:
    recipe: Recipe = _from_json(Recipe, text)
    return recipe


def _no_sleep(seconds: float) -> None:
    raise AssertionError(f"something waits for {seconds} s of real time")


@contextmanager
def in_place() -> Iterator[pytest.MonkeyPatch]:
    """Replace what is replaced in the block, and log nothing."""
    before = structlog.get_config()
    quiet = structlog.make_filtering_bound_logger(logging.CRITICAL)
    with pytest.MonkeyPatch.context() as patch:
        replace(patch)
        structlog.configure(wrapper_class=quiet, cache_logger_on_first_use=False)
        try:
            yield patch
        finally:
            structlog.configure(**before)


def replace(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(time, "monotonic", now)
    patch.setattr(time, "sleep", _no_sleep)
    patch.setattr(ids, "time", SimpleNamespace(time_ns=lambda: int(now() * 1e9)))
    patch.setattr(Recipe, "from_json", _recipe)
    # the log
    patch.setattr(clients, "WatchedConsumer", Consumer)
    patch.setattr(clients, "get_admin", lambda _cluster: Admin())
    patch.setattr(topic_offsets, "get_admin", lambda _cluster: Admin())
    for module in (topic_reader, group_consumer, task_intake):
        patch.setattr(module, "BrokerContact", Contact)
    patch.setattr(group_offsets, "get_admin", lambda _cluster: Admin())
    patch.setattr(cluster_topics, "get_admin", lambda _cluster: Admin())
    patch.setattr(cluster_topics, "build_cluster_key", lambda _cluster: "model")
    patch.setattr(topic_offsets, "_fetch_offsets", offsets)
    patch.setattr(topic_reader.TopicReader, "_read_while", follow)
    patch.setattr(topic_reader, "SETTLING_S", -1.0)
    patch.setattr(task_commits, "COMMIT_EVERY_S", 0.0)
    patch.setattr(run_loop, "reach", lambda _name: None)
    patch.setattr(codec, "schema_texts", dict)  # there is one build
    # commands
    patch.setattr(revisions, "TransactionalWriter", commands.SteppedWriter)
    patch.setattr(revisions, "read_first_revision", lambda _address: None)  # what is known of a revision's own schema
    patch.setattr(revisions, "read_revisions", commands.stepped_read)
    patch.setattr(swap, "read_revisions", commands.stepped_read)
    # the learner
    patch.setattr(trainer, "Pipeline", learner.Pipeline)
    patch.setattr(trainer, "Intake", Intake)
    patch.setattr(trainer, "VersionMetrics", Metrics)
    patch.setattr(trainer, "Scheduler", ModelScheduler)
    patch.setattr(resume, "load_learner_at", learner.load_learner_at)
    patch.setattr(resume, "remake", learner.remake)
    patch.setattr(resume, "hash_learner", learner.hash_learner)
    patch.setattr(resume, "open_heartbeat", learner.open_heartbeat)
    patch.setattr(start, "pin_threads", lambda: None)
    patch.setattr(start, "check_loss", lambda *_: None)
    patch.setattr(start, "_count_parameters", lambda _model: 0)
    patch.setattr(start, "_begin", begin)
