from __future__ import annotations

from pathlib import Path

import pytest

from headrace.infra.errors import UsageError
from headrace.ops.compare.sweep_file import SweepRun, build_curve, load_sweep, remove_addresses

TWO = """
name = "two"
seeds = [1, 2]
set = ["trainer.steps=3", "trainer.minibatches=2"]

[[variants]]
recipe = "arithmetic"

[[variants]]
recipe = "arithmetic"
name = "many-0.5"
set = ["trainer.minibatches=8"]
"""


def write(folder: Path, text: str) -> str:
    path = folder / "sweep.toml"
    path.write_text(text)
    return str(path)


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(UsageError) as caught:
        load_sweep(write(folder, text))
    return str(caught.value)


def runs_of(folder: Path, text: str = TWO) -> list[SweepRun]:
    return load_sweep(write(folder, text))[1]


def test_every_variant_is_run_with_every_seed_seed_by_seed(tmp_path: Path) -> None:
    runs = runs_of(tmp_path)
    assert [run.name for run in runs] == ["two-arithmetic-1", "two-many-0_5-1", "two-arithmetic-2", "two-many-0_5-2"]
    assert [(run.variant, run.seed) for run in runs[:2]] == [("arithmetic", 1), ("many-0.5", 1)]
    assert [run.recipe.name for run in runs] == [run.name for run in runs]
    assert [run.recipe.seed for run in runs] == [1, 1, 2, 2]


def test_a_variants_changes_come_after_those_of_all(tmp_path: Path) -> None:
    first, second, *_ = runs_of(tmp_path)
    assert (first.recipe.trainer.steps, first.recipe.trainer.minibatches) == (3, 2)
    assert (second.recipe.trainer.steps, second.recipe.trainer.minibatches) == (3, 8)
    assert second.sets == (
        "trainer.steps=3", "trainer.minibatches=2", "trainer.minibatches=8", "seed=1", 'name="two-many-0_5-1"',
    )  # fmt: skip


def test_one_line_or_option_exchanges_the_recipe_of_all_variants(tmp_path: Path) -> None:
    text = (
        'name = "two"\nrecipe = "tools"\nseeds = [1]\n[[variants]]\nname = "a"\n[[variants]]\nname = "b"\nover = "a"\n'
    )
    path = write(tmp_path, text)
    assert [run.recipe.workflows["sums"].env.use for run in load_sweep(path)[1]] == ["ledger", "ledger"]
    exchanged = load_sweep(path, "arithmetic")[1]
    assert [(run.recipe.workflows["sums"].env.use, run.over) for run in exchanged] == [
        ("arithmetic", ""),
        ("arithmetic", "a"),
    ]
    assert "variant 1 has no `recipe`" in refusal(tmp_path, text.replace('recipe = "tools"\n', ""))
    assert "`over` must name a variant of the sweep, one of a, b; got 'c'" in refusal(
        tmp_path, text.replace('over = "a"', 'over = "c"')
    )
    with pytest.raises(UsageError, match="--recipe would change nothing"):
        load_sweep(write(tmp_path, TWO), "tools")


def test_two_variants_whose_runs_would_have_one_name_are_refused(tmp_path: Path) -> None:
    text = TWO.replace('name = "many-0.5"', 'name = "lr*2"').replace("[[variants]]", '[[variants]]\nname = "lr/2"', 1)
    assert "variants lr/2 and lr*2 would both have the run name two-lr_2-1" in refusal(tmp_path, text)


def test_a_recipe_beside_the_sweep_file_is_taken_before_a_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "arithmetic").write_text('extends = "arithmetic.toml"\n[trainer]\nlearning_rate = 0.25\n')
    assert {run.recipe.trainer.learning_rate for run in runs_of(tmp_path)} == {0.25}


def test_what_the_tables_of_the_servers_set_is_every_runs(tmp_path: Path) -> None:
    shared = '[kafka]\nbootstrap = "a:1"\npartitions = 2\n[store]\nendpoint = "b:2"\ncache_gib = 1.5\n'
    for run in runs_of(tmp_path, TWO + shared):
        assert (run.recipe.kafka.partitions, run.recipe.store.cache_gib) == (2, 1.5)
        assert run.recipe.kafka.bootstrap == "", "where the servers are is told when a run begins"


def test_recipes_that_differ_in_addresses_only_are_the_same(tmp_path: Path) -> None:
    recipe = runs_of(tmp_path)[0].recipe
    kafka = recipe.kafka.model_copy(update={"bootstrap": "a:1", "client": {"x": "y"}})
    store = recipe.store.model_copy(update={"endpoint": "b:2", "secure": True})
    assert remove_addresses(recipe.model_copy(update={"kafka": kafka, "store": store})) == remove_addresses(recipe)
    other = recipe.kafka.model_copy(update={"partitions": 3})
    assert remove_addresses(recipe.model_copy(update={"kafka": other})) != remove_addresses(recipe)


