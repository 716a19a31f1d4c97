"""Reads recipes from TOML files, with `extends` and `--set`; errors name the place, the fault and the remedy.

A recipe is named by its path, or, for those shipped with Headrace, by its name (`arithmetic`, `efficient-data/ds`).
`extends = "other.toml"` starts from another recipe and changes some of it. Tables are merged key by key; other values,
also lists, are replaced. A table with another `use` is replaced too, since its keys belong to that `use`; so is a
policy's new model by `path`, and the other way round.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from headrace.infra.errors import MaskedValueError, UsageError
from headrace.infra.kafka.client_settings import check_client_settings, refuse_secrets
from headrace.infra.plug_ins import add_search_folders
from headrace.infra.recipe.model_origins import drop_other_origins
from headrace.infra.recipe.nearest import suggest_nearest, suggest_nearest_file
from headrace.infra.recipe.recipe_keys import is_free, is_value, list_children, list_fields, list_known_keys
from headrace.infra.recipe.secret_keys import SECRET_HINTS, is_of_secrets
from headrace.infra.recipe.settings import Recipe, TrainerError, TrainerSettings

SET = "--set"
WHOLE = 'and not a table, in this recipe: set the whole key, as in KEY={ use = "NAME" }'
SWEEP = "sweep.toml"
"""Name of the sweep file in a folder of recipes; it is not a recipe."""
WORDS = {
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "must be a table"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    "tuple_type": "must be a list",
    "string_type": "must be a string",
    "int_parsing_size": "must be a number with fewer digits",
}
"""Messages for kinds of pydantic errors."""
MOST_SHOWN = 80
"""Most quoted characters of a wrong value."""
Table = dict[str, Any]
KeyPath = tuple[str | int, ...]


@dataclass(slots=True)
class Draft:
    """A recipe while it is merged: the tables, and the file or option that set each key."""

    table: Table = field(default_factory=dict)
    origins: dict[KeyPath, str] = field(default_factory=dict)
    folders: list[Path] = field(default_factory=list)
    """Folders of the read files, the recipe's own first."""

    def origin(self, location: KeyPath, default: str) -> str:
        """Return the file or option that set the key, or the nearest table around it."""
        for length in range(len(location), 0, -1):
            if location[:length] in self.origins:
                return self.origins[location[:length]]
        return default


def load_recipe(name_or_path: str, sets: Sequence[str] = ()) -> Recipe:
    """Read a recipe with the recipes that it extends, change it by `a.b=c` words, and check it.

    Adds the folders of these files to the search for plug-ins. Raises UsageError, which names file, key, fault and
    allowed values.
    """
    draft = Draft()
    try:
        _read_into(draft, name_or_path, ())
        recipe = _set_all(draft, sets, name_or_path)
    except RecursionError as error:
        raise UsageError(f"recipe {name_or_path} nests tables too deeply") from error
    add_search_folders(draft.folders)
    clients = {
        "": recipe.kafka.client,
        **{f"regions.{name}.": one.kafka.client for name, one in recipe.regions.items()},
    }
    for key, client in clients.items():
        refuse_secrets(client, f"recipe {name_or_path}")
        check_client_settings(client, f"recipe {name_or_path}: {key}kafka.client", is_complete=False)
    return _check_round_trip(recipe, name_or_path)


def _check_round_trip(recipe: Recipe, name: str) -> Recipe:
    """Return the recipe after checking that its JSON gives the same recipe."""
    try:
        same = Recipe.from_json(recipe.to_json()) == recipe
    except (ValueError, RecursionError, UsageError) as error:
        raise UsageError(f"recipe {name} cannot be written as JSON: {error}") from error
    if not same:
        raise UsageError(
            f"recipe {name} has a value that JSON cannot hold, such as a date, nan or inf: use a string or a "
            "finite number"
        )
    return recipe


def change_recipe(recipe: Recipe, name: str, sets: Sequence[str]) -> Recipe:
    """Return a recipe under another name, changed by `a.b=c` words. Raises UsageError as `load_recipe`."""
    draft = Draft({**recipe.model_dump(mode="json"), "name": name})
    return _set_all(draft, sets, name)


