"""Ends a run whose next batch kills the trainer's process each time, for example out of memory on a long sequence.

Without this, the same groups would form the same batch at every start, and no further version would come. A file in the
cache folder of this machine names the step that is running. A step that ends removes the file, so a trainer that finds
one knows over which batch its predecessor died.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import structlog

from headrace.infra.atomic_files import write_atomically
from headrace.infra.environment import cache_folder
from headrace.infra.errors import UsageError
from headrace.infra.kafka.topic_admin import describe_branching
from headrace.infra.own_frames import describe_with_location
from headrace.infra.run.retired import describe_versions
from headrace.infra.run.run import Run
from headrace.schemas.ids import UseId

MOST_DEATHS = 3

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class RunningStep:
    """The content of a note."""

    version: int = -1
    """The version that the step makes."""
    deaths: int = 0
    """Number of processes that have died in this step, if the running one dies too."""
    groups: str = ""
    """The groups of its batch, as `math:4 to 6, 9`."""
    why: str = ""
    """The error that the step raised, if any."""


class StepNote:
    """The note of the step that runs in this process.

    A learner takes one step after the other, so the newest begun step is the one in which a process dies. Its successor
    may have to repeat earlier steps first, if their versions were not committed; these do not lower the count.

    Args:
        path: File of the note.
        policy_variant: The policy or shadow, for the log.
    """

    def __init__(self, path: Path, policy_variant: str) -> None:
        self._path, self._policy_variant = path, policy_variant
        self.found = RunningStep()
        """The step in which the last process died."""
        with suppress(OSError, ValueError, TypeError):
            self.found = RunningStep(**json.loads(path.read_bytes()))

    @contextmanager
    def hold(self, version: int, batch: Iterable[UseId]) -> Iterator[None]:
        """Keep the note while a step runs; if it fails, the note stays, with the error."""
        died = self.found.deaths if version <= self.found.version else 0
        step = RunningStep(version, died + 1, describe_groups(batch))
        if died:
            # A step that ended the process is tried again; the third death ends the run.
            log.warning(
                "step.tried", policy=self._policy_variant, version=version, time=step.deaths, groups=step.groups
            )
        self._write(step)
        try:
            yield
        except Exception as error:
            self._write(replace(step, why=describe_with_location(error)))
            raise
        self.clear()

    def clear(self) -> None:
        """Remove the note: the process ends for another reason."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _write(self, step: RunningStep) -> None:
        with suppress(OSError):  # on a full disk a death is not counted
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, json.dumps(asdict(step)).encode())


def open_step_note(run: Run, policy_variant: str) -> StepNote:
    """Return the note of a trainer that starts. Raises UsageError if MOST_DEATHS processes died in the same step.

    The note is then removed, so that the step is tried again when people have removed the cause.
    """
    name = run.address.run
    note = StepNote(cache_folder() / "steps" / f"{name}.{run.run_id}.{policy_variant}.json", policy_variant)
    step = note.found
    if step.deaths < MOST_DEATHS:
        return note
    note.clear()
    branching = describe_branching(run.connection.bootstrap, name, f"{name}-2", step.version - 1)
    raise UsageError(
        f"the trainer of {policy_variant} died {step.deaths} times while it trained version {step.version} on this "
        f"batch of groups: {step.groups}. {f'The last error: {step.why}. ' if step.why else ''}Remove the cause (see "
        "the trainer's log, and docs/failures.md), then start it again: it tries the batch again. To leave the batch "
        f"out, begin a new run with the weights of the version before: {branching}"
    )


def describe_groups(batch: Iterable[UseId]) -> str:
    """Return groups as `math:4 to 6, 9; code:1`."""
    numbers: defaultdict[str, set[int]] = defaultdict(set)
    for one in batch:
        numbers[one.stream].add(one.number)
    return "; ".join(f"{stream}:{describe_versions(some)}" for stream, some in numbers.items())
