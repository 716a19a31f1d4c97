"""The in-process engine against plain forwards of `transformers`."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from headrace.infra.weights.experts import split_by_files
from headrace.infra.weights.tensors import Tensor
from headrace.producers.engines.contract import Engine, EngineError, Generation, Sampling
from headrace.producers.engines.torch.causal_lm import CausalLM
from headrace.producers.engines.torch.sampler import Draw, Filters, draw_uniforms, sample, start_stream
from headrace.producers.engines.torch.torch_engine import TorchEngine, TorchEngineSettings

VOCABULARY = 48
CONTEXT = 256
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.2,
}
LONG = Sampling(max_tokens=120)
Model = Any  # a transformers model, whose methods are untyped


def qwen3(**changes: Any) -> PreTrainedConfig:
    return Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True, **changes)


def make_model(config: PreTrainedConfig, seed: int) -> Model:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: Model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    for tensor in model.parameters():  # not model.to(): that would round the rotary frequencies too
        tensor.data = tensor.data.to(torch.bfloat16).float()
    return model.eval()


def weights_of(model: Model) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in split_by_files(dict(model.named_parameters())).items()}


MODELS = [make_model(qwen3(), seed) for seed in range(3)]
"""By version."""


def forward(model: Model, ids: list[int], temperature: float = 1.0) -> torch.Tensor:
    """float32[len(ids), V]: log-probabilities of what follows each position, without any cache."""
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([ids]), use_cache=False).logits[0]
        return (logits / (temperature or 1.0)).log_softmax(-1)


def expected(
    models: list[Model] | dict[int, Model], prompt: list[int], got: Generation, temperature: float = 1.0
) -> np.ndarray:
    """The documented rule: each token under the weights of its version over its whole prefix."""
    ids, values, at = [*prompt, *got.ids.tolist()], [], len(prompt)
    for version, length in got.version_runs:
        table = forward(models[version], ids, temperature)
        values += [float(table[position - 1, ids[position]]) for position in range(at, at + length)]
        at += length
    return np.array(values)


def run(engine: Engine, *calls: Awaitable[Generation]) -> list[Generation]:
    async def gather() -> list[Generation]:
        return list(await asyncio.gather(*calls))

    return asyncio.run(gather())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the engine has no event to wait for
            await asyncio.sleep(0.0005)  # not 0: a loop that spins keeps the interpreter from the engine


async def until_generated(engine: Engine, more: int) -> None:
    target = engine.stats().generated_tokens + more
    await until(lambda: engine.stats().generated_tokens >= target)


@pytest.fixture
def make_engine() -> Iterator[Callable[..., TorchEngine]]:
    engines = []

    def make(*policies: str, **settings: Any) -> TorchEngine:
        engine = TorchEngine({name: qwen3() for name in policies or ("p",)}, TorchEngineSettings(**settings))
        for name in policies or ("p",):
            engine.load(name, 0, weights_of(MODELS[0]))
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def engine(make_engine: Callable[..., TorchEngine]) -> TorchEngine:
    return make_engine()


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_log_probabilities_are_those_of_a_plain_forward(engine: TorchEngine, temperature: float) -> None:
    prompts = [[1, 2, 3], [5], list(range(40)), [1, 2, 3]]
    sampling = Sampling(temperature=temperature, max_tokens=30)
    results = run(engine, *(engine.generate("p", ids, sampling, seed=i) for i, ids in enumerate(prompts)))
    for prompt, result in zip(prompts, results, strict=True):
        assert result.ids.dtype == np.int32
        assert result.logprobs.dtype == np.float32
        assert result.finish_reason == "length"
        assert result.version_runs == ((0, 30),)
        np.testing.assert_allclose(result.logprobs, expected(MODELS, prompt, result, temperature), atol=2e-5)
    if temperature == 0:
        table = forward(MODELS[0], [*prompts[0], *results[0].ids.tolist()])
        assert results[0].ids.tolist() == table.argmax(-1)[2:-1].tolist()
    else:
        assert results[0].ids.tolist() != results[3].ids.tolist(), "other seed, other tokens"


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**SIZES),
        MistralConfig(**SIZES, sliding_window=7),
        qwen3(use_sliding_window=True, sliding_window=7, max_window_layers=1),
        Qwen3MoeConfig(**SIZES, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=True),
    ],
    ids=["llama", "mistral-window", "qwen3-mixed", "qwen3-moe"],
)
def test_other_decoders_work(config: PreTrainedConfig) -> None:
    model = make_model(config, 3)
    engine = TorchEngine({"p": config})
    try:
        engine.load("p", 0, weights_of(model))
        prompts = [[1, 2, 3], list(range(20))]
        results = run(engine, *(engine.generate("p", ids, Sampling(max_tokens=20), seed=0) for ids in prompts))
    finally:
        engine.close()
    for prompt, result in zip(prompts, results, strict=True):
        np.testing.assert_allclose(result.logprobs, expected([model], prompt, result), atol=2e-5)


def test_a_local_folder_is_served_as_version_0(tmp_path: Path) -> None:
    MODELS[1].save_pretrained(tmp_path)
    engine = TorchEngine({"p": tmp_path})
    try:
        assert engine.versions() == {"p": 0}
        (result,) = run(engine, engine.generate("p", [4, 5], Sampling(max_tokens=8), seed=0))
    finally:
        engine.close()
    np.testing.assert_allclose(result.logprobs, expected([MODELS[1]], [4, 5], result), atol=2e-5)


def test_tokens_depend_on_the_seed_and_not_on_the_batch_or_the_moment_of_joining(engine: TorchEngine) -> None:
    prompts = [[i + 1] * (1 + i % 5) for i in range(12)]
    sampling = Sampling(max_tokens=40)
    alone = [run(engine, engine.generate("p", ids, sampling, seed=i))[0] for i, ids in enumerate(prompts)]

    async def staggered() -> list[Generation]:
        tasks = []
        for i, ids in enumerate(prompts):
            tasks.append(asyncio.create_task(engine.generate("p", ids, sampling, seed=i)))
            await until_generated(engine, 3)
        return await asyncio.gather(*tasks)

    for one, other in zip(alone, asyncio.run(staggered()), strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=2e-5)


def test_a_swap_in_flight_gives_version_runs_that_can_be_reproduced(engine: TorchEngine) -> None:
    prompts = [[1, 2, 3], [7, 8, 9, 10, 11]]

    async def swap_twice() -> list[Generation]:
        tasks = [asyncio.create_task(engine.generate("p", ids, LONG, seed=i)) for i, ids in enumerate(prompts)]
        for version in (1, 2):
            await until_generated(engine, 24)
            await asyncio.to_thread(engine.load, "p", version, weights_of(MODELS[version]))
        return await asyncio.gather(*tasks)

    results = asyncio.run(swap_twice())
    assert engine.versions() == {"p": 2}
    assert engine.stats().recomputed_tokens > 0
    for prompt, result in zip(prompts, results, strict=True):
        assert [version for version, _ in result.version_runs] == [0, 1, 2]
        assert sum(length for _, length in result.version_runs) == len(result.ids) == 120
        np.testing.assert_allclose(result.logprobs, expected(MODELS, prompt, result), atol=5e-5)


def test_held_sets_are_limited_and_unused_ones_make_room(make_engine: Callable[..., TorchEngine]) -> None:
    engine = make_engine(max_held=1)
    engine.hold("p", 0)
    with pytest.raises(EngineError, match="already holds versions \\[0\\]"):
        engine.hold("p", 1, weights_of(MODELS[1]))
    run(engine, engine.generate("p", [1], Sampling(max_tokens=5), seed=0, version=0))
    engine.release("p", 0)
    engine.hold("p", 1, weights_of(MODELS[1]))
    assert engine.stats().generated_tokens == 5, "counters outlive the set"


def test_a_stop_id_ends_the_request_and_is_its_last_token(engine: TorchEngine) -> None:
    sampling = Sampling(max_tokens=100)
    (free,) = run(engine, engine.generate("p", [1], sampling, seed=5))
    stop = int(free.ids[10])
    at = free.ids.tolist().index(stop)
    many = Sampling(max_tokens=100, stop_ids=(stop, 1000))
    stopped, other = run(engine, engine.generate("p", [1], many, seed=5), engine.generate("p", [1], sampling, seed=5))
    assert stopped.finish_reason == "stop"
    assert stopped.ids.tolist() == free.ids[: at + 1].tolist()
    assert (other.finish_reason, len(other.ids)) == ("length", 100)


def test_more_requests_than_rows_all_complete_in_order_of_arrival(make_engine: Callable[..., TorchEngine]) -> None:
    engine = make_engine(max_batch=3)
    lengths = [4 + i % 7 for i in range(20)]
    results = run(
        engine, *(engine.generate("p", [i + 1], Sampling(max_tokens=n), seed=i) for i, n in enumerate(lengths))
    )
    assert [len(result.ids) for result in results] == lengths
    for i, result in enumerate(results):
        np.testing.assert_allclose(result.logprobs, expected(MODELS, [i + 1], result), atol=2e-5)
    stats = engine.stats()
    assert (stats.generated_tokens, stats.prompt_tokens, stats.running) == (sum(lengths), 20, 0)
    assert stats.busy_s > 0


def test_a_generation_ends_where_the_models_context_does(make_engine: Callable[..., TorchEngine]) -> None:
    engine, prompt = make_engine(), [1 + i % 9 for i in range(CONTEXT - 3)]
    (result,) = run(engine, engine.generate("p", prompt, Sampling(max_tokens=50), seed=0))
    assert (len(result.ids), result.finish_reason) == (3, "length")
    np.testing.assert_allclose(result.logprobs, expected(MODELS, prompt, result), atol=2e-5)


def test_long_prompts_are_filled_in_pieces_that_fit_the_budget(make_engine: Callable[..., TorchEngine]) -> None:
    engine = make_engine(prefill_tokens=16)
    prompts = [list(range(1, 2 + 6 * i)) for i in range(6)]
    results = run(engine, *(engine.generate("p", ids, Sampling(max_tokens=6), seed=0) for ids in prompts))
    for prompt, result in zip(prompts, results, strict=True):
        np.testing.assert_allclose(result.logprobs, expected(MODELS, prompt, result), atol=2e-5)


def test_weights_that_do_not_fit_are_refused_and_the_old_ones_stay(engine: TorchEngine) -> None:
    good = weights_of(MODELS[1])
    name = "model.layers.0.mlp.up_proj.weight"
    wrong = {
        "missing": {key: value for key, value in good.items() if key != name},
        "unknown": {**good, "model.extra": torch.zeros(1)},
        "shape": {**good, name: torch.zeros(2, 2)},
        "NaN or infinite": {**good, name: torch.full_like(good[name], torch.nan)},
    }
    for message, weights in wrong.items():
        with pytest.raises(EngineError, match=message):
            engine.load("p", 1, weights)
    (result,) = run(engine, engine.generate("p", [1], Sampling(max_tokens=5), seed=0))
    assert engine.versions() == {"p": 0}
    np.testing.assert_allclose(result.logprobs, expected(MODELS, [1], result), atol=2e-5)


def test_weights_are_taken_while_others_are_put_into_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation stages weights in another thread than the one that loads newer ones."""
    model = make_model(qwen3(), 0)
    lm, read = CausalLM(model), model.state_dict

    def read_in_the_middle_of_a_load() -> dict[str, torch.Tensor]:
        state = read()
        return {**state, "lm_head.weight": state["lm_head.weight"].clone()}

    weights = {name: value for name, value in weights_of(make_model(qwen3(), 1)).items() if name != "lm_head.weight"}
    monkeypatch.setattr(model, "state_dict", read_in_the_middle_of_a_load)
    lm.apply(lm.stage(weights))
    assert torch.equal(model.lm_head.weight, weights["model.embed_tokens.weight"])


