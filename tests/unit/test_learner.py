import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import structlog
import torch
import transformers
from some_cases import named
from tiny_models import SHAPE, TOKENIZER, batch

from headrace.infra.errors import UsageError
from headrace.infra.recipe.settings import ShadowTrainerSettings, TrainerSettings
from headrace.infra.weights.tensors import hash_weights
from headrace.trainers.batches.batch import BatchError, TrainingSequence, pack, pad
from headrace.trainers.learner.checkpoint import CheckpointError, decode_checkpoint, encode_checkpoint
from headrace.trainers.learner.learner import Learner
from headrace.trainers.learner.logprobs import compute_token_logprobs
from headrace.trainers.learner.masters import Masters
from headrace.trainers.learner.model import build_model
from headrace.trainers.losses import TrainedTokens

SETTINGS = TrainerSettings(
    groups_per_batch=6, minibatches=3, micro_batch_tokens=64, learning_rate=5e-4, warmup_versions=5
)

OBJECTIVES = {
    "ppo": {},
    "dapo": {"loss": {"use": "ppo", "clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0}},
    "decoupled": {"loss": "decoupled_ppo"},
    "interpolated": {"loss": {"use": "decoupled_ppo", "proximal": "interpolated"}},
    "m2po": {"loss": "m2po"},
    "m2po mask": {"loss": {"use": "m2po", "variant": "mask"}},
    "gspo": {"loss": "gspo"},
    "gmpo": {"loss": "gmpo"},
    "cispo": {"loss": "cispo"},
    "sapo": {"loss": "sapo"},
    "dppo": {"loss": "dppo"},
    "gpg": {"loss": "gpg"},
    "tis": {"correction": ["tis"]},
    "mis and veto": {"correction": [{"use": "mis", "cap": 1.5}, "veto"]},
    "kl": {"kl": {"use": "k3", "weight": 0.1}},
    "kl in the reward": {"kl": {"use": "k1", "weight": 0.1, "place": "reward"}},
    "sequence mean": {"aggregation": "sequence_mean"},
    "constant": {"aggregation": {"use": "constant", "length": 12}},
    "entropy": {"entropy": 0.01},
}
FEW = ("interpolated", "gspo", "kl")
"""For the gate: what looks at all of a minibatch, at a sequence, and at another model's say."""


def tiny(hidden: int = 32) -> transformers.PreTrainedModel:
    return build_model({**SHAPE, "hidden_size": hidden}, TOKENIZER, seed=1)


def learner(**changed: Any) -> Learner:
    return Learner(tiny(), TrainerSettings.model_validate(SETTINGS.model_dump() | changed))


@pytest.mark.parametrize(
    "changed",
    [{}, {"packing": False, "activation_checkpointing": True, "fused_optimizer": True}],
    ids=["packed", "padded, recomputed, fused"],
)
def test_a_resumed_learner_makes_the_very_same_weights(changed: dict[str, Any]) -> None:
    straight = learner(**changed)
    for version in (1, 2, 3):
        straight.step(batch(version), version)

    first = learner(**changed)
    for version in (1, 2):
        first.step(batch(version), version)
    data = b"".join(encode_checkpoint(first.trained.copy()))
    second = learner(**changed)
    second.step(batch(99), 1)  # state that loading must replace
    second.load_state(decode_checkpoint(data))
    assert second.version == 2
    assert b"".join(encode_checkpoint(second.trained.copy())) == data
    second.step(batch(3), 3)
    assert hash_weights(second.snapshot_weights()) == hash_weights(straight.snapshot_weights())
    assert b"".join(encode_checkpoint(second.trained.copy())) == b"".join(encode_checkpoint(straight.trained.copy()))


@pytest.mark.parametrize("objective", named(OBJECTIVES, *FEW))
def test_a_version_made_again_from_a_checkpoint_has_the_very_same_bits_whatever_the_loss(
    objective: dict[str, Any],
) -> None:
    straight, resumed = learner(**objective), learner(**objective)
    straight.step(batch(1), 1)
    data = b"".join(encode_checkpoint(straight.trained.copy()))
    metrics = straight.step(batch(2), 2)
    resumed.load_state(decode_checkpoint(data))
    assert resumed.step(batch(2), 2) == metrics
    assert b"".join(encode_checkpoint(resumed.trained.copy())) == b"".join(encode_checkpoint(straight.trained.copy()))


def test_a_copy_taken_before_a_step_does_not_change_with_it() -> None:
    one = learner()
    published, state = one.snapshot_weights(), one.trained.copy()
    before = hash_weights(published), b"".join(encode_checkpoint(state))
    one.step(batch(1), 1)
    assert (hash_weights(published), b"".join(encode_checkpoint(state))) == before
    assert hash_weights(one.snapshot_weights()) != before[0]


@pytest.mark.parametrize("objective", named(OBJECTIVES, *FEW))
def test_the_gradient_does_not_depend_on_how_a_minibatch_is_cut(objective: dict[str, Any]) -> None:
    gradients = []
    for budget, packing in ((64, True), (90, False), (10_000, True)):
        one = learner(minibatches=1, micro_batch_tokens=budget, grad_clip=1e9, packing=packing, **objective)
        one.step(batch(1), 1)
        gradients.append(torch.cat([gradient.ravel() for gradient in one.masters.gradients.values()]))
    assert gradients[0].abs().max() > 1e-3
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], rtol=1e-4, atol=1e-7)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("changed", OBJECTIVES.values(), ids=OBJECTIVES.keys())
def test_on_a_gpu_a_resumed_learner_makes_the_very_same_weights(changed: dict[str, Any]) -> None:
    straight, resumed = learner(device="cuda", **changed), learner(device="cuda", **changed)
    straight.step(batch(1), 1)
    resumed.load_state(straight.trained.copy())
    assert resumed.step(batch(2), 2) == straight.step(batch(2), 2)
    assert hash_weights(resumed.snapshot_weights()) == hash_weights(straight.snapshot_weights())


