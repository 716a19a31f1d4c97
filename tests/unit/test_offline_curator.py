"""Curating an archive offline, without a broker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.infra.archive.reading import Archive
from headrace.infra.archive.writing import ArchiveWriter
from headrace.infra.kafka.clients import Message
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.recipe.settings import Recipe
from headrace.ops.offline.offline_curator import curate_offline
from headrace.schemas import codec
from headrace.schemas.records import RecipeRevision


def archive(root: Path, revisions: Sequence[Recipe], messages: Sequence[Message] = ()) -> Archive:
    """An archive of these recipe revisions and messages, with a trajectories topic for each policy of the first."""
    run, schemas = revisions[0].name, codec.schema_texts()
    with ArchiveWriter(root, run, "run-1", lambda *_: None, lambda *_: []) as writer:
        writer.add_topic(f"{run}.recipe", 1, {})
        for policy in revisions[0].policies:
            writer.add_topic(f"{run}.trajectories.{policy}", 1, {})
        for number, recipe in enumerate(revisions):
            told = RecipeRevision(run_id="run-1", revision=number, recipe=recipe.to_json(), schemas=schemas)
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
