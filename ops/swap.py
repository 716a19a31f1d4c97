"""`headrace swap`: another chain for a run that goes on, as the next revision of its recipe.

The feeder stamps it on every further number; a group goes through the chain of its stamp, whichever curator has it, so
nothing stops, and what was issued before ends as it began. The transactional id is the run's: of two swaps at once the
second fences the first, and begins from what that one wrote.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.consumers.curate.curation import chain_of
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Outgoing
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.recipe.plug_in_sources import curated, known_sources, source_differences, sources_of
from headrace.infra.recipe.recipe_file import with_chain
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.revisions import first_message, revision_of
from headrace.infra.run.run import Run, RunEnded, read_revisions
from headrace.schemas import codec

COMPONENT = "swap"


@dataclass(frozen=True, slots=True)
class Swap:
    """A chain that a run was given, or would be."""

    run: str
    before: int
    """Recipe revision that was in force."""
    revision: int
    """That of the chain; the one before where it is the same."""
    chain_before: tuple[str, ...]
    chain: tuple[str, ...]
    """Data algorithms with their settings, in order."""
    swapped: bool = False
    """Whether the revision is written."""


def swap(run: Run, path: Path, *, dry_run: bool = False) -> Swap:
    """Give a run the chain of a TOML file; return what was before and what is now.

    Raises UsageError for a file that is no chain, and for algorithms, settings or an order that do not work; RunEnded;
    Fenced when another swap took over, and Aborted, whereupon nothing was changed.
    """
    if dry_run:
        return _prepared(run, path)[1]
    with closing(TransactionalWriter(run.connection, f"{run.address.run}.{COMPONENT}", [run.topics.recipe])) as writer:
        outgoing, report = _prepared(run, path)
        if outgoing is not None:
            writer.begin()
            writer.produce([outgoing])
            writer.commit()
    return replace(report, swapped=outgoing is not None)


def _prepared(run: Run, path: Path) -> tuple[Outgoing | None, Swap]:
    """Return the next revision, None where the chain is the one in force, and what is to be said of it."""
    revisions = read_revisions(run.address)
    newest = revisions[-1]
    old = Recipe.from_json(newest.recipe)
    new = with_chain(old, path)
    for line in new.lines:
        try:
            chain_of(new, line)
        except UsageError as error:
            raise type(error)(f"{path}: {error}") from error
    if newest.ended:
        raise RunEnded(
            f"run {run.address.run} has ended ({newest.ended}), and no group would go through another chain: go on "
            "with it by `headrace up … --set trainer.steps=N --new-recipe`, or try the chain over what it played by "
            "`headrace archive` and `headrace curate --from`"
        )
    here = sources_of(use for line in new.lines for use in curated(new, line))
    is_new = new != old or bool(source_differences(known_sources(revisions), here))
    revision = newest.revision + is_new
    report = Swap(
        run=run.address.run,
        before=newest.revision,
        revision=revision,
        chain_before=tuple(use.in_words() for use in old.curate.chain),
        chain=tuple(use.in_words() for use in new.curate.chain),
    )
    if not is_new:
        return None, report
    plug_ins = {**newest.plug_ins, **{top: source.hash for top, source in here.items()}}
    record = replace(revision_of(newest.run_id, revision, new, newest.store), swapped=True, plug_ins=plug_ins)
    first = first_message(run.address)
    value = codec.encode(record) if first is None else codec.encode_like(record, first)
    return Outgoing(run.topics.recipe, value, str(revision).encode(), partition=0), report
