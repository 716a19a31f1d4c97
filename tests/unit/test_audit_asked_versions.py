"""What a deep audit says of evaluation tasks: held against their headers, one another and their answers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from made_groups import group
from made_recipes import sums_recipe

from headrace.infra.kafka.clients import Connection, Message, RunAddress
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import StoreAddress
from headrace.ops.audit.account import RunAccount
from headrace.ops.audit.deep_look import DeepLook
from headrace.ops.audit.evaluations import Evaluations
from headrace.schemas import codec
from headrace.schemas.headers import Stamp, task_key, task_stamp
from headrace.schemas.records import ClaimCheck, DeadLetter, Failure, Task, TrajectoryGroup
from headrace.schemas.topics import EVALUATOR
from headrace.schemas.versions import find_version_range

RECIPE = sums_recipe(evaluate={"problems": 2})
TOPICS = RECIPE.topics
STREAM, TASKS, ANSWERS = "eval.sums", TOPICS.tasks("eval.sums"), TOPICS.eval_groups("solver")


def task(number: int = 0, **more: Any) -> Task:
    of_evaluation = {"purpose": "eval", "workflow": "sums", "versions": {"solver": 3}}
    return Task(**{"run_id": "r", "stream": STREAM, "number": number, **of_evaluation, **more})


class Scene:
    """Two tasks of the evaluation of version 3, which are answered."""

    def __init__(self, recipe: Recipe = RECIPE) -> None:
        self.recipe = recipe
        self.tasks = [task(0), task(1)]
        self.headers = list(self.tasks)
        """The tasks that the headers are of."""
        self.keys = [task_key(STREAM, number) for number in (0, 1)]
        self.answers: list[TrajectoryGroup] = [
            replace(group([1.0], number=number), run_id="r", stream=STREAM, asked_version=3, purpose="eval")
            for number in (0, 1)
        ]
        self.letters: list[DeadLetter] = []

    def said(self) -> list[str]:
        address = RunAddress(Connection("nowhere:1"), "t")
        run = Run(address, "r", (self.recipe,), StoreAddress("nowhere:2", "b", "key", "key"))
        account, evaluations = RunAccount(self.recipe), Evaluations((self.recipe,))
        deep = DeepLook(run, account, evaluations, None)
        for letter in self.letters:
            evaluations.fold_dead_letter(letter)
        for offset, one in enumerate(self.tasks):
            headers = task_stamp(self.headers[offset]).to_headers()
            message = Message(TASKS, 0, offset, self.keys[offset], codec.encode(one), headers)
            assert evaluations.fold_task(message, "r", {})
            deep.check_evaluation_task(message)
        for offset, answer in enumerate(self.answers):
            low, high = (3, 3) if answer.claim else find_version_range(answer.trajectories)
            versions = {"min_version": low, "max_version": high, "head_version": answer.head_version}
            stamp = Stamp("r", STREAM, answer.number, purpose="eval", policy="solver", **versions)
            message = Message(ANSWERS, 0, offset, stamp.key, codec.encode(answer), stamp.to_headers())
            assert evaluations.fold_answer(message, "r")
            deep.check_answer(message)
        return [str(one) for one in account.unread.problems({}).listed]


def asks(**versions: int) -> Callable[[Scene], None]:
    return lambda scene: scene.tasks.__setitem__(1, replace(scene.tasks[1], versions=versions))


def issued_again(scene: Scene, **versions: int) -> None:
    again = task(1, attempt=1, versions=versions)
    for held, one in ((scene.tasks, again), (scene.headers, again), (scene.keys, task_key(STREAM, 1))):
        held.append(one)  # type: ignore[attr-defined]


def exchanged(scene: Scene) -> None:
    scene.tasks.reverse()


OF_ANSWER = r"eval-groups.solver\[0\]@1 .* it answers for version 3, but the task eval.sums:1 asks for version "
SAYS: list[tuple[Callable[[Scene], None], str]] = [
    (asks(solver=4), OF_ANSWER + "4$"),
    (asks(), OF_ANSWER + "-1$"),
    (
        lambda scene: issued_again(scene, solver=2),
        r"eval-tasks.sums\[0\]@2 .* asks for version 2 of solver, but an earlier .* eval.sums:1 asks for version 3$",
    ),
    (exchanged, r"eval-tasks.sums\[0\]@0 .* its number is 0 by its headers, but 1 by its value$"),
    (lambda scene: scene.keys.__setitem__(1, b"x"), "its key is b'x', but its headers name eval.sums:1$"),
]


def test_a_task_of_an_evaluation_that_is_not_as_it_should_be_is_named() -> None:
    for damage, sentence in SAYS:
        scene = Scene()
        damage(scene)
        assert any(re.search(sentence, what) for what in scene.said()), (sentence, scene.said())


def test_of_tasks_and_answers_that_agree_nothing_is_said() -> None:
    assert Scene().said() == []
    again = Scene()
    issued_again(again, solver=3)
    assert again.said() == [], "the feeder keeps the versions of an evaluation"


def test_an_answer_without_trajectories_or_without_a_task_is_of_no_other_version() -> None:
    gone = Scene()
    failed = {"failures": (Failure(reason="version_gone"),), "reason": "version_gone", "n_asked": 1}
    gone.answers[1] = replace(gone.answers[1], trajectories=(), **failed)
    assert gone.said() == []
    stored = Scene()
    stored.answers[1] = replace(stored.answers[1], trajectories=(), claim=ClaimCheck("main", "k"))
    assert stored.said() == []
    played = Scene()
    played.tasks.pop()
    assert played.said() == [], "the task may be deleted"


def test_an_answer_that_the_evaluator_could_not_read_is_of_the_version_of_its_tokens() -> None:
    scene = Scene()
    scene.letters = [DeadLetter("r", EVALUATOR, ANSWERS, 0, 1, "missing_object", stream=STREAM, number=1)]
    scene.tasks = [replace(one, versions={"solver": 5}) for one in scene.tasks]
    [what] = scene.said()
    assert "eval-groups.solver[0]@0" in what


def test_a_policy_that_came_with_a_later_recipe_is_not_in_earlier_tasks_and_answers_at_its_own_version() -> None:
    tables = RECIPE.model_dump(mode="json")
    both = tables["workflows"]["sums"] | {"policies": {"s": "solver", "j": "judge"}}
    policies = {**tables["policies"], "judge": {"path": "y"}}
    scene = Scene(Recipe.model_validate({**tables, "policies": policies, "workflows": {"sums": both}}))
    issued_again(scene, solver=3)
    assert scene.said() == []


def test_an_answer_that_another_version_generated_is_named() -> None:
    scene = Scene()
    scene.tasks = [replace(one, versions={"solver": 2}) for one in scene.tasks]
    scene.headers = list(scene.tasks)
    scene.answers = [replace(one, asked_version=2) for one in scene.answers]
    assert (
        len([what for what in scene.said() if "it answers for version 2, but version 3 generated tokens of it" in what])
        == 2
    )
