import json
from typing import Any

import pytest
from pydantic import ValidationError

from headrace.infra.recipe.settings import Policy, Recipe, Rollout, TrainerSettings
from headrace.infra.run.revisions import find_differences


def plain(**changes: Any) -> dict[str, Any]:
    return {
        "name": "demo",
        "policies": {"solver": {"path": "checkpoint"}, "verifier": {"path": "checkpoint"}},
        "workflows": {"sums": {"env": {"use": "arithmetic"}, "policies": {"solver": "solver", "judge": "verifier"}}},
        **changes,
    }


def test_a_recipe_comes_back_from_its_text_with_all_in_its_order() -> None:
    replay = {"use": "replay_latest", "ratio": 0.5, "max_uses": 2, "capacity": 9}
    policies = {"solver": {"path": "x"}, "judge": {"path": "x"}, "verifier": {"path": "x"}}
    recipe = Recipe.model_validate(plain(curate={"chain": [replay]}, policies=policies))
    text = recipe.to_json()
    back = Recipe.from_json(text)
    assert back == recipe
    assert back.to_json() == text
    assert back.curate.chain[0].settings == {"ratio": 0.5, "max_uses": 2, "capacity": 9}
    assert back.curate.chain[0].describe() == "replay_latest ratio=0.5 max_uses=2 capacity=9"
    assert list(back.policies) == ["solver", "judge", "verifier"]


def test_an_unknown_key_is_refused_in_every_table() -> None:
    for table in ("rollout", "feed", "curate", "trainer", "evaluate", "kafka", "store", "launch"):
        with pytest.raises(ValidationError, match="unknown_key"):
            Recipe.model_validate(plain(**{table: {"unknown_key": 1}}))
    with pytest.raises(ValidationError, match="stepz"):
        Recipe.model_validate(plain(stepz=1))
    with pytest.raises(ValidationError, match="modle"):
        Recipe.model_validate(plain(policies={"solver": {"path": "x", "modle": {}}}))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": "a.b"}, "run name 'a.b' must have at most 63 letters"),
        ({"policies": {}}, "name at least one policy"),
        ({"workflows": {}}, "name at least one workflow"),
        ({"policies": {"a.b": {"path": "x"}}}, "policy name 'a.b'"),
        ({"workflows": {"eval": plain()["workflows"]["sums"]}}, "must not be named 'eval'"),
        (
            {"policies": {"solver": {"path": "x"}}},
            "workflows.sums.policies.judge must be one of solver; got 'verifier'",
        ),
        ({"workflows": {"sums": {"env": {"use": "arithmetic"}, "policies": {}}}}, "name at least one role"),
        ({"trainer": {"groups_per_batch": 10, "minibatches": 4}}, r"\(10\) must be a multiple of minibatches \(4\)"),
    ],
)
def test_a_recipe_that_cannot_run_is_refused_with_a_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        Recipe.model_validate(plain(**changes))


@pytest.mark.parametrize("cut", [{"top_p": 0.9}, {"top_k": 50}, {"min_p": 0.05}])
def test_training_refuses_to_cut_the_distribution(cut: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match="must be 1, 0 and 0 in training"):
        Rollout.model_validate(cut)


def test_a_policy_has_one_origin() -> None:
    model = {"architecture": "qwen3"}
    with pytest.raises(ValidationError, match="give either `path`"):
        Policy()
    with pytest.raises(ValidationError, match="give either `path`"):
        Policy(path="x", model=model, alphabet="01")
    with pytest.raises(ValidationError, match="needs `alphabet`"):
        Policy(model=model)
    assert Policy(model=model, alphabet="01").path == ""


def test_a_policy_may_train_differently_and_its_keys_are_checked_too() -> None:
    policies: dict[str, Any] = {"solver": {"path": "x", "trainer": {"learning_rate": 1e-3}}, "verifier": {"path": "x"}}
    recipe = Recipe.model_validate(plain(policies=policies, trainer={"steps": 7}))
    assert recipe.trainer_of("solver") == TrainerSettings(steps=7, learning_rate=1e-3)
    assert recipe.trainer_of("verifier") == TrainerSettings(steps=7)
    policies["verifier"] = {"path": "x", "trainer": {"learning_rat": 1e-3}}
    with pytest.raises(ValidationError, match="learning_rat"):
        Recipe.model_validate(plain(policies=policies))


def shadowed(**shadows: Any) -> Recipe:
    whole = plain(shadows=shadows, trainer={"steps": 7}, policies={"solver": {"path": "checkpoint"}})
    whole["workflows"]["sums"]["policies"] = {"solver": "solver"}
    return Recipe.model_validate(whole)


def test_a_recipe_of_before_tasks_had_a_count_of_their_own_has_the_same_topics() -> None:
    recipe = shadowed()
    old = json.loads(recipe.to_json())
    del old["kafka"]["task_partitions"]
    assert find_differences(Recipe.from_json(json.dumps(old)), recipe) == []
    more = recipe.model_copy(update={"kafka": recipe.kafka.model_copy(update={"task_partitions": 50})})
    before = {spec.name: spec.partitions for spec in recipe.topic_specs}
    after = {spec.name: spec.partitions for spec in more.topic_specs}
    assert {name.split(".")[1] for name in before if before[name] != after[name]} == {"tasks", "eval-tasks"}
    assert {after[name] for name in before if before[name] != after[name]} == {50}


def test_a_shadow_takes_what_it_does_not_set_from_its_policy() -> None:
    recipe = shadowed(bare={}, own={"policy": "solver", "chain": ["validate"], "trainer": {"steps": 3}})

    assert recipe.policy_variants == ("solver", "solver.bare", "solver.own")
    assert (recipe.trainer_of("solver.bare").steps, recipe.trainer_of("solver.own").steps) == (7, 3)
    assert recipe.chain_of("solver.bare") == recipe.chain_of("solver") == recipe.curate.chain
    assert [one.use for one in recipe.chain_of("solver.own")] == ["validate"]
    assert [recipe.trainer_of(line).is_shadow for line in recipe.policy_variants] == [False, True, True]
    assert {f"{recipe.name}.curated.solver.own", f"{recipe.name}.batches.solver.bare"} <= {
        spec.name for spec in recipe.topic_specs
    }


@pytest.mark.parametrize(
    ("shadow", "why"),
    [
        ({"policy": "nobody"}, "policy must be one of solver; got 'nobody'"),
        ({"trainer": {"steps": 0}}, "the trainer of solver.one"),
        ({"trainer": {"replay_routing": True}}, "needs recorded routing"),
        ({"chain": "validate"}, "shadows.one.chain"),
        ({"curators": 2}, "shadows.one.curators"),
    ],
)
def test_a_shadow_that_cannot_be_is_refused(shadow: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        shadowed(one=shadow)


def test_a_shadows_name_holds_no_dot_and_with_two_policies_it_says_whose_it_is() -> None:
    with pytest.raises(ValidationError, match=r"shadow name 'a\.b'"):
        shadowed(**{"a.b": {}})
    with pytest.raises(ValidationError, match="policy must be one of solver, verifier; it is missing"):
        Recipe.model_validate(plain(shadows={"one": {}}))