def test_what_is_wrong_with_a_sweep_is_said(tmp_path: Path) -> None:
    for old, new, telling in (
        (
            "seeds",
            "seed",
            "`seed` is not a known key: the keys there are about, archive, kafka, keep, name, recipe, seeds, set",
        ),
        ("seeds = [1, 2]", "", "`seeds` is missing"),
        ("seeds = [1, 2]", "seeds = []", "`seeds` Tuple should have at least 1 item"),
        ("seeds = [1, 2]", "seeds = [1, 1]", "seed 1 is given more than once: remove one"),
        ("seeds = [1, 2]", "seeds = [1, -2]", "recipe arithmetic is not valid"),
        ("seeds = [1, 2]", "seeds = [1]\nside_by_side = 0", "`side_by_side` must be greater than or equal to 1, got 0"),
        ('name = "many-0.5"\n', "", "variant arithmetic is given more than once: give each variant a `name`"),
        (
            'name = "many-0.5"',
            'nmae = "x"',
            "`variants.1.nmae` is not a known key: the keys there are name, over, recipe, seeds, set",
        ),
        ('name = "many-0.5"', f'name = "{"x" * 60}"', "rename the sweep or the variant"),
        ('name = "two"', 'name = "t.w.o"', "it becomes part of topic names"),
        ('recipe = "arithmetic"', 'recipe = "arithmetics"', "there is no recipe 'arithmetics'"),
        ("trainer.minibatches=8", "trainer.minibatch=8", "trainer.minibatch"),
        ("trainer.minibatches=8", "seed=8", "`set` must not set seed: give seeds in `seeds`"),
        ("trainer.minibatches=8", "name=own", "`set` must not set name: a run is named SWEEP-VARIANT-SEED"),
        ("trainer.minibatches=8", "kafka.bootstrap=x:1", "write it into [kafka] of the sweep file"),
        ("trainer.steps=3", "store.endpoint=x:1", "write it into [store] of the sweep file"),
        ("[[variants]]", "[variants", "is not TOML"),
    ):
        assert old in TWO
        assert telling in refusal(tmp_path, TWO.replace(old, new, 1))
    with pytest.raises(
        UsageError,
        match=r"there is no sweep 'efficient': .* shipped sweeps are efficient-data, efficient-data-turns, group-by$",
    ):
        load_sweep("efficient")


def test_what_may_be_a_secret_is_not_quoted_in_the_refusal_of_a_sweep(tmp_path: Path) -> None:
    for old, new, telling in (
        ("[[variants]]", '[kafka]\nbootstrap = "me:hunter2@host"\n[[variants]]', "`kafka.bootstrap` holds "),
        ("[[variants]]", '[kafka.client]\n"sasl.password" = ["hunter2"]\n[[variants]]', "`kafka.client.sasl.password`"),
        ("[[variants]]", '[store]\nendpoint = "me:hunter2@host"\n[[variants]]', "`store.endpoint` holds "),
        ("trainer.minibatches=8", "kafka.client.sasl.password=hunter2", "must not set kafka.client.sasl.password"),
    ):
        said = refusal(tmp_path, TWO.replace(old, new, 1))
        assert telling in said
        assert "hunter2" not in said


def test_a_curve_is_a_recipe_over_three_seeds_beside_a_control_that_never_updates() -> None:
    sweep, runs = build_curve("tools")
    assert [run.name for run in runs] == ["curve-tools-tools-1", "curve-tools-control-1", *(
        f"curve-tools-tools-{seed}" for seed in (2, 3)
    )]  # fmt: skip
    assert [run.recipe.trainer.learning_rate > 0 for run in runs] == [True, False, True, True]
    assert sweep.variants[1].name == "control"


def test_the_variants_of_a_shipped_sweep_differ_only_in_what_they_are_about() -> None:
    sweep, turns = load_sweep("efficient-data-turns")
    assert [one.variant for one in turns if one.seed == 1] == [
        "no-filter",
        "ds",
        *(f"ds-replay-{share}" for share in ("0.3", "0.5", "0.7")),
        "ds-greso",
        *(f"ds-greso-replay-{share}" for share in ("0.3", "0.5", "0.7")),
        "control",
    ]
    base = turns[0].recipe
    allowed = {"name", "seed", "curate", "feed", "trainer"}
    for run in turns:
        changed = {key for key, value in run.recipe.model_dump().items() if value != base.model_dump()[key]}
        assert changed <= allowed
        chain = [one.use for one in run.recipe.curate.chain]
        assert ("drop_zero_variance" in chain) == run.variant.startswith("ds")
        assert ("replay_latest" in chain) == ("replay" in run.variant)
        assert [one.use for one in run.recipe.feed.selector] == ["greso" if "greso" in run.variant else "accept_all"]
    assert (len(sweep.seeds), base.trainer.steps) == (3, turns[-1].recipe.trainer.steps)

    _, keys = load_sweep("group-by")
    for run in keys:
        recipe, _, key = run.variant.partition(", ")
        group_by = {run.recipe.trainer_of(policy).group_by for policy in run.recipe.policies}
        assert (group_by, run.over) == ({key}, "" if run.variant == "math, task" else f"{recipe}, task")