def replace_chain_from_file(recipe: Recipe, path: Path) -> Recipe:
    """Return a recipe with the chain of a TOML file that holds only a chain.

    The chain is written as in a recipe (`chain` of `[curate]`, or `[[curate.chain]]` tables), or as `chain` alone. Adds
    the folder of that file to the search for plug-ins. Raises UsageError, which names file and key.
    """
    read = Draft()
    if not path.is_file():
        hint = suggest_nearest_file(path)
        wanted = f"name one that holds a chain, as `chain = [ … ]`{hint and f'; {hint}'}"
        raise UsageError(f"there is no file {path.absolute()}: {wanted}")
    _read_into(read, str(path), ())
    match read.table:
        case {"curate": {"chain": list(chain), **beside}, **others} if not beside and not others:
            pass
        case {"chain": list(chain), **others} if not others:
            pass
        case _:
            holder = "curate" if "curate" in read.table else "chain"
            more = [*(key for key in read.table if key != holder), *_refuse_beside_chain(read.table.get("curate"))]
            it_has = f"remove {', '.join(more)}" if more else "it has no list `chain`"
            raise UsageError(
                f"{path} must hold a chain and nothing else, as `chain = [ … ]` or as [[curate.chain]] tables: {it_has}"
            )
    draft = Draft(recipe.model_dump(mode="json"), read.origins)
    draft.table["curate"]["chain"] = chain
    try:
        recipe = Recipe.model_validate(draft.table)
    except ValidationError as error:
        raise UsageError(_explain(error, draft, str(path))) from error
    add_search_folders(read.folders)
    return _check_round_trip(recipe, str(path))


def _refuse_beside_chain(curate: Any) -> list[str]:
    return [f"curate.{key}" for key in curate if key != "chain"] if isinstance(curate, dict) else []


def list_shipped_recipes() -> dict[str, Traversable]:
    """Return the shipped recipes by name, those in a folder as `folder/name`."""
    found = {name.removesuffix(".toml"): file for name, file in _list_shipped_files()}
    return {name: file for name, file in found.items() if file.name != SWEEP}


def list_shipped_sweeps() -> dict[str, Traversable]:
    """Return the shipped sweeps by the folder whose recipes they compare."""
    return {name.rpartition("/")[0]: file for name, file in _list_shipped_files() if file.name == SWEEP}


def _list_shipped_files() -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(resources.files("headrace.recipes").iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".toml"):
            yield entry.name, entry
        elif entry.is_dir():
            inside = sorted(entry.iterdir(), key=lambda file: file.name)
            yield from ((f"{entry.name}/{file.name}", file) for file in inside if file.name.endswith(".toml"))


def _read_into(draft: Draft, name: str, seen: tuple[str, ...], beside: Path | None = None) -> None:
    source, text = _text_of(name, beside)
    if source in seen:
        raise UsageError(f"recipes extend each other in a circle: {' -> '.join((*seen, source))}; remove one `extends`")
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also for a number of 5,000 digits, or arrays in arrays without end
        raise UsageError(f"{source} is not TOML: {error}") from error
    path, base = Path(source), table.pop("extends", None)
    if path.is_file():
        draft.folders.append(path.parent.resolve())
    if base is not None:
        if not isinstance(base, str):
            raise UsageError(f'{source}: `extends` names one other recipe, as in extends = "arithmetic"; got {base!r}')
        _read_into(draft, base, (*seen, source), path.parent if path.exists() else None)
    _merge(draft, draft.table, table, source)


def _text_of(name: str, beside: Path | None) -> tuple[str, str]:
    """Return a recipe's path and text; look for a path first, then for a shipped name."""
    path = Path(name)
    try:
        path = (beside or Path()) / path.expanduser()
        if path.is_file():
            # Resolved, because a circle through `..` would have a new name each time.
            return str(path.resolve() if beside else path), path.read_text(encoding="utf-8")
    except (OSError, RuntimeError, ValueError) as error:  # expanduser knows no such user; no text; no path at all
        raise UsageError(f"recipe {str(path)[:200]!r} cannot be read: {error}") from error
    shipped = list_shipped_recipes()
    short = name.removesuffix(".toml")
    if short in shipped:
        return name, shipped[short].read_text(encoding="utf-8")
    hint = suggest_nearest_file(path) or ("" if path.suffix == ".toml" else suggest_nearest(short, shipped))
    raise UsageError(
        f"there is no recipe {name!r}: no file {path.absolute()}, and none of that name is shipped "
        f"({', '.join(shipped) or 'none at all'}){hint and f'; {hint}'}"
    )


