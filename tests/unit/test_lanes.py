"""The gate and the subjects: every test is in exactly one of them, and every promise has a run in the gate."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import subjects
from subjects import GATE, SUBJECTS, subject_of

ROOT = Path(__file__).parents[2]
FINISHED = "tests/e2e/test_finished_run.py::"
INTEGRATION = "tests/integration/"
PROMISES = {
    "A group is trained on exactly once": f"{FINISHED}test_audit_and_status_agree_from_the_topics_alone",
    "A crash between any two steps loses nothing.": f"{FINISHED}test_the_summary_says_what_the_run_did",
    "Weights are what their hash says, or they are not served.": (
        f"{INTEGRATION}test_damage.py::test_a_damaged_version_is_never_served_and_the_worker_says_why_and_heals"
    ),
    "A run can be trained again from its log.": (f"{FINISHED}test_a_whole_run_trained_again_gives_every_hash"),
    "Nothing disappears silently.": (f"{FINISHED}test_what_was_discarded_is_told_and_drawn_and_adds_up_to_the_summary"),
    "A server that does not answer is a pause.": (
        f"{INTEGRATION}test_run_loop.py::test_a_turn_whose_handler_fails_on_a_server_that_is_away_is_undone_and_done_again"
    ),
    "A broken record stops no component.": f"{FINISHED}test_audit_and_status_agree_from_the_topics_alone",
    "Builds may differ.": (
        f"{INTEGRATION}test_other_builds.py::test_a_newer_builds_record_is_read_as_soon_as_its_schema_is_told_and_not_before"
    ),
    "Every recorded log-probability can be checked.": (
        f"{FINISHED}test_recorded_log_probabilities_are_those_of_the_version_that_each_token_names"
    ),
}
"""How a promise of docs/promises.md begins, and the test of the gate that shows it: end to end, or with servers."""


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

    assert targets == ["gate tests/unit", "gate", "all", "$*"]
    assert not [path for path in ROOT.glob("tests/**/conftest.py") if "collect_ignore" in path.read_text()]
    others = [path for path in ROOT.glob("tests/**/*.py") if not path.name.startswith("test_")]
    assert not [path for path in others if re.search(r"^ *(async )?def test_", path.read_text(), re.MULTILINE)]
    [listed] = re.findall(r"^# make test-SUBJECT: one of (.*)\.$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert listed.split(", ") == list(SUBJECTS)


def test_a_test_is_of_its_subject_alone(request: pytest.FixtureRequest) -> None:
    assert subject_of(request.node) == GATE
    request.node.add_marker("faults")
    assert subject_of(request.node) == "faults"
    request.node.add_marker("audit")
    with pytest.raises(pytest.UsageError, match="more than one subject"):
        subject_of(request.node)


@pytest.mark.parametrize(
    ("codes", "red", "ends"),
    [
        ([1, 0], ["one"], 0),
        ([1, 1], ["one"], 1),
        ([1, 0], ["one", "two", "three"], 0),
        ([1], ["one", "two", "three", "four"], 1),
        ([2], ["one"], 1),
    ],
)
def test_a_few_red_tests_are_run_once_more_alone_and_named_as_flaky_if_they_are_green_then(
    codes: list[int], red: list[str], ends: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs: list[Sequence[str]] = []

    def end(subject: str, words: Sequence[str]) -> int:
        runs.append(words)
        return codes[len(runs) - 1]

    monkeypatch.setattr(subjects, "_pytest", end)
    monkeypatch.setattr(subjects, "_red", lambda: red)

    assert subjects.main(["gate"]) == ends
    assert runs[1:] == [["-n", "0", *red]] * (len(codes) - 1)
    said = capsys.readouterr().out.splitlines()
    flaky = [f"FLAKY {name}" for name in red] if ends == 0 else []
    assert [line for line in said if line.startswith("FLAKY")] == flaky == said[len(said) - len(flaky) :]


def test_continuous_integration_runs_the_gate_and_no_more() -> None:
    [called] = re.findall(r"^for name in (.*?); do", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)

    assert called.split() == ["install", "lint", "types", "test"]


def test_the_promises_are_those_of_their_page() -> None:
    text = (ROOT / "docs" / "promises.md").read_text().partition("## What is not guaranteed")[0]

    assert re.findall(r"^\*\*(.+?)\*\*", text, re.MULTILINE) == list(PROMISES)


@pytest.mark.parametrize("named", PROMISES.values(), ids=PROMISES)
def test_a_promise_has_a_test_in_the_gate(named: str) -> None:
    file, _, name = named.partition("::")
    tree = ast.parse((ROOT / file).read_text())
    marks = [node.value for node in tree.body if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node)]
    [test] = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]

    assert not is_of_a_subject([*marks, *test.decorator_list])
