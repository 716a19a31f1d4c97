"""Where the workers are. infra imports none of them: the launcher and the command line find them by these names."""

from __future__ import annotations

from importlib import import_module
from typing import Any

FEED = "producers.feeder:main"
ROLLOUT = "producers.rollout:main"
CURATE = "consumers.curator:main"
TRAIN = "trainers.train:main"
EVALUATE = "consumers.evaluator:main"
AUDIT = "consumers.audit:report"
SHOW_AUDIT = "consumers.page.tables:audit_table"
STATUS = "consumers.status:status"
SHOW_STATUS = "consumers.page.tables:status_table"
CHECK_CHAIN = "consumers.curation:chain_of"
LOAD_ENVIRONMENT = "envs.registry:load_environment"
LOAD_WORKFLOW = "envs.registry:load_workflow"
PAGE = "consumers.page.live:LivePage"
SUMMARIZE = "consumers.summary:summarize"
SHOW_SUMMARY = "consumers.page.closing:show_summary"


def find(place: str) -> Any:
    """Return what stands at `package.module:name`."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
