"""`headrace up` as a user meets it, interrupted and gone on with, and what the finished run has left.

A closed audit, a summary, and log-probabilities that anybody can check.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from command import VERSIONS, Finished, Interrupted, headrace

from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.run.run import Run
from headrace.infra.weights.folder import write_weights
from headrace.infra.weights.policy_weights import PolicyWeights
from headrace.ops.lineage.group_fate import look_up_group
from headrace.ops.lineage.inspection import step, trajectory
from headrace.ops.lineage.lineage import version_lineage
from headrace.ops.lineage.own_metrics import select_own_metrics
from headrace.schemas import codec
from headrace.schemas.records import BatchTrained, CuratedGroup, Sequence, TrajectoryGroup, WeightsPublished

KEYS = {
    "run", "versions", "wall_s", "reward_first", "reward_last", "eval_first", "eval_last", "groups", "audit",
    "log_share", "log_cpu_share", "tokens_per_s", "samples_per_s",
}  # fmt: skip


OFFLINE = """
name = "offline"
seeds = [1]
archive = "run.archive"
set = ["evaluate.problems=16", "evaluate.every=4", "trainer.max_staleness=4"]

[[variants]]
recipe = "arithmetic"
name = "plain"

[[variants]]
recipe = "arithmetic"
name = "replaying"
set = ["curate.chain=['validate', { use = 'replay_latest', ratio = 0.5, max_uses = 2 }]"]
"""


def test_ctrl_c_stops_everything_and_tells_how_to_go_on(interrupted: Interrupted) -> None:
    assert interrupted.code == 130
    assert f"up arithmetic --set trainer.steps={VERSIONS}" in interrupted.output
    assert not interrupted.left


def test_the_summary_says_what_the_run_did(finished: Finished) -> None:
    summary = finished.summary
    assert summary.keys() >= KEYS
    assert summary["run"] == "arithmetic"
    assert summary["versions"] == VERSIONS
    assert summary["audit"] == {"ok": True, "lost": 0, "doubled": 0, "problems": [], "unchecked": ""}
    groups = summary["groups"]
    assert groups["issued"] == groups["trained"] + sum(groups["discarded"].values()) + groups["dead"]
    assert groups["trained"] == VERSIONS * 32
    assert groups["in_flight"] == 0
    assert 0.2 < summary["reward_first"] < summary["reward_last"] < 1, "twelve versions already help"
    assert 0.2 < summary["eval_first"] < 0.5, "warmed up into its band"
    assert 0 < summary["log_share"] < 1
    assert 0 < summary["log_cpu_share"] < 1
    assert min(summary[key] for key in ("wall_s", "tokens_per_s", "samples_per_s")) > 0
    assert f"inspect --step {VERSIONS} --data" in finished.output.partition("Try next")[2]
    assert not finished.left


def test_a_run_that_goes_on_begins_by_telling_what_it_has(finished: Finished) -> None:
    before, first, _ = finished.output.partition("groups issued=")
    assert re.search(r"resumed: solver at version \d+ of 12; of [1-9]", before)
    assert "version -" not in before
    assert first


def test_audit_and_status_agree_from_the_topics_alone(finished: Finished, run: Run) -> None:
    audit = headrace("audit", "--data", finished.data, "--json")
    status = headrace("status", "--data", finished.data, "--json")
    assert audit.returncode == status.returncode == 0, audit.stderr + status.stderr
    assert json.loads(audit.stdout)["ok"] is True
    assert json.loads(audit.stdout)["unnumbered_letters"] == {"undecodable": 1}, "garbage stopped nobody, and is told"
    told = json.loads(status.stdout)
    assert told["run"] == "arithmetic"
    assert told["state"] == "finished"
    assert told["versions"] == {"solver": VERSIONS}
    assert told["groups"] == finished.summary["groups"]
    assert told["wasted_is_all"] is True
    for key in ("tokens", "wasted_tokens"):
        assert told[key] == finished.summary[key]
    assert told["policies"]["solver"]["produced"] == told["groups"]["issued"]
    assert [worker["worker"] for worker in told["workers"]] == ["rollout-sums-0"], "a trainer is no worker"
    topics = headrace("topics", "--data", finished.data, "--json")
    assert topics.returncode == 0, topics.stderr
    assert {topic["state"] for topic in json.loads(topics.stdout)} == {"ok"}
    assert told.keys() >= {"run", "state", "versions", "groups", "lag", "workers"}


@pytest.mark.runs
def test_the_same_command_again_says_that_the_run_is_finished(finished: Finished, rested: Path, tmp_path: Path) -> None:
    again = headrace(*finished.words, "--data", rested, "--summary", tmp_path / "s.json")
    assert again.returncode == 0, again.stderr
    assert "finished" in again.stdout
    assert {**json.loads((tmp_path / "s.json").read_text()), "data": None} == {**finished.summary, "data": None}


@pytest.mark.runs
def test_a_changed_recipe_on_an_old_folder_is_refused_with_what_differs(finished: Finished, rested: Path) -> None:
    changed = headrace(*finished.words, "--set", "trainer.learning_rate=0.001", "--data", rested)
    assert changed.returncode == 2
    assert "trainer.learning_rate" in changed.stderr
    assert "--new-recipe" in changed.stderr


def test_a_whole_run_trained_again_gives_every_hash(finished: Finished, run: Run) -> None:
    again = headrace("retrain", "--data", finished.data, "--json")
    assert again.returncode == 0, again.stderr
    told = json.loads(again.stdout)
    assert (told["ok"], [one["version"] for one in told["versions"]]) == (True, list(range(1, VERSIONS + 1)))


def test_a_consumer_of_thirty_lines_prints_the_reward_of_every_version(run: Run) -> None:
    script = Path(__file__).parents[2] / "examples" / "metrics_consumer.py"
    words = [sys.executable, script, str(run.address), "solver", "--once"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert [int(line.split()[1]) for line in done.stdout.splitlines()] == list(range(1, VERSIONS + 1))
    assert all(0 < float(line.split()[3]) < 1 for line in done.stdout.splitlines())


def versions(run: Run, folder: Path) -> Iterator[tuple[int, transformers.PreTrainedModel]]:
    """Every published version as a folder that plain transformers loads."""
    messages = read_all(run.connection, [run.topics.weights("solver")])
    events = [codec.decode(message.value, WeightsPublished) for message in messages]
    weights, files = PolicyWeights(run.weights_cache), events[0].files
    assert {event.kind for event in events} == {"anchor", "delta"}
    for event in events:
        here = folder / f"v{event.version}"
        here.mkdir()
        write_weights(weights.load_version(events, event), here, event.weights_hash)
        for file in files:
            assert file.claim is not None
            (here / file.name).write_bytes(run.get(file.claim))
        yield event.version, transformers.AutoModelForCausalLM.from_pretrained(here, dtype=torch.float32)


def trained_sequences(run: Run) -> list[Sequence]:
    topics = run.topics
    used = {
        (use.stream, use.number)
        for message in read_all(run.connection, [topics.batches("solver")])
        for use in codec.decode(message.value, BatchTrained).groups
    }
    sequences = []
    for message in read_all(run.connection, [topics.curated("solver")]):
        curated = codec.decode(message.value, CuratedGroup)
        if (curated.stream, curated.number) in used:
            group = codec.decode(curated.group, TrajectoryGroup)
            sequences += [s for trajectory in group.trajectories for s in trajectory.sequences]
    return sequences


def test_recorded_log_probabilities_are_those_of_the_version_that_each_token_names(run: Run, tmp_path: Path) -> None:
    """The rule for a sequence of several versions: each token under its version's weights, over the whole prefix.

    How many sequences a swap finds in flight is the machine's affair: where trainers are the slower part, none.
    `test_a_swap_in_flight_gives_version_runs_that_can_be_reproduced` makes sure of two swaps.
    """
    sequences = trained_sequences(run)
    mixed = [s for s in sequences if len({int(v) for v in s.version_runs[::2]} - {-1}) > 1]
    chosen = mixed[:20] + sequences[:: max(1, len(sequences) // 80)]
    by_version: defaultdict[int, list[Sequence]] = defaultdict(list)
    for sequence in chosen:
        for version in {int(v) for v in sequence.version_runs[::2]} - {-1}:
            by_version[version].append(sequence)
    worst, tokens = 0.0, 0
    for version, model in versions(run, tmp_path):
        for sequence in by_version.get(version, ()):
            runs = sequence.version_runs.reshape(-1, 2)
            positions = np.flatnonzero(np.repeat(runs[:, 0], runs[:, 1]) == version)
            with torch.inference_mode():
                logits = model(torch.tensor(sequence.ids[None].astype(np.int64))).logits[0]
            plain = torch.log_softmax(logits[positions - 1], -1)
            found = plain[torch.arange(len(positions)), torch.tensor(sequence.ids[positions].astype(np.int64))]
            gap = np.abs(found.numpy() - sequence.logprobs[positions])
            worst, tokens = max(worst, float(gap.max())), tokens + len(positions)
    assert len(by_version) > 1
    assert tokens > 200
    assert worst < 1e-4


def test_a_version_is_followed_back_to_its_groups_and_to_every_token_of_one(finished: Finished, run: Run) -> None:
    versions = version_lineage(run, "solver", VERSIONS), version_lineage(run, "solver", VERSIONS - 1)
    made = versions[0].groups[0]
    seen = step(run, "solver", VERSIONS, slice(None))
    of_one = trajectory(run, "solver", f"{made.stream}:{made.number}:0")

    assert versions[0].base_hash == versions[1].weights_hash
    assert len(versions[0].groups) == len(seen.groups) == 32
    assert all(sum(group.version_shares.values()) == pytest.approx(1) for group in versions[0].groups)
    rewards = [member.reward for group in seen.groups for member in group.trajectories]
    assert float(np.mean(rewards)) == pytest.approx(versions[0].metrics["reward_mean"])
    assert not any(select_own_metrics(one.metrics) for one in versions), "its loss is a shipped one"
    assert sum(s.tokens for g in seen.groups for t in g.trajectories for s in t.sequences) == seen.metrics["tokens"]
    fate = look_up_group(run, "solver", f"{made.stream}:{made.number}").policies["solver"]
    assert [use.version for use in fate.trained] == [VERSIONS]
    assert of_one.version == VERSIONS
    each = of_one.group.trajectories[0].sequences[0].each
    assert re.fullmatch(r"[a-z]{2}=\d\+\d\?\\boxed{\d*}?.*", "".join(token.text for token in each))


def test_what_was_discarded_is_told_and_drawn_and_adds_up_to_the_summary(
    finished: Finished, run: Run, tmp_path: Path
) -> None:
    told = headrace("discards", "--data", finished.data, "--plot", tmp_path / "discards.svg", "--json")
    assert told.returncode == 0, told.stderr
    ledger = json.loads(told.stdout)["policies"]["solver"]
    groups = finished.summary["groups"]
    assert ledger["trained"]["groups"] == groups["trained"]
    assert {reason: row["groups"] for reason, row in ledger["discarded"].items()} == groups["discarded"]
    assert ledger["waiting"] == 0
    assert "<svg" in (tmp_path / "discards.svg").read_text()


@pytest.mark.runs
def test_how_versions_were_published_is_told_and_one_is_a_folder_that_others_load(
    finished: Finished, run: Run, tmp_path: Path
) -> None:
    told = json.loads(headrace("weights", "--data", finished.data, "--json").stdout)
    assert sorted([one["version"] for one in told["versions"]] + told["left_out"]) == list(range(VERSIONS + 1))
    assert {one["kind"] for one in told["versions"]} == {"anchor", "delta"}
    out = tmp_path / "exported"
    done = headrace("weights", "export", out, "--data", finished.data, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["weights_hash"] == told["versions"][-1]["weights_hash"]
    assert headrace("weights", "verify", out).returncode == 0
    assert transformers.AutoModelForCausalLM.from_pretrained(out).config.hidden_size == 64
    again = headrace("weights", "export", out, "--data", finished.data)
    assert (again.returncode, "exists" in again.stderr) == (2, True)
    played = headrace("evaluate", "--recipe", "arithmetic", "--weights", out, "--json")
    assert played.returncode == 0, played.stderr
    alone, in_the_run = json.loads(played.stdout)["sums"]["solver"]["avg_at_k"], finished.summary["eval_last"]
    assert abs(alone - in_the_run) < 0.15, "other draws of the same problems by the same weights"


@pytest.mark.runs
def test_chains_are_compared_over_the_archive_of_a_run_and_nothing_is_played(rested: Path, tmp_path: Path) -> None:
    archive, data = tmp_path / "run.archive", tmp_path / "swept"
    assert headrace("archive", "--data", rested, "--out", archive, "--with-weights").returncode == 0
    (tmp_path / "offline.toml").write_text(OFFLINE)
    done = headrace("compare", tmp_path / "offline.toml", "--data", data, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    plain, replayed = (found["variants"][name]["policies"]["solver"] for name in ("plain", "replaying"))
    assert plain["replayed"]["mean"] == 0 < replayed["replayed"]["mean"]
    curves = [run["summary"]["policies"]["solver"]["eval_curve"] for run in found["runs"].values()]
    last = curves[0][-1][0]
    assert [version for version, _ in curves[0]] == [*range(0, last, 4), last], "every fourth version, and the last one"
    assert len({curve[0][1] for curve in curves}) == 1, "all begin with the run's version 0"
    assert not (data / "kafka").exists(), "no broker was started"
    hashes = [run["summary"]["policies"]["solver"]["weights_hash"] for run in found["runs"].values()]
    assert len(set(hashes)) == 2
    again = headrace("compare", tmp_path / "offline.toml", "--data", data, "--json")
    assert json.loads(again.stdout) == found, "what is done is not done again"


@pytest.mark.parametrize("words", [("--help",)])
def test_help_answers_at_once_and_teaches(words: tuple[str, ...]) -> None:
    told = headrace(*words)
    assert told.returncode == 0
    assert "headrace" in told.stdout.lower()
