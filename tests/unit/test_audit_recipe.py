"""What the audit says of the recipe topic, and of batches beside their groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from made_recipes import sums_recipe

from headrace.ops.audit.batch_records import BatchFacts, BatchRecords
from headrace.ops.audit.recipe_records import recipe_problems, run_end_problems, schema_problems
from headrace.schemas import codec
from headrace.schemas.records import RecipeRevision

RECIPE = sums_recipe()
FIRST = RecipeRevision("r", 0, RECIPE.to_json(), plug_ins={"mine": "a" * 64})
OTHER = RECIPE.model_copy(update={"seed": 7}).to_json()


def records(*revisions: RecipeRevision) -> list[tuple[str, RecipeRevision]]:
    return [(f"@{at}", revision) for at, revision in enumerate(revisions)]


def test_a_revision_has_one_content() -> None:
    two = "recipe revision 0 has two different contents"
    for more, says in (
        ([replace(FIRST, ended="steps"), replace(FIRST, store="elsewhere")], []),
        ([replace(FIRST, plug_ins={"mine": "a" * 64, "new": "b" * 64})], []),
        ([replace(FIRST, revision=1, recipe=OTHER)], []),
        ([replace(FIRST, recipe=OTHER)], [f"{two} (seed: 1 -> 7): @0 and @1"]),
        (
            [replace(FIRST, plug_ins={"mine": "c" * 64})],
            [f"{two} (plug-in mine: source {'a' * 12} -> {'c' * 12}): @0 and @1"],
        ),
        (
            [replace(FIRST, plug_ins={"new": "b" * 64}), replace(FIRST, plug_ins={"new": "d" * 64})],
            [f"{two} (plug-in new: source {'b' * 12} -> {'d' * 12}): @0 and @2"],
        ),
        ([replace(FIRST, revision=2)], ["recipe revision 2 follows 0, so the revisions between are missing: @1"]),
        (
            [replace(FIRST, revision=number) for number in (2, 3, 1)],
            [
                "recipe revision 2 follows 0, so the revisions between are missing: @1",
                "recipe revision 1 comes after revision 3: @3",
            ],
        ),
        ([replace(FIRST, swapped=True)], [f"{two} (whether `headrace swap` wrote it): @0 and @1"]),
    ):
        assert list(recipe_problems(records(FIRST, *more), {"sums": [[0, 0]]})) == says
    later = records(replace(FIRST, revision=1))
    assert list(recipe_problems(later, {})) == ["the recipe topic begins with revision 1, not 0: @0"]


def test_a_revision_under_which_numbers_were_issued_is_there() -> None:
    [what] = recipe_problems(records(FIRST), {"sums": [[0, 0], [1, 10]]})
    assert what == "tasks of sums were issued under recipe revision 1, which the recipe topic lacks"


def test_a_run_ends_once_and_with_all_its_steps_where_it_says_so() -> None:
    ended = replace(FIRST, ended="steps")
    assert list(run_end_problems(records(FIRST, ended), {"solver": (9, 9)})) == []
    assert list(run_end_problems(records(FIRST, replace(FIRST, ended="solved")), {"solver": (3, 9)})) == []
    [short] = run_end_problems(records(FIRST, ended), {"solver": (3, 9)})
    assert short == "the run is marked as finished, but solver is at version 3 of 9: @1"
    [twice] = run_end_problems(records(FIRST, ended, replace(FIRST, ended="solved")), {"solver": (9, 9)})
    assert twice == "the run has ended in two ways under recipe revision 0: as steps in @1, and as solved in @2"


def test_the_schemas_of_records_stand_on_the_recipe_topic() -> None:
    texts = codec.schema_texts()
    seen = {codec.encode(FIRST)[2:10]: "t.recipe[0]@0"}
    assert list(schema_problems([replace(FIRST, schemas=texts)], seen)) == []
    lacking = {name: text for name, text in texts.items() if name != "RecipeRevision"}
    [what] = schema_problems([replace(FIRST, schemas=lacking)], seen)
    lacks = "t.recipe[0]@0 is written with a schema that no record of the recipe topic holds"
    assert what == f"{lacks}, so later releases may be unable to read it"


def batches(*facts: dict[str, Any]) -> BatchRecords:
    found = BatchRecords("solver", [RECIPE])
    common = {"version": 1, "epoch": 0, "revision": 0, "groups": 32, "fingerprint": {"torch": "2"}, "where": "@0"}
    for more in facts:
        found.fold_batch(BatchFacts(**{**common, **more}))
    return found


def test_a_batch_is_as_its_recipe_has_it() -> None:
    for more, *says in (
        ({"version": 2},),
        ({"version": 2, "groups": 16},),
        ({"version": 2, "epoch": 1, "fingerprint": {"torch": "3"}},),
        (
            {"version": 2, "fingerprint": {"torch": "3"}},
            "than the version before it, so it must begin a new epoch, but its epoch is 0 too",
        ),
        (
            {"version": 2, "revision": 9},
            "was trained under recipe revision 9, which is missing or does not name solver",
        ),
        (
            {"version": 2, "groups": 33},
            "was trained from a batch of 33 groups, but trainer.groups_per_batch of recipe revision 0 is 32",
        ),
        (
            {"version": RECIPE.trainer.checkpoint_every},
            "has no checkpoint record on `state`, although its recipe revision asks",
        ),
    ):
        found = list(batches({}, more).problems([0]))
        assert len(found) == len(says), more
        assert all(word in what for word, what in zip(says, found, strict=True))


def test_no_version_is_trained_under_an_older_revision_than_the_one_before() -> None:
    found = BatchRecords("solver", [RECIPE, RECIPE])
    for version, revision in enumerate((0, 1, 1, 0), 1):
        found.fold_batch(BatchFacts(version, 0, revision, 32, {}, "@0"))
    [what] = found.problems([0])
    assert what == (
        "version 4 of solver was trained under recipe revision 0, but the version before it was trained under the "
        "later revision 1: @0"
    )


def test_version_nought_has_a_checkpoint_for_ever() -> None:
    assert list(batches().problems([])) == []
    lacks = "version 0 of solver has no checkpoint record on `state`, although nothing may delete it"
    assert list(batches({}).problems([])) == [lacks]
