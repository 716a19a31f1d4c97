"""Checks the results and states of users' own algorithms before records are made of them.

numpy numbers and lists are converted to the types of records. Unchanged fields are not checked again.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from operator import index
from typing import Any, TypeVar

from headrace.consumers.algorithms.contract import LARGEST_NUMBER, Algorithm, Candidate, Drop, Keep, Rejection, Replay
from headrace.schemas.records import GroupUse, TrajectoryGroup

T = TypeVar("T")

LARGEST_IN_RECORD = (1 << 63) - 1
LONGEST_REASON = 1 << 16
"""Characters; a record has room for one such reason for each of the trajectories of a large group."""
WHOLE_NUMBER = "a whole number from -2^62 to 2^62"
_INTS, _FLOATS = frozenset({int}), frozenset({float})


class WrongResult(ValueError):
    """An algorithm returned an invalid result; the message names what is expected and what was found."""


def read_verdict(verdict: Keep | Drop, before: Candidate) -> Keep | Drop:
    """Return a verdict with valid types; `before` is the candidate that the algorithm got.

    Raises WrongResult.
    """
    if isinstance(verdict, Drop):
        try:
            return replace(verdict, reason=_read_reason(verdict.reason))
        except (AttributeError, ValueError):
            raise WrongResult(
                f"the reason of a Drop must be a text of at most {LONGEST_REASON} characters; got "
                f"{_show(verdict.reason)}"
            ) from None
    if verdict.candidate is before:
        return verdict
    changes = _find_changes(verdict.candidate, before)
    return Keep(replace(verdict.candidate, **changes)) if changes else verdict


def read_replay(replay: Replay) -> Replay:
    """Return a replay with valid types. Raises WrongResult, which names the wrong field."""
    use = replay.use
    return Replay(
        GroupUse(
            _read_field("use.stream", use, _read_text, "a text"),
            _read_field("use.number", use, _read_int),
            _read_field("use.use", use, _read_int),
        ),
        _read_field(
            "deadline_version",
            replay,
            lambda number: _read_int(number, LARGEST_IN_RECORD),
            "a whole number from -2^62 to 2^63 - 1",
        ),
        _read_field("min_version", replay, _read_int),
        _read_field("max_version", replay, _read_int),
        _read_field("weight", replay, _read_number, "a number that a float can hold"),
    )


def check_state(algorithm: Algorithm, state: Any) -> None:
    """Check that an algorithm takes back its state from JSON, which knows only texts as keys. Raises WrongResult.

    Tuples may become lists.
    """
    try:
        text = json.dumps(state)
    except (TypeError, ValueError, RecursionError) as error:
        raise WrongResult(f"its snapshot must be plain JSON: {error}") from None
    other = next((key for key in _iterate_keys(state) if not isinstance(key, str)), None)
    if other is None:
        return
    try:
        twin = deepcopy(algorithm)
    except Exception:  # noqa: BLE001 - whatever a user's class raises: it may hold what nothing can copy
        return
    try:
        twin.restore(json.loads(text))
        is_same = sorted(map(repr, _iterate_keys(twin.snapshot()))) == sorted(map(repr, _iterate_keys(state)))
    except Exception:  # noqa: BLE001 - whatever a user's class raises
        is_same = False
    if not is_same:
        raise WrongResult(
            f"its snapshot has keys that are not strings, such as {other!r:.80}. JSON turns these keys into strings: "
            "use strings as keys, or turn the keys back in the method restore"
        )


def _read_field(path: str, owner: Any, read: Callable[[Any], T], wanted: str = WHOLE_NUMBER) -> T:
    """Return the last field of a path, as in a Replay, with a valid type. Raises WrongResult."""
    value = getattr(owner, path.rpartition(".")[2], None)
    try:
        return read(value)
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise WrongResult(f"{path} of a Replay must be {wanted}; got {_show(value)}") from None


def _show(value: Any) -> str:
    try:
        return f"{value!r:.80}"
    except ValueError:  # Python writes no integer of more than 4,300 digits
        return "an integer of too many digits"


def _iterate_keys(state: Any) -> Iterator[Any]:
    if isinstance(state, dict):
        yield from state
    for value in state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else ():
        if isinstance(value, dict | list | tuple):
            yield from _iterate_keys(value)


def _find_changes(after: Any, before: Candidate) -> dict[str, Any]:
    """Return the changed fields with converted types. Raises WrongResult."""
    if not isinstance(after, Candidate):
        raise WrongResult(f"a Keep must have a Candidate; got {type(after).__name__}")
    group = before.group
    if after.group is not group and not _is_same_group(after.group, group):
        raise WrongResult(
            "the candidate of a Keep must be of the group that the algorithm was given, with all its trajectories"
        )
    count, fields = len(group.trajectories), dict[str, Any]()
    if after.kept is not before.kept:
        fields["kept"] = _read_kept(after.kept, count)
    if after.rewards is not before.rewards:
        fields["rewards"] = _read_rewards(after.rewards, count, len(group.failures))
    if after.rejected is not before.rejected:
        fields["rejected"] = _read_rejected(after.rejected, count)
    for name in ("min_version", "max_version"):
        fields[name] = _read_version(name, getattr(after, name))
    return {name: value for name, value in fields.items() if value is not getattr(after, name)}


def _is_same_group(found: Any, given: TrajectoryGroup) -> bool:
    return (
        isinstance(found, TrajectoryGroup)
        and (found.stream, found.number) == (given.stream, given.number)
        and len(found.trajectories) == len(given.trajectories)
    )


def _read_kept(kept: Any, count: int) -> tuple[int, ...]:
    found: tuple[int, ...] = kept
    if type(kept) is not tuple or not _INTS.issuperset(map(type, kept)):
        try:
            found = tuple([_read_int(one) for one in kept])
        except Exception:  # noqa: BLE001 - whatever another type raises
            raise WrongResult(f"kept must hold the positions of trajectories; got {_show(kept)}") from None
    if found and not 0 <= min(found) <= max(found) < count:
        raise WrongResult(f"kept must be from 0 to {count - 1}, the positions of trajectories; got {_show(kept)}")
    return found


def _read_rewards(rewards: Any, count: int, failures: int) -> tuple[float, ...]:
    found: tuple[float, ...] = rewards
    if type(rewards) is not tuple or not _FLOATS.issuperset(map(type, rewards)):
        try:
            found = tuple(array("d", tuple(rewards)))  # array rejects texts, while float() accepts them
        except Exception:  # noqa: BLE001 - whatever another type raises
            raise WrongResult(f"rewards must be numbers; got {_show(rewards)}") from None
    if len(found) - count not in {0, failures}:
        raise WrongResult(
            f"rewards must have {count} numbers, one for each trajectory, kept or not, and may have {failures} more at "
            f"the end, one for each failed episode; got {len(found)}"
        )
    return found


def _read_rejected(rejected: Any, count: int) -> tuple[Rejection, ...]:
    if type(rejected) is tuple and all(_is_plain(one) and 0 <= one.index < count for one in rejected):
        return rejected
    try:
        found = tuple([Rejection(_read_int(one.index), _read_reason(one.reason), one.detail) for one in rejected])
        if all(0 <= one.index < count for one in found):
            return found
    except Exception:  # noqa: BLE001, S110 - whatever another type raises
        pass
    raise WrongResult(
        "rejected must hold only Rejections, each with the position of a trajectory and a reason of at most "
        f"{LONGEST_REASON} characters; got {_show(rejected)}"
    )


def _is_plain(one: Any) -> bool:
    is_named = isinstance(one, Rejection) and type(one.reason) is str and one.reason.isascii()
    return is_named and len(one.reason) <= LONGEST_REASON and type(one.index) is int


def _read_version(name: str, version: Any) -> int:
    try:
        return _read_int(version)
    except (TypeError, ValueError):
        raise WrongResult(f"{name} must be {WHOLE_NUMBER}; got {_show(version)}") from None


def _read_number(number: Any) -> float:
    """Return any number as a float; raise TypeError for anything else, OverflowError for a too large integer."""
    return float(array("d", [number])[0])  # an array rejects texts, while float() accepts them


def _read_text(text: Any) -> str:
    """Return any text type as an encodable str; raise AttributeError or UnicodeError for anything else."""
    read: str = text.encode().decode()
    return read


def _read_reason(reason: Any) -> str:
    """Return a reason, of which the outcome's record has room. Raises as `_read_text`, and ValueError."""
    if len(read := _read_text(reason)) > LONGEST_REASON:
        raise ValueError
    return read


def _read_int(number: Any, largest: int = LARGEST_NUMBER) -> int:
    """Return a whole number of any integer type, which a record can hold.

    Raises TypeError for a bool, which is not a position, and ValueError for a number that is too large.
    """
    if isinstance(number, bool):
        raise TypeError
    found = index(number)
    if not -LARGEST_NUMBER <= found <= largest:
        raise ValueError
    return found
