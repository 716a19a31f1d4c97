"""The result of a warm start is taken from where this machine kept it, for the same start alone."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from headrace.infra.weights.tensors import hash_weights
from headrace.trainers import kept_warm_starts
from headrace.trainers.kept_warm_starts import KeptWarmStart
from headrace.trainers.learner import warm_start as search
from headrace.trainers.learner.model import build_model, character_tokenizer, round_to_bf16
from headrace.trainers.learner.warm_start import PromptAndCompletion, WarmStartResult, WarmStartSettings, warm_start

TOKENIZER = character_tokenizer("0123456789=")
COPIES = [PromptAndCompletion(f"{digit}=", f"{digit}") for digit in range(10)]
SETTINGS = WarmStartSettings(low=0.2, high=0.9, measure_every=2, samples=20, max_new_tokens=3)


def tiny(seed: int = 1) -> transformers.PreTrainedModel:
    architecture = {
        "architecture": "qwen3",
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "intermediate_size": 32,
        "tie_word_embeddings": True,
    }
    return build_model(architecture, TOKENIZER, seed=seed)


def hash_of(model: transformers.PreTrainedModel) -> str:
    return hash_weights(round_to_bf16(dict(model.named_parameters())))


def kept_in(
    folder: Path,
    model: transformers.PreTrainedModel,
    examples: list[PromptAndCompletion] = COPIES,
    settings: WarmStartSettings = SETTINGS,
) -> KeptWarmStart:
    return KeptWarmStart(model, TOKENIZER, (examples, COPIES), settings, folder)


@pytest.fixture
def done(tmp_path: Path) -> tuple[WarmStartResult, str]:
    """Change the weights as a warm start does, and keep them; return its result with the hash of the weights."""
    model, result = tiny(), WarmStartResult(2, 0.5, ((0, 0.0), (2, 0.5)))
    kept = kept_in(tmp_path, model)
    assert kept.load_into_model() is None
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.125)
    kept.keep(result)
    return result, hash_of(model)


def test_the_same_start_ends_with_the_same_bits_without_a_step(
    done: tuple[WarmStartResult, str], tmp_path: Path
) -> None:
    model = tiny()
    before = hash_of(model)

    assert kept_in(tmp_path, model).load_into_model() == done[0]
    assert hash_of(model) == done[1] != before
    assert all(weight.requires_grad for weight in model.parameters())


def test_another_start_is_not_taken_for_it_nor_what_other_code_or_another_machine_did(
    done: tuple[WarmStartResult, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert done
    others: list[dict[str, Any]] = [{"settings": replace(SETTINGS, seed=2)}, {"examples": COPIES[:9]}]
    others += [{"settings": replace(SETTINGS, learning_rate=2e-3)}, {"model": tiny(seed=2)}]
    for other in others:
        assert kept_in(tmp_path, **{"model": tiny(), **other}).load_into_model() is None
    with monkeypatch.context() as patch:
        patch.setattr(TOKENIZER, "chat_template", "{% for one in messages %}{{ one.content }}{% endfor %}=")
        assert kept_in(tmp_path, tiny()).load_into_model() is None
    with monkeypatch.context() as patch:
        patch.setattr(kept_warm_starts, "_hash_own_code", lambda: "other code")
        assert kept_in(tmp_path, tiny()).load_into_model() is None
    with monkeypatch.context() as patch:
        patch.setattr(kept_warm_starts, "fingerprint_numerics", lambda _: {"torch": "another"})
        assert kept_in(tmp_path, tiny()).load_into_model() is None


@pytest.mark.parametrize("damage", [lambda data: data[:-7], lambda _: b"", lambda _: b"\0" * 64])
def test_a_damaged_file_is_none(damage: Any, done: tuple[WarmStartResult, str], tmp_path: Path) -> None:
    assert done
    [path] = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    model = tiny()
    before = hash_of(model)

    assert kept_in(tmp_path, model).load_into_model() is None
    assert hash_of(model) == before


def test_large_models_and_more_than_some_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_warm_starts, "MOST_KEPT", 2)
    result = WarmStartResult(1, 0.5, ((0, 0.1), (1, 0.5)))
    for seed in range(3):
        kept_in(tmp_path, tiny(seed)).keep(result)
        for path in tmp_path.iterdir():  # as if a second had passed
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 1))
    found = [kept_in(tmp_path, tiny(seed)).load_into_model() for seed in range(3)]
    assert found == [None, result, result]

    monkeypatch.setattr(kept_warm_starts, "MOST_MODEL_BYTES", 10)
    large = tiny(9)
    kept_in(tmp_path, large).keep(result)
    assert kept_in(tmp_path, large).load_into_model() is None
    assert len(list(tmp_path.iterdir())) == 2


def test_a_folder_that_cannot_be_written_costs_time_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = kept_in(tmp_path / "file", tiny())
    kept.keep(WarmStartResult(1, 0.5, ()))
    assert kept.load_into_model() is None


class Mortal(KeptWarmStart):
    """Dies after some steps and measurements."""

    left = 10**9

    def after_step(self, step: int, reward: float | None) -> None:
        self.left -= 1
        if self.left < 0:
            raise InterruptedError


JUMPING = replace(SETTINGS, low=0.4, high=0.6, measure_every=16, batch_size=16, samples=40, learning_rate=2e-2)
"""A search that jumps over the band, and comes back in smaller steps."""


def searched(folder: Path, left: int = 10**9) -> tuple[WarmStartResult, str]:
    """Warm a model up, as a start does; what was left in the folder is gone on from."""
    model = tiny()
    mortal = Mortal(model, TOKENIZER, (COPIES, COPIES), JUMPING, folder)
    mortal.left = left
    assert mortal.load_into_model() is None
    done = warm_start(model, TOKENIZER, COPIES, COPIES, JUMPING, mortal)
    mortal.keep(done)
    return done, hash_of(model)


@pytest.mark.parametrize(
    "save_every_s",
    [
        pytest.param(0.0, id="each step", marks=pytest.mark.numerics),
        pytest.param(1e9, id="measurements", marks=pytest.mark.numerics),
    ],
)
def test_a_start_that_is_killed_again_and_again_ends_with_the_bits_of_one_that_is_not(
    save_every_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "PROGRESS_EVERY_S", save_every_s)
    monkeypatch.setattr(search, "SAVE_SHARE", 0.0)
    undisturbed = searched(tmp_path / "undisturbed")
    assert max(reward for _, reward in undisturbed[0].curve) > JUMPING.high, "it was taken back"
    lives, most = 0, 11 if save_every_s == 0 else JUMPING.measure_every + 1
    while True:
        lives += 1
        assert lives < 20, "it never ends"
        try:
            found = searched(tmp_path / "killed", most)
            break
        except InterruptedError:
            assert list((tmp_path / "killed").glob("*.part"))
    assert lives >= 3
    assert found == undisturbed
    assert [path.suffix for path in (tmp_path / "killed").iterdir()] == [".safetensors"], "no progress is left"


@pytest.mark.numerics
def test_damaged_progress_costs_time_alone(tmp_path: Path) -> None:
    with pytest.raises(InterruptedError):
        searched(tmp_path, 20)
    [path] = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-7])
    assert kept_in(tmp_path, tiny(), settings=JUMPING).resume() is None
    assert searched(tmp_path) == searched(tmp_path / "other")
