"""What `headrace up` finds wrong before it starts anything: one list, and what may go wrong beside it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from made_recipes import sums_recipe
from rich.console import Console
from tiny_models import TOKENIZER
from typer.testing import CliRunner

from headrace.app.cli.main import app
from headrace.app.launcher import launcher
from headrace.envs.contract import Problem
from headrace.infra.embedded.data_folder import DataFolder, RunNotes
from headrace.infra.errors import UsageError
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.recipe.settings import Policy, Recipe
from headrace.infra.weights.folder import write_weights
from headrace.infra.weights.tensors import Tensor
from headrace.ops.preflight import devices, room
from headrace.ops.preflight import recipe as recipe_checks
from headrace.ops.preflight.contract import Asked, Doubt, Fault, RecipeUnfit, collect_faults, list_doubts, refuse
from headrace.ops.preflight.devices import SeenDevice, SeenDevices, WantedDevice, find_device_faults, find_devices
from headrace.ops.preflight.machine import DISK_BYTES, GIB
from headrace.ops.preflight.models import check_model_files, check_tokenizer
from headrace.ops.preflight.prompts import check_template_takes_prompt
from headrace.ops.preflight.room import (
    ModelSize,
    Need,
    Room,
    judge_disk,
    judge_memory,
    list_memory_needs,
    measure_model,
)
from headrace.ops.preflight.table import CHECKS, _with_one_process, examine, examine_machine
from headrace.producers.feed.evaluation_schedule import Evaluation
from headrace.producers.feed.planned import build_common_task, build_evaluation_task
from headrace.schemas.ids import GroupId
from headrace.trainers.start import build_first_model

NO_GPU = SeenDevices(0, {"cuda": SeenDevice("Torch not compiled with CUDA enabled")})
TWO_GPUS = SeenDevices(
    2, {"cuda": SeenDevice(free=4, total=8), "cuda:3": SeenDevice("CUDA error: invalid device ordinal")}
)


def sentences(recipe: Recipe, **more: Any) -> list[str]:
    return [fault.sentence for fault in examine(Asked(recipe, **more)) if not fault.is_doubt]


# ------------------------------------------------------------------------------------------------------------ the list


def test_all_that_is_wrong_is_one_list_with_exit_code_2_and_nothing_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "probe_devices", lambda _: NO_GPU)
    monkeypatch.setattr(room, "probe_devices", lambda _: NO_GPU)
    data = tmp_path / "train.jsonl"
    data.write_text('{"problem": "1 + 1?", "answer": "2"}\n{"problem": "no answer"}\n')
    workflows = {
        "math": {"env": {"use": "dataset", "path": str(data)}, "policies": {"solver": "solver"}},
        "own": {"env": "no_such_module:Env", "policies": {"solver": "solver"}},
    }
    recipe = sums_recipe(
        policies={"solver": {"path": str(tmp_path / "none")}},
        workflows=workflows,
        trainer={"device": "cuda", "advantage": "groop"},
        feed={"selector": "gresso"},
        kafka={"client": {"no.such.setting": "1"}},
    )
    request = launcher.UpRequest(recipe, tmp_path / "run", tmp_path / "no" / "summary.json")

    with pytest.raises(RecipeUnfit) as refused:
        launcher.up(request, Console(file=io.StringIO()))

    assert refused.value.exit_code == 2
    first, *lines = str(refused.value).splitlines()
    assert first == f"{len(lines)} things are wrong with this recipe:"
    for said in (
        'trainer.device of solver is "cuda", but torch finds no GPU here',
        f"policies.solver.path: there is no folder {tmp_path / 'none'}",
        f"workflows.math: {data}:2: `answer` must be a non-empty string",
        "workflows.own: environment: there is no module no_such_module",
        "feed.selector: 'gresso' is not known; take one of greso",
        "trainer.advantage: 'groop' is not known",
        "no.such.setting",
        "the summary cannot be written",
    ):
        assert [line for line in lines if said in line], said
    assert len(lines) == 8
    assert not (tmp_path / "run").exists()


def test_one_thing_that_is_wrong_is_one_sentence_and_what_is_doubted_refuses_nothing() -> None:
    refuse([Fault("it may be small", is_doubt=True)])
    with pytest.raises(RecipeUnfit, match=r"^it is wrong$"):
        refuse([Fault("it is wrong"), Fault("it is wrong"), Fault("it may be small", is_doubt=True)])


def test_a_policy_that_no_workflow_plays_is_doubted() -> None:
    recipe = load_recipe("arithmetic")
    both = {**recipe.policies, "idle": recipe.policies["solver"]}
    [doubt] = list_doubts(recipe_checks.examine_workflows(Asked(recipe.model_copy(update={"policies": both}))))
    assert doubt == (
        "no workflow plays policy idle, so it is never trained: name it in the policies of a workflow, or remove it"
    )


def test_region_workers_that_would_have_no_partition_are_doubted() -> None:
    [told] = list_doubts(recipe_checks.examine_partitions(Asked(sums_recipe(regions={"west": {"workers": 9}}))))
    assert told.startswith("regions.west.workers is 9, but kafka.partitions is 8: 1 of the workers gets no task.")


@pytest.mark.parametrize(
    ("kafka", "launch", "doubts"),
    [
        ({}, {"workers": 8, "curators": 8}, {}),
        ({}, {"workers": 20}, {"launch.workers is 20, but kafka.partitions is 8: 12 of the workers get no task": 20}),
        (
            {"partitions": 32, "task_partitions": 4},
            {"workers": 5, "curators": 33},
            {
                "launch.workers is 5, but kafka.task_partitions is 4: 1 of the workers gets no task": 5,
                "launch.curators is 33, but kafka.partitions is 32: 1 of the curators gets no group": 33,
            },
        ),
    ],
)
def test_processes_that_would_have_no_partition_are_doubted(
    kafka: dict[str, int], launch: dict[str, int], doubts: dict[str, int]
) -> None:
    told = list_doubts(recipe_checks.examine_partitions(Asked(sums_recipe(kafka=kafka, launch=launch))))
    assert [doubt.partition(". ")[0] for doubt in told] == [*doubts]
    assert all(f"partitions to {count} or more;" in doubt for doubt, count in zip(told, doubts.values(), strict=True))


def test_what_own_code_raises_is_a_fault_with_its_line_and_one_out_of_reach_a_doubt() -> None:
    faults: list[Fault] = []
    with collect_faults(faults, "workflows.own: "):
        raise LookupError("no such table")
    with collect_faults(faults, "workflows.own: "):
        raise ConnectionRefusedError("the judge is away")
    [fault] = [one for one in faults if not one.is_doubt]
    assert fault.sentence.startswith("workflows.own: LookupError: no such table at ")
    assert "test_recipe_checks.py:" in fault.sentence
    [doubt] = list_doubts(faults)
    assert doubt.startswith(
        "workflows.own: a server cannot be reached now (ConnectionRefusedError: the judge is away at "
    )
    assert doubt.endswith("): a run waits until it answers")


def test_a_recipe_that_needs_neither_is_judged_without_torch_and_transformers(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from headrace.infra.recipe.recipe_file import load_recipe;"
        "from headrace.ops.preflight.contract import Asked;"
        "from headrace.ops.preflight.table import examine;"
        f"print(examine(Asked(load_recipe('arithmetic'), Path({str(tmp_path)!r}))),"
        "{'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[] set()\n"


@pytest.mark.parametrize(("low", "high"), [(0.5, 0.3), (0.4, 0.4), (0.0, 0.3)])
def test_a_band_that_no_warm_start_could_meet_is_refused_at_the_start(low: float, high: float) -> None:
    band = {"reward_low": low, "reward_high": high}
    recipe = sums_recipe(policies={"solver": {"path": "/models/any", "warm_start": band}})
    sentences = [fault.sentence for fault in recipe_checks.examine_models(Asked(recipe))]
    assert (
        f"policies.solver.warm_start: reward_low must be above 0 and below reward_high, got {low} and {high}"
        in sentences
    )


def test_what_the_feeder_would_refuse_is_refused_at_the_start() -> None:
    few = sums_recipe(
        workflows={"sums": {"env": "arithmetic", "policies": {"solver": "solver"}}},
        evaluate={"problems": 10_000_000},
        feed={"selector": "tiers", "raise_tier": True},
    )
    assert [
        one
        for one in sentences(few)
        if one.startswith("feed.raise_tier and the selector tiers of feed.selector both choose")
    ]
    scripted = {"path": "/models/any", "warm_start": {}}
    cold = sums_recipe(
        policies={"solver": scripted}, workflows={"sums": {"env": "scripted", "policies": {"solver": "solver"}}}
    )
    assert [one for one in sentences(cold) if "needs worked examples, but environment 'scripted'" in one]


def test_equal_greedy_answers_are_played_once_and_this_is_said() -> None:
    for temperature, played in ((0, 1), (0.5, 4)):
        recipe = sums_recipe(evaluate={"temperature": temperature, "samples": 4, "problems": 1})
        doubts = [one for one in list_doubts(examine(Asked(recipe))) if "is played once, not 4 times" in one]
        bare = build_common_task(recipe, "run", 0, GroupId("sums", 0), Problem("1", "1+1?"))
        task = build_evaluation_task(recipe, bare, 0, Evaluation("sums", "solver", {"solver": 0}))
        assert (len(doubts), task.n_asked) == (int(played == 1), played)


def test_a_prompt_that_the_chat_template_refuses_is_told_in_the_words_of_the_template(folder: Path) -> None:
    said = {"role": "system", "content": "Be brief."}
    plain, with_rules = Problem("1", "1+1?"), Problem("1", [said, {"role": "user", "content": "1+1?"}])

    def check(problem: Problem) -> None:
        environment: Any = SimpleNamespace(name="own", size=lambda _: 1, problem=lambda *_: problem)
        check_template_takes_prompt(environment, "solver", policy_of(folder))

    template = folder / "chat_template.jinja"
    check(with_rules)
    template.write_text("{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}")
    check(plain)
    refused = r"policies\.solver refuses .* at message 0 \(system\); its messages are of system, user: no system"
    with pytest.raises(ValueError, match=refused):
        check(with_rules)
    template.write_text("{{ messages | a_filter_of_transformers_alone }}")
    check(with_rules)
    template.write_text("{% for message in messages %}{{ message.name + '!' if message.role == 'user' }}{% endfor %}")
    with pytest.raises(Doubt, match=r"fails on the first prompt .* at message 1 \(user\): UndefinedError: .*'name'"):
        check(with_rules)


def test_a_template_that_hides_tools_is_doubted_for_an_own_workflow_too(folder: Path) -> None:
    own: Any = SimpleNamespace(
        name="own", size=lambda _: 1, problem=lambda *_: Problem("1", "1?", tools=[{"name": "mul"}])
    )
    template = folder / "chat_template.jinja"
    for text, is_hidden in (("{{ messages }}", True), ("{{ tools | tojson }}{{ messages }}", False), (None, True)):
        template.unlink() if text is None else template.write_text(text)
        found = recipe_checks._check_prompts(own, "solver", policy_of(folder), "own:play", "here: ")
        assert [fault.is_doubt for fault in found] == [True] * is_hidden
        assert all("shows the tools of environment own: mul. A chat" in fault.sentence for fault in found)


def test_an_engine_of_the_users_own_is_imported_where_workers_start() -> None:
    def own(workers: int) -> list[str]:
        recipe = load_recipe("arithmetic", ["rollout.engine=no_such_engine:open", f"launch.workers={workers}"])
        return [one for one in sentences(recipe) if one.startswith("rollout.engine: there is no module no_such_engine")]

    assert (len(own(1)), len(own(0))) == (1, 0)


def test_doctor_shows_every_check_of_a_recipe() -> None:
    good = CliRunner().invoke(app, ["doctor", "arithmetic"])
    assert good.exit_code == 0, good.output
    assert "sums: 42,250 problems for training, 8,450 held out" in good.output
    bad = CliRunner().invoke(app, ["doctor", "arithmetic", "--set", "trainer.advantage=groop"])
    assert bad.exit_code == 1
    assert "trainer.advantage: 'groop' is not known" in bad.output
    assert all(check.name in bad.output for check in CHECKS)


def test_doctor_asks_of_a_recipe_what_up_asks_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "no"))
    (tmp_path / "begun").mkdir()
    DataFolder(tmp_path / "begun").write(RunNotes("arithmetic", "", embedded_kafka=True))
    own = 'policies.solver={ path = "/not/there" }'
    begun, new = (
        CliRunner().invoke(app, ["doctor", "arithmetic", "--set", own, "--data", str(tmp_path / one)]).output
        for one in ("begun", "new")
    )
    assert "maybe: policies.solver.path: there is no folder /not/there" in begun
    assert "maybe: policies.solver.path" not in new
    said = f"TMPDIR is {tmp_path / 'no'}, which is not a folder: set it to a writable folder, or unset it"
    assert said in new
    assert [one.detail for one in examine_machine() if one.what == "temporary folder"] == [said]


# --------------------------------------------------------------------------------------------------------- the devices


def test_only_devices_of_what_starts_here_are_asked_for() -> None:
    assert find_devices(sums_recipe()) == ()
    both = {"rollout": {"device": "cuda:1"}, "trainer": {"device": "cuda", "processes": 2}}
    assert find_devices(sums_recipe(**both)) == (
        WantedDevice("rollout.device", "cuda:1"),
        WantedDevice("trainer.device of solver", "cuda", 2),
    )
    both["trainer"]["processes"] = 0
    assert find_devices(sums_recipe(**both, launch={"workers": 0})) == ()


@pytest.mark.parametrize(
    ("wanted", "seen", "said"),
    [
        (WantedDevice("a", "cuda", 2), TWO_GPUS, ""),
        (
            WantedDevice("a", "cuda", 3),
            TWO_GPUS,
            'a is "cuda", so each of the 3 processes (trainer.processes) needs a GPU of its own',
        ),
        (WantedDevice("a", "cuda:3"), TWO_GPUS, 'a is "cuda:3", but torch cannot use it ('),
        (WantedDevice("a", "cuda"), NO_GPU, 'a is "cuda", but torch finds no GPU here (Torch not compiled'),
        (WantedDevice("a", "gpu"), SeenDevices(0, {"gpu": SeenDevice("Expected one of cpu")}), 'set "cpu", "cuda"'),
    ],
)
def test_a_device_that_is_not_there_is_named_with_those_that_are(
    wanted: WantedDevice, seen: SeenDevices, said: str
) -> None:
    found = [fault.sentence for fault in find_device_faults([wanted], seen)]
    assert len(found) == bool(said)
    assert said in "".join(found)


# ----------------------------------------------------------------------------------------------------------- the model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that passes every check: config, tokenizer and weights of 12 parameters."""
    made = tmp_path / "model"
    made.mkdir()
    config = {"vocab_size": len(TOKENIZER), "hidden_size": 4, "num_attention_heads": 2, "num_hidden_layers": 3}
    (made / "config.json").write_text(json.dumps(config))
    TOKENIZER.save_pretrained(made)
    values = np.zeros(12, np.float32)
    write_weights({"w": Tensor("F32", (3, 4), memoryview(values).cast("B"))}, made, "0" * 64)
    return made


