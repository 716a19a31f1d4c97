from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import pytest
from pydantic import AfterValidator, TypeAdapter, ValidationError

from headrace.infra.errors import MaskedValueError, UsageError
from headrace.infra.recipe.recipe_file import describe_value, list_shipped_recipes, load_recipe, replace_chain_from_file
from headrace.infra.recipe.settings import Recipe
from headrace.ops.compare.sweep_file import load_sweep

BASE = """
name = "base"
about = "A recipe for tests."

[policies.solver]
alphabet = "0123456789"
model = { architecture = "qwen3", hidden_size = 64 }

[workflows.sums]
env = { use = "arithmetic", tier = "one-digit" }
policies = { solver = "solver" }

[trainer]
steps = 10
"""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    path = tmp_path / "base.toml"
    path.write_text(BASE)
    return path


def write(folder: Path, text: str, name: str = "own.toml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def refusal(name: str, *sets: str) -> str:
    with pytest.raises(UsageError) as caught:
        load_recipe(name, sets)
    return str(caught.value)


def test_every_shipped_recipe_is_read_by_name_and_survives_its_topic() -> None:
    for name in list_shipped_recipes():
        recipe = load_recipe(name)
        assert Recipe.from_json(recipe.to_json()) == recipe


def test_recipes_in_a_folder_are_found_by_name_and_by_path_and_a_sweep_is_none_of_them() -> None:
    shipped = list_shipped_recipes()
    variants = [name for name in shipped if name.startswith("efficient-data/")]
    assert len(variants) == 12
    bases = {"efficient-data/base", "efficient-data/scripted"}
    assert all(len(shipped[name].read_text().splitlines()) <= 10 for name in variants if name not in bases)
    path = Path(__file__).parents[2] / "recipes" / "efficient-data" / "ds-greso-replay-0.3.toml"
    assert load_recipe("efficient-data/ds-greso-replay-0.3") == load_recipe(str(path))
    with pytest.raises(UsageError, match=r"there is no recipe 'efficient-data/sweep'"):
        load_recipe("efficient-data/sweep")


def test_a_file_with_nearly_this_name_is_suggested(tmp_path: Path) -> None:
    (tmp_path / "shop.toml").write_text('extends = "arithmetic"')
    recipe = load_recipe(str(tmp_path / "shop.toml"))
    for load in (load_recipe, load_sweep, lambda name: replace_chain_from_file(recipe, Path(name))):
        with pytest.raises(UsageError, match=r"there is no (recipe|sweep|file) .*; did you mean `shop\.toml`\?$"):
            load(str(tmp_path / "shop.tml"))
    with pytest.raises(UsageError, match=r"; did you mean `arithmetic`\?$"):
        load_recipe("arithmetc")


@pytest.mark.parametrize("name", ["moe", "lora"])
def test_the_recipe_on_a_page_is_the_shipped_one(name: str) -> None:
    page = Path(__file__).parents[2] / "docs" / f"{name}.md"
    shipped = list_shipped_recipes()[f"arithmetic-{name}"].read_text(encoding="utf-8")
    assert shipped.partition("\n\n")[2] in page.read_text(encoding="utf-8")
    assert len(shipped.splitlines()) <= 16


def test_an_extending_recipe_changes_keys_deep_in_tables_and_keeps_the_others(base: Path, tmp_path: Path) -> None:
    own = write(tmp_path, 'extends = "base.toml"\nname = "own"\n[policies.solver.model]\nhidden_size = 32\n')

    recipe = load_recipe(own)

    assert recipe.name == "own"
    assert recipe.policies["solver"].model == {"architecture": "qwen3", "hidden_size": 32}
    assert recipe.trainer.steps == 10


@pytest.mark.usefixtures("base")
def test_the_path_of_a_policy_replaces_its_new_model_and_what_belongs_to_that(tmp_path: Path) -> None:
    warm = "[policies.solver.warm_start]\nreward_low = 0.1\n"
    write(tmp_path, f'extends = "base.toml"\n{warm}', "warm.toml")
    solver = '[policies.solver]\npath = "weights"\n'
    recipes = [load_recipe(write(tmp_path, f'extends = "warm.toml"\n{text}')) for text in (solver, solver + warm)]
    recipes.append(load_recipe(write(tmp_path, 'extends = "warm.toml"'), ["policies.solver.path=weights"]))
    solvers = [recipe.policies["solver"] for recipe in recipes]
    found = [(one.path, one.model, one.alphabet, one.warm_start is None) for one in solvers]
    assert found == [("weights", {}, "", True), ("weights", {}, "", False), ("weights", {}, "", True)]


def test_a_table_that_names_another_use_replaces_the_old_one_whole(base: Path, tmp_path: Path) -> None:
    own = write(tmp_path, 'extends = "base.toml"\n[workflows.sums.env]\nuse = "jsonl"\npath = "a.jsonl"\n')

    assert load_recipe(own).workflows["sums"].env.settings == {"path": "a.jsonl"}


def test_recipes_that_extend_each_other_are_refused(tmp_path: Path) -> None:
    write(tmp_path, 'extends = "b.toml"', "a.toml")
    write(tmp_path, 'extends = "a.toml"', "b.toml")

    told = refusal(str(tmp_path / "a.toml"))

    assert "circle" in told
    assert "b.toml" in told


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("trainer.steps=40", 40),
        ("trainer.learning_rate=5e-4", 5e-4),
        ("trainer.device=cuda:0", "cuda:0"),
        ("trainer.betas=[0.9, 0.95]", (0.9, 0.95)),
    ],
)
def test_set_takes_toml_values_and_plain_words(base: Path, word: str, value: object) -> None:
    assert getattr(load_recipe(str(base), [word]).trainer, word.partition("=")[0].partition(".")[2]) == value


