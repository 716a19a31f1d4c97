"""Where the workers are. infra imports none of them: the launcher and the command line find them by these names."""

from __future__ import annotations

from importlib import import_module
from typing import Any

FEED = "producers.feeder:main"
ROLLOUT = "producers.rollout:main"
CURATE = "consumers.curator:main"
TRAIN = "trainers.train:main"
EVALUATE = "consumers.evaluator:main"
COMPACT = "consumers.compactor:main"
AUDIT = "consumers.audit.report:report"
SHOW_AUDIT = "consumers.page.tables:audit_table"
STATUS = "consumers.status:status"
SHOW_STATUS = "consumers.page.tables:status_table"
LINEAGE_OF_VERSION = "consumers.lineage:report_version"
LINEAGE_OF_GROUP = "consumers.group_fate:report_group"
SHOW_VERSION = "consumers.page.lineage_page:version_page"
SHOW_GROUP = "consumers.page.lineage_page:group_page"
INSPECT_STEP = "trainers.inspection:report_step"
INSPECT_TRAJECTORY = "trainers.inspection:report_trajectory"
SHOW_STEP = "trainers.inspection_page:step_page"
SHOW_TRAJECTORY = "trainers.inspection_page:trajectory_page"
LETTERS = "consumers.letters:listing"
LETTER = "consumers.letters:shown"
SHOW_LETTERS = "consumers.page.letters:letters_table"
SHOW_LETTER = "consumers.page.letters:letter_view"
REDRIVE = "consumers.redrive:redrive"
SHOW_REDRIVE = "consumers.page.letters:redrive_table"
COLLECT = "consumers.retention.collector:command"
SHOW_COLLECTED = "consumers.page.gc_page:gc_page"
DISCARDS = "consumers.discards:discards"
SHOW_DISCARDS = "consumers.page.discards_page:discards_page"
PLOT_DISCARDS = "consumers.page.discards_plot:plot"
CHECK_CHAIN = "consumers.curation:chain_of"
CHECK_ADVANTAGE = "trainers.estimator:check_advantage"
CHECK_LOSS = "trainers.chosen_loss:check_loss"
CHECK_EXPERTS = "trainers.routing:check_experts"
CHECK_TARGETS = "trainers.lora:check_targets"
LOAD_ENVIRONMENT = "envs.registry:load_environment"
LOAD_WORKFLOW = "envs.registry:load_workflow"
CHECK_CHARACTERS = "envs.registry:check_characters"
PAGE = "consumers.page.live:LivePage"
WEIGHTS_HISTORY = "consumers.weights_history:weights_history"
SHOW_WEIGHTS = "consumers.page.weights_page:weights_page"
LEADING = "trainers.backends.group:leading"
RETRAIN = "trainers.retrain:retrain"
EXPERIMENT = "trainers.experiment:experiment"
SHOW_RETRAIN = "consumers.page.retrain_page:retrain_page"
SUMMARIZE = "consumers.summary:summarize"
SHOW_SUMMARY = "consumers.page.closing:show_summary"


def find(place: str) -> Any:
    """Return what stands at `package.module:name`."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
