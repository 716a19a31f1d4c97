"""`headrace swap`: another chain for a running run, as the next revision of its recipe.

The feeder stamps the revision on every further task, and a group goes through the chain of its stamp in any curator. So
nothing stops, and earlier tasks end with the old chain. If two swaps run at once, the second fences the first, and
begins from the revision that the first wrote.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from headrace.consumers.curate.revision_chains import load_policy_chain
from headrace.infra.errors import UsageError
from headrace.infra.recipe.plug_in_sources import curator_plug_ins, find_source_differences, newest_sources, sources_of
from headrace.infra.recipe.recipe_file import replace_chain_from_file
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.revisions import build_revision, write_later_revision
from headrace.infra.run.run import Run, RunEnded, read_revisions
from headrace.schemas.records import RecipeRevision


@dataclass(frozen=True, slots=True)
class Swap:
    """A chain that a run got, or would get."""

    run: str
    before: int
    """Recipe revision that was in force."""
    revision: int
    """Revision of the chain; the previous one if the chain is the same."""
    chain_before: tuple[str, ...]
    chain: tuple[str, ...]
    """Data algorithms with their settings, in order."""
    swapped: bool = False
    """Whether the revision is written."""


def swap(run: Run, path: Path, *, dry_run: bool = False) -> Swap:
    """Give a run the chain of a TOML file; return the old and the new chain.

    Raises UsageError for a file without a chain, and for algorithms, settings or an order that do not work; RunEnded;
    Fenced if another swap took over; and Aborted, after which nothing is changed.
    """
    if dry_run:
        return _prepare(run, path)[1]
    reports: list[Swap] = []

    def settle() -> RecipeRevision | None:
        revision, report = _prepare(run, path)
        reports.append(report)
        return revision

    revision = write_later_revision(run.address, settle)
    return replace(reports[-1], swapped=revision is not None)


def _prepare(run: Run, path: Path) -> tuple[RecipeRevision | None, Swap]:
    """Return the next revision (None if the run has this chain already), and the swap to report."""
    revisions = read_revisions(run.address)
    newest = revisions[-1]
    old = Recipe.from_json(newest.recipe)
    new = replace_chain_from_file(old, path)
    for policy_variant in new.policy_variants:
        try:
            load_policy_chain(new, policy_variant)
        except UsageError as error:
            raise type(error)(f"{path}: {error}") from error
    if newest.ended:
        raise RunEnded(
            f"run {run.address.run} has ended ({newest.ended}), so no group would go through another chain: resume it "
            "with `headrace up … --set trainer.steps=N --new-recipe`, or try the chain on its groups with `headrace "
            "archive` and `headrace offline curate`"
        )
    here = sources_of(name for policy_variant in new.policy_variants for name in curator_plug_ins(new, policy_variant))
    is_new = new != old or bool(find_source_differences(newest_sources(revisions), here))
    revision = newest.revision + is_new
    report = Swap(
        run=run.address.run,
        before=newest.revision,
        revision=revision,
        chain_before=tuple(algorithm.describe() for algorithm in old.curate.chain),
        chain=tuple(algorithm.describe() for algorithm in new.curate.chain),
    )
    if not is_new:
        return None, report
    plug_ins = {**newest.plug_ins, **{top: source.hash for top, source in here.items()}}
    made = build_revision(newest.run_id, revision, new, newest.store, newest.regions)
    return replace(made, swapped=True, plug_ins=plug_ins), report
