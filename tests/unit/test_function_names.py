"""A function that acts is named by a verb, one that returns a thing by a noun, one that asks by is, has or can."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from test_house import ROOT, modules, tree_of

ROOMS = ("app", "consumers", "envs", "infra", "ops", "producers", "schemas", "trainers")
IRREGULAR = """
beaten bound broken built chosen drawn due empty even fed first foreign found full given gone good held kept known
idle last leading left loose lost made met missing most nearest new odd old other ours paid same sent short shown
single sold spelt spent steep stood sure taken there told torn tried true unnamed unreachable visible whole woken
writable written wrong
"""
"""Participles that do not end in -ed, and adjectives."""
VERBS_IN_ED = frozenset({"embed", "exceed", "feed", "need", "proceed", "seed", "speed", "succeed"})
ALLOWED = {
    "asked": "of the protocol HasTiers, which environments of users have",
    "curated": "the name of the topic `curated`, as the other methods of Topics name theirs",
    "decoupled_ppo": "the name of a loss in recipes",
    "generalized_advantage": "the name of a formula",
    "given": "the name of an advantage in recipes",
    "single_turn": "the name of a workflow in recipes",
    "writable": "of Python's files",
    **dict.fromkeys(
        (
            "_fenced_error",
            "_gone_error",
            "_merged_weight",
            "chosen_experts",
            "curated_positions",
            "empty_model",
            "interpolated_proximal",
            "last_tokens",
        ),
        "noun: it returns what its name says",
    ),
}
"""Function to the reason why it keeps its name."""


ACTS = """
acknowledge add apply ask conclude delete extend fetch fold note raise receive refuse reopen revive
run select settle shorten step stop take try wait
"""
"""Verbs of functions that act, and return whether something came of it."""
ASK_OTHERWISE = {
    "readable": "of Python's files",
    "seekable": "of Python's files",
    "validate_checkpoint_id": "of torch's readers and writers of checkpoints",
    "writable": "of Python's files",
}
"""Function that asks to the reason why it begins neither with is, has nor can."""


def is_participle_or_adjective(word: str) -> bool:
    return word in IRREGULAR.split() or (word.endswith("ed") and word not in VERBS_IN_ED)


def functions_of(room: str) -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield the functions and methods of a room; a property is named as the attribute that it stands for."""
    for path in modules(room):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                decorators = " ".join(map(ast.unparse, node.decorator_list))
                if "property" not in decorators and not node.name.startswith("__"):
                    yield path, node


def returns_bool(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    annotation = ast.unparse(function.returns) if function.returns else ""
    return annotation in {"bool", "bool | None"} or annotation.startswith("TypeGuard")


def test_no_function_is_named_by_a_participle_or_an_adjective() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{function.lineno} {function.name}": function.name
        for room in ROOMS
        for path, function in functions_of(room)
        if is_participle_or_adjective(function.name.lstrip("_").partition("_")[0])
    }

    assert not [where for where, name in found.items() if name not in ALLOWED], "name these by a verb or by a noun"
    assert not ALLOWED.keys() - set(found.values()), "nothing is named so any more: take these out of the table"


def test_a_function_that_returns_whether_begins_with_is_has_or_can_or_with_a_verb_that_acts() -> None:
    asking = {
        f"{path.relative_to(ROOT)}:{function.lineno} {function.name}": function.name
        for room in ROOMS
        for path in modules(room)
        for function in ast.walk(tree_of(path))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        if not function.name.startswith("__") and returns_bool(function)
    }
    words = {where: name.lstrip("_").partition("_")[0] for where, name in asking.items()}
    odd = {where: name for where, name in asking.items() if words[where] not in {"is", "has", "can", *ACTS.split()}}

    assert not [where for where, name in odd.items() if name not in ASK_OTHERWISE], "begin these with is, has or can"
    assert not ASK_OTHERWISE.keys() - set(odd.values()), "nothing asks so any more: take these out of the table"
    assert not set(ACTS.split()) - set(words.values()), "nothing acts so any more: take these verbs out of the list"
