"""`headrace retrain`: trains on the recorded batches again from a checkpoint, and compares every weight hash.

Versions are comparable if the numerics fingerprint is equal; the number of threads, which is part of it, is set to the
recorded number. An epoch is an unbroken chain of weights under one fingerprint. When a trainer continued under a new
fingerprint, it first trained the versions since its newest checkpoint again, without publishing them. This command does
the same before it compares the next versions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from headrace.infra.errors import UsageError
from headrace.infra.progress import ReportProgress
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.run import Run, find_groups_run
from headrace.infra.store.object_store import ObjectCorrupt, ObjectMissing
from headrace.infra.weights.tensors import WeightsError
from headrace.schemas.records import BatchTrained, CheckpointPointer, NamedObject
from headrace.trainers.batches.trained_groups import LineageBroken
from headrace.trainers.learner.backends.group import fingerprint_here
from headrace.trainers.learner.checkpoint import CheckpointError
from headrace.trainers.learner.learner import Learner
from headrace.trainers.learner.model import pin_threads
from headrace.trainers.learner.numerics import list_differences
from headrace.trainers.versions.history import History, read_history
from headrace.trainers.versions.remake import hash_learner, load_learner_at, remake

VersionSpan = tuple[int | None, int | None]
"""(begin, end): from the newest checkpoint at or below begin (None: the oldest) to version end (None: the newest)."""


@dataclass(frozen=True, slots=True)
class VersionStretch:
    """Consecutive versions of one epoch and fingerprint, and the checkpoint from which they are made again."""

    checkpoint: CheckpointPointer
    lead: tuple[BatchTrained, ...]
    """Versions between the checkpoint and the stretch; the run's trainer had also trained them again."""
    batches: tuple[BatchTrained, ...]

    @property
    def fingerprint(self) -> Mapping[str, str]:
        """Fingerprint under which the versions were made."""
        return self.batches[0].fingerprint


@dataclass(frozen=True, slots=True)
class ComparedVersion:
    """One version: the published hash, and the hash that it got here."""

    version: int
    epoch: int
    expected: str
    got: str | None = None
    """Whether the hashes are equal; None if they cannot be compared here."""
    equal: bool | None = None


@dataclass(frozen=True, slots=True)
class Fingerprints:
    """Fingerprints of numerics."""

    expected: Mapping[str, str]
    """Software and hardware that the versions were made with."""
    here: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Retrained:
    """Versions that were made again."""

    run: str
    policy: str
    from_: int
    """Version of the checkpoint to begin at."""
    to: int
    comparable: bool
    """Whether all versions could be compared here."""
    fingerprint: Fingerprints
    differing: Sequence[str]
    """The differences between the fingerprints, in words."""
    versions: tuple[ComparedVersion, ...]
    ok: bool


def retrain(
    run: Run, policy: str | None, span: VersionSpan, tell: ReportProgress = lambda _done, _total: None
) -> Retrained:
    """Make versions again and compare them with the published versions.

    Raises UsageError for versions that do not exist, LineageBroken if a group or checkpoint of them is gone.
    """
    name = run.resolve(policy)
    history = read_history(run, name)
    found = cut_into_stretches(history, span, f"policy {name} of run {run.address.run}")
    here_made = (part for part in found if _find_numerics(run, name, part) == part.fingerprint)
    total = sum(len(part.lead) + len(part.batches) for part in here_made)
    versions: list[ComparedVersion] = []
    expected, here = found[0].fingerprint, _find_numerics(run, name, found[0])
    done = 0
    for part in found:
        for one in _compare(run, name, history, part):
            if one is None or one.equal is not None:  # versions that cannot be compared here are not trained
                done += 1
                tell(done, total)
            versions += [one] if one else []
        if versions[-1].equal is None:
            expected, here = part.fingerprint, _find_numerics(run, name, part)
    return Retrained(
        run=run.address.run,
        policy=name,
        from_=found[0].checkpoint.version,
        to=versions[-1].version,
        comparable=all(one.equal is not None for one in versions),
        fingerprint=Fingerprints(expected, here),
        differing=list_differences(expected, here),
        versions=tuple(versions),
        ok=all(one.equal for one in versions),
    )


