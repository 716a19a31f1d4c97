"""`headrace.trainers.losses` against the formulas of TRL and verl, called without their trainers.

Not in the gate: both pull in more than Headrace itself. `make test-libraries` installs them and compares.
"""

import sys
from collections import defaultdict
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from install_libraries import LIBRARIES
from test_losses import LENGTHS, random_tokens
from torch import Tensor

from headrace.trainers.losses import TrainedTokens, policy_loss

WIDTH = max(LENGTHS)
MASK = torch.arange(WIDTH) < torch.tensor(LENGTHS)[:, None]
ADVANTAGE_OF_SEQUENCE = torch.linspace(-1.5, 1.5, len(LENGTHS)) + 0.1
pytestmark = [pytest.mark.libraries, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Find the libraries while a test of them runs, and only then: one of them brings a package called `tests`."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(LIBRARIES)])  # at the end: what both have is Headrace's


def padded(values: Tensor) -> Tensor:
    return torch.zeros(MASK.shape, dtype=values.dtype).masked_scatter(MASK, values)


@pytest.fixture
def tokens() -> TrainedTokens:
    """Return tokens with one advantage for each sequence, as TRL wants them."""
    made, _ = random_tokens(3)
    return TrainedTokens(
        made.logprobs,
        made.behaviour_logprobs,
        ADVANTAGE_OF_SEQUENCE[made.sequences],
        made.sequences,
        proximal=made.proximal,
        reference=made.reference,
    )


def agree(ours: Tensor, theirs: Tensor, tokens: TrainedTokens) -> None:
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-6)
    slopes = [torch.autograd.grad(loss, tokens.logprobs, retain_graph=True)[0] for loss in (ours, theirs)]
    assert (slopes[0] - slopes[1]).abs().max().item() < 1e-6


# ----------------------------------------------------------------------------------------------------------------- TRL

LIKE_TRL: dict[str, str | dict[str, Any]] = {
    "grpo": "sequence_mean",
    "sapo": "sequence_mean",
    "bnpo": "token_mean",
    "dapo": "token_mean",
    "cispo": "token_mean",
    "dr_grpo": {"use": "constant", "length": 20},
    "luspo": "sequence_sum",
}


def trl_loss(tokens: TrainedTokens, loss_type: str, weights: Tensor | None = None, **settings: Any) -> Tensor:
    trainer = import_module("trl").GRPOTrainer
    told = {
        "importance_sampling_level": "token",
        "beta": 0.0,
        "epsilon_low": 0.2,
        "epsilon_high": 0.28,
        "use_bias_correction_kl": False,
    } | settings
    stub = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (padded(tokens.logprobs), torch.zeros(MASK.shape), None),
        args=SimpleNamespace(
            delta=None,
            sapo_temperature_pos=1.0,
            sapo_temperature_neg=1.05,
            steps_per_generation=1,
            use_bias_correction_kl=told["use_bias_correction_kl"],
        ),
        accelerator=SimpleNamespace(num_processes=1, gather=lambda value: value, reduce=lambda value, **_: value),
        model=SimpleNamespace(training=False),
        _metrics={"eval": defaultdict(list)},
        loss_type=loss_type,
        importance_sampling_level=told["importance_sampling_level"],
        beta=told["beta"],
        epsilon_low=told["epsilon_low"],
        epsilon_high=told["epsilon_high"],
        max_completion_length=20,
        use_vllm=weights is not None,
        vllm_importance_sampling_correction=True,
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        current_gradient_accumulation_steps=1,
        _entropy_bonus_enabled=False,
    )
    ids = torch.zeros(MASK.shape, dtype=torch.int64)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1],
        "completion_ids": ids,
        "completion_mask": MASK.long(),
        "advantages": ADVANTAGE_OF_SEQUENCE,
        "old_per_token_logps": padded(tokens.behaviour_logprobs if weights is None else tokens.proximal),
        "ref_per_token_logps": padded(tokens.reference),
        "importance_sampling_ratio": weights,
        "num_items_in_batch": MASK.sum(),
    }
    loss: Tensor = trainer._compute_loss(stub, None, inputs)
    return loss


@pytest.mark.parametrize("name", LIKE_TRL)
def test_the_losses_of_trl(tokens: TrainedTokens, name: str) -> None:
    loss = {"cispo": "cispo", "sapo": "sapo"}.get(name, "ppo")
    options = {"ppo": {}, "cispo": {"clip_high": 0.3}, "sapo": {}}[loss]
    ours, _ = policy_loss(tokens, loss, LIKE_TRL[name], **options)
    agree(ours, trl_loss(tokens, name, epsilon_high=1.3 if loss == "cispo" else 0.28), tokens)


@pytest.mark.parametrize("unbiased", [False, True])
def test_the_kl_term_of_trl(tokens: TrainedTokens, unbiased: bool) -> None:
    ours, _ = policy_loss(tokens, "ppo", "sequence_mean", kl={"use": "k3", "weight": 0.3, "unbiased": unbiased})
    agree(ours, trl_loss(tokens, "grpo", beta=0.3, use_bias_correction_kl=unbiased), tokens)


