"""Two commands that write a recipe revision at the same moment: no number gets two contents."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_run import make_run, tiny_recipe

from headrace.infra.kafka.clients import Fenced
from headrace.infra.run.revisions import write_later_revision
from headrace.infra.run.run import Run, read_revisions
from headrace.infra.store.object_store import ObjectStore
from headrace.ops.audit.report import report
from headrace.schemas.records import RecipeRevision


def next_of(run: Run, learning_rate: float) -> RecipeRevision:
    newest = read_revisions(run.address)[-1]
    trainer = run.recipe.trainer.model_copy(update={"learning_rate": learning_rate})
    recipe = run.recipe.model_copy(update={"trainer": trainer})
    return replace(newest, revision=newest.revision + 1, recipe=recipe.to_json())


def test_of_two_that_write_a_revision_at_once_one_is_fenced_and_the_other_reads_what_is_there(
    bootstrap: str, store: ObjectStore, run_name: str
) -> None:
    run = make_run(bootstrap, store, tiny_recipe(run_name))

    def overtaken() -> RecipeRevision:
        mine = next_of(run, 0.1)
        write_later_revision(run.address, lambda: next_of(run, 0.2))
        return mine

    with pytest.raises(Fenced, match=r"revision 1 of run .* was not written, because another command wrote one"):
        write_later_revision(run.address, overtaken)
    assert write_later_revision(run.address, lambda: None) is None
    write_later_revision(run.address, lambda: next_of(run, 0.3))

    assert [one.revision for one in read_revisions(run.address)] == [0, 1, 2]
    assert [what for what in report(run, use_store=False).problems if "recipe" in what] == []
