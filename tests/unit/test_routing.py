"""A mixture of experts in training: what the engine chose, replayed, and experts that are used alike."""

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import EXPERTS as SHAPE_OF_EXPERTS
from tiny_models import TOKENIZER
from tiny_models import batch as plain_batch

from headrace.envs.contract import Generation
from headrace.envs.transcript import Transcript, TranscriptError
from headrace.infra.errors import UsageError
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.recipe.settings import Recipe, TrainerSettings
from headrace.infra.weights.experts import routers_of
from headrace.infra.weights.tensors import hash_weights
from headrace.ops.preflight.table import check_names
from headrace.producers.engines.contract import Generation as Made
from headrace.producers.engines.contract import Sampling
from headrace.producers.engines.torch.torch_engine import TorchEngine, TorchEngineSettings
from headrace.schemas import codec
from headrace.schemas.records import CuratedGroup, Routing, Sequence, Span, Trajectory, TrajectoryGroup
from headrace.trainers.batches.batch import BatchError, TrainingSequence, pack, pad
from headrace.trainers.batches.groups import DecodedGroup, decode_routing, prepare_group
from headrace.trainers.learner.checkpoint import decode_checkpoint, encode_checkpoint
from headrace.trainers.learner.learner import Learner
from headrace.trainers.learner.logprobs import compute_token_logprobs
from headrace.trainers.learner.model import build_model

LAYERS, EXPERTS, PER_TOKEN = 2, 8, 2
TINY: dict[str, Any] = {**SHAPE_OF_EXPERTS, "max_position_embeddings": 64}
SETTINGS = TrainerSettings(groups_per_batch=6, minibatches=3, micro_batch_tokens=64, learning_rate=5e-3)
REPLAY, BALANCE = {"replay_routing": True}, {"router_aux": 0.1}


def learner(**changed: Any) -> Learner:
    return Learner(
        build_model(TINY, TOKENIZER, seed=1), TrainerSettings.model_validate(SETTINGS.model_dump() | changed)
    )


def batch(seed: int) -> list[TrainingSequence]:
    """Sequences with experts that no router would choose, but every fourth without."""
    draw = np.random.default_rng(seed)

    def experts(tokens: int) -> np.ndarray[Any, Any]:
        return draw.random((tokens, LAYERS, EXPERTS)).argsort(-1)[..., :PER_TOKEN].astype(np.uint8)

    return [
        sequence if index % 4 == 3 else replace(sequence, routing=experts(len(sequence.ids) - 1))
        for index, sequence in enumerate(plain_batch(seed))
    ]


# --------------------------------------------------------------------------------------------------------- the engine


def played(engine: TorchEngine, *prompts: list[int], sampling: Sampling) -> list[Made]:
    async def gather() -> list[Made]:
        calls = (engine.generate("p", ids, sampling, seed=seed) for seed, ids in enumerate(prompts))
        return list(await asyncio.gather(*calls))

    return asyncio.run(gather())


