"""Trajectories as documents of ATIF-v1.8, and back, with the same tokens, log-probabilities and spans."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_export import played, written

from headrace.infra.errors import UsageError
from headrace.ops.offline import exporter
from headrace.ops.offline.atif import AtifError, build_document, read_document
from headrace.ops.offline.atif_export import export_atif
from headrace.schemas import codec
from headrace.schemas.records import Sampling, Sequence, Span, Trajectory, TrajectoryGroup

CALL = '<tool_call>{"name": "get", "arguments": {"key": "a"}}</tool_call>'
SAMPLING = Sampling(0.7, stop_ids=(9,), stop=("x",))
MAIN = Sequence(
    ids=np.array([1, 2, 3, 4, 5, 6, 7, 8], np.int32),
    logprobs=np.array([0, 0, -0.5, -0.25, 0, 0, -1, 0], np.float32),
    version_runs=np.array([-1, 2, 3, 1, 4, 1, -1, 2, 4, 1, -1, 1], np.int32),
    role="solver",
    agent_id="main",
    baseline=0.5,
    spans=(
        Span("prompt", 2, 0),
        Span("generated", 2, 0, 0.75, "stop", SAMPLING),
        Span("observation", 1, 1),
        Span("injected", 1, 1),
        Span("generated", 1, 1, None, "length", SAMPLING),
        Span("observation", 1, 2),
    ),
)
SUB = Sequence(
    ids=np.array([1, 4], np.int32),
    logprobs=np.array([0, -2], np.float32),
    version_runs=np.array([-1, 1, 3, 1], np.int32),
    role="solver",
    agent_id="main.1",
    parent=0,
    reward=0.0,
    spans=(Span("prompt", 1, 0), Span("generated", 1, 0, None, "stop")),
)
WHOLE = Trajectory("sums:7:1", 1.0, {"f1": 1.0}, (MAIN, SUB))
GROUP = TrajectoryGroup(run_id="r", policy="solver", stream="sums", number=7, trajectories=(WHOLE,))


def build() -> dict[str, Any]:
    texts = {(3, 4): CALL}
    made = build_document(GROUP, WHOLE, lambda ids: texts.get(tuple(ids), f"<{ids}>"), "1")
    found: dict[str, Any] = json.loads(json.dumps(made))
    return found


def test_a_trajectory_comes_back_as_it_was() -> None:
    assert repr(read_document(build())) == repr(WHOLE)


def test_an_observation_after_injected_tokens_comes_back() -> None:
    spans = tuple(Span(kind, 1, 0) for kind in ("prompt", "injected", "observation"))
    nothing, versions = np.zeros(3, np.float32), np.array([-1, 3], np.int32)
    whole = Trajectory("sums:7:1", sequences=(Sequence(np.array([1, 2, 3], np.int32), nothing, versions, spans=spans),))
    [read] = read_document(build_document(GROUP, whole, str, "1")).sequences
    assert (read.ids.tolist(), read.spans) == ([1, 2, 3], spans)


def test_a_document_has_turns_calls_results_and_sub_agents_where_readers_look_for_them() -> None:
    made = build()
    assert [(step["step_id"], step["source"], step.get("llm_call_count")) for step in made["steps"]] == [
        (1, "user", None), (2, "agent", 1), (3, "agent", 0), (4, "agent", 1),
    ]  # fmt: skip
    called = made["steps"][1]
    [call] = called["tool_calls"]
    assert (call["function_name"], call["arguments"]) == ("get", {"key": "a"})
    [result] = called["observation"]["results"]
    assert (result["content"], result["source_call_id"]) == ("<[5]>", call["tool_call_id"])
    assert called["metrics"]["prompt_token_ids"] == [1, 2]
    assert called["metrics"]["logprobs"] == [-0.5, -0.25]
    [sub] = made["subagent_trajectories"]
    assert result["subagent_trajectory_ref"] == [{"trajectory_id": sub["trajectory_id"]}]


def test_documents_of_other_programs_are_read_by_their_tokens_alone() -> None:
    def step(number: int, prompt: list[int], said: list[int]) -> dict[str, Any]:
        metrics = {"prompt_token_ids": prompt, "completion_token_ids": said, "logprobs": [-1.0] * len(said)}
        return {"step_id": number, "source": "agent", "message": "", "metrics": metrics}

    asked = {"step_id": 1, "source": "user", "message": "hello"}
    made = {
        "schema_version": "ATIF-v1.6",
        "agent": {},
        "steps": [asked, step(2, [1, 2], [3]), step(3, [1, 2, 3, 4], [5]), step(4, [1, 9], [6])],
    }
    first, second = read_document(made).sequences
    assert [(span.kind, span.length, span.turn) for span in first.spans] == [
        ("prompt", 2, 0), ("generated", 1, 0), ("observation", 1, 1), ("generated", 1, 1),
    ]  # fmt: skip
    assert first.ids.tolist() == [1, 2, 3, 4, 5]
    assert (second.ids.tolist(), second.parent) == ([1, 9, 6], 0), "a prompt that was written anew is a new sequence"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda made: made.update(schema_version="2"), "schema_version is '2'"),
        (lambda made: made["steps"][1]["metrics"].pop("logprobs"), "step 2 has no logprobs"),
        (lambda made: made["steps"][1]["metrics"]["logprobs"].pop(), "2 completion_token_ids and 1 logprobs"),
        (lambda made: made.pop("steps"), "no valid document"),
        (lambda made: made.update(steps="abc"), "no valid document"),
        (lambda made: made.update(extra=[1]), "no valid document"),
    ],
)
def test_what_is_wrong_with_a_document_is_said(change: Any, told: str) -> None:
    made = build()
    change(made)
    with pytest.raises(AtifError, match=told):
        read_document(made)
    with pytest.raises(AtifError, match="no valid document"):
        read_document([made])  # type: ignore[arg-type]


def test_trajectories_without_a_sequence_are_counted_and_an_archive_that_cannot_be_read_is_not_told_as_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = codec.encode(replace(GROUP, run_id="run-1", trajectories=(replace(WHOLE, sequences=()),)))
    source = written(tmp_path / "a", [replace(played(0), value=empty)])
    done = export_atif(source, None, tmp_path / "out.jsonl")
    assert (done.rows, done.skipped) == (0, {"empty": 1})

    def fail(*_: object) -> None:
        raise OSError("bad disk")

    with pytest.raises(UsageError, match="cannot write"):
        export_atif(source, None, tmp_path / "none" / "out.jsonl")
    monkeypatch.setattr(exporter, "_read_group", fail)
    with pytest.raises(OSError, match="bad disk"):  # a UsageError is none
        export_atif(source, None, tmp_path / "again.jsonl")
