"""Checks the recipe topic: every revision has one content, and no revision is missing. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from headrace.infra.errors import UsageError
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.revisions import find_differences
from headrace.schemas import codec
from headrace.schemas.avro import SchemaError
from headrace.schemas.records import RecipeRevision

MOST_KEYS_NAMED = 3
"""Largest number of differing keys that are named."""


def recipe_problems(
    records: Iterable[tuple[str, RecipeRevision]], begins: Mapping[str, Sequence[Sequence[int]]]
) -> Iterator[str]:
    """Yield what is wrong with the revisions of a run.

    The end of a run, another store address, and sources without a record are written as a repetition of the revision.

    Args:
        records: Position and revision of each record, oldest first.
        begins: Stream to [revision, the first number issued under it], from the feeder.
    """
    first: dict[int, tuple[str, RecipeRevision]] = {}
    for where, revision in records:
        number = revision.revision
        if number not in first:
            newest = max(first, default=-1)
            if not first and number:
                yield f"the recipe topic begins with revision {number}, not 0: {where}"
            elif number < newest:
                yield f"recipe revision {number} comes after revision {newest}: {where}"
            elif number > newest + 1:
                yield f"recipe revision {number} follows {newest}, so the revisions between are missing: {where}"
            first[number] = where, revision
            continue
        before, known = first[number]
        if differing := [*_describe_differences(known, revision)]:
            yield f"recipe revision {number} has two different contents ({'; '.join(differing)}): {before} and {where}"
        first[number] = before, _with_sources(known, revision)
    for stream, spans in begins.items():
        for number in sorted({number for number, _ in spans} - first.keys()):
            yield f"tasks of {stream} were issued under recipe revision {number}, which the recipe topic lacks"


def run_end_problems(
    records: Sequence[tuple[str, RecipeRevision]], newest: Mapping[str, tuple[int, int]]
) -> Iterator[str]:
    """Yield what is wrong with the marks of the run's end.

    Args:
        records: Positions and revisions, as `recipe_problems` takes them.
        newest: Policy to its newest version and its last one by the recipe, read afterwards.
    """
    marks = {revision.revision: (where, revision.ended) for where, revision in reversed(records) if revision.ended}
    for where, revision in records:
        if revision.ended and marks[revision.revision][1] != revision.ended:
            first, ended = marks[revision.revision]
            yield (
                f"the run has ended in two ways under recipe revision {revision.revision}: as {ended} in {first}, and "
                f"as {revision.ended} in {where}"
            )
    where, last = records[-1]
    if last.ended == "steps" and not last.source:
        for policy, (version, steps) in newest.items():
            if version < steps:
                yield f"the run is marked as finished, but {policy} is at version {version} of {steps}: {where}"


def schema_problems(revisions: Iterable[RecipeRevision], seen: Mapping[bytes, str]) -> Iterator[str]:
    """Yield the schemas of records that no revision holds: later releases could not read these records.

    Args:
        revisions: All records of the recipe topic.
        seen: Fingerprints of schemas, each with the position of its first record.
    """
    texts = {text for revision in revisions for text in revision.schemas.values()}
    known = set()
    for text in texts:
        with suppress(ValueError, KeyError, TypeError, SchemaError):
            known.add(codec.fingerprint_of(json.loads(text)))
    own = {codec.fingerprint_of(json.loads(text)) for text in codec.schema_texts().values()}
    for fingerprint, where in seen.items():
        if fingerprint in own and fingerprint not in known:
            yield (
                f"{where} is written with a schema that no record of the recipe topic holds, so later releases may be "
                "unable to read it"
            )


def _describe_differences(one: RecipeRevision, other: RecipeRevision) -> Iterator[str]:
    if one.recipe != other.recipe:
        try:
            found = find_differences(Recipe.from_json(one.recipe), Recipe.from_json(other.recipe))
        except UsageError:
            found = []
        yield from found[:MOST_KEYS_NAMED] or ["the recipe's text"]
    for name in sorted(one.plug_ins.keys() & other.plug_ins.keys()):
        if one.plug_ins[name] != other.plug_ins[name]:
            yield f"plug-in {name}: source {one.plug_ins[name][:12]} -> {other.plug_ins[name][:12]}"
    if one.swapped != other.swapped:
        yield "whether `headrace swap` wrote it"


def _with_sources(one: RecipeRevision, other: RecipeRevision) -> RecipeRevision:
    environments = one.environments or other.environments
    return replace(one, plug_ins={**other.plug_ins, **one.plug_ins}, environments=environments)