def _merge(draft: Draft, into: Table, table: Mapping[str, Any], source: str, at: KeyPath = ()) -> None:
    for key, value in table.items():
        here = (*at, key)
        drop_other_origins(into, here, table)
        old = into.get(key)
        if isinstance(value, dict) and isinstance(old, dict) and old.get("use") == value.get("use", old.get("use")):
            _merge(draft, old, value, source, here)
        else:
            into[key] = value
            draft.origins = {path: who for path, who in draft.origins.items() if path[: len(here)] != here}
            _note_origin(draft, here, value, source)


def _note_origin(draft: Draft, here: KeyPath, value: Any, source: str) -> None:
    draft.origins[here] = source
    if isinstance(value, dict):
        for key, inner in value.items():
            _note_origin(draft, (*here, key), inner, source)


def _set_all(draft: Draft, words: Sequence[str], name: str) -> Recipe:
    """Return the recipe after all words. Raises UsageError with all faults of the words and of the tables."""
    refused = []
    for word in words:
        try:
            _set(draft, word)
        except UsageError as error:
            refused.append(str(error))
    try:
        recipe = Recipe.model_validate(draft.table)
    except ValidationError as error:
        raise UsageError(_explain(error, draft, name, refused)) from error
    if refused:
        raise UsageError("\n".join(refused))
    return recipe


def _set(draft: Draft, word: str) -> None:
    """Set one key by a command-line word; the value is TOML, or else a string."""
    path, equals, text = word.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise UsageError(f"{SET} {word}: write {SET} table.key=value, as in {SET} trainer.steps=40")
    masked = f"{path}=…"  # the value may be a secret in a wrong form, or in a wrong place
    if is_of_secrets(keys) or "@" in text:
        word = masked
    table: Any = draft.table
    for depth in range(len(keys)):
        _check_name(draft, keys[: depth + 1], masked)
    for depth in range(len(keys) - 1):
        table = _enter(table, keys[: depth + 1], word)
    value = read_value(text)
    if isinstance(table, list):
        table[_parse_index(table, keys[-1], word)] = value
    elif isinstance(table, dict):
        set_before = [key for key in table if draft.origins.get((*keys[:-1], key), "").startswith(SET)]
        drop_other_origins(table, tuple(keys), set_before)
        table[keys[-1]] = value
    else:
        raise _no_table_error(keys[:-1], word, WHOLE)
    _note_origin(draft, tuple(int(key) if _is_index(key) else key for key in keys), value, f"{SET} {_cut(word)}")


def _is_index(key: str) -> bool:
    return key.isascii() and key.isdigit() and len(key) < 10


def _enter(table: Any, keys: Sequence[str], word: str) -> Any:
    *above, key = keys
    if isinstance(table, list):
        return table[_parse_index(table, key, word)]
    if not isinstance(table, dict):
        raise _no_table_error(above, word, WHOLE)
    return table.setdefault(key, {})


def _no_table_error(keys: Sequence[str], word: str, remedy: str = "which has no keys") -> UsageError:
    return UsageError(f"{SET} {word}: `{_join_keys(keys)}` is one value, {remedy}")


def _parse_index(items: list[Any], key: str, word: str) -> int:
    if not _is_index(key) or int(key) >= len(items):
        raise UsageError(f"{SET} {word}: {key!r} is not an index of a list of {len(items)}; indices begin at 0")
    return int(key)


def _check_name(draft: Draft, keys: list[str], word: str) -> None:
    """Refuse an unknown key, and an unknown policy or workflow, so that a typing error adds nothing new."""
    *above, key = keys
    if is_value(above):
        raise _no_table_error(above, word)
    if is_free(above):
        return
    allowed = list_fields(above) or tuple(_find_at(draft.table, above))
    if key not in allowed:
        raise UsageError(f"{SET} {word}: {_describe_unknown(above, key, allowed)}")


