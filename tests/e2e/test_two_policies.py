"""Two policies in one workflow: routed, grouped, trained and audited apart, with no barrier between them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from command import headrace

from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.run.run import Run
from headrace.ops.opened_run import open_run
from headrace.schemas import codec
from headrace.schemas.records import BatchTrained, CuratedGroup, TrajectoryGroup, WeightsPublished

HERE = Path(__file__).parent
pytestmark = pytest.mark.runs
Record = TypeVar("Record", WeightsPublished, BatchTrained)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two-policies")
    words = (
        "up",
        HERE / "two_policies.toml",
        "--data",
        folder / "data",
        "--summary",
        folder / "summary.json",
        "--plain",
    )
    done = headrace(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Iterator[Run]:
    with open_run(None, folder / "data") as opened:
        yield opened.run


def groups(run: Run, policy: str) -> list[TrajectoryGroup]:
    topic = run.topics.trajectories(policy)
    return [codec.decode(m.value, TrajectoryGroup) for m in read_all(run.connection, [topic])]


def test_each_policy_has_its_own_versions_and_its_audit_closes(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["audit"]["ok"]
    solver, verifier = (summary["policies"][name] for name in ("solver", "verifier"))
    assert (solver["versions"], verifier["versions"]) == (6, 3)
    for policy, trained in ((solver, 6 * 4), (verifier, 3 * 8)):
        found = policy["groups"]
        assert found["trained"] == trained
        assert found["issued"] == trained + sum(found["discarded"].values()) + found["dead"]
        assert found["lost"] == found["doubled"] == 0


def test_adapters_are_published_alone_or_merged_and_engine_and_trainer_compute_alike(run: Run) -> None:
    def records(topic: str, kind: type[Record]) -> list[Record]:
        return [codec.decode(message.value, kind) for message in read_all(run.connection, [topic])]

    solver, verifier = (records(run.topics.weights(name), WeightsPublished) for name in ("solver", "verifier"))
    adapter_bytes = 2 * 2 * 4 * (64 + 128 + 64 + 64)  # bf16, two layers, rank 4, in and out of q_proj and v_proj
    assert {event.metrics["full_bytes"] for event in verifier} == {adapter_bytes}
    assert {event.metrics["full_bytes"] > 100_000 for event in solver} == {True}
    for policy in ("solver", "verifier"):
        metrics = [batch.metrics for batch in records(run.topics.batches(policy), BatchTrained)]
        gaps = [one["logprob_gap_max"] for one in metrics if "logprob_gap_max" in one]
        assert gaps
        assert max(gaps) < 1e-3


def test_every_task_concludes_with_one_record_per_policy_tied_by_episodes(run: Run) -> None:
    solver, verifier = ({g.number: g for g in groups(run, name)} for name in ("solver", "verifier"))
    assert solver.keys() == verifier.keys()
    for number, group in solver.items():
        assert group.episode_ids == verifier[number].episode_ids


def test_a_rejected_solver_has_two_sequences_in_one_trajectory_the_second_with_an_observation(run: Run) -> None:
    trajectories = [t for group in groups(run, "solver") for t in group.trajectories]
    twice = [t for t in trajectories if len(t.sequences) == 2]
    assert twice, "some first attempts were rejected"
    for trajectory in twice:
        first, second = trajectory.sequences
        assert [span.kind for span in first.spans] == ["prompt", "generated"]
        assert [span.kind for span in second.spans] == ["prompt", "observation", "generated"]
        assert second.reward == trajectory.reward
        assert {first.role, second.role} == {"solver"}
    once = [t for t in trajectories if len(t.sequences) == 1]
    assert once, "others were approved"


def test_each_policy_trains_only_on_tokens_that_it_generated(run: Run) -> None:
    for policy in ("solver", "verifier"):
        used = {
            use.number
            for m in read_all(run.connection, [run.topics.batches(policy)])
            for use in codec.decode(m.value, BatchTrained).groups
        }
        for m in read_all(run.connection, [run.topics.curated(policy)]):
            curated = codec.decode(m.value, CuratedGroup)
            group = codec.decode(curated.group, TrajectoryGroup)
            assert group.policy == policy
            assert {s.role for t in group.trajectories for s in t.sequences} <= {policy}
            used.discard(curated.number)
        assert not used, "every group that a batch names is on the curated topic"