def policy_of(folder: Path) -> Policy:
    return Policy(path=str(folder))


def test_a_sound_folder_passes_and_its_size_is_counted(folder: Path) -> None:
    check_model_files("solver", policy_of(folder))
    check_tokenizer("solver", policy_of(folder))
    assert measure_model(policy_of(folder)) == ModelSize(12, True, 2 * 3 * 4)


def break_weights(folder: Path) -> None:
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(90)


def write_int8(folder: Path) -> None:
    write_weights({"w.weight": Tensor("I8", (4,), memoryview(bytes(4)))}, folder, "0" * 64)


def write_tied(folder: Path, head: float = 1.0) -> None:
    (folder / "config.json").write_text('{"tie_word_embeddings": true}')
    embeddings, other = (np.full((2, 3), value, np.float32) for value in (1.0, head))
    named = {"model.embed_tokens.weight": embeddings, "lm_head.weight": other}
    tensors = {name: Tensor("F32", (2, 3), memoryview(value).cast("B")) for name, value in named.items()}
    write_weights(tensors, folder, "0" * 64)


def write_pointer(file: Path) -> None:
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")


def test_a_tokenizer_that_is_a_pointer_is_told(folder: Path) -> None:
    write_pointer(folder / "tokenizer.json")
    with pytest.raises(UsageError, match=r"tokenizer\.json is a Git LFS pointer, .* lfs pull"):
        check_tokenizer("solver", policy_of(folder))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: write_tied(folder, 2.0), "says tie_word_embeddings: true, but .* write tie_word_embeddings"),
        (lambda folder: write_pointer(folder / "model.safetensors"), "is a Git LFS pointer, .* lfs pull"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json is not JSON"),
        (lambda folder: (folder / "config.json").write_text('{"quantization_config": {}}'), "is quantised"),
        (lambda folder: (folder / "adapter_config.json").write_text("{}"), "holds an adapter beside its model"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "holds no tokenizer"),
        (break_weights, "the weights cannot be read: .*model.safetensors"),
        (write_int8, r"BF16, F16, F32 or F64 to be trained, but 1 in .* such as w.weight \(I8\)"),
    ],
)
def test_a_folder_that_no_trainer_can_begin_with_is_refused_by_what_it_lacks(
    folder: Path, spoil: Callable[[Path], None], said: str
) -> None:
    spoil(folder)
    with pytest.raises(UsageError, match=f"^policies.solver.path: .*{said}"):
        check_model_files("solver", policy_of(folder))


