"""Curating an archive offline, without a broker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from made_groups import group as small_group

from headrace.infra.archive.reading import Archive
from headrace.infra.archive.writing import ArchiveWriter
from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.dead_letters import NOT_ISSUED, TAKEN, TIME_TRAVEL, VERDICT_HEADER
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run import run as runs
from headrace.ops.offline.archiver import list_group_claims
from headrace.ops.offline.offline_curator import curate_offline
from headrace.schemas import codec
from headrace.schemas.headers import Stamp
from headrace.schemas.records import ClaimCheck, DeadLetter, RecipeRevision

GROUP_CLAIM = ClaimCheck("main", "run-1/groups/" + "0" * 64, "0" * 64, 1)


def fetch(_: ClaimCheck, path: Path) -> None:
    path.write_bytes(b"?")


def trajectories(offset: int, *headers: tuple[str, bytes], claim: ClaimCheck | None = None) -> Message:
    """A group of a solver on the trajectories topic."""
    group = replace(
        small_group((1.0, 0.0), [2, 2], number=offset), run_id="run-1", claim=claim, head_version=4 + offset
    )
    stamp = Stamp("run-1", group.stream, offset, policy="solver", head_version=group.head_version)
    topic = "arithmetic.trajectories.solver"
    return Message(topic, 0, offset, stamp.key, codec.encode(group), [*stamp.to_headers(), *headers])


def archive(root: Path, revisions: Sequence[Recipe], messages: Sequence[Message] = ()) -> Archive:
    """An archive of these recipe revisions and messages, with a trajectories topic for each policy of the first."""
    run, schemas = revisions[0].name, codec.schema_texts()
    asks = {"asks_for_published": True, "asks_for_issued": True}
    with ArchiveWriter(root, run, "run-1", fetch, list_group_claims) as writer:
        writer.add_topic(f"{run}.recipe", 1, {})
        for policy in revisions[0].policies:
            writer.add_topic(f"{run}.trajectories.{policy}", 1, {})
        writer.add_topic(f"{run}.dead-letters", 1, {})
        for number, recipe in enumerate(revisions):
            told = RecipeRevision(run_id="run-1", revision=number, recipe=recipe.to_json(), schemas=schemas, **asks)
            writer.write(Message(f"{run}.recipe", 0, number, b"", codec.encode(told)))
        for one in messages:
            writer.write(one)
        writer.save()
    return Archive(root)


def test_a_policy_that_a_later_revision_dropped_is_curated_by_the_newest_recipe_that_has_it(tmp_path: Path) -> None:
    both, one = load_recipe("arithmetic-verifier"), load_recipe("arithmetic", ["name=arithmetic-verifier"])
    archive(tmp_path / "a", [both, one])
    assert list(curate_offline(tmp_path / "a", None, None, tmp_path / "all").policies) == ["solver", "verifier"]
    assert list(curate_offline(tmp_path / "a", "verifier", None, tmp_path / "one").policies) == ["verifier"]


def test_what_a_replayed_run_had_decided_of_a_group_counts_before_the_dead_letters_at_other_offsets(
    tmp_path: Path,
) -> None:
    decided = [TAKEN, NOT_ISSUED, TIME_TRAVEL]
    messages = [trajectories(offset, (VERDICT_HEADER, verdict.encode())) for offset, verdict in enumerate(decided)]
    at = messages[0]
    letter = DeadLetter("run-1", "curate.solver", at.topic, at.partition, at.offset, reason=NOT_ISSUED, policy="solver")
    messages.append(Message("arithmetic.dead-letters", 0, 0, b"", codec.encode(letter)))
    archive(tmp_path / "a", [load_recipe("arithmetic")], messages)
    found = curate_offline(tmp_path / "a", None, None, tmp_path / "out").policies["solver"]
    assert (found.kept, found.dead) == (1, {NOT_ISSUED: 1, TIME_TRAVEL: 1})


def test_a_group_that_the_run_refused_as_too_large_is_not_read_offline_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "LARGEST_GROUP_BYTES", 0)
    archive(tmp_path / "a", [load_recipe("arithmetic")], [trajectories(0, claim=GROUP_CLAIM)])
    found = curate_offline(tmp_path / "a", None, None, tmp_path / "out").policies["solver"]
    assert (found.kept, found.dead) == (0, {"missing_object": 1})
