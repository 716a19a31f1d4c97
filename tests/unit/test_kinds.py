from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from made_recipes import sums_recipe

from headrace.app.launcher.components import list_components
from headrace.infra.errors import UsageError
from headrace.infra.process.signals import MustRestart
from headrace.infra.recipe.kinds import list_kinds, require_playable
from headrace.infra.recipe.plug_in_sources import all_plug_ins, rollout_plug_ins
from headrace.infra.recipe.settings import Recipe
from headrace.ops.figures.workers import describe_kinds, list_missing_kinds
from headrace.producers.engines.registry import check_engine
from headrace.producers.rollout.revision_check import RevisionCheck
from headrace.producers.rollout.runtime import Options
from headrace.schemas.records import WorkerStatus
from headrace.schemas.topics import Topics

NOW = 1_000_000
WORKFLOW = {"env": {"use": "arithmetic"}, "policies": {"solver": "solver"}}


def pinned(training: str = "", evaluations: str = "", **tables: Any) -> Recipe:
    workflows = {"sums": {**WORKFLOW, "kind": training}}
    return sums_recipe(workflows=workflows, evaluate={"kind": evaluations}, **tables)


@pytest.mark.parametrize(
    ("pins", "kind", "region", "topics"),
    [
        (("", ""), "", "", ["sums", "eval.sums"]),
        (("", ""), "any", "", ["sums", "eval.sums"]),
        (("gpu", ""), "gpu", "", ["sums", "eval.sums"]),
        (("", "gpu"), "cpu", "", ["sums"]),
        (("", "gpu"), "gpu", "", ["sums", "eval.sums"]),
        (("gpu", "cpu"), "gpu", "", ["sums"]),
        (("gpu", "cpu"), "cpu", "", ["eval.sums"]),
        (("gpu", ""), "gpu", "west", ["sums"]),
    ],
)
def test_a_worker_reads_only_the_tasks_that_its_kind_may_play(
    pins: tuple[str, str], kind: str, region: str, topics: list[str]
) -> None:
    playable = require_playable(pinned(*pins), "sums", kind, region)
    options = Options("sums", "w", region, "sums", 1, 8, kind, playable)

    names = Topics("t")
    assert options.list_task_topics(names, is_evaluating=True) == tuple(names.tasks(stream) for stream in topics)


@pytest.mark.parametrize(("kind", "own"), [("", "has no kind"), ("cpu", "is of kind cpu")])
def test_a_worker_of_another_kind_is_refused_with_what_to_start_instead(kind: str, own: str) -> None:
    with pytest.raises(
        UsageError, match=f"pins workflow sums to workers of kind gpu, .* {own}: start it with --kind gpu"
    ):
        require_playable(pinned("gpu"), "sums", kind)
    with pytest.raises(UsageError, match="gpu"):
        require_playable(pinned("gpu", "cpu"), "sums", "cpu", "west")


def test_up_starts_workers_of_the_pinned_kinds_and_one_more_for_evaluations_of_another() -> None:
    def start(recipe: Recipe) -> dict[str, str]:
        commands = {one.name: " ".join(one.command) for one in list_components(recipe, "A", Path("logs"))}
        return {name: command.partition("--name ")[2] for name, command in commands.items() if "rollout" in name}

    two = {"workers": 2}
    assert start(pinned(launch=two)) == {f"rollout-sums-{n}": f"rollout-sums-{n} --run A" for n in range(2)}
    assert start(pinned("gpu")) == {"rollout-sums-0": "rollout-sums-0 --kind gpu --run A"}
    assert start(pinned("", "gpu")) == {"rollout-sums-0": "rollout-sums-0 --kind gpu --run A"}
    assert start(pinned("gpu", "cpu")) == {
        "rollout-sums-0": "rollout-sums-0 --kind gpu --run A",
        "rollout-sums-evaluations": "rollout-sums-evaluations --kind cpu --run A",
    }
    assert list_kinds(pinned("gpu", "cpu").model_copy(update={"evaluate": pinned().evaluate}), "sums") == ("gpu",)


def test_a_kind_has_its_own_engine_and_all_else_of_the_rollout() -> None:
    own, slow = {"engine": "mine:open", "device": "cuda:1"}, {"concurrency": 2}
    recipe = sums_recipe(kinds={"gpu": own, "slow": slow}, rollout={"max_tokens": 7, "concurrency": 9})

    gpu = recipe.rollout_of("gpu")
    assert (gpu.engine.use, gpu.device, gpu.concurrency, gpu.max_tokens) == ("mine:open", "cuda:1", 9, 7)
    assert recipe.rollout_of("slow").concurrency == 2
    assert recipe.rollout_of("named nowhere") == recipe.rollout_of("") == recipe.rollout
    assert Recipe.from_json(recipe.to_json()).rollout_of("gpu") == gpu
    assert (rollout_plug_ins(recipe, "sums", "gpu"), rollout_plug_ins(recipe, "sums")) == (("mine:open",), ())
    assert "mine:open" in all_plug_ins(recipe), "its source is recorded, though up starts none of that kind"
    with pytest.raises(UsageError, match=r"kinds\.odd: .*no-such"):
        check_engine(sums_recipe(kinds={"odd": {"engine": "no-such"}}))


def test_a_running_worker_ends_or_joins_again_when_a_revision_pins_its_work_elsewhere() -> None:
    run = cast("Any", SimpleNamespace(recipe=pinned(), plug_ins={}))
    revisions = RevisionCheck(run, "sums", "cpu", "")

    revisions.check(pinned("cpu"), run.plug_ins)
    with pytest.raises(MustRestart, match="pins workflow sums or its evaluations"):
        revisions.check(pinned("", "gpu"), run.plug_ins)
    with pytest.raises(UsageError, match="--kind gpu"):
        revisions.check(pinned("gpu"), run.plug_ins)


def worker(name: str = "w", at_ms: int = NOW, **fields: Any) -> WorkerStatus:
    return WorkerStatus(worker=name, workflow="sums", state="rolling", updated_ms=at_ms, **fields)


def test_pinned_work_without_a_living_worker_of_its_kind_is_said_and_what_to_start() -> None:
    def waiting(recipe: Recipe, *workers: WorkerStatus) -> dict[str, str]:
        return dict(list_missing_kinds(recipe, workers, NOW))

    assert waiting(pinned()) == {}
    assert waiting(pinned("gpu"), worker(kind="gpu")) == {}
    found = waiting(pinned("gpu"), worker(kind="gpu", at_ms=0))
    assert found["sums"].startswith("Workflow sums waits for a worker of kind gpu, and none is alive: start one by ")
    assert "`headrace rollout --workflow sums --kind gpu --run ADDRESS`" in found["sums"]
    assert list(waiting(pinned("gpu", "cpu"), worker(kind="gpu"))) == ["eval.sums"]
    assert list(waiting(pinned("", "cpu"), worker(kind="gpu"))) == ["eval.sums"]
    assert waiting(pinned("", "cpu", launch={}).model_copy(update={"evaluate": pinned().evaluate})) == {}


def test_kinds_are_shown_where_there_is_more_than_one() -> None:
    trainer = WorkerStatus(worker="train-solver")
    torch = worker("a", kind="gpu", engine="torch", device="cuda:1", dtype="float32")

    assert describe_kinds([torch, trainer]) == {}
    assert describe_kinds([torch, worker("b", engine="vllm"), trainer]) == {
        "a": "gpu, torch float32 on cuda:1",
        "b": "vllm",
    }
