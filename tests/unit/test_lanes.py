"""What `make test` and `make test-all` take: every test is in one of them, and every promise has a run in the first."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FINISHED = "tests/e2e/test_finished_run.py::"
KILLED = (
    "tests/faults/test_kill_everything.py::"
    "test_the_demo_vandalised_and_killed_as_a_whole_is_gone_on_with_to_its_end_and_its_audit_closes"
)
PROMISES = {
    "A group is trained on exactly once": f"{FINISHED}test_audit_and_status_agree_from_the_topics_alone",
    "A crash between any two steps loses nothing.": KILLED,
    "Weights are what their hash says, or they are not served.": (
        f"{FINISHED}test_how_versions_were_published_is_told_and_one_is_a_folder_that_others_load"
    ),
    "A run can be trained again from its log.": (
        f"{FINISHED}test_a_whole_run_trained_again_gives_every_hash_and_other_settings_give_others"
    ),
    "Nothing disappears silently.": (f"{FINISHED}test_what_was_discarded_is_told_and_drawn_and_adds_up_to_the_summary"),
    "A server that is away is a pause.": (
        "tests/e2e/test_away.py::test_a_run_goes_on_where_it_was_when_kafka_and_the_store_were_away"
    ),
    "A broken record stops nobody.": KILLED,
    "Builds may differ.": "tests/e2e/test_first_release.py::test_it_goes_on_to_its_end_under_the_recipe_that_began_it",
    "Every recorded log-probability can be checked.": (
        f"{FINISHED}test_recorded_log_probabilities_are_those_of_the_version_that_each_token_names"
    ),
}
"""How a promise of docs/promises.md begins, and the end-to-end test of `make test` that shows it."""


def commands_of(target: str) -> list[list[str]]:
    """Return the words of a target's commands, variables put in."""
    text = (ROOT / "Makefile").read_text()
    variables = dict(re.findall(r"^([A-Z]+) [:?]= ?(.*)$", text, re.MULTILINE))
    [lines] = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", text, re.MULTILINE)
    for _ in range(2):  # one names another
        lines = re.sub(r"\$\(([A-Z]+)\)", lambda match: variables[match[1]], lines)
    return [shlex.split(line.strip().removeprefix("@")) for line in lines.splitlines()]


def is_exhaustive(nodes: list[ast.expr]) -> bool:
    """Return whether a mark is so of all cases, as one of some cases leaves the others to `make test`."""
    return any(all("exhaustive" in ast.unparse(case) for case in cases_of(node)) for node in nodes)


def cases_of(mark: ast.expr) -> list[ast.expr]:
    match mark:
        case ast.Call(func=ast.Attribute(attr="parametrize"), args=[_, ast.List(elts=cases)]):
            return cases
    return [mark]


def test_every_test_is_in_one_of_the_two_and_in_no_more() -> None:
    [first], [second] = commands_of("test"), commands_of("test-all")

    assert first[-2:] == ["-m", "not exhaustive"]
    assert second == [*first[:-1], "exhaustive"], "alike but for what they leave out"
    assert not [word for word in first if word.startswith("tests") or "ignore" in word or "deselect" in word]
    assert not [path for path in ROOT.glob("tests/**/conftest.py") if "collect_ignore" in path.read_text()]


def test_continuous_integration_runs_each_of_the_two_once() -> None:
    called = re.findall(r"^make .*?([a-z-]+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)

    assert called == ["install", "lint", "test", "test-all"]


def test_the_promises_are_those_of_their_page() -> None:
    text = (ROOT / "docs" / "promises.md").read_text().partition("## What is not guaranteed")[0]

    assert re.findall(r"^\*\*(.+?)\*\*", text, re.MULTILINE) == list(PROMISES)


@pytest.mark.parametrize("named", PROMISES.values(), ids=PROMISES)
def test_a_promise_has_an_end_to_end_run_that_is_not_left_to_the_exhaustive_ones(named: str) -> None:
    file, _, name = named.partition("::")
    tree = ast.parse((ROOT / file).read_text())
    marks = [node.value for node in tree.body if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node)]
    [test] = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]

    assert not is_exhaustive([*marks, *test.decorator_list])
