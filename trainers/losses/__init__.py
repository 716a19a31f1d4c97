"""Policy losses as pure functions over flat vectors of trained tokens, found by the names of a recipe.

tokens.py       what goes in: TrainedTokens; what comes out: TokenLoss; the denominators: Totals
ppo.py, ...     one family of losses each, by name in LOSSES
aggregation.py  from terms of tokens to a scalar, by name in AGGREGATIONS
divergence.py   KL to a reference policy, by name in DIVERGENCES
metrics.py      what is told beside a loss
objective.py    all of it together: `policy_loss`
"""

from trainers.losses.aggregation import AGGREGATIONS, constant, sequence_mean, sequence_sum, token_mean
from trainers.losses.divergence import DIVERGENCES, k1, k2, k3
from trainers.losses.metrics import added, means
from trainers.losses.objective import LOSSES, Objective, objective_of, policy_loss
from trainers.losses.ppo import ppo
from trainers.losses.tokens import TokenLoss, Totals, TrainedTokens, log_ratio, totals_of

__all__ = [
    "AGGREGATIONS",
    "DIVERGENCES",
    "LOSSES",
    "Objective",
    "TokenLoss",
    "Totals",
    "TrainedTokens",
    "added",
    "constant",
    "k1",
    "k2",
    "k3",
    "log_ratio",
    "means",
    "objective_of",
    "policy_loss",
    "ppo",
    "sequence_mean",
    "sequence_sum",
    "token_mean",
    "totals_of",
]