def cut_into_stretches(history: History, span: VersionSpan, whose: str) -> list[VersionStretch]:
    """Cut a span of versions into stretches that can be made again; `whose` names the policy in errors. No I/O."""
    begin, end = span
    start = _find_checkpoint(history, begin, whose)
    newest, oldest = history.batches[-1].version if history.batches else start, min(history.checkpoints)
    if newest <= oldest:
        raise UsageError(
            f"{whose} has no version to train again yet: none is newer than {oldest}, its oldest checkpoint"
        )
    if begin is not None and begin > newest:
        raise UsageError(
            f"--from {begin} is above {newest}, the newest version of {whose}. Training "
            "begins at the newest checkpoint at or below --from; these versions have a checkpoint: "
            f"{', '.join(map(str, sorted(history.checkpoints)))}"
        )
    if not start < (newest if end is None else end) <= newest:
        if end is None:
            raise UsageError(f"{whose} has no version after its checkpoint of version {start}: give a lower --from")
        raise UsageError(
            f"{whose} cannot be trained again up to version {end}: --to must be above {start}, the version of the "
            f"checkpoint to begin from, and at most {newest}, its newest version"
        )
    asked = [batch for batch in history.batches if start < batch.version and (end is None or batch.version <= end)]
    found = []
    for _, group in groupby(asked, key=lambda batch: (batch.epoch, batch.fingerprint)):
        batches = tuple(group)
        before = batches[0].version - 1
        checkpoint = max(version for version in history.checkpoints if start <= version <= before)
        lead = tuple(batch for batch in history.batches if checkpoint < batch.version <= before)
        found.append(VersionStretch(history.checkpoints[checkpoint], lead, batches))
    return found


def _find_checkpoint(history: History, begin: int | None, whose: str) -> int:
    if not history.checkpoints:
        raise LineageBroken(f"{whose} has no checkpoint yet: its trainer has not begun, or the topics are gone")
    kept = [version for version in history.checkpoints if begin is None or version <= begin]
    retired = max((version for version in history.retired if begin is not None and version <= begin), default=-1)
    if retired > max(kept, default=-1):
        there = ", ".join(map(str, sorted(history.checkpoints)))
        raise UsageError(
            f"`headrace gc` has retired the checkpoint of version {retired} of {whose}: give --from one of the "
            f"checkpoints that are left, {there}"
        )
    if not kept:
        raise UsageError(
            f"{whose} has no checkpoint at or below --from {begin}: give --from {min(history.checkpoints)}, its oldest "
            "checkpoint, or more"
        )
    return min(kept) if begin is None else max(kept)


def _find_numerics(run: Run, policy: str, part: VersionStretch) -> dict[str, str]:
    """Return this machine's fingerprint for a stretch, with the stretch's number of threads."""
    pin_threads(int(part.fingerprint.get("threads", "0")))
    return fingerprint_here(run.revisions[part.batches[0].revision].trainer_of(policy))


def _compare(run: Run, policy: str, history: History, part: VersionStretch) -> Iterator[ComparedVersion | None]:
    """Yield each version of a stretch, compared; before them None for each version of `lead`."""
    if _find_numerics(run, policy, part) != part.fingerprint:
        yield from (ComparedVersion(batch.version, batch.epoch, batch.weights_hash) for batch in part.batches)
        return
    assert history.published is not None  # noqa: S101 - it came with the first checkpoint
    learner = restore_learner(run, part.checkpoint, history.files, run.revisions[part.batches[0].revision])
    batches = (*part.lead, *part.batches)
    for remade in remake(find_groups_run(run), policy, learner, batches, run.revisions):
        batch, got = remade.batch, hash_learner(learner)
        if batch in part.lead:
            yield None
        else:
            yield ComparedVersion(batch.version, batch.epoch, batch.weights_hash, got, got == batch.weights_hash)


def restore_learner(
    run: Run,
    pointer: CheckpointPointer,
    files: tuple[NamedObject, ...],
    recipe: Recipe,
    remedy: str = "choose versions that need another checkpoint, by --from and --to",
) -> Learner:
    """Return a learner at a checkpoint. Raises LineageBroken, with the remedy, if its object is gone or differs."""
    try:
        return load_learner_at(run, pointer, files, recipe)
    except (ObjectMissing, ObjectCorrupt, WeightsError, CheckpointError) as error:
        raise LineageBroken(
            f"the checkpoint of version {pointer.version} cannot be read ({error}): {remedy}"
        ) from error
