"""The recipe that an archive holds."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.infra.archive.reading import Archive
from headrace.infra.errors import UsageError
from headrace.infra.recipe.settings import Recipe
from headrace.schemas.records import RecipeRevision


def read_recorded_revisions(archive: Archive) -> Sequence[RecipeRevision]:
    """Return an archive's revisions of the recipe. Raises UsageError if there is none, and as `Archive.revisions`."""
    revisions = archive.revisions()
    if not revisions:
        raise UsageError(f"the archive {archive.root} holds no recipe of its run: archive the run again")
    return revisions


def read_newest_recipe(archive: Archive) -> Recipe:
    """Return the newest recipe of an archive's run. Raises as `read_recorded_revisions`."""
    return Recipe.from_json(read_recorded_revisions(archive)[-1].recipe)
