"""What a failed episode says of itself, from the worker to whoever looks at the run."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
import textwrap
import urllib.error
from collections.abc import Iterator
from dataclasses import replace
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from made_ledger import MadeLedger
from structlog.testing import capture_logs

from headrace.envs.data.judge import JudgeError
from headrace.envs.sandbox.contract import BoxFailed, BoxUnavailable
from headrace.infra.own_frames import choose_location, describe_with_location, is_own_file, locate_error, locate_wait
from headrace.infra.process.carried_errors import convert_to_exception
from headrace.infra.process.child_handle import ChildDied, Overdue
from headrace.infra.unreachable import OutOfTime, is_unreachable
from headrace.ops.episode_errors import list_errors
from headrace.producers.engines.contract import EngineError, VersionGone
from headrace.producers.rollout.play.actor import EngineActor
from headrace.producers.rollout.play.failures import FailureLog, build_failure
from headrace.schemas import codec
from headrace.schemas.episode_errors import MOST_KINDS_OF_TASK, describe_error, error_key_of, group_errors
from headrace.schemas.records import DeadLetter, EpisodeError, Failure, Outcome, Task, TrajectoryGroup

TASK = Task(run_id="r", stream="sums", number=4, task_id="sum:4")
OWN = """
    import json

    def judge(answer):
        return {}[answer]

    def parse(text):
        return json.loads(text)

    def translated(text):
        try:
            json.loads(text)
        except ValueError as error:
            raise RuntimeError("no answer") from error

    async def ask(event):
        await event.wait()

    async def play(event):
        await ask(event)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module of the user's own, in a folder beside the recipe."""
    (tmp_path / "judges").mkdir()
    (tmp_path / "judges" / "own_judge.py").write_text(textwrap.dedent(OWN))
    monkeypatch.syspath_prepend(str(tmp_path))
    from importlib import import_module

    yield import_module("judges.own_judge")
    for name in ("judges.own_judge", "judges"):
        sys.modules.pop(name)


def raised(call: Any, *words: Any) -> Exception:
    try:
        call(*words)
    except Exception as error:  # noqa: BLE001 - whatever it raises
        return error
    raise AssertionError


def test_the_place_of_an_error_is_the_newest_line_of_the_users_own(own: Any) -> None:
    assert locate_error(raised(own.judge, "7")) == "judges/own_judge.py:5 in judge"
    assert locate_error(raised(own.parse, "{")) == "judges/own_judge.py:8 in parse", "and not within Python's own json"
    assert locate_error(raised(own.translated, "{")) == "judges/own_judge.py:14 in translated"
    assert locate_error(ValueError("never raised")) == ""


def test_a_task_that_waits_is_where_the_users_own_code_waits(own: Any) -> None:
    async def look() -> tuple[str, str]:
        waiting = asyncio.create_task(own.play(asyncio.Event()))
        await asyncio.sleep(0)
        found = locate_wait(waiting)
        waiting.cancel()
        await asyncio.wait([waiting])
        return found, locate_wait(waiting)

    assert asyncio.run(look()) == ("judges/own_judge.py:17 in ask", "")


def test_an_error_of_the_users_own_code_is_told_with_type_and_place_and_one_of_ours_as_it_is(own: Any) -> None:
    assert describe_with_location(raised(own.judge, "7")) == "KeyError: '7' at judges/own_judge.py:5 in judge"
    assert describe_with_location(ValueError("no such loss")) == "no such loss"
    assert not build_failure(0, raised_from(ChildDied("the child process of open ended", ""), OSError())).at, "not ours"
    typed = [describe_with_location(one, with_type=True) for one in (KeyError(), OSError("x"), OSError("OSError: x"))]
    assert typed == ["KeyError", "OSError: x", "OSError: x"]


class Mute(ValueError):
    """Such as an error of a client library whose server answers with more than a text."""

    def __str__(self) -> str:
        said: str = self.args[0]
        return said


MUTE = "its text cannot be made, as Mute.__str__ raises TypeError"


def refuse(*_: object, **__: object) -> Any:
    raise Mute({"code": 402})


def test_an_error_that_cannot_say_what_it_is_fails_its_episode_alone_and_is_told_by_its_type() -> None:
    failure = build_failure(3, raised(refuse))
    assert failure.detail == f"Mute: {MUTE}"
    assert failure.at.endswith(" in refuse")
    assert failure.traceback.endswith("Mute: <exception str() failed>\n")
    assert str(convert_to_exception("the scorer", StopIteration(Mute({})))).startswith(
        "the scorer raised StopIteration: its"
    )
    assert describe_with_location(Mute({})) == MUTE