def _find_at(table: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        table = table.get(key, {}) if isinstance(table, dict) else {}
    return table


def read_value(text: str) -> Any:
    """Return a value as TOML writes it, such as 3 or [1, 2]; another text is a text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


# --------------------------------------------------------------------------------------------------------------- errors


def _explain(error: ValidationError, draft: Draft, name: str, refused: Sequence[str] = ()) -> str:
    """Return all faults in one message, one per line."""
    lines = [f"  {line}" for line in refused] + [
        f"  {draft.origin(location, name)}: {sentence}"
        for location, sentence in _describe_faults(error.errors(), draft.table)
    ]
    return "\n".join([f"recipe {name} is not valid:", *dict.fromkeys(lines)])


def _describe_faults(errors: list[ErrorDetails], table: Table) -> list[tuple[KeyPath, str]]:
    plain = [error for error in errors if not isinstance(error.get("ctx", {}).get("error"), TrainerError)]
    found = [*_describe_plain(plain), *_find_trainer_faults(table)]
    return found or _describe_plain(errors)


def _describe_plain(errors: list[ErrorDetails]) -> list[tuple[KeyPath, str]]:
    return [(error["loc"], _describe_fault(error)) for error in errors]


def _find_trainer_faults(table: Table) -> list[tuple[KeyPath, str]]:
    """Find faults in the `[trainer]` keys that a policy or a shadow sets.

    pydantic checks these only if everything else is right.
    """
    found: list[tuple[KeyPath, str]] = []
    policies = _table_at(table, "policies")
    named = [(kind, name) for kind in ("policies", "shadows") for name in _table_at(table, kind)]
    for kind, name in named:
        own = _table_at(table, kind, name, "trainer")
        policy = name if kind == "policies" else _table_at(table, kind, name).get("policy") or next(iter(policies), "")
        above = _table_at(table, "trainer") | _table_at(table, "policies", str(policy), "trainer")
        try:
            TrainerSettings.model_validate(above | own)
        except ValidationError as error:
            for fault in error.errors():
                if own and (not fault["loc"] or fault["loc"][0] in own):
                    fault["loc"] = (kind, name, "trainer", *fault["loc"])
                    found.append((fault["loc"], _describe_fault(fault)))
    return found


def _table_at(table: Table, *keys: str) -> Table:
    found = _find_at(table, keys)
    return found if isinstance(found, dict) else {}


def _describe_fault(error: ErrorDetails) -> str:
    """Describe the fault of one key: the key, the fault, the given value, the key's purpose."""
    location = error["loc"]
    above = [str(part) for part in location[:-1]]
    if error["type"] == "extra_forbidden":
        return _describe_unknown(above, str(location[-1]), list_fields(above))
    where = _join_keys(location)
    if error["type"] == "missing":
        return f"`{where}` is missing{_name_location(location)}"
    return f"`{where}` {describe_value(error)}{_name_location(location)}" if where else _describe_words(error)


def describe_value(error: ErrorDetails) -> str:
    """Describe a wrong value; quote it unless it may be a secret or is already in the message."""
    fault = _describe_words(error)
    is_masked = is_of_secrets(error["loc"]) or isinstance(error.get("ctx", {}).get("error"), MaskedValueError)
    is_said = isinstance(error["input"], Mapping) or repr(error["input"])[:40] in fault
    return fault if is_masked or is_said else f"{fault}, got {_cut(repr(error['input']))}"


def _describe_words(error: ErrorDetails) -> str:
    fault = WORDS.get(error["type"]) or error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return fault.replace("Input should be", "must be", 1).partition(", unable to parse")[0]


def _cut(text: str) -> str:
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


def _name_location(location: KeyPath) -> str:
    """Return a key's purpose: the first sentence of its text, in brackets."""
    about = list_children([str(part) for part in location[:-1]]).get(str(location[-1]) if location else "", "")
    first = " ".join(about.split()).partition(". ")[0]
    return f" ({first.rstrip('.')})" if first else ""


def _describe_unknown(above: Sequence[str], key: str, allowed: Sequence[str]) -> str:
    """Return the message for an unknown key, with the nearest known key and the allowed keys."""
    table = f"[{'.'.join(above)}]" if above else "A recipe"
    hint = _find_elsewhere(key) or suggest_nearest(key, allowed)
    if (secret := SECRET_HINTS.get(key)) and (key, *above) != ("password", "store"):
        hint = f"it must not be in a recipe, because every reader of the recipe topic sees the recipe; {secret}."
    unknown = f"`{_join_keys((*above, key))}` is not known{f': {hint}' if hint else '.'}"
    return f"{unknown} {table} has {', '.join(sorted(allowed)) or 'none here'}"


def _find_elsewhere(key: str) -> str:
    """Suggest the right table for a key in a wrong table."""
    found = [dotted for dotted in list_known_keys() if dotted.rpartition(".")[2] == key]
    return f"did you mean `{found[0]}`?" if found else ""


def _join_keys(location: Sequence[str | int]) -> str:
    return ".".join(str(part) for part in location)
