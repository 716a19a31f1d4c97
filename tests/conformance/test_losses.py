"""`headrace.trainers.losses` in float32 against the same written out token by token in float64."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from token_by_token import CURRENT, Sequences, Token
from token_by_token import policy_loss as written_out

from headrace.trainers.losses import TrainedTokens, objective_of

LENGTHS = (4, 1, 7, 2, 9, 3, 5, 1, 6, 8, 2, 5)
LOSSES: list[dict[str, Any]] = [
    {"use": "ppo"},
    {"use": "ppo", "clip_low": 0.1, "clip_high": 0.15, "dual_clip": 1.3},
    {"use": "decoupled_ppo"},
    {"use": "decoupled_ppo", "proximal": "interpolated", "behaviour_upper": 1.3, "dual_clip": 1.1},
    {"use": "decoupled_ppo", "behaviour_level": "sequence", "behaviour_upper": 1.1, "behaviour_lower": 0.9},
    {"use": "decoupled_ppo", "behaviour_action": "clamp", "behaviour_upper": 1.1, "behaviour_lower": 0.8},
    {"use": "decoupled_ppo", "behaviour_metric": "k1", "behaviour_upper": 0.3, "behaviour_lower": -0.3},
    {"use": "decoupled_ppo", "behaviour_metric": "k2", "behaviour_upper": 0.05},
    {"use": "decoupled_ppo", "behaviour_metric": "k3", "behaviour_level": "sequence", "behaviour_upper": 0.05},
    {"use": "m2po"},
    {"use": "m2po", "budget": 0.4},
    {"use": "m2po", "floor_low": 0.3, "floor_high": 0.5},
    {"use": "m2po", "variant": "cap_exact"},
    {"use": "m2po", "variant": "cap_suffix", "budget": 0.01},
    {"use": "m2po", "variant": "mask"},
    {"use": "gspo"},
    {"use": "gspo", "clip_low": 0.1, "clip_high": 0.1},
    {"use": "gspo", "clip_low": 0.1, "clip_high": 0.1, "form": "token"},
    {"use": "gmpo"},
    {"use": "gmpo", "clip_low": 0.1, "clip_high": 0.2},
    {"use": "cispo"},
    {"use": "cispo", "clip_low": 0.2, "clip_high": 0.28},
    {"use": "sapo"},
    {"use": "dppo", "threshold": 0.05},
    {"use": "dppo", "variant": "ipo", "threshold": 0.05, "kl_tau": 0.1, "adv_tau": 0.7},
    {"use": "gpg"},
]
AGGREGATIONS = [
    {"use": "token_mean"},
    {"use": "sequence_mean"},
    {"use": "sequence_sum"},
    {"use": "constant", "length": 32},
]
CORRECTIONS: list[dict[str, Any]] = [
    {"use": "tis", "cap": 1.1},
    {"use": "tis", "level": "sequence", "cap": 1.5},
    {"use": "mis", "cap": 1.4},
    {"use": "mis", "level": "sequence"},
    {"use": "icepop", "low": 0.7, "high": 1.4},
    {"use": "rejection", "high": 1.4},
    {"use": "rejection", "level": "sequence"},
    {"use": "rejection", "level": "geometric", "high": 1.2, "low": 0.7},
    {"use": "veto", "low": 0.6},
]
CORRECTED = ("ppo", "gspo", "gmpo", "cispo", "gpg")


def label(table: dict[str, Any]) -> str:
    return str(table).strip("{}").replace("'", "")


def random_tokens(seed: int) -> tuple[TrainedTokens, Sequences]:
    generator = torch.Generator().manual_seed(seed)
    size = sum(LENGTHS)

    def normal(scale: float) -> torch.Tensor:
        return torch.randn(size, generator=generator) * scale

    behaviour = -normal(0.7).exp()
    proximal = behaviour + normal(0.3)
    tokens = TrainedTokens(
        logprobs=(proximal + normal(0.3)).requires_grad_(),
        behaviour_logprobs=behaviour,
        advantages=normal(1.0),
        sequences=torch.arange(len(LENGTHS)).repeat_interleave(torch.tensor(LENGTHS)),
        proximal=proximal,
        reference=behaviour + normal(0.3),
        entropies=normal(0.5).exp(),
        versions=torch.randint(-1, CURRENT + 3, (size,), generator=generator),
        version=CURRENT,
    )
    logprobs = tokens.logprobs.tolist()
    columns = (
        tokens.behaviour_logprobs,
        tokens.advantages,
        proximal,
        tokens.reference,
        tokens.entropies,
        tokens.versions,
    )
    rows = [Token(*row) for row in zip(logprobs, logprobs, *(column.tolist() for column in columns), strict=True)]
    indices = iter(rows)
    return tokens, [[next(indices) for _ in range(length)] for length in LENGTHS]


def compare(loss: dict[str, Any], aggregation: dict[str, Any], correction: dict[str, Any] | None) -> None:
    """Compare value and gradient."""
    for seed, count_rejected in ((1, False), (2, True)):
        tokens, sequences = random_tokens(seed)
        kl = {"use": "k3", "weight": 0.2, "unbiased": True}
        objective = objective_of(
            loss, aggregation, correction=correction, kl=kl, entropy=0.05, count_rejected=count_rejected
        )
        bounds = objective.bounds(tokens)
        value, _ = objective.compute_loss_share(tokens, objective.totals(tokens, None, bounds), bounds)
        (slopes,) = torch.autograd.grad(value, tokens.logprobs)
        scale = max(1.0, abs(value.item()))

        def right(given: Sequences, *, count_rejected: bool = count_rejected) -> float:
            return written_out(given, loss, aggregation, correction, 0.2, 0.05, count_rejected=count_rejected)

        assert value.item() == pytest.approx(right(sequences), abs=1e-6 * scale)
        for index in (0, 5, 17, 30, 52):
            sequence, step = int(tokens.sequences[index]), 1e-7
            first = int((tokens.sequences < sequence).sum())
            around = []
            for moved in (step, -step):
                changed = [list(row) for row in sequences]
                token = changed[sequence][index - first]
                changed[sequence][index - first] = replace(token, now=token.now + moved)
                around.append(right(changed))
            assert slopes[index].item() == pytest.approx((around[0] - around[1]) / (2 * step), abs=1e-6 * scale)


@pytest.mark.parametrize("number", range(len(LOSSES)), ids=[label(loss) for loss in LOSSES])
def test_every_loss_is_what_its_paper_says(number: int) -> None:
    compare(LOSSES[number], AGGREGATIONS[number % 4], None)


@pytest.mark.parametrize("number", range(len(CORRECTIONS)), ids=[label(correction) for correction in CORRECTIONS])
def test_every_correction_is_what_its_paper_says(number: int) -> None:
    compare({"use": CORRECTED[number % 5]}, AGGREGATIONS[number % 4], CORRECTIONS[number])


@pytest.mark.numerics
def test_every_loss_under_every_aggregation_and_correction_is_what_its_paper_says() -> None:
    for aggregation in AGGREGATIONS:
        for loss in LOSSES:
            compare(loss, aggregation, None)
        for loss, correction in product(CORRECTED, CORRECTIONS):
            compare({"use": loss}, aggregation, correction)