def test_files_of_ours_of_python_and_of_packages_are_nobodys_own() -> None:
    assert not is_own_file(asyncio.__file__)
    assert not is_own_file(pytest.__file__)
    assert not is_own_file(sys.modules["headrace.producers.rollout.play.failures"].__file__ or "")
    assert not is_own_file(str(Path(sys.modules["headrace.infra.own_frames"].__file__ or "").resolve()))
    assert not is_own_file("<frozen importlib>")
    assert choose_location([]) == ""
    assert choose_location([(asyncio.__file__, 3, "run")]).endswith(":3 in run"), "where none is own, the newest of all"


def test_a_failure_says_type_message_place_role_turn_and_traceback(own: Any) -> None:
    def actor(calls: int, acted_s: float) -> EngineActor:
        nothing: Any = None
        return EngineActor(nothing, "p", nothing, nothing, 0, None, nothing, calls, acted_s)

    failure = build_failure(3, raised(own.judge, "7"), 5.0, {"solver": actor(2, 10.0), "verifier": actor(1, 11.0)})
    assert (failure.sample, failure.reason, failure.detail) == (3, "error", "KeyError: '7'")
    assert (failure.at, failure.role, failure.turn) == ("judges/own_judge.py:5 in judge", "verifier", 1)
    assert failure.traceback.endswith("KeyError: '7'\n")
    assert describe_error(failure) == "KeyError: '7' at judges/own_judge.py:5 in judge (verifier, turn 1)"
    assert describe_error(replace(failure, turn=0)).endswith("(verifier, before its first turn)")
    assert build_failure(0, OutOfTime(), 5.0).detail == "the episode took longer than 5 s (rollout.episode_limit_s)"
    assert build_failure(0, OutOfTime("after 7 tokens")).detail == "after 7 tokens"
    own_limit = build_failure(0, raised_from(TimeoutError(), asyncio.CancelledError()), 120.0)
    assert (own_limit.reason, own_limit.detail) == ("time_limit", "TimeoutError"), "which was not the episode's"
    assert build_failure(0, VersionGone("gone")).reason == "version_gone"
    assert codec.decode(codec.encode(TrajectoryGroup(failures=(failure,))), TrajectoryGroup).failures == (failure,)


@pytest.mark.parametrize(
    "error", [BoxFailed("it ended"), BoxUnavailable("none"), JudgeError("no verdict"), OSError(errno.ENOSPC, "full")]
)
def test_what_does_not_work_in_an_environment_is_a_failure_with_a_reason_of_its_own(error: Exception) -> None:
    failure = build_failure(0, error)
    assert failure.reason == "environment"
    [told] = group_errors((failure,))
    assert told.reason == "environment"
    assert describe_error(told).startswith(type(error).__name__)


def failures(error: Exception, count: int) -> tuple[Failure, ...]:
    return tuple(build_failure(sample, error) for sample in range(count))


def test_an_error_stands_once_with_its_traceback_in_log_and_records_and_then_its_count_at_powers_of_ten(
    own: Any,
) -> None:
    log = FailureLog()
    first, other = raised(own.judge, "7"), raised(own.judge, "8")
    with capture_logs() as lines:
        groups = log.log_and_strip(TASK, {"p": TrajectoryGroup(failures=failures(first, 3))})
        log.log_and_strip(TASK, {"p": TrajectoryGroup(failures=failures(other, 9)), "q": TrajectoryGroup()})
        log.log_and_strip(TASK, {"p": TrajectoryGroup(failures=failures(raised(own.parse, "{"), 1))})
    assert [bool(failure.traceback) for failure in groups["p"].failures] == [True, False, False]
    assert [(line["event"], line["why"].partition(":")[0], line["times"]) for line in lines] == [
        ("episode.failed", "KeyError", 1),
        ("episode.failed", "KeyError", 10),
        ("episode.failed", "JSONDecodeError", 1),
    ], "messages of one line of code differ by what was asked"
    assert (lines[0]["at"], lines[0]["stream"], lines[0]["number"]) == ("judges/own_judge.py:5 in judge", "sums", 4)
    assert [line["traceback"].partition("\n")[0] for line in lines] == [
        "Traceback (most recent call last):",
        "",
        "Traceback (most recent call last):",
    ]


def test_the_end_of_a_run_is_no_error() -> None:
    with capture_logs() as lines:
        FailureLog().log_and_strip(TASK, {"p": TrajectoryGroup(failures=(Failure(0, "run_end", "the run is over"),))})
    assert lines == []
    assert group_errors([Failure(0, "run_end"), Failure(1, "version_gone")]) == ()


