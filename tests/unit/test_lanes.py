"""The gate and the subjects: every test is in exactly one of them, and every promise has a run in the gate."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from subjects import GATE, SUBJECTS, subject_of

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
"""How a promise of docs/promises.md begins, and the end-to-end test of the gate that shows it."""


def is_of_a_subject(nodes: list[ast.expr]) -> bool:
    """Return whether a mark is so of all cases, as one of some cases leaves the others to the gate."""
    names = re.compile(rf"\.({'|'.join(SUBJECTS)})\b")
    return any(all(names.search(ast.unparse(case)) for case in cases_of(node)) for node in nodes)


def cases_of(mark: ast.expr) -> list[ast.expr]:
    match mark:
        case ast.Call(func=ast.Attribute(attr="parametrize"), args=[_, ast.List(elts=cases)]):
            return cases
    return [mark]


def test_no_test_is_left_out_of_the_gate_and_the_subjects() -> None:
    targets = re.findall(r"TESTS\) (.*)", (ROOT / "Makefile").read_text())

    assert targets == ["gate", "all", "$*"]
    assert not [path for path in ROOT.glob("tests/**/conftest.py") if "collect_ignore" in path.read_text()]
    [listed] = re.findall(r"^# make test-SUBJECT: one of (.*)\.$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert listed.split(", ") == list(SUBJECTS)


def test_a_test_is_of_its_subject_alone(request: pytest.FixtureRequest) -> None:
    assert subject_of(request.node) == GATE
    request.node.add_marker("faults")
    assert subject_of(request.node) == "faults"
    request.node.add_marker("audit")
    with pytest.raises(pytest.UsageError, match="more than one subject"):
        subject_of(request.node)


def test_continuous_integration_runs_the_gate_and_no_more() -> None:
    [called] = re.findall(r"^for name in (.*?); do", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)

    assert called.split() == ["install", "lint", "types", "test"]


def test_the_promises_are_those_of_their_page() -> None:
    text = (ROOT / "docs" / "promises.md").read_text().partition("## What is not guaranteed")[0]

    assert re.findall(r"^\*\*(.+?)\*\*", text, re.MULTILINE) == list(PROMISES)


@pytest.mark.parametrize("named", PROMISES.values(), ids=PROMISES)
def test_a_promise_has_an_end_to_end_run_in_the_gate(named: str) -> None:
    file, _, name = named.partition("::")
    tree = ast.parse((ROOT / file).read_text())
    marks = [node.value for node in tree.body if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node)]
    [test] = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]

    assert not is_of_a_subject([*marks, *test.decorator_list])
