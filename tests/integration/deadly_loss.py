"""A loss of one's own that ends the process over a long sequence, as memory does that runs out. No error, no trace."""

from __future__ import annotations

import os

import torch

from headrace.trainers.losses import TokenLoss, TrainedTokens

MOST_TOKENS = 20
EXIT_CODE = 77


def deadly(tokens: TrainedTokens) -> TokenLoss:
    if len(tokens.sequences) and int(torch.bincount(tokens.sequences).max()) > MOST_TOKENS:
        os._exit(EXIT_CODE)
    return TokenLoss(-tokens.advantages * torch.exp(tokens.logprobs - tokens.behaviour_logprobs), {})
