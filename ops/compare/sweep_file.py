"""Sweep files: which recipes are compared, with which changes and seeds. Each combination is a run."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from headrace.infra.environment import expand_user
from headrace.infra.errors import UsageError
from headrace.infra.recipe.nearest import suggest_nearest_file
from headrace.infra.recipe.recipe_file import describe_value, list_shipped_sweeps, load_recipe
from headrace.infra.recipe.server_settings import Kafka, Store
from headrace.infra.recipe.settings import Recipe
from headrace.infra.recipe.table import Settings
from headrace.schemas.topics import check_name

OWN = ("seed", "name")
CURVE_SEEDS = (1, 2, 3)
SHARED_KEYS = ("kafka.bootstrap", "kafka.client", "store")
"""Keys of a recipe that all runs of a sweep take from [kafka] and [store] of the sweep file."""


class Variant(Settings):
    """One recipe of a comparison, with its changes."""

    recipe: str = ""
    """A shipped recipe by name, or the path of a TOML file, relative to the sweep file or the working directory; by
    default the sweep's `recipe`."""
    name: str = ""
    """Name in tables; by default the last part of the recipe's name."""
    over: str = ""
    """Name of the variant from which its differences are shown; by default the first one."""
    sets: tuple[str, ...] = Field((), alias="set")
    """Changes of the recipe, as in `["trainer.steps=40"]`."""
    seeds: tuple[int, ...] = ()
    """Its seeds; by default those of the sweep."""


class Sweep(Settings):
    """Variants and seeds; every pair is a run."""

    name: str
    """Name of the sweep; the runs' names begin with it."""
    about: str = ""
    """One sentence that describes the sweep."""
    recipe: str = ""
    """Recipe of the variants that name none, so that one line exchanges it."""
    seeds: tuple[int, ...] = Field(min_length=1)
    """Value of the recipe's `seed` for each run of a variant."""
    side_by_side: int = Field(1, ge=1)
    """Number of runs that are played at once."""
    keep: bool = False
    """Keep topics and objects of finished runs."""
    archive: str = ""
    """An archive made with weights, relative to the sweep file or the working directory. Every run takes its
    trajectories, as `headrace offline up` does, and plays nothing."""
    sets: tuple[str, ...] = Field((), alias="set")
    """Changes of every recipe; a variant's own changes are applied after them."""
    kafka: Kafka = Kafka()
    """Kafka settings that replace those of the recipes. Without `bootstrap` all runs share an embedded Kafka."""
    store: Store = Store()
    """Store settings that replace those of the recipes. Without `endpoint` all runs share an embedded store."""
    variants: tuple[Variant, ...] = Field(min_length=1)
    """The recipes that are compared."""


@dataclass(frozen=True, slots=True)
class SweepRun:
    """A variant with a seed."""

    name: str
    variant: str
    seed: int
    source: str
    """The recipe as `headrace up` takes it."""
    sets: tuple[str, ...]
    """All changes except the addresses of the servers."""
    recipe: Recipe
    """The recipe with these changes."""
    over: str = ""
    """Variant from which its differences are shown; empty for the first one."""


def load_sweep(name_or_path: str, recipe: str = "") -> tuple[Sweep, list[SweepRun]]:
    """Read a sweep file, and every recipe that it names; return its runs, seed by seed.

    Args:
        name_or_path: The sweep.
        recipe: In place of the sweep's own `recipe`.

    Raises UsageError that names file and key, the error, and the allowed values.
    """
    path, text = _read_sweep_text(name_or_path)
    try:
        sweep = Sweep.model_validate(tomllib.loads(text) | ({"recipe": recipe} if recipe else {}))
    except ValidationError as error:
        lines = [f"  {sentence}" for sentence in _describe_faults(error)]
        raise UsageError("\n".join([f"sweep {name_or_path} is not valid:", *lines])) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name_or_path} is not TOML: {error}") from error
    if recipe and all(variant.recipe for variant in sweep.variants):
        raise UsageError(f"sweep {name_or_path}: --recipe would change nothing, as every variant names its own recipe")
    try:
        if sweep.archive and path is not None and (path.parent / sweep.archive).exists():
            sweep = sweep.model_copy(update={"archive": str(path.parent / sweep.archive)})
        return sweep, list(_list_runs(sweep, path.parent if path else Path()))
    except UsageError as error:
        raise UsageError(f"sweep {name_or_path}: {error}") from error


def build_curve(recipe: str) -> tuple[Sweep, list[SweepRun]]:
    """Return the learning curve of a recipe: it with three seeds, and a control whose weights never change.

    Raises UsageError as `load_sweep` does.
    """
    loaded = load_recipe(recipe)
    control = Variant(recipe=recipe, name="control", set=("trainer.learning_rate=0",), seeds=CURVE_SEEDS[:1])
    sweep = Sweep(
        name=f"curve-{loaded.name}",
        about=f"{loaded.about}; the control never updates its weights",
        seeds=CURVE_SEEDS,
        variants=(Variant(recipe=recipe, name=loaded.name), control),
    )
    return sweep, list(_list_runs(sweep, Path()))


def name_of(variant: Variant) -> str:
    """Return the name of a variant in tables."""
    return variant.name or variant.recipe.removesuffix(".toml").rpartition("/")[2]


