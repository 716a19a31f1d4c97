"""Whether a running worker may go on under a later revision of the recipe. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.infra.process.signals import MustRestart
from headrace.infra.recipe.kinds import find_playable, require_playable
from headrace.infra.recipe.plug_in_sources import check_sources, rollout_plug_ins
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.run import Run


class RevisionCheck:
    """Remembers what was checked last. `region` is that of the tasks which the worker plays; empty at home."""

    def __init__(self, run: Run, workflow: str, kind: str, region: str) -> None:
        self._workflow, self._kind, self._region = workflow, kind, region
        self._recipe, self._plug_ins = run.recipe, run.plug_ins
        self._playable = find_playable(run.recipe, workflow, kind, region)

    def check(self, recipe: Recipe, plug_ins: Mapping[str, str]) -> None:
        """Check the newest revision and the recorded sources, if they are new.

        Raises OtherSource or SourceChanged if the revision needs other plug-ins than the loaded ones; UsageError if it
        pins the workflow to workers of another kind; MustRestart if this worker may now play another part of it.
        """
        if plug_ins is not self._plug_ins:
            self._plug_ins = plug_ins
            check_sources(plug_ins, rollout_plug_ins(recipe, self._workflow, self._kind))
        if recipe is self._recipe or self._workflow not in recipe.workflows:
            return
        self._recipe = recipe
        if require_playable(recipe, self._workflow, self._kind, self._region) != self._playable:
            raise MustRestart(
                f"the new recipe pins workflow {self._workflow} or its evaluations: the worker joins again"
            )
