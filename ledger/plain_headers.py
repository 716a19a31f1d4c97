"""The headers of tasks and groups, read without the checks and defaults of `Stamp`: an audit reads millions of them."""

from __future__ import annotations

from typing import NamedTuple

from headrace.infra.kafka.clients import Message
from headrace.schemas.headers import HeaderError

LARGEST = 2**63 - 1


class TaskStamp(NamedTuple):
    """The headers of a task."""

    run_id: bytes
    stream: str
    number: int


class GroupStamp(NamedTuple):
    """The facts in the headers of a group's record."""

    stream: str
    number: int
    use: int
    revision: int
    min_version: int
    max_version: int
    head_version: int = -1


def read_task_headers(message: Message) -> TaskStamp:
    """Return the headers of a task. Raises HeaderError."""
    found = dict(message.headers)
    try:
        return TaskStamp(found["run_id"], found["stream"].decode(), _read(found["number"]))
    except KeyError as error:
        raise HeaderError(f"header {error} is missing") from error
    except ValueError as error:
        raise HeaderError(f"a header is malformed: {error}") from error


def read_group_headers(message: Message) -> tuple[bytes, str, GroupStamp]:
    """Return run id, policy and stamp of a produced or curated group. Raises HeaderError."""
    found = dict(message.headers)
    try:
        run_id, policy, stream = found["run_id"], found["policy"].decode(), found["stream"].decode()
        number, use, revision = _read(found["number"]), _read(found["use"]), _read(found["revision"])
        oldest, newest, head = (_read(found.get(f"{one}_version", b"-1")) for one in ("min", "max", "head"))
    except KeyError as error:
        raise HeaderError(f"header {error} is missing") from error
    except ValueError as error:
        raise HeaderError(f"a header is malformed: {error}") from error
    return run_id, policy, GroupStamp(stream, number, use, revision, oldest, newest, head)


def _read(text: bytes) -> int:
    """Return a number, or the nearest one that SQLite's integers hold: no run reaches it."""
    return max(-LARGEST, min(int(text), LARGEST))
