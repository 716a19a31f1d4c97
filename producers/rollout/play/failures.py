"""Describes failed episodes: the error with its location, role and turn; its traceback once per error."""

from __future__ import annotations

import errno
import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import structlog

from headrace.envs.contract import Episode
from headrace.infra.errors import EnvironmentBroken
from headrace.infra.own_frames import locate_error, make_encodable, read_error_text
from headrace.infra.unreachable import OutOfTime, is_unreachable
from headrace.producers.engines.contract import EngineError, VersionGone
from headrace.producers.rollout.play.actor import EngineActor
from headrace.producers.rollout.play.reachability import UNREACHABLE
from headrace.schemas.episode_errors import ENVIRONMENT, REPORTED, TOOL_ERROR, error_key_of
from headrace.schemas.records import Failure, Task, TrajectoryGroup

FAILURE_DETAIL_LENGTH = 300
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
TRACEBACK_LENGTH = 8000
"""Most characters of a traceback; of a longer one the end is kept."""
MOST_KINDS_OF_WORKER = 1000
"""Most different errors that a worker counts separately."""

log = structlog.get_logger()


def build_failure(
    sample: int,
    error: Exception,
    limit_s: float = 0.0,
    actors: Mapping[str, EngineActor] | None = None,
    waited_at: str = "",
) -> Failure:
    """Return the failure of an episode.

    Args:
        sample: Index of the episode in its group.
        error: The exception.
        limit_s: Time limit of the episode, for a timeout whose message does not name it.
        actors: Actors by role; the failure names the role that generated last.
        waited_at: Where the episode waited when its time was over, for an error without a location.
    """
    reason, detail = "error", describe_in_one_line(error)
    if isinstance(error, VersionGone):
        reason = "version_gone"
    elif is_environment_broken(error):  # whatever its cause: a connection lost in mid-episode is no server that is away
        reason = ENVIRONMENT
    elif not isinstance(error, EngineError) and is_unreachable(error):
        reason = UNREACHABLE
    elif isinstance(error, TimeoutError):
        reason = "time_limit"
        if isinstance(error, OutOfTime):
            detail = str(error) or f"the episode took longer than {limit_s:g} s (rollout.episode_limit_s)"
    located = getattr(error, "at", None)  # empty for a process that died without a word: our own line says nothing
    at = waited_at or (located if isinstance(located, str) else locate_error(error))
    role, actor = max((actors or {}).items(), key=lambda item: item[1].acted_s, default=("", None))
    return Failure(
        sample,
        reason,
        detail,
        make_encodable(at[:FAILURE_DETAIL_LENGTH]),
        role,
        actor.calls if actor else 0,
        _render_traceback(error),
    )


def is_environment_broken(error: BaseException) -> bool:
    """Return whether an error says that something of the environment does not work; a full disk is such an error."""
    return isinstance(error, EnvironmentBroken) or (isinstance(error, OSError) and error.errno in FULL)


def describe_in_one_line(error: BaseException) -> str:
    """Return an error in one line, as the detail of a failure."""
    return make_encodable(
        " ".join(f"{type(error).__name__}: {read_error_text(error)}".split()).removesuffix(":")[:FAILURE_DETAIL_LENGTH]
    )


def _render_traceback(error: BaseException) -> str:
    if error.__traceback__ is None:
        return ""
    return make_encodable("".join(traceback.format_exception(error))[-TRACEBACK_LENGTH:])


def build_tool_errors(sample: int, episode: Episode) -> tuple[Failure, ...]:
    """Return the errors of tools in an episode that gave a result, each kind once."""
    found: dict[tuple[str, str, str], Failure] = {}
    for role, played in episode.items():
        for told in played.errors:
            made = build_failure(sample, told.error, waited_at=told.at)
            made = replace(made, reason=TOOL_ERROR, role=role, turn=told.turn)
            found.setdefault(error_key_of(made), made)
    return tuple(found.values())


@dataclass(slots=True)
class FailureLog:
    """Logs each error of a worker's episodes once with its traceback, and its count at powers of ten."""

    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def log_and_strip(self, task: Task, groups: Mapping[str, TrajectoryGroup]) -> dict[str, TrajectoryGroup]:
        """Log all failures of a task; return its groups, with each error's traceback only in its first failure."""
        logged: dict[tuple[Failure, ...], tuple[Failure, ...]] = {}  # every policy's group holds the same failures
        for several in (several for group in groups.values() for several in (group.failures, group.tool_errors)):
            if several not in logged:
                logged[several] = tuple(self._log_and_strip(task, failure) for failure in several)
        return {
            policy: replace(group, failures=logged[group.failures], tool_errors=logged[group.tool_errors])
            for policy, group in groups.items()
        }

    def _log_and_strip(self, task: Task, failure: Failure) -> Failure:
        kind = error_key_of(failure)
        if failure.reason not in REPORTED or (kind not in self.counts and len(self.counts) >= MOST_KINDS_OF_WORKER):
            return replace(failure, traceback="")
        self.counts[kind] += 1
        times = self.counts[kind]
        if times == 1 or str(times).strip("0") == "1":
            _log_error(task, failure, times)
        return failure if times == 1 else replace(failure, traceback="")


def _log_error(task: Task, failure: Failure, times: int) -> None:
    """Log an error of an episode, or of a tool that did not end its episode; its traceback the first time."""
    shown = failure.traceback if times == 1 else ""
    if failure.reason == TOOL_ERROR:
        # The policy read the error, and the episode went on. Logged at the 1st, 10th, 100th time of an error.
        log.warning(
            "tool.failed",
            why=failure.detail,
            at=failure.at,
            role=failure.role,
            turn=failure.turn,
            stream=task.stream,
            number=task.number,
            task=task.task_id,
            times=times,
            traceback=shown,
        )
    else:
        # Logged at the 1st, 10th, 100th time of an error.
        log.warning(
            "episode.failed",
            reason=failure.reason,
            why=failure.detail,
            at=failure.at,
            role=failure.role,
            turn=failure.turn,
            stream=task.stream,
            number=task.number,
            task=task.task_id,
            times=times,
            traceback=shown,
        )
