"""Training over an archive without a broker: the order of logical time, what is too old by it, and what comes out."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import transformers
from made_recipes import sums_recipe
from made_run import TINY_MODEL

from headrace.app.views.offline_page import _show_counts, _show_verdict
from headrace.envs.arithmetic import ALPHABET
from headrace.infra.archive.reading import Archive
from headrace.infra.archive.writing import ArchiveWriter
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Message
from headrace.infra.recipe.settings import Recipe
from headrace.infra.whole_folder import FolderBusy, write_new_folder
from headrace.ops.offline.archived_groups import ArchivedFirstUses, iterate_arrivals, iterate_batches
from headrace.ops.offline.archived_start import load_start
from headrace.ops.offline.offline_trainer import TrainingRequest, _apply_settings, _explain_no_version, train_offline
from headrace.ops.offline.offline_versions import RecordCounts, retrain_versions
from headrace.ops.plain_json import plain
from headrace.schemas import codec
from headrace.schemas.headers import Stamp
from headrace.schemas.records import (
    BatchTrained,
    CuratedGroup,
    GroupUse,
    RecipeRevision,
    Sampling,
    Span,
    Trajectory,
    TrajectoryGroup,
)
from headrace.schemas.records import Sequence as Tokens
from headrace.trainers.batches.first_use_cache import replay_of
from headrace.trainers.batches.trained_groups import LineageBroken

TOPIC = "t.curated.solver"


def recipe(**trainer: Any) -> Recipe:
    return sums_recipe(
        policies={"solver": {"model": TINY_MODEL, "alphabet": ALPHABET}},
        rollout={"group_size": 4, "max_tokens": 8, "concurrency": 64},
        trainer={"steps": 50, "groups_per_batch": 4, "minibatches": 2, "learning_rate": 1e-3, **trainer},
        evaluate={"every": 0},
        kafka={"partitions": 4},
    )


def curated(number: int, head: int = 0, lag: int = 1, use: int = 0, back: int = 0) -> Message:
    """A group of four, sampled `lag` versions before `head`; of a replay only what names its first use."""
    draw, version = np.random.default_rng(number), max(0, head - lag)
    members = []
    for i in range(4):
        ids = draw.integers(2, 50, 6).astype(np.int32)
        logprobs = np.concatenate([np.zeros(2), -draw.random(4) * 4]).astype(np.float32)
        spans = (Span("prompt", 2), Span("generated", 4, finish_reason="stop", sampling=Sampling()))
        sequence = Tokens(ids, logprobs, np.array([-1, 2, version, 4], np.int32), spans=spans)
        members.append(Trajectory(f"sums:{number}:{i}", float(i % 2), {}, (sequence,)))
    group = TrajectoryGroup("run-1", "sums", number, policy="solver", trajectories=tuple(members), head_version=head)
    record = CuratedGroup("run-1", "sums", number, use, deadline_version=version + 2, min_version=version)
    if use:
        record = replace(record, first_back=back)
    else:
        record = replace(record, group=codec.encode(group), kept=(0, 1, 2, 3), rewards=(0.0, 1.0, 0.0, 1.0))
    stamp = Stamp("run-1", "sums", number, use=use, policy="solver", head_version=head)
    return Message(TOPIC, 0, 0, stamp.key, codec.encode(record), stamp.to_headers(), 0)


def archive(
    root: Path,
    partitions: Sequence[Sequence[Message]],
    told: Recipe | None = None,
    topic: str = TOPIC,
    before: Sequence[Recipe] = (),
) -> Archive:
    """An archive of these records; a file for every three, offsets with gaps as markers leave them."""
    recipes = (*before, told or recipe())
    with ArchiveWriter(root, "t", "run-1", lambda *_: None, lambda *_: []) as writer:
        writer.add_topic("t.recipe", 1, {})
        writer.add_topic(topic, len(partitions), {})
        for number, one in enumerate(recipes):
            revision = RecipeRevision("run-1", number, one.to_json(), schemas=codec.schema_texts())
            writer.write(Message("t.recipe", 0, number, b"", codec.encode(revision)))
        for partition, messages in enumerate(partitions):
            for index, message in enumerate(messages):
                writer.write(replace(message, topic=topic, partition=partition, offset=2 * index))
                if index % 3 == 2:
                    writer.save()
        writer.save()
    return Archive(root)


def numbers(found: Archive) -> list[int]:
    return [codec.decode(one.message.value, CuratedGroup).number for one in iterate_arrivals(found, TOPIC)]


def test_partitions_come_in_turn_and_the_oldest_clock_first(tmp_path: Path) -> None:
    first = [curated(0, 0), curated(1, 2), curated(2, 1), curated(3, 4)]
    second = [curated(10, 0), curated(11, 0), curated(12, 2), curated(13, 3)]

    found = archive(tmp_path, [first, second, []])

    assert numbers(found) == [0, 10, 11, 1, 2, 12, 13, 3], "2 came after 1, so it came at clock 2"
    assert [one.clock for one in iterate_arrivals(found, TOPIC)] == [0, 0, 0, 2, 2, 2, 3, 4]


def test_the_first_use_of_a_replay_is_found_wherever_it_lies(tmp_path: Path) -> None:
    messages = [*(curated(number) for number in range(8)), curated(1, use=1, back=7), curated(6, use=1)]
    found = archive(tmp_path, [messages])
    firsts = ArchivedFirstUses(found, TOPIC)

    for message in list(found.messages((TOPIC, 0)))[-2:]:
        replay = codec.decode(message.value, CuratedGroup)
        first = firsts.of(replay_of(message, replay))
        assert first is not None
        assert (codec.decode(first.value, CuratedGroup).number, first.offset) == (replay.number, 2 * replay.number)
        assert firsts.at(0, first.offset) == first
    assert firsts.at(0, 3) is None
    assert firsts.of(replay_of(replace(message, offset=0), replay)) is None


def test_it_trains_all_that_there_is_and_the_folder_is_one_that_transformers_loads(tmp_path: Path) -> None:
    messages = [curated(number, number // 4) for number in range(14)]
    archive(tmp_path / "a", [messages[0::2], messages[1::2]])

    found = plain(train_offline(tmp_path / "a", tmp_path / "out", TrainingRequest()))

    assert [one["version"] for one in found["versions"]] == [1, 2, 3]
    assert (found["read"], found["trained"], found["left"], found["evicted"]) == (14, 12, 2, {})
    assert all(np.isfinite(one["metrics"]["loss"]) for one in found["versions"])
    assert not [name for one in found["versions"] for name in one["metrics"] if name.startswith("logprob_gap")]
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.config.hidden_size == TINY_MODEL["hidden_size"]
    report = json.loads((tmp_path / "out" / "training.json").read_text())
    assert report["weights_hash"] == found["weights_hash"]
    again = plain(train_offline(tmp_path / "a", tmp_path / "again", TrainingRequest()))
    assert again["weights_hash"] == found["weights_hash"]


def test_what_is_too_old_is_told_by_the_clock_of_the_log_and_not_by_the_version_that_is_made(tmp_path: Path) -> None:
    later = [curated(number, 40 + number // 4) for number in range(16)]
    archive(tmp_path / "a", [later])
    found = plain(train_offline(tmp_path / "a", tmp_path / "out", TrainingRequest()))
    assert (len(found["versions"]), found["evicted"]) == (4, {}), "versions 1 to 4 of groups of versions 39 to 42"
    assert [one["clock"] for one in found["versions"]] == [40, 41, 42, 43]

    leaping = [curated(0, 1), curated(1, 1), *(curated(number, 9) for number in range(2, 6))]
    archive(tmp_path / "b", [leaping])
    found = plain(train_offline(tmp_path / "b", tmp_path / "leapt", TrainingRequest()))
    assert (found["evicted"], found["trained"], found["left"]) == ({"expired": 2}, 4, 0)
    allowed = TrainingRequest(sets=("trainer.max_staleness=9",))
    found = plain(train_offline(tmp_path / "b", tmp_path / "allowed", allowed))
    assert (found["evicted"], found["trained"], found["left"]) == ({}, 4, 2)


def test_tokens_are_as_old_for_the_learner_as_by_the_clock(tmp_path: Path) -> None:
    """The proximal policy is guessed by their age, so weights tell which age the learner was given."""
    sets = ('trainer.loss={use="decoupled_ppo", proximal="interpolated"}',)
    hashes = {}
    for name, (head, lag) in {"old": (5, 1), "older": (50, 1), "fresh": (5, 0)}.items():
        archive(tmp_path / name, [[curated(number, head + number // 4, lag) for number in range(8)]])
        found = plain(train_offline(tmp_path / name, tmp_path / f"of-{name}", TrainingRequest(sets=sets)))
        hashes[name] = found["weights_hash"]
        assert found["versions"][1]["metrics"][f"staleness_{lag}"] == 1.0

    assert hashes["old"] == hashes["older"], "what counts is their age, not their number"
    assert hashes["old"] != hashes["fresh"]


def test_what_cannot_be_trained_on_is_counted_by_reason(tmp_path: Path) -> None:
    odd = [
        replace(curated(20), value=b"junk"),
        replace(curated(21), value=codec.encode(CuratedGroup("run-2", "sums", 21))),
        replace(curated(22), value=codec.encode(CuratedGroup("run-1", "sums", 22, group=b"junk"))),
        curated(99, use=1, back=1),
    ]
    archive(tmp_path / "a", [[*odd, *(curated(number) for number in range(4))]])

    trained = train_offline(tmp_path / "a", tmp_path / "out", TrainingRequest())
    found = plain(trained)

    assert found["unusable"] == {"other_run": 1, "undecodable": 1, "unusable": 1}
    assert found["first_unusable"].startswith("t.curated.solver[0] offset 0: ")
    assert "The first unusable record is t.curated.solver[0] offset 0: " in " ".join(map(str, _show_counts(trained)))
    assert (found["evicted"], found["trained"]) == ({"missing": 1}, 4)


def test_a_batch_that_names_another_group_than_stands_there_is_told(tmp_path: Path) -> None:
    found = archive(tmp_path, [[curated(number) for number in range(4)]])

    def groups(*uses: GroupUse) -> list[int]:
        [(_, wholes)] = iterate_batches(found, "solver", [BatchTrained(version=1, groups=uses)])
        return [one.curated.number for one in wholes]

    assert groups(GroupUse("sums", 2, 0, 0, 4), GroupUse("sums", 0, 0, 0, 0)) == [2, 0], "in the order of the batch"
    with pytest.raises(
        LineageBroken, match=r"must hold group sums:3 at offset 4, .* it holds sums:2: without --batches, "
    ):
        groups(GroupUse("sums", 3, 0, 0, 4))
    with pytest.raises(
        LineageBroken, match="has no record at offset 5, but a batch names group sums:3 there: without --batches, "
    ):
        groups(GroupUse("sums", 3, 0, 0, 5))


def test_of_the_runs_own_batches_only_versions_of_the_same_numerics_from_the_start_on_are_compared(
    tmp_path: Path,
) -> None:
    found = archive(tmp_path / "a", [[curated(number) for number in range(12)]])
    start = load_start(found, "solver", recipe(), None)
    here, other = start.learner.fingerprint(), {"cpu": "another"}
    batches = [
        BatchTrained(
            version=version,
            fingerprint=fingerprint,
            weights_hash="ab",
            groups=tuple(GroupUse("sums", n, 0, 0, 2 * n) for n in range(4 * version - 4, 4 * version)),
        )
        for version, fingerprint in ((1, here), (2, other), (3, here))
    ]
    made = [one.describe() for one in retrain_versions(found, "solver", start.learner, [recipe()], batches)]
    assert [(one.expected, one.equal) for one in made] == [("ab", False), ("ab", None), ("ab", None)]
    trained: Any = SimpleNamespace(versions=made)
    differ, others = map(str, _show_verdict(trained))
    assert differ.startswith("1 of 1 versions differ from the run's, the first is version 1")
    assert others.startswith("2 versions are not comparable here, the first is version 2")


def test_what_cannot_be_is_told_and_leaves_no_folder(tmp_path: Path) -> None:
    archive(tmp_path / "a", [[curated(number) for number in range(4)]])
    for asked, sentence in (
        (TrainingRequest(policy="other"), "the run has no policy other: give --policy with one of solver"),
        (TrainingRequest(sets=("rollout.max_tokens=9",)), "can be set in this command"),
        (
            TrainingRequest(sets=("trainer.groups_per_batch=98",)),
            "a batch needs 98. Make batches smaller with --set policies.solver.trainer.groups_per_batch=N$",
        ),
        (TrainingRequest(batches=True), "has no topic t.batches.solver"),
        (TrainingRequest(start="/nowhere"), "there is no folder /nowhere on this machine"),
    ):
        with pytest.raises(Exception, match=sentence):
            train_offline(tmp_path / "a", tmp_path / "out", asked)
        assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_policy_that_a_later_revision_added_is_trained_with_other_settings(tmp_path: Path) -> None:
    first = recipe()
    other = first.policies["solver"].model_copy(update={"trainer": {"steps": 40}})
    told = first.model_copy(update={"policies": {**first.policies, "judge": other}})
    found = archive(tmp_path / "a", [[curated(number) for number in range(4)]], told, "t.curated.judge", [first])
    asked = TrainingRequest(policy="judge", sets=("policies.judge.trainer.learning_rate=1e-4",), steps=3)
    policy, before, (earlier, changed) = _apply_settings(found, asked)
    assert (policy, before) == ("judge", told)
    assert [*earlier.policies] == ["solver"]
    assert (changed.trainer_of("judge").steps, changed.trainer_of("judge").learning_rate) == (3, 1e-4)


def test_a_start_that_has_all_steps_already_is_told_as_the_reason(tmp_path: Path) -> None:
    archive(tmp_path / "a", [[curated(number) for number in range(4)]])
    learner: Any = SimpleNamespace(version=50, settings=recipe().trainer)
    said = _explain_no_version(Archive(tmp_path / "a"), "solver", learner, RecordCounts(), has_steps=True)
    assert said == (
        "training begins with version 50, but trainer.steps of policy solver is 50, so no version is made: give --set "
        "policies.solver.trainer.steps=N, or a larger --steps"
    )


def test_where_groups_are_unusable_the_first_reason_is_told_beside_the_size_of_a_batch(tmp_path: Path) -> None:
    record = codec.decode(curated(0).value, CuratedGroup)
    other = replace(codec.decode(record.group, TrajectoryGroup), tokenizer_hash="ab" * 32)
    message = replace(curated(0), value=codec.encode(replace(record, group=codec.encode(other))))
    archive(tmp_path / "a", [[message] * 4])
    said = r"Unusable and left out: 4 \(the first: t\.curated\.solver\[0\] offset 0: .* another tokenizer"
    with pytest.raises(UsageError, match=said):
        train_offline(tmp_path / "a", tmp_path / "out", TrainingRequest())


def test_a_policy_that_was_warmed_up_needs_a_start(tmp_path: Path) -> None:
    warm = json.loads(recipe().to_json())
    warm["policies"]["solver"]["warm_start"] = {}
    archive(tmp_path / "a", [[]], Recipe.model_validate(warm))
    with pytest.raises(
        UsageError,
        match=r"cannot be repeated here: add checkpoints to it with .*, or give `headrace offline train --start",
    ):
        train_offline(tmp_path / "a", tmp_path / "out", TrainingRequest())


# ------------------------------------------------------------------------------------------------------- whole folders


def test_a_folder_is_whole_or_not_there_and_what_a_killed_one_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / ".out.part"
    (left / "deep").mkdir(parents=True)
    (left / "deep" / "old").write_text("old")

    with write_new_folder(tmp_path / "out") as growing:
        assert list(growing.iterdir()) == []
        (growing / "new").write_text("new")
        assert not (tmp_path / "out").exists()
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "new"]

    with pytest.raises(UsageError, match="exists already: name a new folder"), write_new_folder(tmp_path / "out"):
        pass
    with pytest.raises(KeyError), write_new_folder(tmp_path / "failed"):
        raise KeyError
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "new"]


def test_only_one_makes_a_folder_and_the_other_leaves_it_alone(tmp_path: Path) -> None:
    with write_new_folder(tmp_path / "out") as growing:
        (growing / "mine").write_text("mine")
        with pytest.raises(FolderBusy, match="another process is writing"), write_new_folder(tmp_path / "out"):
            pass
        assert (growing / "mine").exists()
    assert (tmp_path / "out" / "mine").exists()


def test_a_lock_on_a_folder_that_has_its_name_by_now_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opened it before, and gets the lock after, would empty what is whole."""
    lock = fcntl.flock

    def renamed_in_between(descriptor: int, how: int) -> None:
        (tmp_path / ".out.part").rename(tmp_path / "out")
        (tmp_path / "out" / "whole").write_text("whole")
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", renamed_in_between)
    with pytest.raises(FolderBusy), write_new_folder(tmp_path / "out"):
        pass
    assert (tmp_path / "out" / "whole").exists()
    assert os.listdir(tmp_path) == ["out"]  # noqa: PTH208
