"""Switches that take out one protection each, and the tests that must turn red then: a file for each room."""

from __future__ import annotations

from mutants.app_launcher import APP_LAUNCHER
from mutants.audit_checks import AUDIT_CHECKS
from mutants.consumers_algorithms import CONSUMERS_ALGORITHMS
from mutants.consumers_curate import CONSUMERS_CURATE
from mutants.consumers_evaluate import CONSUMERS_EVALUATE
from mutants.feeding import FEEDING
from mutants.infra_kafka import INFRA_KAFKA
from mutants.infra_objects import INFRA_OBJECTS
from mutants.infra_run import INFRA_RUN
from mutants.ops_audit import OPS_AUDIT
from mutants.ops_figures import OPS_FIGURES
from mutants.ops_offline import OPS_OFFLINE
from mutants.producers_feed import PRODUCERS_FEED
from mutants.producers_rollout import PRODUCERS_ROLLOUT
from mutants.schemas import SCHEMAS
from mutants.trainers_learner import TRAINERS_LEARNER
from mutants.trainers_return import TRAINERS_RETURN
from mutants.trainers_versions import TRAINERS_VERSIONS

MUTANTS = (
    *SCHEMAS,
    *INFRA_KAFKA,
    *INFRA_RUN,
    *INFRA_OBJECTS,
    *PRODUCERS_FEED,
    *FEEDING,
    *PRODUCERS_ROLLOUT,
    *CONSUMERS_ALGORITHMS,
    *CONSUMERS_CURATE,
    *CONSUMERS_EVALUATE,
    *TRAINERS_LEARNER,
    *TRAINERS_RETURN,
    *TRAINERS_VERSIONS,
    *OPS_AUDIT,
    *AUDIT_CHECKS,
    *OPS_OFFLINE,
    *OPS_FIGURES,
    *APP_LAUNCHER,
)