def plain_routing(one: Learner, ids: list[int]) -> np.ndarray[Any, Any]:
    """What the model's own routers choose in one forward pass over all but the last id."""
    chosen: list[torch.Tensor] = []
    routers = [module for name, module in one.model.named_modules() if name.endswith("mlp.gate")]
    hooks = [router.register_forward_hook(lambda *call: chosen.append(call[-1][-1])) for router in routers]
    with torch.no_grad():
        one.model(input_ids=torch.tensor([ids[:-1]]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return torch.stack(chosen, 1).numpy()


@pytest.fixture(scope="module")
def recorded() -> list[tuple[list[int], Made]]:
    one = learner()
    engine = TorchEngine({"p": one.model.config}, TorchEngineSettings(max_batch=5, record_routing=True))
    try:
        engine.load("p", 0, one.snapshot_weights())
        prompts = [[2, 3, 4], [5], [2, 3, 4], list(range(2, 14))] * 2
        made = played(engine, *prompts, sampling=Sampling(max_tokens=20))
    finally:
        engine.close()
    return list(zip(prompts, made, strict=True))


def test_the_engine_tells_the_experts_of_every_token_but_the_last(recorded: list[tuple[list[int], Made]]) -> None:
    one = learner()
    for prompt, made in recorded:
        assert made.routing is not None
        assert made.routing.dtype == np.uint8
        assert made.routing.shape == (len(prompt) + len(made.ids) - 1, LAYERS, PER_TOKEN)
        expected = plain_routing(one, [*prompt, *made.ids.tolist()])
        np.testing.assert_array_equal(np.sort(made.routing), np.sort(expected))


@pytest.mark.numerics
def test_a_swap_and_a_held_set_leave_the_experts_that_predicted_a_token() -> None:
    one, two = learner(), learner()
    two.step(batch(1), 1)
    engine = TorchEngine({"p": one.model.config}, TorchEngineSettings(record_routing=True))

    async def play() -> Made:
        call = asyncio.create_task(engine.generate("p", [2, 3, 4], Sampling(max_tokens=60), seed=0))
        while engine.stats().generated_tokens < 5:  # noqa: ASYNC110 - the engine has no event to wait for
            await asyncio.sleep(0.0005)
        await asyncio.to_thread(engine.hold, "p", 0)
        await engine.generate("p", [2, 3, 4], Sampling(max_tokens=9), seed=0, version=0)
        await asyncio.to_thread(engine.load, "p", 1, two.snapshot_weights())
        return await call

    try:
        engine.load("p", 0, one.snapshot_weights())
        made = asyncio.run(play())
    finally:
        engine.close()
    assert made.routing is not None
    assert [version for version, _ in made.version_runs] == [0, 1]
    first = 2 + made.version_runs[0][1]
    ids = [2, 3, 4, *made.ids.tolist()]
    np.testing.assert_array_equal(np.sort(made.routing[:first]), np.sort(plain_routing(one, ids)[:first]))
    np.testing.assert_array_equal(np.sort(made.routing[first:]), np.sort(plain_routing(two, ids)[first:]))


# --------------------------------------------------------------------------------------------------------- the record


def generation(length: int, routing: np.ndarray[Any, Any] | None) -> Generation:
    ids = np.arange(length, dtype=np.int32)
    return Generation(ids, np.zeros(length, np.float32), ((0, length),), "stop", routing, Sampling())


def test_a_token_keeps_the_experts_that_predicted_the_one_after_it() -> None:
    transcript = Transcript("solver")
    transcript.prompt([7, 8])
    transcript.add_generation(generation(3, np.full((4, 2, 2), 1, np.uint8)))
    transcript.observe([9])
    transcript.add_generation(generation(2, np.full((7, 2, 2), 2, np.uint8)))
    routing = transcript.sequence().routing
    assert routing is not None
    experts = decode_routing(routing)
    assert experts.shape == (7, 2, 2)
    assert experts[:, 0, 0].tolist() == [1, 1, 1, 1, 2, 2, 2]
    with pytest.raises(TranscriptError, match=r"all of the sequence but the last\), but it has the experts of 7"):
        transcript.add_generation(generation(2, np.full((7, 2, 2), 2, np.uint8)))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_routing_comes_back_from_a_message_as_it_was(dtype: type) -> None:
    transcript = Transcript("solver")
    transcript.prompt([7, 8])
    experts = np.arange(4 * 2 * 2).reshape(4, 2, 2).astype(dtype) * (1 if dtype is np.uint8 else 100)
    transcript.add_generation(generation(3, experts))
    group = TrajectoryGroup(trajectories=(Trajectory(sequences=(transcript.sequence(),)),))
    [trajectory] = codec.decode(codec.encode(group), TrajectoryGroup).trajectories
    [found] = prepare_group(
        DecodedGroup(CuratedGroup(kept=(0,), rewards=(1.0,)), replace(group, trajectories=(trajectory,)))
    ).sequences
    assert found.routing is not None
    assert found.routing.dtype == dtype
    np.testing.assert_array_equal(found.routing, experts)


@pytest.mark.parametrize(
    "routing",
    [
        Routing(b"\0" * 7, "uint8", 2, 2, 2),
        Routing(b"\0" * 8, "int8", 2, 2, 2),
        Routing(b"\0" * 8, "uint16", 2, 2, 2),
        Routing(b"\0" * 8, "uint8", -2, -2, 2),
        Routing(b"\0" * 16, "uint8", 4, 2, 2),
        Routing(b"", "uint8", 2**40, 2**40, 2**40),
    ],
    ids=["torn", "signed", "wide", "negative", "longer than the ids", "huge"],
)
def test_routing_that_does_not_fit_its_sequence_is_unusable(routing: Routing) -> None:
    spans = (Span("prompt", 1), Span("generated", 2))
    runs, ids = np.array([-1, 1, 0, 2], np.int32), np.array([2, 3, 4], np.int32)
    one = Sequence(ids, np.zeros(3, np.float32), runs, spans=spans, routing=routing)
    group = TrajectoryGroup(trajectories=(Trajectory(sequences=(one,)),))
    with pytest.raises(BatchError, match="routing"):
        prepare_group(DecodedGroup(CuratedGroup(kept=(0,), rewards=(1.0,)), group))


@pytest.mark.parametrize(
    ("experts", "message"),
    [
        (np.full((3, 2, 2), 1, np.uint8), "the same expert twice"),
        (np.array([[[0, 8]] * 2], np.uint8), "expert 8, but .* only the experts 0 to 7"),
        (np.array([[[0, 300]] * 2], np.uint16), "expert 300"),
        (
            np.zeros((3, 3, 2), np.uint8),
            "3 layers with 2 experts per token, but the trainer's model has 2 layers with 2",
        ),
        (np.zeros((3, 2, 1), np.uint8), "2 layers with 1 experts per token"),
    ],
)
def test_routing_of_another_model_makes_no_version(experts: Any, message: str) -> None:
    sequences = [replace(batch(1)[0], routing=experts)]
    one = learner(**REPLAY)
    with pytest.raises(BatchError, match=message):
        one.limits.check_routing(sequences[0])
    with pytest.raises(BatchError, match=message):
        one.step(sequences, 1)
    learner().step(sequences, 1)  # which looks at none


# -------------------------------------------------------------------------------------------------------------- replay


def training_sequences(recorded: list[tuple[list[int], Made]], *, keep: bool = True) -> list[TrainingSequence]:
    found = []
    for prompt, made in recorded:
        ids = np.array([*prompt, *made.ids.tolist()], np.int32)
        mask = np.arange(ids.size) >= len(prompt)
        logprobs = np.concatenate([np.zeros(len(prompt), np.float32), made.logprobs])
        versions = mask.astype(np.int32) - 1
        found.append(TrainingSequence(ids, mask, logprobs, versions, 1.0, 1.0, 0, made.routing if keep else None))
    return found


@pytest.mark.parametrize("layout", [pack, pad])
def test_replay_of_what_the_routers_choose_anyway_changes_no_bit(
    recorded: list[tuple[list[int], Made]], layout: Any
) -> None:
    one, micro = learner(**REPLAY), layout(training_sequences(recorded))
    with torch.no_grad(), one._passes.routers.follow_engine(micro, torch.device("cpu")):
        replayed, _ = compute_token_logprobs(one.model, micro)
    plain, _ = compute_token_logprobs(one.model, micro)
    assert torch.equal(replayed, plain)


@pytest.mark.numerics
def test_replay_keeps_to_the_engines_experts_where_other_weights_choose_others(
    recorded: list[tuple[list[int], Made]],
) -> None:
    """What replay is for: of the log-ratio to the engine's policy, none is left that comes from other experts alone."""
    one = learner(**REPLAY)
    one.step(batch(1), 1)
    ids = [[*prompt, *made.ids.tolist()] for prompt, made in recorded]
    own = [plain_routing(one, each) for each in ids]
    moved = [np.sort(a) != np.sort(made.routing) for a, (_, made) in zip(own, recorded, strict=True)]  # type: ignore[type-var]
    assert 0.01 < np.concatenate([each.reshape(-1) for each in moved]).mean() < 0.9
    seen: list[torch.Tensor] = []
    experts = [module for name, module in one.model.named_modules() if name.endswith("mlp.experts")]
    hooks = [each.register_forward_hook(lambda *call: seen.append(call[1][1])) for each in experts]
    for sequence in training_sequences(recorded):
        seen.clear()
        micro = pack([sequence])
        with torch.no_grad(), one._passes.routers.follow_engine(micro, torch.device("cpu")):
            compute_token_logprobs(one.model, micro)
        assert sequence.routing is not None
        np.testing.assert_array_equal(torch.stack(seen, 1).numpy(), sequence.routing)
    for hook in hooks:
        hook.remove()


@pytest.mark.numerics
def test_the_gradient_does_not_depend_on_how_a_minibatch_is_cut_or_laid_out() -> None:
    objective = REPLAY | BALANCE | {"loss": "m2po"}
    cuts: list[dict[str, Any]] = [
        {"micro_batch_tokens": 4096},
        {"micro_batch_tokens": 64},
        {"packing": False},
        {"activation_checkpointing": True},
    ]
    found = []
    for cut in cuts:
        one = learner(**objective, **cut, minibatches=1, grad_clip=1e9)
        metrics = one.step(batch(2), 1)
        found.append((one.masters.gradients, metrics))
    (expected, told), *others = found
    for gradients, metrics in others:
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, expected[name], atol=1e-6, rtol=1e-4)
        assert metrics["loss"] == pytest.approx(told["loss"], abs=1e-6)
        assert metrics.get("router_imbalance") == pytest.approx(told.get("router_imbalance"), abs=1e-6)


def test_a_resumed_learner_of_experts_makes_the_very_same_weights() -> None:
    changed: dict[str, Any] = {**REPLAY, **BALANCE}
    straight, resumed = learner(**changed), learner(**changed)
    straight.step(batch(1), 1)
    data = b"".join(encode_checkpoint(straight.trained.copy()))
    metrics = straight.step(batch(2), 2)
    resumed.step(batch(9), 1)
    resumed.load_state(decode_checkpoint(data))
    assert resumed.step(batch(2), 2) == metrics
    assert hash_weights(resumed.snapshot_weights()) == hash_weights(straight.snapshot_weights())
    assert b"".join(encode_checkpoint(resumed.trained.copy())) == b"".join(encode_checkpoint(straight.trained.copy()))


# ------------------------------------------------------------------------------------------------------------- balance


def test_the_load_balance_is_that_of_switch_transformers_layer_by_layer() -> None:
    one = learner(router_aux=1.0, minibatches=1, micro_batch_tokens=64, grad_clip=1e9)
    sequences = [replace(sequence, advantage=0.0) for sequence in batch(3)]
    told = one.step(sequences, 1)
    plain = learner()
    layers: list[Any] = []
    routers = [module for name, module in plain.model.named_modules() if name.endswith("mlp.gate")]
    for router in routers:
        router.register_forward_hook(lambda _, __, output: layers.append(output))
    tokens: list[list[Any]] = [[], []]
    for sequence in sequences:
        layers.clear()
        plain.model(input_ids=torch.from_numpy(sequence.ids[None, :-1]).long(), use_cache=False)
        for of_layer, (logits, _, chosen) in zip(tokens, layers, strict=True):
            of_layer.append((logits.softmax(-1), torch.nn.functional.one_hot(chosen, EXPERTS).sum(1)))
    expected = []
    for of_layer in tokens:
        probabilities, sent = (torch.cat(each).double() for each in zip(*of_layer, strict=True))
        expected.append(EXPERTS * (sent.mean(0) / PER_TOKEN * probabilities.mean(0)).sum())
    value = torch.stack(expected).mean()
    assert told["router_imbalance"] == pytest.approx(float(value.detach()), rel=1e-6)
    assert told["loss"] == pytest.approx(float(value.detach()), rel=1e-6)
    value.backward()  # type: ignore[no-untyped-call]
    for name, parameter in plain.model.named_parameters():
        if parameter.grad is not None and name in one.masters.gradients:
            torch.testing.assert_close(one.masters.gradients[name], parameter.grad, atol=1e-6, rtol=1e-4)


# ------------------------------------------------------------------------------------------------------------ refusals


def recipe(model: dict[str, Any], *, record: bool = True, **trainer: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "r",
            "policies": {"p": {"model": model, "alphabet": load_recipe("arithmetic").policies["solver"].alphabet}},
            "workflows": {"w": {"env": "arithmetic", "policies": {"p": "p"}}},
            "rollout": {"record_routing": record},
            "trainer": trainer,
        }
    )