def test_a_folder_that_is_not_there_is_refused_unless_the_run_has_begun() -> None:
    recipe = sums_recipe(policies={"solver": {"path": "Qwen/Qwen3-1.7B"}})
    [said] = sentences(recipe)
    assert "there is no folder Qwen/Qwen3-1.7B, and Headrace never downloads a model: download it" in said
    assert sentences(recipe, has_begun=True) == []
    elsewhere = sums_recipe(policies={"solver": {"path": "Qwen/Qwen3-1.7B"}}, trainer={"processes": 0})
    assert sentences(elsewhere) == []


def test_a_tokenizer_of_another_model_and_a_broken_template_are_refused(folder: Path) -> None:
    template = folder / "chat_template.jinja"
    template.write_text("{% for m in messages %}{% generation %}{{ m }}{%- endgeneration %}{% break %}{% endfor %}")
    check_tokenizer("solver", policy_of(folder))
    template.write_text("{% for m in messages %}")
    with pytest.raises(UsageError, match=r"^policies.solver.path: the chat template in .* \(line 1\)"):
        check_tokenizer("solver", policy_of(folder))
    (folder / "config.json").write_text('{"vocab_size": 3}')
    with pytest.raises(UsageError, match="has 14 tokens, but the model has only 3"):
        check_tokenizer("solver", policy_of(folder))
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match="cannot be read as a tokenizer"):
        check_tokenizer("solver", policy_of(folder))