def test_weights_may_come_in_several_forms(engine: TorchEngine) -> None:
    def bits(tensor: torch.Tensor) -> np.ndarray:
        return tensor.detach().to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)

    forms: tuple[Callable[[torch.Tensor], object], ...] = (
        lambda tensor: tensor.detach().to(torch.bfloat16),
        lambda tensor: Tensor("BF16", tuple(tensor.shape), memoryview(bits(tensor).tobytes())),
        lambda tensor: tensor.detach().numpy(),
        bits,
    )
    for version, form in enumerate(forms, 1):
        engine.load("p", version, {name: form(tensor) for name, tensor in MODELS[version % 3].named_parameters()})
        (result,) = run(engine, engine.generate("p", [1], Sampling(max_tokens=5), seed=0))
        models = {version: MODELS[version % 3]}
        np.testing.assert_allclose(result.logprobs, expected(models, [1], result), atol=2e-5)


def test_weights_that_were_loaded_are_the_engines_own(engine: TorchEngine) -> None:
    weights = weights_of(MODELS[1])
    engine.load("p", 1, weights)
    for tensor in weights.values():
        tensor.zero_()
    (result,) = run(engine, engine.generate("p", [1], Sampling(max_tokens=8), seed=0))
    np.testing.assert_allclose(result.logprobs, expected(MODELS, [1], result), atol=2e-5)