def test_an_optimizer_step_whose_loss_is_not_finite_is_skipped_and_the_others_are_taken() -> None:
    one, version = learner(), 2
    one.step(batch(1), 1)
    poisoned = [replace(sequence, advantage=3e38) if sequence.group == 2 else sequence for sequence in batch(5)]
    metrics = one.step(poisoned, version)
    assert (metrics["optimizer_steps"], metrics["steps_skipped"]) == (2, 1)
    assert all(np.isfinite(value) for value in metrics.values())
    assert all(parameter.isfinite().all() for parameter in one.model.parameters())


def test_a_version_without_a_finite_step_has_the_weights_of_the_one_before() -> None:
    one = learner()
    one.step(batch(1), 1)
    before = b"".join(encode_checkpoint(replace(one.trained.copy(), metadata={}))), hash_weights(one.snapshot_weights())
    metrics = one.step([replace(sequence, advantage=3e38) for sequence in batch(5)], 2)
    assert metrics["steps_skipped"] == 3
    assert one.version == 2
    assert (
        b"".join(encode_checkpoint(replace(one.trained.copy(), metadata={}))),
        hash_weights(one.snapshot_weights()),
    ) == before


def test_weights_that_an_optimizer_step_made_infinite_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    one = learner()
    one.step(batch(1), 1)
    before = b"".join(encode_checkpoint(replace(one.trained.copy(), metadata={}))), hash_weights(one.snapshot_weights())
    take = Masters.step

    def overflowing(masters: Masters, rate: float) -> None:
        take(masters, rate)
        next(iter(masters.values.values())).view(-1)[3] = torch.inf

    monkeypatch.setattr(Masters, "step", overflowing)
    metrics = one.step(batch(2), 2)
    assert (metrics["optimizer_steps"], metrics["steps_skipped"], one.version) == (0, 3, 2)
    assert (
        b"".join(encode_checkpoint(replace(one.trained.copy(), metadata={}))),
        hash_weights(one.snapshot_weights()),
    ) == before


def test_a_step_that_fails_leaves_the_whole_version_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    one, untouched = learner(), learner()
    before = b"".join(encode_checkpoint(one.trained.copy())), hash_weights(one.snapshot_weights())
    compute = [parameter.clone() for parameter in one.model.parameters()]
    steps: list[float] = []

    def fails(rate: float) -> None:
        steps.append(rate)
        if len(steps) == 2:
            raise RuntimeError("out of memory")
        Masters.step(one.masters, rate)

    with monkeypatch.context() as patched:
        patched.setattr(one.masters, "step", fails)
        with pytest.raises(RuntimeError, match="out of memory"):
            one.step(batch(5), 1)
    assert (b"".join(encode_checkpoint(one.trained.copy())), hash_weights(one.snapshot_weights())) == before
    assert one.version == 0
    assert all(torch.equal(old, new) for old, new in zip(compute, one.model.parameters(), strict=True))
    one.step(batch(5), 1)
    untouched.step(batch(5), 1)
    assert hash_weights(one.snapshot_weights()) == hash_weights(untouched.snapshot_weights())