# ---------------------------------------------------------------------------------------------------- memory and disk


def test_the_parameters_of_a_config_are_near_those_of_its_model() -> None:
    recipe = load_recipe("arithmetic")
    policy = recipe.policies["solver"]
    model, _ = build_first_model(policy, 1)
    counted = sum(parameter.numel() for parameter in model.parameters())
    size = measure_model(policy)
    assert size is not None
    assert not size.is_exact
    assert size.parameters == pytest.approx(counted, rel=0.05)


def test_what_a_recipe_needs_is_counted_by_device_and_part() -> None:
    sizes = {"solver": ModelSize(1000, True, 10)}

    def needs(**tables: Any) -> dict[tuple[str, str, str], float]:
        found = list_memory_needs(sums_recipe(**tables), sizes)
        return {(need.device, need.who.partition(" ")[0], need.what.partition(" of ")[0]): need.size for need in found}

    cpu = needs(rollout={"concurrency": 4, "max_tokens": 100}, evaluate={"every": 0})
    assert cpu == {
        ("cpu", "trainer", "weights"): 8000,
        ("cpu", "trainer", "gradients"): 8000,
        ("cpu", "trainer", "optimizer"): 8000,
        ("cpu", "rollout", "weights"): 4000,
        ("cpu", "rollout", "KV cache"): 10 * 4 * 4 * 100,
    }
    shared = needs(trainer={"device": "cuda", "processes": 2}, launch={"workers": 0})
    assert shared["cuda:1", "trainer", "weights"] == 3000
    assert sum(shared.values()) == 20_000
    adapter = needs(policies={"solver": {"path": "/models/any", "lora": {}}}, launch={"workers": 0})
    assert adapter == {("cpu", "trainer", "weights"): 4000}