@pytest.mark.parametrize("wanted", [REPLAY, BALANCE])
def test_what_experts_are_needed_for_is_refused_without_them(wanted: dict[str, Any]) -> None:
    check_names(recipe(TINY, **wanted))
    dense = {"architecture": "qwen3", "hidden_size": 32}
    with pytest.raises(UsageError, match="has no effect: the qwen3 model has no experts"):
        check_names(recipe(dense, **wanted))
    without = build_model({**TINY, "mlp_only_layers": [0, 1, 2]}, TOKENIZER, seed=1)
    with pytest.raises(UsageError, match="has no effect: the qwen3_moe model has no experts"):
        Learner(without, TrainerSettings.model_validate(SETTINGS.model_dump() | wanted))


def test_a_recipe_that_replays_and_does_not_record_is_refused() -> None:
    with pytest.raises(ValueError, match=r"set rollout.record_routing = true"):
        recipe(TINY, record=False, **REPLAY)


def test_routers_that_weigh_experts_in_another_way_are_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model(TINY, TOKENIZER, seed=1)
    [router, *_] = routers_of(model)
    plain = router.forward
    monkeypatch.setattr(router, "forward", lambda states: (plain(states)[0], plain(states)[1] * 2, plain(states)[2]))
    one = Learner(model, SETTINGS)
    with pytest.raises(UsageError, match="the routers of qwen3_moe work in another way"):
        one.apply_settings(TrainerSettings.model_validate(SETTINGS.model_dump() | REPLAY), 1)