def test_set_reaches_into_lists_and_settings_of_a_use(base: Path, tmp_path: Path) -> None:
    own = write(
        tmp_path, 'extends = "base.toml"\n[curate]\nchain = [{ use = "validate" }, { use = "max_staleness" }]\n'
    )

    recipe = load_recipe(own, ["curate.chain.1.limit=3", "workflows.sums.env.tier=two-digit"])

    assert recipe.curate.chain[1].settings == {"limit": 3}
    assert recipe.workflows["sums"].env.settings == {"tier": "two-digit"}


@pytest.mark.parametrize(
    ("word", "telling"),
    [
        ("trainer.stpes=40", ("trainer.stpes", "did you mean `steps`", "groups_per_batch")),
        ("steps=40", ("did you mean `trainer.steps`",)),
        ("policies.slover.alphabet=abc", ("policies.slover", "did you mean `solver`")),
        (
            "workflows.sums.env.tier.a.b=1",
            ("--set workflows.sums.env.tier.a.b=1: `workflows.sums.env.tier` is one value",),
        ),
        ("curate.chain.7.use=validate", ("curate.chain",)),
        ("trainer.steps=0", ("--set trainer.steps=0", "`trainer.steps` must be greater than or equal to 1", "got 0")),
        ("trainer.steps=many", ("`trainer.steps` must be a valid integer", "got 'many'", "Versions to train")),
    ],
)
def test_a_wrong_set_is_told_with_its_key_and_what_would_be_right(
    base: Path, word: str, telling: tuple[str, ...]
) -> None:
    told = refusal(str(base), word)

    for words in telling:
        assert words in told


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("launch.workers", "true", "must be a number, not true or false"),
        ("trainer.batch_limit_s", "1e300", "must be 4294967296 or less"),
        ("trainer.steps", "1" * 5000, "must be a number with fewer digits"),
        ("rollout.temperature", "1e-300", "must be greater than or equal to 0.01"),
        ("kafka.partitions", 10**9, "must be less than or equal to 100000"),
        ("launch", "3", "must be a table, got 3"),
        ("launch.feeder", "3", "must be true or false"),
    ],
)
def test_a_number_that_none_can_mean_and_a_value_of_another_kind_are_refused_in_one_sentence(
    base: Path, key: str, value: object, why: str
) -> None:
    told = refusal(str(base), f"{key}={value}").splitlines()
    assert f": `{key}` {why}" in told[1]
    assert len(told) == 2
    assert len(told[1]) < 400


def test_all_that_is_wrong_is_told_at_once(base: Path) -> None:
    words = ("launch.curator=1", "launch.workers=two", "rollout.max_tokns=2", "name=a/b", "launch.feeder.on=true")
    shown = ("launch.curator=…", "launch.workers=two", "rollout.max_tokns=…", "name=a/b", "launch.feeder.on=…")
    told = refusal(str(base), *words, "policies.solver.trainer={ stpes = 1 }").splitlines()
    assert all(any(f"  --set {word}: `" in line for line in told) for word in shown)
    assert "`policies.solver.trainer.stpes` is not known: did you mean `steps`?" in told[-1]
    assert len(told) == 7


@pytest.mark.parametrize("name", ["", " ", "a b", "a/b", "..", "a.", "a" * 300])
def test_a_name_that_no_topic_can_have_is_told_as_that_of_its_key(base: Path, name: str) -> None:
    said = refusal(str(base), f'name="{name}"')
    assert f"`name` run name {name[:80]!r} must have at most 63 letters, digits" in said
    assert len(said.splitlines()[1]) < 400


def test_an_endpoint_that_names_no_host_and_a_bucket_that_s3_makes_none_of_are_refused(base: Path) -> None:
    for given in ("host:9000/runs", "ho st:9000", "host:99999", "https://", "https://h:1?x=1", "::1:9000", "s3://b"):
        assert "`store.endpoint` holds '" in refusal(str(base), f'store.endpoint="{given}"')
    base.write_text(f'{BASE}[store]\nendpoint = "https://me:secret@host:9000"\n')
    assert "secret" not in refusal(str(base))
    base.write_text(BASE)
    for given in ("", "ab", "Head", "a_b", "a/b", "abc-", "a..b", "192.168.1.1", "a" * 64):
        assert f"; got {given!r}" in refusal(str(base), f'store.bucket="{given}"')
    store = load_recipe(str(base), ['store.endpoint=" https://[::1]:9000/ "', 'store.bucket="my.runs-2"']).store
    assert (store.endpoint, store.secure, store.bucket) == ("[::1]:9000", True, "my.runs-2")


