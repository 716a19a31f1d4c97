from dataclasses import replace

import pytest
import transformers

from headrace.infra.weights.tensors import hash_weights
from headrace.trainers.learner.model import build_model, character_tokenizer, round_to_bf16
from headrace.trainers.learner.warm_start import (
    BandNotReached,
    Follower,
    PromptAndCompletion,
    WarmStartResult,
    WarmStartSettings,
    warm_start,
)

TOKENIZER = character_tokenizer("0123456789+=\\boxed{}")
SUMS = [PromptAndCompletion(f"{a}+{b}=", f"\\boxed{{{a + b}}}") for a in range(10) for b in range(10)]
COPIES = [PromptAndCompletion(f"{digit}=", f"{digit}") for digit in range(10)]


def tiny(seed: int = 1) -> transformers.PreTrainedModel:
    architecture = {
        "architecture": "qwen3",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 192,
        "initializer_range": 0.2,
        "tie_word_embeddings": True,
    }
    return build_model(architecture, TOKENIZER, seed=seed)


def warmed(settings: WarmStartSettings, examples: list[PromptAndCompletion]) -> tuple[WarmStartResult, str]:
    model = tiny()
    done = warm_start(model, TOKENIZER, examples, examples, settings)
    return done, hash_weights(round_to_bf16(dict(model.named_parameters())))


@pytest.mark.numerics
def test_a_tiny_model_learns_sums_into_the_band() -> None:
    done, _ = warmed(WarmStartSettings(samples=200, max_new_tokens=12), SUMS)
    assert 0.30 <= done.reward <= 0.40
    assert done.curve[0][1] < 0.05


def test_a_jump_over_the_band_is_taken_back_and_repeated_smaller_the_same_way_every_time() -> None:
    settings = WarmStartSettings(low=0.45, high=0.5, measure_every=32, samples=100, max_new_tokens=3)
    done, weights = warmed(settings, COPIES)
    assert done.curve[1][1] > 0.5
    assert 0.45 <= done.reward <= 0.5
    assert done.steps < 32
    assert warmed(settings, COPIES) == (done, weights)


def test_a_band_out_of_reach_is_an_error_that_tells_how_far_it_came() -> None:
    settings = WarmStartSettings(max_steps=4, measure_every=2, samples=50, max_new_tokens=3)
    with pytest.raises(BandNotReached, match=r"^in 4 supervised steps .* the highest was 0\.\d+ after step"):
        warmed(settings, COPIES)


@pytest.mark.parametrize("most", [1, 3])
def test_all_steps_that_a_warm_start_may_take_are_taken_before_it_gives_up(most: int) -> None:
    steps: list[int] = []

    class Counter(Follower):
        def after_step(self, step: int, reward: float | None) -> None:
            steps.append(step)

    settings = WarmStartSettings(low=0.98, high=0.99, max_steps=most, measure_every=2, samples=10, max_new_tokens=3)
    with pytest.raises(BandNotReached, match=f"in {most} supervised steps"):
        warm_start(tiny(), TOKENIZER, COPIES, COPIES, settings, Counter())
    assert max(steps) == most


def test_every_step_and_measurement_is_told_and_a_wrong_gold_is_never_reached() -> None:
    settings = WarmStartSettings(low=0.5, high=1.0, samples=100, max_new_tokens=3)
    heard: list[tuple[int, float | None]] = []

    class Listener(Follower):
        def after_step(self, step: int, reward: float | None) -> None:
            heard.append((step, reward))

    done = warm_start(tiny(), TOKENIZER, COPIES, COPIES, settings, Listener())
    assert tuple(each for each in heard if each[1] is not None) == done.curve[1:]
    assert len(heard) > len(done.curve), "steps between two measurements are told too"
    wrong = [PromptAndCompletion(one.prompt, "=" + one.completion) for one in COPIES]
    with pytest.raises(BandNotReached, match=r"the highest was 0\.0"):
        warm_start(tiny(), TOKENIZER, COPIES, wrong, replace(settings, max_steps=done.steps))