def test_the_sequence_ratio_of_trl(tokens: TrainedTokens) -> None:
    clips = {"clip_low": 0.05, "clip_high": 0.08}
    ours, _ = policy_loss(tokens, "gspo", **clips)
    theirs = trl_loss(tokens, "grpo", importance_sampling_level="sequence", epsilon_low=0.05, epsilon_high=0.08)
    agree(ours, theirs, tokens)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_the_importance_sampling_of_trl(tokens: TrainedTokens, level: str) -> None:
    gaps = padded(tokens.proximal - tokens.behaviour_logprobs)
    weights = (gaps.sum(-1, keepdim=True) if level == "sequence" else gaps).exp().clamp(max=1.2)
    ours, _ = policy_loss(tokens, correction={"use": "tis", "level": level, "cap": 1.2})
    agree(ours, trl_loss(tokens, "dapo", weights), tokens)


# ---------------------------------------------------------------------------------------------------------------- verl


def verl_loss(tokens: TrainedTokens, name: str, mode: str, **config: Any) -> Tensor:
    core = import_module("verl.trainer.ppo.core_algos")
    settings = import_module("verl.workers.config").ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **config
    )
    loss: Tensor = core.get_policy_loss_fn(name)(
        old_log_prob=padded(tokens.behaviour_logprobs),
        log_prob=padded(tokens.logprobs),
        advantages=padded(tokens.advantages),
        response_mask=MASK.float(),
        loss_agg_mode=mode,
        config=settings,
    )[0]
    return loss


MODES: dict[str, str | dict[str, Any]] = {
    "token-mean": "token_mean",
    "seq-mean-token-mean": "sequence_mean",
    "seq-mean-token-sum": "sequence_sum",
    "seq-mean-token-sum-norm": {"use": "constant", "length": WIDTH},
}


@pytest.mark.parametrize("mode", MODES)
def test_ppo_with_dual_clip_of_verl(tokens: TrainedTokens, mode: str) -> None:
    ours, _ = policy_loss(tokens, "ppo", MODES[mode], dual_clip=1.3)
    theirs = verl_loss(tokens, "vanilla", mode, clip_ratio_low=0.2, clip_ratio_high=0.28, clip_ratio_c=1.3)
    agree(ours, theirs, tokens)


@pytest.mark.parametrize(
    ("loss", "name", "mode", "options"),
    [
        ("gspo", "gspo", "seq-mean-token-mean", {"form": "token"}),
        ("gspo", "gspo", "token-mean", {}),
        ("gmpo", "geo_mean", "seq-mean-token-mean", {}),
        ("cispo", "cispo", "token-mean", {}),
        ("sapo", "sapo", "seq-mean-token-mean", None),
        ("gpg", "gpg", "token-mean", None),
    ],
)
def test_the_losses_of_verl(
    tokens: TrainedTokens, loss: str, name: str, mode: str, options: dict[str, Any] | None
) -> None:
    clips = {} if options is None else {"clip_low": 0.1, "clip_high": 0.15}
    ours, _ = policy_loss(tokens, loss, MODES[mode], **clips, **(options or {}))
    agree(ours, verl_loss(tokens, name, mode, clip_ratio_low=0.1, clip_ratio_high=0.15), tokens)


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_the_divergences_of_verl(tokens: TrainedTokens, name: str) -> None:
    core = import_module("verl.trainer.ppo.core_algos")
    ours, told = policy_loss(tokens, kl={"use": name, "weight": 0.0})
    theirs = core.kl_penalty(tokens.logprobs, tokens.reference, name).mean()
    assert ours.isfinite()
    assert told["reference_kl"].item() == pytest.approx(theirs.item(), abs=1e-6)


@pytest.mark.parametrize(
    ("correction", "level", "threshold"),
    [
        ({"use": "tis", "cap": 1.2}, "token", 1.2),
        ({"use": "tis", "level": "sequence", "cap": 1.2}, "sequence", 1.2),
        ({"use": "icepop", "low": 0.8, "high": 1.2}, "token", "0.8_1.2"),
    ],
)
def test_the_weights_of_verl(tokens: TrainedTokens, correction: Any, level: str, threshold: float | str) -> None:
    found = import_module("verl.trainer.ppo.rollout_corr_helper")
    weights, _ = found.compute_rollout_correction_weights(
        padded(tokens.proximal - tokens.behaviour_logprobs), MASK.float(), level, threshold
    )
    ours, _ = policy_loss(tokens, "gpg", correction=correction, count_rejected=True)
    agree(ours, (-weights * padded(tokens.advantages) * padded(tokens.logprobs)).sum() / MASK.sum(), tokens)


@pytest.mark.parametrize(
    ("level", "option", "high", "low"),
    [("token", "token_k1", 1.3, 0.8), ("sequence", "seq_sum_k1", 1.6, 0.7), ("geometric", "seq_mean_k1", 1.1, 0.92)],
)
def test_the_rejections_of_verl(tokens: TrainedTokens, level: str, option: str, high: float, low: float) -> None:
    """verl bounds pi_b / pi_prox, so its bounds are one over ours."""
    found = import_module("verl.trainer.ppo.rollout_corr_helper")
    kept, _ = found.compute_rollout_rejection_mask(
        padded(tokens.proximal - tokens.behaviour_logprobs), MASK.float(), option, f"{1 / high}_{1 / low}"
    )
    assert 0 < kept.sum() < MASK.sum()
    correction = {"use": "rejection", "level": level, "high": high, "low": low}
    ours, _ = policy_loss(tokens, "gpg", correction=correction)
    agree(ours, -(kept * padded(tokens.advantages) * padded(tokens.logprobs)).sum() / kept.sum(), tokens)