def test_logits_that_are_not_finite_fail_their_request_and_poison_no_later_one(engine: TorchEngine) -> None:
    weights = weights_of(MODELS[1])
    weights["model.layers.0.self_attn.v_proj.weight"] *= 3e38
    engine.load("p", 1, weights)
    with pytest.raises(EngineError, match="version 1 are not finite"):
        run(engine, engine.generate("p", [1, 2, 3], Sampling(max_tokens=50), seed=0))
    engine.load("p", 2, weights_of(MODELS[2]))
    (result,) = run(engine, engine.generate("p", [1, 2], Sampling(max_tokens=20), seed=0))
    np.testing.assert_allclose(result.logprobs, expected(MODELS, [1, 2], result), atol=2e-5)


@pytest.mark.parametrize("part", ["a forward", "room for joiners", "a swap"])
def test_a_crash_of_the_engine_thread_reaches_every_caller(
    make_engine: Callable[..., TorchEngine], monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    engine = make_engine(max_batch=2)
    served = engine._sets.serving_set("p")

    def explode(*_: object) -> None:
        raise MemoryError("no memory left")

    async def scenario() -> list[Generation | BaseException | None]:
        tasks: list[Awaitable[Generation | None]]
        tasks = [asyncio.create_task(engine.generate("p", [1], LONG, seed=0)) for _ in range(3)]
        await until(lambda: engine.stats().running == 2 and engine.stats().waiting == 1)
        if part == "a forward":
            monkeypatch.setattr(served.lm, "forward", explode)
        elif part == "room for joiners":
            monkeypatch.setattr(served._cache, "reserve", explode)
        else:
            monkeypatch.setattr(served.lm, "apply", explode)
            tasks.append(asyncio.to_thread(engine.load, "p", 1, weights_of(MODELS[1])))
        return list(await asyncio.gather(*tasks, return_exceptions=True))

    outcomes = asyncio.run(scenario())
    failures = [outcome for outcome in outcomes if not isinstance(outcome, Generation)]
    assert len(failures) == (1 if part == "room for joiners" else len(outcomes))
    for failure in failures:
        assert isinstance(failure, EngineError)
        assert "no memory left" in str(failure)
    with pytest.raises(EngineError, match="no memory left"):
        engine.load("p", 1, weights_of(MODELS[1]))
    with pytest.raises(EngineError, match="no memory left"):
        run(engine, engine.generate("p", [1], LONG, seed=0))


@pytest.mark.parametrize(
    "sampling", [Sampling(**{name: cut}, max_tokens=60) for name, cut in (("top_p", 0.6), ("top_k", 3), ("min_p", 0.3))]
)
def test_filters_never_let_a_token_outside_through(engine: TorchEngine, sampling: Sampling) -> None:
    plain = Sampling(max_tokens=60)
    (alone,) = run(engine, engine.generate("p", [1], plain, seed=99))
    *results, beside = run(
        engine,
        *(engine.generate("p", [1], sampling, seed=i) for i in range(8)),
        engine.generate("p", [1], plain, seed=99),
    )
    assert beside.ids.tolist() == alone.ids.tolist(), "a neighbour's filter changes nothing"
    ranks = []
    for result in results:
        np.testing.assert_allclose(result.logprobs, expected(MODELS, [1], result), atol=2e-5)
        table = forward(MODELS[0], [1, *result.ids.tolist()]).exp()
        for token, probabilities in zip(result.ids.tolist(), table, strict=False):
            likelier = probabilities[probabilities > probabilities[token]]
            ranks.append(len(likelier))
            assert sampling.top_p == 1 or float(likelier.sum()) < sampling.top_p + 1e-5
            assert sampling.top_k == 0 or len(likelier) < sampling.top_k
            assert float(probabilities[token]) >= sampling.min_p * float(probabilities.max()) - 1e-6
    assert max(ranks) > 0, "not greedy"


def test_draws_follow_the_distribution_and_their_seeds() -> None:
    n = 20_000
    logits = torch.tensor([2.0, 1.0, -1.0, -torch.inf, 0.5]).repeat(n, 1)
    u = draw_uniforms(np.concatenate([start_stream(seed) for seed in range(n)]), np.zeros(n, np.uint64))
    assert 0 < u.min() < u.max() < 1
    assert len(np.unique(u)) > n - 2
    draw = Draw(temperature=torch.full((n, 1), 0.8), greedy=None, filters=None)
    tokens, logprobs = sample(logits, draw, torch.from_numpy(u))
    p = (logits[0] / 0.8).softmax(-1)
    counts = np.bincount(tokens.numpy(), minlength=5) / n
    np.testing.assert_allclose(counts, p.numpy(), atol=4 * 0.5 / n**0.5)
    assert counts[3] == 0
    torch.testing.assert_close(logprobs, p.log()[tokens])
    again = draw_uniforms(np.repeat(start_stream(7), n), np.arange(n, dtype=np.uint64))
    assert again[0] == u[7]
    assert abs(float(np.corrcoef(again[:-1], again[1:])[0, 1])) < 0.03


def test_the_most_likely_token_survives_every_filter() -> None:
    logits = torch.zeros(4, 6)
    logits[:, 2] = 0.1
    filters = Filters(torch.full((4, 1), 1e-6), torch.ones(4, 1), torch.full((4, 1), 0.999))
    u = torch.tensor([1e-12, 0.3, 0.7, 1 - 2.0**-41], dtype=torch.float64)
    tokens, _ = sample(logits, Draw(None, None, filters), u)
    assert tokens.tolist() == [2, 2, 2, 2]


def test_a_text_that_ends_a_generation_ends_it_early_and_changes_no_token_before() -> None:
    class Letters:
        """A token is the character with its number."""

        def decode(self, ids: Any, *, special_tokens: bool = False) -> str:
            assert special_tokens
            return "".join(chr(int(i)) for i in ids)

    letters: Any = Letters()
    engine = TorchEngine({"p": qwen3()}, codecs={"p": letters})
    engine.load("p", 0, weights_of(MODELS[0]))

    async def generate(*samplings: Sampling) -> list[Generation]:
        return list(await asyncio.gather(*(engine.generate("p", [1, 2], each, seed=5) for each in samplings)))

    try:
        [whole] = asyncio.run(generate(LONG))
        text = letters.decode(whole.ids[40:44], special_tokens=True)
        made, other = asyncio.run(generate(replace(LONG, stop=("\0none", text)), LONG))
    finally:
        engine.close()

    assert 44 <= len(made.ids) < 44 + 32 < len(other.ids) == 120
    assert made.ids.tolist() == whole.ids[: len(made.ids)].tolist()
    assert (made.finish_reason, other.finish_reason) == ("stop", "length")
    assert made.version_runs == ((0, len(made.ids)),)
