"""Trajectories as documents of ATIF-v1.8, Harbor's trajectory format (https://harborframework.com), and back.

A document holds one sequence: the first one of a trajectory, and the others inside it as `subagent_trajectories`. What
ATIF has no field for stands in `extra`. docs/archive.md says what is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from headrace.envs.tool_calls import ToolCall, parse_tool_calls
from headrace.envs.transcript import merge_runs
from headrace.infra.errors import UsageError
from headrace.schemas import records

VERSION = "ATIF-v1.8"
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "max_tokens", "stop_ids", "stop")
OWN = ("role", "agent_id", "parent", "reward", "baseline")
"""Fields of a sequence that stand in the `extra` of its document."""

NEEDED = ("prompt_token_ids", "completion_token_ids", "logprobs")

Decode = Callable[[Sequence[int]], str]
Document = dict[str, Any]


class AtifError(UsageError):
    """A document cannot be read; the message names the step, and what is missing."""


def build_document(
    group: records.TrajectoryGroup, trajectory: records.Trajectory, decode: Decode, version: str
) -> Document:
    """Return a trajectory as a document.

    Args:
        group: Its group.
        trajectory: The trajectory, with one sequence at least.
        decode: Returns the text of token ids, with special tokens.
        version: Of Headrace.
    """
    agent = {"name": "headrace", "version": version, "model_name": group.policy}
    first, *others = [
        _build_of_sequence(trajectory, index, agent, decode) for index in range(len(trajectory.sequences))
    ]
    named = ("run_id", "policy", "stream", "number", "task_id", "env", "head_version")
    of_group = {name: getattr(group, name) for name in named}
    first["extra"] |= {
        **of_group,
        "trajectory_reward": trajectory.reward,
        "reward_parts": dict(trajectory.reward_parts),
    }
    first["session_id"] = group.run_id
    if others:
        first["subagent_trajectories"] = others
        results = [result for step in first["steps"] for result in step.get("observation", {}).get("results", ())]
        if results:  # ATIF wants each of them named by a result
            results[0]["subagent_trajectory_ref"] = [{"trajectory_id": one["trajectory_id"]} for one in others]
    return first


def _build_of_sequence(
    trajectory: records.Trajectory, index: int, agent: Mapping[str, str], decode: Decode
) -> Document:
    sequence = trajectory.sequences[index]
    steps: list[Document] = []
    at = 0
    for span in sequence.spans:
        ids = sequence.ids[at : at + span.length].tolist()
        extra: Document = {"kind": span.kind, "turn": span.turn}
        if span.reward is not None:
            extra["reward"] = span.reward
        if span.kind == "generated":
            steps.append(_build_generated(sequence, span, at, decode(ids), extra))
        elif span.kind == "observation" and steps and steps[-1].get("llm_call_count"):
            result = {"content": decode(ids), "extra": {**extra, "token_ids": ids}}
            calls = steps[-1].get("tool_calls", ())
            if len(calls) == 1:
                result["source_call_id"] = calls[0]["tool_call_id"]
            steps[-1].setdefault("observation", {"results": []})["results"].append(result)
        else:
            by_policy = {"source": "agent", "llm_call_count": 0} if span.kind == "injected" else {"source": "user"}
            steps.append({**by_policy, "message": decode(ids), "extra": {**extra, "token_ids": ids}})
        at += span.length
    for number, step in enumerate(steps, 1):
        step["step_id"] = number
    return {
        "schema_version": VERSION,
        "trajectory_id": f"{trajectory.id}/{index}" if index else trajectory.id,
        "agent": dict(agent),
        "steps": steps,
        "extra": {name: getattr(sequence, name) for name in OWN},
    }


def _build_generated(sequence: records.Sequence, span: records.Span, at: int, text: str, extra: Document) -> Document:
    ids, end = sequence.ids.tolist(), at + span.length
    calls = [call for call in parse_tool_calls(text) if isinstance(call, ToolCall)]
    versions = _list_versions(sequence)[at:end]
    metrics = {
        "prompt_tokens": at,
        "completion_tokens": span.length,
        "prompt_token_ids": ids[:at],
        "completion_token_ids": ids[at:end],
        "logprobs": sequence.logprobs[at:end].tolist(),
        "extra": {"version_runs": merge_runs([(int(version), 1) for version in versions]).tolist()},
    }
    if span.sampling is not None:
        metrics["extra"]["sampling"] = {name: getattr(span.sampling, name) for name in SAMPLING}
    step = {"source": "agent", "llm_call_count": 1, "message": text, "metrics": metrics}
    step["extra"] = {**extra, "finish_reason": span.finish_reason}
    if calls:
        step["tool_calls"] = [
            {"tool_call_id": f"{span.turn}.{number}", "function_name": call.name, "arguments": call.arguments}
            for number, call in enumerate(calls)
        ]
    return step


def _list_versions(sequence: records.Sequence) -> npt.NDArray[np.int32]:
    return np.repeat(sequence.version_runs[::2], sequence.version_runs[1::2])


def read_document(document: Mapping[str, Any]) -> records.Trajectory:
    """Return the trajectory of a document, also of one that another program wrote.

    Every agent step needs `prompt_token_ids`, `completion_token_ids` and `logprobs`. If the prompt of a step does not
    begin with the tokens before it, a new sequence begins. Copied steps are left out. Raises AtifError.
    """
    try:
        return _read_trajectory(document)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise AtifError(f"this is no valid document of ATIF: {type(error).__name__}: {error}") from error


def _read_trajectory(document: Mapping[str, Any]) -> records.Trajectory:
    if not str(document.get("schema_version", "")).startswith("ATIF-v1."):
        raise AtifError(f"this is no document of ATIF-v1: its schema_version is {document.get('schema_version')!r}")
    sequences: list[records.Sequence] = []
    for one in (document, *(document.get("subagent_trajectories") or ())):
        sequences += _read_sequences(one, len(sequences))
    extra = document.get("extra") or {}
    return records.Trajectory(
        id=document.get("trajectory_id") or "",
        reward=float(extra.get("trajectory_reward", 0.0)),
        reward_parts=dict(extra.get("reward_parts", {})),
        sequences=tuple(sequences),
    )


def _read_sequences(document: Mapping[str, Any], first: int) -> list[records.Sequence]:
    builders = [_SequenceBuilder()]
    turn = 0
    for step in document["steps"]:
        builder = builders[-1]
        extra = step.get("extra") or {}
        if step.get("is_copied_context"):
            continue
        if step["source"] != "agent" or step.get("llm_call_count") == 0:
            builder.add_given(extra)
            continue
        metrics = step.get("metrics") or {}
        if missing := [
            name for name in ("prompt_token_ids", "completion_token_ids", "logprobs") if name not in metrics
        ]:
            raise AtifError(f"step {step['step_id']} has no {' and no '.join(missing)} in its metrics")
        prompt = metrics["prompt_token_ids"]
        if prompt[: len(builder.ids)] != builder.ids:
            builders.append(builder := _SequenceBuilder())
        if rest := prompt[len(builder.ids) :]:
            builder.add_given({"kind": "observation" if builder.ids else "prompt", "turn": turn, "token_ids": rest})
        turn = extra.get("turn", turn)
        builder.add_generated(step, metrics, turn)
        turn += 1
        for result in (step.get("observation") or {}).get("results", ()):
            builder.add_given(result.get("extra") or {})
    own = {name: value for name, value in (document.get("extra") or {}).items() if name in OWN}
    made = [one.build(own) for one in builders if one.ids]
    return [replace(one, parent=first + at - 1) if at else one for at, one in enumerate(made)]


class _SequenceBuilder:
    """Collects the tokens of one sequence."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._logprobs: list[float] = []
        self._runs: list[tuple[int, int]] = []
        self._spans: list[records.Span] = []

    def add_given(self, extra: Mapping[str, Any]) -> None:
        """Add tokens that no policy generated, if they are told."""
        if ids := extra.get("token_ids"):
            self.ids += ids
            self._logprobs += [0.0] * len(ids)
            self._runs.append((-1, len(ids)))
            self._spans.append(records.Span(extra.get("kind", "observation"), len(ids), extra.get("turn", 0)))

    def add_generated(self, step: Mapping[str, Any], metrics: Mapping[str, Any], turn: int) -> None:
        """Add an answer. Raises AtifError unless each token has a log-probability."""
        ids, extra, more = metrics["completion_token_ids"], step.get("extra") or {}, metrics.get("extra") or {}
        if len(metrics["logprobs"]) != len(ids):
            raise AtifError(
                f"step {step['step_id']} has {len(ids)} completion_token_ids and {len(metrics['logprobs'])} logprobs"
            )
        runs = more.get("version_runs", [0, len(ids)])
        self.ids += ids
        self._logprobs += metrics["logprobs"]
        self._runs += zip(runs[::2], runs[1::2], strict=True)
        sampled = {name: tuple(one) if isinstance(one, list) else one for name, one in more.get("sampling", {}).items()}
        sampling = records.Sampling(**cast("Any", sampled)) if sampled else None
        reason = extra.get("finish_reason", "stop")
        self._spans.append(records.Span("generated", len(ids), turn, extra.get("reward"), reason, sampling))

    def build(self, own: Mapping[str, Any]) -> records.Sequence:
        """Return the sequence."""
        return records.Sequence(
            ids=np.array(self.ids, np.int32),
            logprobs=np.array(self._logprobs, np.float32),
            version_runs=merge_runs(self._runs),
            spans=tuple(self._spans),
            **own,
        )