def test_memory_that_can_never_suffice_is_refused_and_memory_that_is_short_now_is_doubted() -> None:
    needs = [
        Need("cpu", "trainer of solver", "weights", 6 * GIB, is_sure=True),
        Need("cpu", "trainer of solver", "optimizer", 2 * GIB, is_sure=True),
        Need("cpu", "rollout of math", "KV cache of 128 sequences", 4 * GIB, is_sure=False),
    ]
    assert judge_memory(needs, {"cpu": Room(12 * GIB, 16 * GIB)}) == []
    [short] = judge_memory(needs, {"cpu": Room(10 * GIB, 16 * GIB)})
    [never] = judge_memory(needs, {"cpu": Room(2 * GIB, 7 * GIB)})
    assert (short.is_doubt, never.is_doubt) == (True, False)
    assert "about 12.0 GiB are needed (trainer of solver: weights 6.0, optimizer 2.0; rollout of math: KV cache" in (
        short.sentence
    )
    assert "10.0 of 16.0 GiB are free" in short.sentence


def test_a_disk_that_is_nearly_full_is_refused_and_one_that_may_fill_is_doubted(tmp_path: Path) -> None:
    recipe = sums_recipe(trainer={"steps": 100, "checkpoint_every": 10, "anchor_every": 50})
    objects = room.estimate_objects(recipe, {"solver": ModelSize(1_000_000, True, 1)})
    assert objects == 1_000_000 * (11 * 12 + 3 * 2)
    [full] = judge_disk(recipe, tmp_path, 100 << 20, 0.0)
    assert not full.is_doubt
    assert "100 MiB of free disk space" in full.sentence
    [doubt] = judge_disk(recipe, tmp_path, DISK_BYTES + GIB, 2.0 * GIB)
    assert doubt.is_doubt
    assert "may need 4.0 GiB (2.0 GiB for checkpoints" in doubt.sentence
    assert judge_disk(recipe, tmp_path, DISK_BYTES + GIB, 0.5 * GIB) == []
    elsewhere = sums_recipe(store={"endpoint": "s3:1"})
    assert judge_disk(elsewhere, tmp_path, DISK_BYTES + GIB, 2.0 * GIB) == [], "objects are in another store"


def test_a_trial_takes_its_step_in_one_process() -> None:
    own = {"path": "/models/any", "trainer": {"processes": 16, "tensor_parallel": 2}}
    recipe = sums_recipe(trainer={"processes": 64, "device": "cuda"}, policies={"solver": own})
    assert [one.processes for one in find_devices(_with_one_process(recipe))] == [1]
    shadowed = sums_recipe(shadows={"other": {"trainer": {"processes": 2}}})
    assert _with_one_process(shadowed).trainer_of("solver.other").processes == 1