def test_faults_in_a_file_name_the_file_that_holds_them_and_all_are_told(base: Path, tmp_path: Path) -> None:
    own = write(tmp_path, 'extends = "base.toml"\n[trainer]\nlearning_rat = 1\nsteps = "ten"\n[rollou]\ntop_p = 1\n')

    told = refusal(own)

    assert told.count("own.toml:") == 3
    assert "did you mean `learning_rate`" in told
    assert "did you mean `rollout`" in told
    assert "`trainer.steps`" in told


def test_a_shadows_own_trainer_keys_are_checked_with_those_of_its_policy(base: Path) -> None:
    told = refusal(str(base), "shadows={ careful = { trainer = { stpes = 3 } } }")
    assert "shadows.careful.trainer.stpes" in told
    assert "did you mean `steps`" in told
    told = refusal(str(base), "shadows={ careful = { trainer = { steps = 0 } } }")
    assert "`shadows.careful.trainer.steps` must be greater than or equal to 1" in told


def test_brokers_are_read_without_blanks_and_what_names_none_is_refused(base: Path) -> None:
    for given, read in (("a:1, b:2 ", "a:1,b:2"), ("[::1]:9092", "[::1]:9092"), (" ", "")):
        assert load_recipe(str(base), [f'kafka.bootstrap="{given}"']).kafka.bootstrap == read
    for given in ("http://kafka:9092", "kafka", "::1:9092", "kafka:99999", "a b:1"):
        said = refusal(str(base), f'kafka.bootstrap="{given}"')
        assert f"`kafka.bootstrap` holds {given!r}, which is not HOST:PORT: write addresses as kafka-1:9092" in said
    assert "`kafka.bootstrap` holds '', which is not" in refusal(str(base), 'kafka.bootstrap="a:1,,b:1"')


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MaskedValueError("must not be such"), "must not be such"),
        (ValueError("holds what must not be"), "holds what must not be, got 'me:secret'"),
    ],
)
def test_a_value_is_quoted_unless_its_error_masks_it_whatever_its_words(error: ValueError, said: str) -> None:
    def refuse(_: str) -> NoReturn:
        raise error

    with pytest.raises(ValidationError) as caught:
        TypeAdapter(Annotated[str, AfterValidator(refuse)]).validate_python("me:secret")
    assert [describe_value(one) for one in caught.value.errors()] == [said]


def test_no_refusal_of_an_address_quotes_its_password(base: Path) -> None:
    for key in ("kafka.bootstrap", "store.endpoint"):
        table, _, name = key.partition(".")
        base.write_text(f'{BASE}[{table}]\n{name} = "me:secret@host:9000/x"\n')
        said = refusal(str(base))
        assert f"`{key}` holds " in said
        assert "secret" not in said
        base.write_text(BASE)
        said = refusal(str(base), f'{key}="me:secret@host:9000/x"')
        assert f"--set {key}=…: `{key}` holds " in said
        assert "secret" not in said


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        (
            'kafka={client={"sasl.password"="hunter2"}, bootstrapp="x"}',
            "--set kafka=…: `kafka.bootstrapp` is not known",
        ),
        ('kafka={client={"sasl.password"="hunter2"}', "--set kafka=…: `kafka` must be a table"),
        ('kafka.client={"sasl.password"=["hunter2"]}', "--set kafka.client=…: `kafka.client"),
        (
            'regions={west={kafka={client={"sasl.password"="hunter2"}}}}',
            "kafka.client must not hold sasl.password",
        ),
        ('store={secret_key="hunter2"}', "--set store=…: `store.secret_key` is not known"),
        ("store.secret_key=hunter2", "--set store.secret_key=…: `store.secret_key` is not known"),
        ("password=hunter2", "--set password=…: `password` is not known"),
    ],
)
def test_no_refusal_of_a_word_shows_what_may_be_a_secret(base: Path, word: str, shown: str) -> None:
    said = refusal(str(base), word)
    assert shown in said
    assert "hunter2" not in said


@pytest.mark.parametrize(
    ("key", "where"),
    [
        ("store.secret_key", "set HEADRACE_S3_SECRET_KEY, or name a file by AWS_SHARED_CREDENTIALS_FILE"),
        ("store.access_key", "set HEADRACE_S3_ACCESS_KEY, or name a file by AWS_SHARED_CREDENTIALS_FILE"),
        ("kafka.password", 'set HEADRACE_KAFKA_CLIENT to client settings, as in {"sasl.password": "…"}, or'),
    ],
)
def test_a_secret_where_none_belongs_is_refused_with_the_way_to_give_it(base: Path, key: str, where: str) -> None:
    table, _, name = key.partition(".")
    assert f"`{key}` is not known: it must not be in a recipe, because every reader" in refusal(str(base), f"{key}=x")
    base.write_text(f'{BASE}[{table}]\n{name} = "hunter2"\n')
    said = refusal(str(base))
    assert where in said
    assert "hunter2" not in said
