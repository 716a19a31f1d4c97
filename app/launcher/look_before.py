"""The checks of all that a run needs of this machine, before anything is started."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.infra.embedded.data_folder import DataFolder
from headrace.infra.recipe.settings import Recipe
from headrace.ops.preflight.contract import collect_faults, list_doubts, refuse
from headrace.ops.preflight.table import build_check_input, examine, list_environments
from headrace.ops.summary_file import check_summary_path
from headrace.schemas.records import UsedEnvironment


@dataclass(frozen=True, slots=True)
class Looked:
    """The result of the checks of a recipe that can run here."""

    doubts: tuple[str, ...]
    """Sentences on what may go wrong."""
    environments: tuple[UsedEnvironment, ...]
    """Environment and data of each workflow."""


def check_before_start(recipe: Recipe, folder: DataFolder, summary: Path | None) -> Looked:
    """Check all that a run in a data folder needs. Raises RecipeUnfit with all that is wrong."""
    asked = build_check_input(recipe, folder)
    faults = examine(asked)
    with collect_faults(faults):
        check_summary_path(summary)
    refuse(faults)
    return Looked(tuple(list_doubts(faults)), list_environments(asked))
