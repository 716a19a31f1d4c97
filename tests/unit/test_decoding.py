"""From bytes to a record of this run, or to the reason of a dead letter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.decoding import MessageRefused, decode_own, decode_own_stamp, read_own
from headrace.infra.run.claimed_groups import fetch_trajectories
from headrace.infra.store.object_store import ObjectCorrupt, ObjectMissing
from headrace.schemas import codec
from headrace.schemas.headers import task_stamp
from headrace.schemas.records import ClaimCheck, Outcome, Task, TrajectoryGroup

OURS = Task(run_id="one", stream="sums", number=3)
MESSAGE = Message("r.tasks.sums", 0, 7, b"sums:3", codec.encode(OURS), task_stamp(OURS).to_headers())


def why(call: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(MessageRefused) as caught:
        call()
    return caught.value.refusal


def test_bytes_that_are_no_such_record_are_undecodable() -> None:
    assert decode_own(MESSAGE.value, Task, "one") == OURS
    for value in (b"", b"no message", codec.encode(OURS)[:-1], codec.encode(Outcome(run_id="one"))):
        reason, detail = why(lambda value=value: decode_own(value, Task, "one"))  # type: ignore[misc]
        assert (reason, bool(detail)) == ("undecodable", True)


def test_a_record_of_another_run_is_rejected_with_the_worker_s_own_words() -> None:
    plain = why(lambda: decode_own(MESSAGE.value, Task, "two"))
    own = why(lambda: decode_own(MESSAGE.value, Task, "two", lambda task: f"the task is of run {task.run_id}"))
    assert plain == ("other_run", "the record has run id 'one', this run has 'two'")
    assert own == ("other_run", "the task is of run one")


def test_the_headers_of_a_message_of_another_run_are_rejected() -> None:
    assert decode_own_stamp(MESSAGE, "one").number == 3
    assert why(lambda: decode_own_stamp(MESSAGE, "two")) == (
        "other_run",
        "a process of run id one wrote to a topic of run id two",
    )
    assert why(lambda: decode_own_stamp(replace(MESSAGE, headers=[]), "one"))[0] == "undecodable"


def test_an_event_that_is_not_ours_is_passed_over_with_a_warning() -> None:
    with capture_logs() as said:
        assert read_own(MESSAGE, Task, "one") == OURS
        assert read_own(MESSAGE, Task, "two") is None
        assert read_own(replace(MESSAGE, value=b"no message"), Task, "one") is None
    assert [(line["event"], line["offset"]) for line in said] == [("message.other_run", 7), ("message.unreadable", 7)]


def test_a_group_behind_a_claim_check_is_fetched_or_rejected_with_what_is_wrong_with_its_object() -> None:
    whole, claim = TrajectoryGroup(run_id="one", number=3, n_asked=2), ClaimCheck("main", "groups/a", "a", 1)
    short = replace(whole, claim=claim)

    def fetch(found: bytes | Exception) -> Callable[[ClaimCheck], bytes]:
        def fetched(asked: ClaimCheck) -> bytes:
            assert asked == claim
            if isinstance(found, Exception):
                raise found
            return found

        return fetched

    assert fetch_trajectories(whole, fetch(AssertionError())) is whole
    assert fetch_trajectories(short, fetch(codec.encode(whole))) == whole
    for error in (ObjectMissing("gone"), ObjectCorrupt("torn")):
        assert why(lambda error=error: fetch_trajectories(short, fetch(error))) == ("missing_object", str(error))  # type: ignore[misc]
    assert why(lambda: fetch_trajectories(short, fetch(b"no message")))[0] == "undecodable"
