"""The recipe that an archive holds."""

from __future__ import annotations

from headrace.infra.archive.reading import Archive
from headrace.infra.errors import UsageError
from headrace.infra.recipe.settings import Recipe


def read_newest_recipe(archive: Archive) -> Recipe:
    """Return the newest recipe of an archive's run. Raises UsageError if there is none, and as `Archive.revisions`."""
    revisions = archive.revisions()
    if not revisions:
        raise UsageError(f"the archive {archive.root} holds no recipe of its run: archive the run again")
    return Recipe.from_json(revisions[-1].recipe)