def test_an_outcome_carries_each_error_once_the_most_frequent_first_and_bounded() -> None:
    long = [Failure(0, "error", f"Error{kind}: x" * 100, "a" * 999) for kind in "ABCDEFG"]
    many = [failure for count, failure in enumerate(long, 1) for _ in range(count)]
    errors = group_errors(many)
    assert [error.episodes for error in errors] == [7, 6, 5, 4]
    assert len(errors) == MOST_KINDS_OF_TASK
    assert {len(error.detail) for error in errors} == {len(error.at) for error in errors} == {300}
    for words in ("TimeLimit: asked {} times", "it was over after {} tokens"):
        same = [Failure(0, "error", words.format(number)) for number in range(5)]
        assert [error.episodes for error in group_errors(same)] == [5], (
            "without a location, the message less its numbers"
        )
    assert error_key_of(group_errors(same)[0]) == error_key_of(same[4])


ERROR = EpisodeError("error", "KeyError: '7'", "own.py:5 in judge", "solver", 1, 8)


def outcome(number: int, policy: str = "solver", error: EpisodeError = ERROR, **more: Any) -> Outcome:
    made = Outcome(
        run_id="r", stream="sums", number=number, policy=policy, component="curate", verdict="dropped",
        reason="failed", n_asked=8, failures=8, task_id=f"sum:{number}", errors=(error,),
    )  # fmt: skip
    return replace(made, **more)


def test_errors_are_counted_over_groups_and_once_for_all_policies_of_a_task() -> None:
    fold = MadeLedger()
    rare = replace(ERROR, detail="ValueError: no", episodes=1)
    for number in range(3):
        fold.say(outcome(number))
        fold.say(outcome(number, policy="verifier"))
    fold.say(outcome(3, error=rare))
    fold.say(outcome(4, use=1))
    fold.say(outcome(5, level="trajectory"))
    fold.say(outcome(6, component="train"))
    first, second = list_errors(fold)
    assert (first.count, first.number, second.count) == (24, 0, 1)
    assert first.sentence == (
        "24 of 32 episodes failed: KeyError: '7' at own.py:5 in judge (solver, turn 1); one in task sums:0 (sum:0)"
    )
    assert second.sentence.startswith("1 of 32 episodes failed: ValueError: no at ")


def test_dead_letters_are_told_by_reason_with_the_error_of_the_users_own_algorithm() -> None:
    fold = MadeLedger()
    detail = "algorithm rules:Own failed: KeyError: 'x' (/home/me/rules.py:7 in process)"
    dead = DeadLetter(component="curate.solver", reason="algorithm_failed", detail=detail, policy="solver", number=4)
    for number in (4, 5):
        fold.say(replace(dead, stream="sums", number=number))
    fold.say(replace(dead, reason="redriven"))
    [seen] = list_errors(fold)
    assert seen.sentence == (
        f"2 records are dead letters of curate.solver (algorithm_failed): {detail}; one of task sums:4"
    )


def raised_from(error: Exception, cause: BaseException) -> Exception:
    def both() -> None:
        raise error from cause

    return raised(both)


def within(error: Exception, earlier: Exception) -> Exception:
    def both() -> None:
        try:
            raise earlier
        except type(earlier):
            raise error  # noqa: B904 - as libraries do that translate errors

    return raised(both)


REFUSED = ConnectionRefusedError(111, "Connection refused")


def test_an_error_that_says_that_a_server_cannot_be_reached_is_nobodys_fault() -> None:
    for error in (
        REFUSED,
        TimeoutError("timed out"),
        socket.gaierror(-2, "Name or service not known"),
        OSError(errno.EHOSTUNREACH, "No route to host"),
        raised_from(urllib.error.URLError(REFUSED), REFUSED),
        raised_from(RuntimeError("the judge"), REFUSED),
        within(RuntimeError("Max retries exceeded"), REFUSED),
        ExceptionGroup("all judges", [REFUSED, TimeoutError()]),
    ):
        assert is_unreachable(error), error
        assert build_failure(0, error).reason == "unreachable"


def test_other_errors_are_failures() -> None:
    for error in (
        OutOfTime("the episode reached its time limit"),
        Overdue("the environment did not score within 5 s", ""),
        raised_from(TimeoutError(), asyncio.CancelledError()),
        FileNotFoundError(2, "No such file"),
        KeyError("x"),
        within(KeyError("x"), FileNotFoundError(2, "No such file")),
        urllib.error.HTTPError("http://judge", 500, "Internal Server Error", Message(), None),
        ExceptionGroup("judges", [REFUSED, KeyError("x")]),
        raised_from(EngineError("the engine died"), REFUSED),
    ):
        assert build_failure(0, error).reason != "unreachable", error