def _list_runs(sweep: Sweep, beside: Path) -> Iterator[SweepRun]:
    variants = [_fill_in_recipe(sweep, number, variant) for number, variant in enumerate(sweep.variants, 1)]
    names = [name_of(variant) for variant in variants]
    for what, values in (("seed", sweep.seeds), ("variant", names)):
        twice = [value for value, count in Counter(values).items() if count > 1]
        if twice:
            remedy = "remove one of them" if what == "seed" else "give each variant a `name` of its own"
            raise UsageError(f"{what} {twice[0]} is given more than once: {remedy}")
    if unknown := [variant.over for variant in variants if variant.over and variant.over not in names]:
        raise UsageError(f"`over` must name a variant of the sweep, one of {', '.join(names)}; got {unknown[0]!r}")
    shared, taken = _list_table_settings(sweep), dict[str, str]()
    for seed in dict.fromkeys((*sweep.seeds, *(seed for variant in variants for seed in variant.seeds))):
        for variant in variants:
            if seed not in (variant.seeds or sweep.seeds):
                continue
            name = _make_run_name(sweep, variant, seed)
            if name in taken:
                raise UsageError(
                    f"variants {taken[name]} and {name_of(variant)} would both have the run name {name}, because "
                    "characters other than letters, digits, - and _ become _: rename one of the variants"
                )
            taken[name] = name_of(variant)
            source = _find_recipe(variant.recipe, beside)
            own = (*_refuse_reserved(sweep.sets), *_refuse_reserved(variant.sets))
            words = (*own, *shared, f"seed={seed}", f"name={json.dumps(name)}")
            yield SweepRun(name, name_of(variant), seed, source, words, load_recipe(source, words), variant.over)


def _fill_in_recipe(sweep: Sweep, number: int, variant: Variant) -> Variant:
    if not (recipe := variant.recipe or sweep.recipe):
        raise UsageError(f"variant {number} has no `recipe`, and the sweep has none for all: give one of them")
    return variant.model_copy(update={"recipe": recipe})


def _make_run_name(sweep: Sweep, variant: Variant, seed: int) -> str:
    """Return SWEEP-VARIANT-SEED without dots, because topic names use dots as separators."""
    name = f"{sweep.name}-{re.sub(r'[^A-Za-z0-9_-]', '_', name_of(variant))}-{seed}"
    try:
        return check_name("run", name)
    except ValueError as error:
        raise UsageError(f"variant {name_of(variant)}: {error}: rename the sweep or the variant") from error


def _find_recipe(recipe: str, beside: Path) -> str:
    path = beside / recipe
    return str(path.resolve()) if path.is_file() else recipe


def _refuse_reserved(words: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse changes of keys that the sweep itself sets, because they would have no effect."""
    for word in words:
        key = word.partition("=")[0].strip()
        if key in OWN:
            remedy = "give seeds in `seeds`" if key == "seed" else "a run is named SWEEP-VARIANT-SEED"
            raise UsageError(f"`set` must not set {key}: {remedy}")
        if any(key == shared or key.startswith(f"{shared}.") for shared in SHARED_KEYS):
            table = key.partition(".")[0]
            raise UsageError(
                f"`set` must not set {key}, because all runs share it: write it into [{table}] of the sweep file"
            )
    return words


def _list_table_settings(sweep: Sweep) -> tuple[str, ...]:
    """Return the settings of [kafka] and [store] as changes of a recipe, without the addresses of the servers."""
    kafka = sweep.kafka.model_dump(mode="json", exclude={"bootstrap", "client"}, exclude_unset=True)
    store = sweep.store.model_dump(mode="json", include={"cache_gib"}, exclude_unset=True)
    return (
        *(f"kafka.{key}={json.dumps(value)}" for key, value in kafka.items()),
        *(f"store.{key}={json.dumps(value)}" for key, value in store.items()),
    )


def _read_sweep_text(name: str) -> tuple[Path | None, str]:
    """Return the path of a sweep file, None for a shipped one, and its text."""
    path, shipped = expand_user(Path(name), "the sweep"), list_shipped_sweeps()
    try:
        if path.is_file():
            return path, path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"sweep {name[:200]!r} cannot be read: {error}") from error
    if name in shipped:
        return None, shipped[name].read_text(encoding="utf-8")
    hint = suggest_nearest_file(path)
    raise UsageError(
        f"there is no sweep {name!r}: {path.absolute()} is not a file, and the shipped sweeps are "
        f"{', '.join(shipped) or 'none'}{hint and f'; {hint}'}"
    )


def _describe_faults(error: ValidationError) -> Iterator[str]:
    for fault in error.errors():
        where = ".".join(str(part) for part in fault["loc"])
        if fault["type"] == "extra_forbidden":
            tables: dict[str, type[Settings]] = {"variants": Variant, "kafka": Kafka, "store": Store}
            table = tables.get(str(fault["loc"][0]), Sweep)
            known = (field.alias or name for name, field in table.model_fields.items())
            yield f"`{where}` is not a known key: the keys there are {', '.join(sorted(known))}"
        elif fault["type"] == "missing":
            yield f"`{where}` is missing"
        else:
            yield f"`{where}` {describe_value(fault)}"


def remove_addresses(recipe: Recipe) -> Recipe:
    """Return a recipe without the addresses of Kafka and store, to compare it with that of another run."""
    kafka = recipe.kafka.model_copy(update={"bootstrap": "", "client": {}})
    return recipe.model_copy(update={"kafka": kafka, "store": Store()})
