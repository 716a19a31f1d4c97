"""A policy of which an adapter alone is trained, published as it is or merged, and served by the engine."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tiny_models import SHAPE, TOKENIZER, batch

from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Connection, RunAddress
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.recipe.settings import Lora, Recipe, TrainerSettings
from headrace.infra.run import revisions
from headrace.infra.store.object_store import StoreAddress
from headrace.infra.weights.delta import encode_delta, read_delta
from headrace.infra.weights.delta_header import Label
from headrace.infra.weights.files import ADAPTER_WEIGHTS, choose_files_to_serve
from headrace.infra.weights.folder import open_weights, write_adapter
from headrace.infra.weights.tensors import Tensor, hash_weights
from headrace.ops.preflight.table import check_names
from headrace.producers.engines.contract import EngineError, Generation, Sampling
from headrace.producers.engines.torch.causal_lm import Adapted, ModelSource
from headrace.producers.engines.torch.torch_engine import TorchEngine, TorchEngineSettings
from headrace.schemas.records import NamedObject
from headrace.trainers.batches.batch import TrainingSequence, pad
from headrace.trainers.learner.checkpoint import CheckpointError, decode_checkpoint, encode_checkpoint
from headrace.trainers.learner.learner import Learner
from headrace.trainers.learner.logprobs import compute_token_logprobs
from headrace.trainers.learner.lora import Adapter, _Merged, load_base
from headrace.trainers.learner.model import ModelError, build_model, encode_model_files, load_model, to_torch

SETTINGS = TrainerSettings(groups_per_batch=6, minibatches=3, micro_batch_tokens=64, learning_rate=1e-2)
LORA = Lora(rank=4, alpha=8, targets=("q_proj", "mlp.down_proj"))
PAGE = (Path(__file__).parents[2] / "docs" / "lora.md").read_text()
PUBLISH = ("adapter", "merged")
ADAPTED = {f"model.layers.{layer}.{name}" for layer in (0, 1) for name in ("self_attn.q_proj", "mlp.down_proj")}


def tiny() -> transformers.PreTrainedModel:
    return build_model(SHAPE, TOKENIZER, seed=1)


def made(publish: str = "adapter", **changed: Any) -> tuple[Learner, Adapter]:
    model, lora = tiny(), LORA.model_copy(update={"publish": publish})
    adapter = Adapter(model, lora, 1)
    return Learner(model, TrainerSettings.model_validate(SETTINGS.model_dump() | changed), 1, adapter), adapter


def written(adapter: Adapter, folder: Path) -> Path:
    """The files that lie beside an anchor, as a worker or a trainer that comes back has them."""
    for name, content in {**encode_model_files(tiny(), TOKENIZER), **adapter.files()}.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else b"".join(content))
    return folder


def come_back(folder: Path, publish: str = "adapter", **changed: Any) -> Learner:
    """A learner whose model was made of a config and of the base beside it, as after a restart."""
    model = build_model(SHAPE, TOKENIZER, seed=99)
    load_base(model, folder)
    adapter = Adapter(model, LORA.model_copy(update={"publish": publish}), 99)
    return Learner(model, TrainerSettings.model_validate(SETTINGS.model_dump() | changed), 1, adapter)


def step(learner: Learner, version: int) -> None:
    learner.step(batch(version, version=version - 1), version)


def logprobs(model: transformers.PreTrainedModel, sequences: list[TrainingSequence]) -> torch.Tensor:
    with torch.no_grad():
        return compute_token_logprobs(model, pad(sequences))[0]


def with_weights(named: dict[str, Tensor]) -> transformers.PreTrainedModel:
    """A plain model of published weights."""
    model = build_model(SHAPE, TOKENIZER, seed=5)
    model.load_state_dict({name: to_torch(tensor).float() for name, tensor in named.items()}, strict=False)
    assert {name for name, _ in model.named_parameters()} == named.keys()
    return model


def products(learner: Learner) -> dict[str, torch.Tensor]:
    """(alpha / r) B A of every adapted layer, of the rounded values, in float64."""
    weights = learner.masters.values
    found = {}
    for name in ADAPTED:
        a, b = (weights[f"base_model.model.{name}.lora_{one}.weight"].to(torch.bfloat16).double() for one in "AB")
        found[name] = 2 * b @ a
    return found


@pytest.mark.parametrize("publish", PUBLISH)
def test_only_the_adapter_has_masters_moments_and_checkpoint_entries(publish: str) -> None:
    learner, _ = made(publish)
    before = {n: p.clone() for n, p in learner.model.named_parameters() if ".lora_" not in n}
    step(learner, 1)
    expected = {f"base_model.model.{name}.lora_{one}.weight" for name in ADAPTED for one in "AB"}
    assert learner.masters.values.keys() == expected
    kinds = ("masters", "exp_avg", "exp_avg_sq", "step")
    assert learner.trained.copy().tensors.keys() == {f"{kind}/{name}" for kind in kinds for name in expected}
    after = dict(learner.model.named_parameters())
    assert all(torch.equal(after[name], value) for name, value in before.items()), "the base is frozen"


@pytest.mark.parametrize(
    ("publish", "changed"),
    [("adapter", {"kl": {"use": "k3", "weight": 0.1}}), ("merged", {"activation_checkpointing": True})],
    ids=str,
)
def test_a_learner_that_comes_back_makes_the_very_same_weights(
    publish: str, changed: dict[str, Any], tmp_path: Path
) -> None:
    straight, adapter = made(publish, **changed)
    folder = written(adapter, tmp_path)
    step(straight, 1)
    data = b"".join(encode_checkpoint(straight.trained.copy()))
    step(straight, 2)
    again = come_back(folder, publish, **changed)
    again.load_state(decode_checkpoint(data))
    step(again, 2)
    assert hash_weights(again.snapshot_weights()) == hash_weights(straight.snapshot_weights())
    assert b"".join(encode_checkpoint(again.trained.copy())) == b"".join(encode_checkpoint(straight.trained.copy()))


def test_the_adapter_begins_as_the_seed_says_and_as_the_base(tmp_path: Path) -> None:
    first, second = made()[0], made()[0]
    assert hash_weights(first.snapshot_weights()) == hash_weights(second.snapshot_weights())
    model = tiny()
    other = Learner(model, SETTINGS, 1, Adapter(model, LORA, 2))
    assert hash_weights(other.snapshot_weights()) != hash_weights(first.snapshot_weights())
    sequences = batch(0)
    rounded = tiny()
    for parameter in rounded.parameters():
        parameter.data = parameter.data.to(torch.bfloat16).float()
    torch.testing.assert_close(logprobs(first.model, sequences), logprobs(rounded, sequences), atol=1e-6, rtol=0)
    assert hash_weights(made("merged")[0].snapshot_weights()) == hash_weights(
        Learner(rounded, SETTINGS).snapshot_weights()
    )


def test_a_checkpoint_of_another_rank_is_refused() -> None:
    model = tiny()
    other = Learner(model, SETTINGS, 1, Adapter(model, LORA.model_copy(update={"rank": 2}), 1))
    with pytest.raises(CheckpointError, match="does not fit the model"):
        made()[0].load_state(other.trained.copy())


def changed_tensors(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    delta = read_delta(encode_delta(before, after, Label("solver", 0, 0, 1)))
    return {head.name for head in delta.header.tensors}


def test_a_delta_of_an_adapter_holds_the_adapter_alone_and_so_does_an_anchor() -> None:
    learner, _ = made()
    before = learner.snapshot_weights()
    step(learner, 1)
    after = learner.snapshot_weights()
    assert after.keys() == {f"base_model.model.{name}.lora_{one}.weight" for name in ADAPTED for one in "AB"}
    assert changed_tensors(before, after) == after.keys()


def test_a_delta_of_merged_weights_holds_the_adapted_matrices_alone() -> None:
    learner, _ = made("merged")
    before = learner.snapshot_weights()
    step(learner, 1)
    after = learner.snapshot_weights(learner.snapshot_weights())
    assert after.keys() == {name for name, _ in tiny().named_parameters()}
    assert changed_tensors(before, after) == {f"{name}.weight" for name in ADAPTED}
    frozen = after.keys() - {f"{name}.weight" for name in ADAPTED}
    assert all(after[name] is before[name] for name in frozen), "nobody copies or compares what cannot change"


def test_merged_weights_are_base_and_adapter_rounded_and_the_trainer_computes_with_just_these() -> None:
    learner, adapter = made("merged")
    base = {name: to_torch(tensor).double() for name, tensor in adapter._base().items()}
    step(learner, 1)
    published = learner.snapshot_weights()
    for name, product in products(learner).items():
        exact = base[f"{name}.weight"] + product
        assert product.abs().max() > 0
        ulp = exact.abs().clamp(min=1e-30).log2().floor().exp2() / 128
        assert ((to_torch(published[f"{name}.weight"]).double() - exact).abs() <= 0.5001 * ulp).all()
    sequences = batch(7)
    torch.testing.assert_close(
        logprobs(learner.model, sequences), logprobs(with_weights(published), sequences), atol=1e-6, rtol=0
    )


def test_gradients_of_a_merge_are_those_of_the_sum_without_its_rounding() -> None:
    draw = torch.Generator().manual_seed(0)
    base, given = torch.randn(5, 7, generator=draw), torch.randn(5, 7, generator=draw)
    a, b = torch.randn(3, 7, generator=draw), torch.randn(5, 3, generator=draw)
    leaves = a.requires_grad_(), b.requires_grad_()
    expected = torch.autograd.grad((base + 0.5 * b @ a), leaves, given)
    found = torch.autograd.grad(_Merged.apply(base, a, b, 0.5), leaves, given)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


# -------------------------------------------------------------------------------------------------------------- engine


@pytest.fixture
def engine_of() -> Iterator[Callable[..., TorchEngine]]:
    engines: list[TorchEngine] = []

    def make(**sources: ModelSource) -> TorchEngine:
        engines.append(TorchEngine(sources, TorchEngineSettings()))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def generated(engine: TorchEngine, policy: str, version: int | None = None) -> Generation:
    async def generate() -> Generation:
        return await engine.generate(policy, [3, 4, 5], Sampling(max_tokens=20), seed=1, version=version)

    return asyncio.run(generate())


def trained_logprobs(learner: Learner, got: Generation) -> np.ndarray:
    ids = np.array([3, 4, 5, *got.ids.tolist()], np.int32)
    mask = np.arange(ids.size) >= 3
    zeros = np.zeros(ids.size, np.float32)
    sequence = TrainingSequence(ids, mask, zeros, np.where(mask, 0, -1).astype(np.int32), 1.0, 1.0, 0)
    return logprobs(learner.model, [sequence]).numpy()


def test_the_engine_generates_with_an_adapter_what_the_trainer_computes_version_by_version(
    engine_of: Callable[..., TorchEngine], tmp_path: Path
) -> None:
    learner, adapter = made()
    whole, _ = made("merged")
    config = tiny().config
    engine = engine_of(solver=Adapted(config, written(adapter, tmp_path)), other=config)
    assert engine.versions() == {}, "a base is no version"
    engine.load("solver", 0, learner.snapshot_weights())
    engine.load("other", 0, whole.snapshot_weights())
    engine.hold("solver", 0)
    first = generated(engine, "solver")
    np.testing.assert_allclose(first.logprobs, trained_logprobs(learner, first), atol=2e-5)
    for version in (1, 2):
        step(learner, version)
        engine.load("solver", version, learner.snapshot_weights())
        got = generated(engine, "solver")
        assert got.version_runs == ((version, 20),)
        np.testing.assert_allclose(got.logprobs, trained_logprobs(learner, got), atol=2e-5)
        assert got.ids.tolist() != first.ids.tolist()
    np.testing.assert_array_equal(generated(engine, "solver", version=0).logprobs, first.logprobs)
    other = generated(engine, "other")
    np.testing.assert_allclose(other.logprobs, trained_logprobs(whole, other), atol=2e-5)


def test_held_versions_of_an_adapter_have_their_base_in_common(
    engine_of: Callable[..., TorchEngine], tmp_path: Path
) -> None:
    _, adapter = made()
    engine = engine_of(solver=Adapted(tiny().config, written(adapter, tmp_path)))
    lm = engine._sets.serving_set("solver").lm
    copied, own = dict(lm.copy().model.named_parameters()), dict(lm.model.named_parameters())
    assert {name for name in own if copied[name] is own[name]} == {name for name in own if ".lora_" not in name}


def test_the_engine_refuses_weights_that_are_not_this_adapter(
    engine_of: Callable[..., TorchEngine], tmp_path: Path
) -> None:
    learner, adapter = made()
    engine = engine_of(solver=Adapted(tiny().config, written(adapter, tmp_path)))
    engine.load("solver", 0, learner.snapshot_weights())
    before = generated(engine, "solver")
    with pytest.raises(EngineError, match="do not have the parameters of the model"):
        engine.load("solver", 1, made("merged")[0].snapshot_weights())
    assert generated(engine, "solver").logprobs.tolist() == before.logprobs.tolist()


@pytest.mark.numerics
def test_an_adapter_on_a_mixture_of_experts_has_its_base_as_hugging_face_files_hold_it(
    engine_of: Callable[..., TorchEngine], tmp_path: Path
) -> None:
    shape = {**SHAPE, "architecture": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2}
    model = build_model({**shape, "moe_intermediate_size": 24}, TOKENIZER, seed=1)
    adapter = Adapter(model, Lora(rank=4), 1)
    learner = Learner(model, SETTINGS, 1, adapter)
    folder = written(adapter, tmp_path)
    assert "model.layers.0.mlp.experts.3.up_proj.weight" in open_weights(folder).tensors
    step(learner, 1)
    engine = engine_of(solver=Adapted(model.config, folder))
    engine.load("solver", 1, learner.snapshot_weights())
    got = generated(engine, "solver")
    np.testing.assert_allclose(got.logprobs, trained_logprobs(learner, got), atol=2e-5)
    again = build_model({**shape, "moe_intermediate_size": 24}, TOKENIZER, seed=9)
    load_base(again, folder)
    back = Learner(again, SETTINGS, 1, Adapter(again, Lora(rank=4), 9))
    back.load_state(learner.trained.copy())
    for one in (learner, back):
        step(one, 2)
    assert hash_weights(back.snapshot_weights()) == hash_weights(learner.snapshot_weights())


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft asks for it
def test_an_exported_adapter_is_a_folder_that_transformers_reads_and_the_page_merges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, adapter = made()
    step(learner, 1)
    published = learner.snapshot_weights()
    monkeypatch.chdir(tmp_path)
    Path("EXPORTED").mkdir()
    write_adapter(published, written(adapter, Path("EXPORTED")) / ADAPTER_WEIGHTS, hash_weights(published))
    (lines,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(lines, {})  # noqa: S102 - the page's own
    sequences = batch(3)
    for folder in ("EXPORTED", "MERGED"):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        torch.testing.assert_close(logprobs(learner.model, sequences), logprobs(model, sequences), atol=1e-5, rtol=0)


# --------------------------------------------------------------------------------------------------- what goes wrong


def test_a_worker_is_given_the_base_only_where_the_weights_are_an_adapter() -> None:
    beside = [NamedObject(name) for name in ("config.json", "tokenizer.json", "model.safetensors")]
    assert [file.name for file in choose_files_to_serve(beside)] == ["config.json", "tokenizer.json"]
    beside.append(NamedObject("adapter_config.json"))
    assert choose_files_to_serve(beside) == tuple(beside)


def test_a_target_that_matches_nothing_is_named() -> None:
    for target in ("lm_head", "embed_tokens", "proj"):
        with pytest.raises(ModelError, match=f"names '{target}', which is not a linear layer"):
            Adapter(tiny(), LORA.model_copy(update={"targets": ("q_proj", target)}), 1)


def test_a_folder_that_holds_an_adapter_is_no_model_to_begin_with(tmp_path: Path) -> None:
    written(made()[1], tmp_path)
    with pytest.raises(ModelError, match=r"holds an adapter .*: merge it into its model"):
        load_model(tmp_path)


def test_a_base_of_another_model_is_refused(tmp_path: Path) -> None:
    written(made()[1], tmp_path)
    with pytest.raises(ModelError, match="do not fit the config"):
        load_base(build_model({**SHAPE, "hidden_size": 16}, TOKENIZER, seed=1), tmp_path)


def test_a_revision_with_another_adapter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def recipe(lora: dict[str, Any] | None, steps: int) -> Recipe:
        policy = {"model": SHAPE, "alphabet": "01", "lora": lora}
        workflow = {"env": {"use": "arithmetic"}, "policies": {"solver": "solver"}}
        whole = {"name": "run", "policies": {"solver": policy}, "workflows": {"sums": workflow}}
        return Recipe.model_validate({**whole, "trainer": {"steps": steps}})

    store = StoreAddress("127.0.0.1:1", "bucket", "key", "secret", prefix="run-1/", keys_file="/store.json")
    text = revisions.describe_store(store)
    first = revisions.build_revision("run-1", 0, recipe({"rank": 4}, 10), text)
    monkeypatch.setattr(revisions, "read_known_revisions", lambda _address: [first])
    address = RunAddress(Connection("127.0.0.1:1"), "run")

    def settled(new: Recipe) -> Any:
        return revisions.plan_revision(address, new, store, new_recipe=True)

    assert settled(recipe({"rank": 4}, 20)).revision == 1
    for lora in (None, {"rank": 2}, {"rank": 4, "publish": "merged"}):
        with pytest.raises(UsageError, match=r"policies\.solver\.lora cannot change within a run"):
            settled(recipe(lora, 20))


def test_a_target_that_there_is_not_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    check_names(load_recipe("arithmetic-lora"))
    wrong = 'policies.solver.lora.targets=["q_porj"]'
    said = r"^policies\.solver: lora.targets names 'q_porj', .*did you mean q_proj\?$"
    with pytest.raises(UsageError, match=said):
        check_names(load_recipe("arithmetic-lora", [wrong]))
    for name, data in encode_model_files(tiny(), TOKENIZER).items():
        (tmp_path / name).write_bytes(data)
    of_folder = load_recipe("arithmetic-lora").model_dump()
    policy = {"path": str(tmp_path), "lora": {"targets": ["q_porj"]}}
    with pytest.raises(UsageError, match=said):
        check_names(Recipe.model_validate({**of_folder, "policies": {"solver": policy}}))