def test_a_step_that_fails_leaves_the_reference_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    averaged = {"kl": {"use": "k3", "weight": 0.1}, "reference": {"decay": 0.5}}
    one, untouched = learner(**averaged), learner(**averaged)
    for each in (one, untouched):
        each.step(batch(1), 1)
    with monkeypatch.context() as patched:
        patched.setattr(one.masters, "clip", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            one.step(batch(2), 2)
    for each in (one, untouched):
        each.step(batch(2), 2)
    assert b"".join(encode_checkpoint(one.trained.copy())) == b"".join(encode_checkpoint(untouched.trained.copy()))


def test_a_recipe_of_another_seed_orders_the_groups_by_it() -> None:
    other, changed = Learner(tiny(), SETTINGS, seed=2), learner()
    changed.apply_settings(SETTINGS, 2)
    for each in (other, changed):
        each.step(batch(1), 1)
    first = learner()
    first.step(batch(1), 1)
    assert (
        hash_weights(changed.snapshot_weights())
        == hash_weights(other.snapshot_weights())
        != hash_weights(first.snapshot_weights())
    )


def test_gradients_left_by_an_earlier_training_change_nothing() -> None:
    trained = tiny()
    torch.autograd.backward(trained(torch.tensor([[3, 4, 5]])).logits.square().sum())
    clean, used = learner(), Learner(trained, SETTINGS)
    clean.step(batch(1), 1)
    used.step(batch(1), 1)
    assert hash_weights(used.snapshot_weights()) == hash_weights(clean.snapshot_weights())


def test_recomputed_activations_change_no_bit_and_hold_less_memory() -> None:
    hashes, held = [], []
    for recomputed in (False, True):
        one = learner(activation_checkpointing=recomputed)
        saved: list[int] = []
        micro = pack(batch(1))

        def keep(tensor: torch.Tensor, saved: list[int] = saved) -> torch.Tensor:
            saved.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            compute_token_logprobs(one.model, micro)
        held.append(sum(saved))
        one.step(batch(1), 1)
        hashes.append(hash_weights(one.snapshot_weights()))
    assert hashes[0] == hashes[1]
    assert held[1] < held[0] / 3


def test_settings_that_change_on_the_way_give_what_a_learner_of_those_settings_gives() -> None:
    other = {"packing": False, "activation_checkpointing": True, "fused_optimizer": True}
    one, two = learner(), learner(**other)
    one.trained.copy()
    one.apply_settings(one.settings, 1)  # before there are any moments
    one.step(batch(1), 1)
    two.load_state(one.trained.copy())
    one.apply_settings(two.settings, 1)
    two.step(batch(2), 2)
    one.step(batch(2), 2)
    assert hash_weights(one.snapshot_weights()) == hash_weights(two.snapshot_weights())
    for each in (one, two):
        each.apply_settings(SETTINGS, 1)
        each.step(batch(3), 3)
    assert hash_weights(one.snapshot_weights()) == hash_weights(two.snapshot_weights())


def test_a_model_that_cannot_be_packed_is_padded_and_says_so() -> None:
    model = tiny()
    model.config._attn_implementation = "eager"
    with structlog.testing.capture_logs() as logs:
        one = Learner(model, SETTINGS)
    assert [entry["event"] for entry in logs] == ["learner.pads"]
    assert "has its own attention code (eager)" in logs[0]["reason"]
    assert one.step(batch(1), 1)["optimizer_steps"] == 3


@pytest.mark.parametrize("packing", [True, False])
def test_a_batch_of_one_token_makes_a_version(*, packing: bool) -> None:
    ids, mask = np.array([5, 6], np.int32), np.array([False, True])
    only = TrainingSequence(ids, mask, np.array([0, -2], np.float32), np.array([-1, 0], np.int32), 1.0, 1.0)
    metrics = learner(packing=packing).step([only], 1)
    assert (metrics["tokens"], metrics["optimizer_steps"]) == (1, 1)
    assert all(np.isfinite(value) for value in metrics.values())


def test_a_sequence_that_is_longer_than_the_context_or_of_another_vocabulary_makes_no_version() -> None:
    one = Learner(build_model({**SHAPE, "max_position_embeddings": 9}, TOKENIZER, seed=1), SETTINGS)
    with pytest.raises(BatchError, match=r"10 tokens, but the trainer's model takes at most 9: shorten"):
        one.step(batch(1), 1)
    one = learner()
    strange = batch(1)
    strange[3].ids[2] = 14
    with pytest.raises(BatchError, match="to 14, but the trainer's model takes only ids from 0 to 13"):
        one.step(strange, 1)
    assert one.version == 0


def test_steps_raise_what_was_better_and_lower_what_was_worse() -> None:
    one = learner(minibatches=1, warmup_versions=0, loss={"use": "ppo", "clip_low": 0.9, "clip_high": 9.0})
    sequences = batch(1)
    micro = pad(sequences)
    before, _ = compute_token_logprobs(one.model, micro)
    one.step(sequences, 1)
    after, _ = compute_token_logprobs(one.model, micro)
    assert ((after - before) * torch.from_numpy(micro.advantages)).mean() > 0


def test_forward_runs_on_the_published_values_and_agrees_with_an_engine_on_them() -> None:
    one = learner()
    for name, parameter in one.model.named_parameters():
        assert torch.equal(parameter, parameter.to(torch.bfloat16).float())
        assert torch.equal(parameter, one.masters.values[name].to(torch.bfloat16).float())
    assert any(not torch.equal(parameter, one.masters.values[name]) for name, parameter in one.model.named_parameters())
    sequences = batch(1)
    for sequence in sequences:
        ids = torch.from_numpy(sequence.ids).long()
        with torch.no_grad():
            plain = one.model(ids[None]).logits[0].log_softmax(-1)
        sequence.behaviour_logprobs[1:] = plain[torch.arange(len(ids) - 1), ids[1:]].numpy()
    metrics = one.step(sequences, 1)
    assert metrics["logprob_gap_max"] < 1e-4
    assert 0 < metrics["logprob_gap_tokens"] < metrics["tokens"]  # the first minibatch only
    assert metrics["ratio_mean"] == pytest.approx(1.0, abs=0.05)
    assert metrics["optimizer_steps"] == 3


def test_what_a_version_draws_depends_on_its_number_and_the_seed_alone() -> None:
    one = learner()
    for version in (1, 2):
        torch.manual_seed(version + 100)  # whatever was drawn before
        one.step(batch(version), version)
        assert torch.initial_seed() == one.seed * 1_000_003 + version


def test_with_a_learning_rate_of_0_versions_are_made_and_the_weights_stay() -> None:
    one = learner(learning_rate=0.0)
    before = hash_weights(one.snapshot_weights())
    for version in (1, 2):
        assert one.step(batch(version), version)["learning_rate"] == 0
    assert (one.version, hash_weights(one.snapshot_weights())) == (2, before)


def test_a_version_out_of_order_is_refused() -> None:
    with pytest.raises(UsageError, match="at version 0, so the next can only be 1; got 2"):
        learner().step(batch(1), 2)


def test_a_checkpoint_of_another_model_is_refused_and_changes_nothing() -> None:
    one = learner()
    before = b"".join(encode_checkpoint(one.trained.copy()))
    with pytest.raises(CheckpointError, match="does not fit the model"):
        one.load_state(Learner(tiny(hidden=16), SETTINGS).trained.copy())
    assert b"".join(encode_checkpoint(one.trained.copy())) == before


def test_a_shadow_trains_on_tokens_of_versions_that_it_has_not_made() -> None:
    ahead = batch(0, version=3)
    with pytest.raises(BatchError, match="generated by version 3"):
        learner().step(ahead, 1)

    beside = Learner(tiny(), ShadowTrainerSettings.model_validate(SETTINGS.model_dump()))
    told = beside.step(ahead, 1)
    assert (told["staleness_mean"], told["staleness_max"]) == (0.0, 0.0), "by the newest version that its tokens name"
    second = beside.step(batch(1, version=1), 2)
    assert "logprob_gap_mean" not in second, "version 1 of another trainer has other weights"
    beside = Learner(tiny(), ShadowTrainerSettings.model_validate(SETTINGS.model_dump()))
    alike = learner()
    beside.step(ahead, 1)
    alike.step(batch(0), 1)
    assert hash_weights(beside.snapshot_weights()) == hash_weights(alike.snapshot_weights())


def surprised(tokens: TrainedTokens, *, weight: float = 0.0) -> torch.Tensor:
    assert tokens.entropies is not None
    return -tokens.advantages * tokens.logprobs - weight * tokens.entropies


def test_an_entropy_bonus_in_a_loss_of_your_own_has_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("my_losses")
    module.__dict__["surprised"] = surprised
    monkeypatch.setitem(sys.modules, "my_losses", module)
    norms = set()
    for weight in (0.0, 5.0):
        settings = TrainerSettings(loss={"use": "my_losses:surprised", "weight": weight}, grad_clip=1e9)
        metrics = Learner(build_model(SHAPE, TOKENIZER, seed=1), settings).step(batch(1), 1)
        norms.add(round(metrics["grad_norm_mean"], 6))
    assert len(norms) == 2
