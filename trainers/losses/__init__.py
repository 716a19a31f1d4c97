"""Policy losses as pure functions over flat vectors of trained tokens, by their recipe names.

tokens.py          input TrainedTokens, output TokenLoss, denominators Totals
ppo.py             LOSSES: ppo
decoupled.py       LOSSES: decoupled_ppo, and its interpolated proximal policy
m2po.py            LOSSES: m2po, and its bounds from a whole minibatch
sequence_ratio.py  LOSSES: gspo, gmpo
soft.py            LOSSES: cispo, sapo, dppo, gpg
correction.py      CORRECTIONS: tis, mis, icepop, rejection, veto
divergence.py      DIVERGENCES, to a reference policy: k1, k2, k3
aggregation.py     AGGREGATIONS, from terms of tokens to a scalar: token_mean, sequence_mean, sequence_sum, constant
auxiliary.py       a critic's loss, and the load-balance loss of experts
metrics.py         metrics of a loss
objective.py       the whole objective: `policy_loss`
"""

from headrace.trainers.losses.aggregation import AGGREGATIONS, constant, sequence_mean, sequence_sum, token_mean
from headrace.trainers.losses.auxiliary import load_balance, value_loss
from headrace.trainers.losses.correction import (
    CORRECTIONS,
    Correction,
    effective_sample_size,
    icepop,
    mis,
    rejection,
    tis,
    veto,
)
from headrace.trainers.losses.decoupled import decoupled_ppo, interpolated_proximal
from headrace.trainers.losses.divergence import DIVERGENCES, cost_to_go, k1, k2, k3
from headrace.trainers.losses.m2po import M2Bounds, m2po, m2po_bounds
from headrace.trainers.losses.metrics import add_metrics, means
from headrace.trainers.losses.objective import LOSSES, Objective, objective_of, policy_loss
from headrace.trainers.losses.ppo import ppo
from headrace.trainers.losses.sequence_ratio import gmpo, gspo
from headrace.trainers.losses.soft import cispo, dppo, gpg, sapo
from headrace.trainers.losses.tokens import TokenLoss, Totals, TrainedTokens, log_ratio, totals_of

__all__ = [
    "AGGREGATIONS",
    "CORRECTIONS",
    "DIVERGENCES",
    "LOSSES",
    "Correction",
    "M2Bounds",
    "Objective",
    "TokenLoss",
    "Totals",
    "TrainedTokens",
    "add_metrics",
    "cispo",
    "constant",
    "cost_to_go",
    "decoupled_ppo",
    "dppo",
    "effective_sample_size",
    "gmpo",
    "gpg",
    "gspo",
    "icepop",
    "interpolated_proximal",
    "k1",
    "k2",
    "k3",
    "load_balance",
    "log_ratio",
    "m2po",
    "m2po_bounds",
    "means",
    "mis",
    "objective_of",
    "policy_loss",
    "ppo",
    "rejection",
    "sapo",
    "sequence_mean",
    "sequence_sum",
    "tis",
    "token_mean",
    "totals_of",
    "value_loss",
    "veto",
]
