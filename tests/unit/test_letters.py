"""Dead letters as they are listed, shown and chosen for being sent back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from consumers.letters import Letter, Letters, decoded
from consumers.page.letters import MOST_ROWS, letter_view, letters_table, redrive_table
from consumers.redrive import choose, why_not
from infra.dead_letters import MOST_BYTES, REDRIVEN, dead_letter, was_sent_back
from infra.errors import UsageError
from infra.kafka import Message
from schemas import codec
from schemas.headers import Stamp
from schemas.records import DeadLetter, Task
from schemas.topics import Topics

SOURCE = "t.trajectories.solver"


def fold(*records: DeadLetter) -> list[Letter]:
    found = Letters("run-1")
    for offset, record in enumerate(records):
        found.take(Message("t.dead-letters", 0, offset, b"", codec.encode(record)))
    return found.all()


def record(offset: int, reason: str = "undecodable", **more: Any) -> DeadLetter:
    made = DeadLetter(run_id="run-1", topic=SOURCE, offset=offset, reason=reason, stream="sums", number=offset)
    return replace(made, **more)


def evaluated(**more: Any) -> DeadLetter:
    headers = Stamp("run-1", "eval.sums", 1, purpose="eval", policy="p", **more).to_headers()
    return record(1, "missing_object", topic="t.eval-groups.p", headers=dict(headers))


def back(letter: int) -> DeadLetter:
    return record(900 + letter, REDRIVEN, redrives=letter)


def drawn(renderable: Any) -> str:
    console = Console(width=160, force_terminal=False)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


def test_letters_of_this_run_are_listed_and_those_that_were_sent_back_say_by_which() -> None:
    letters = fold(record(10), record(11), back(1), record(12, run_id="run-0"))
    assert [(one.offset, one.source_offset, one.redriven) for one in letters] == [(0, 10, None), (1, 11, 2)]


def test_two_letters_about_one_record_are_sent_back_as_one() -> None:
    twice = [record(10), record(11), record(10)]
    choice = choose(fold(*twice), {0}, None)
    assert [[letter.offset for letter in about] for about in choice.send.values()] == [[0, 2]]
    assert [one.redriven for one in fold(*twice, back(0))] == [3, None, 3]


def test_offsets_and_a_reason_choose_and_what_was_sent_back_is_not_chosen_again() -> None:
    letters = fold(record(10), record(11, "missing_object"), back(0), record(12))
    everything = choose(letters, set(), None)
    assert [about[0].offset for about in everything.send.values()] == [1, 3]
    assert [letter.offset for letter in everything.already] == [0]
    assert [a[0].offset for a in choose(letters, set(), "missing_object").send.values()] == [1]
    assert [a[0].offset for a in choose(letters, {3}, None).send.values()] == [3]
    assert not choose(letters, {3}, "missing_object").send
    with pytest.raises(UsageError, match="no dead letter at offset 2, 77"):
        choose(letters, {0, 2, 77}, None)


@pytest.mark.parametrize(
    ("letter", "says"),
    [
        (record(1, "poison", topic="t.tasks.sums"), "poison"),
        (record(1, "other_run"), "another run"),
        (record(1, "misrouted"), "partition"),
        (record(1, "forgotten"), "remembers"),
        (evaluated(min_version=3), "no second answer"),
        (record(1, topic="t.outcomes.solver"), "count twice"),
        (record(1, topic="t.batches.solver"), "count twice"),
        (record(1, value=b"x" * MOST_BYTES), "too large"),
    ],
)
def test_what_no_second_reading_could_mend_is_refused_and_says_why(letter: DeadLetter, says: str) -> None:
    [found] = fold(letter)
    assert says in why_not(found)
    assert [one.offset for one, _ in choose([found], set(), None).refused] == [0]


@pytest.mark.parametrize("topic", ["tasks.sums", "eval-tasks.sums", "trajectories.p", "eval-groups.p", "curated.p"])
def test_what_one_consumer_works_off_can_be_sent_back(topic: str) -> None:
    [found] = fold(record(1, "missing_object", topic=f"t.{topic}"))
    assert why_not(found) == ""


def test_a_group_of_an_evaluation_that_still_waits_for_it_can_be_sent_back() -> None:
    [found] = fold(evaluated())
    assert why_not(found) == ""


def test_a_value_is_shown_as_far_as_it_can_be_read() -> None:
    whole = codec.encode(Task(run_id="r", stream="sums", number=7, payload="x" * 500, versions={"p": 3}))
    assert decoded(whole)["record"] == "Task"
    assert decoded(whole)["fields"]["number"] == 7
    assert decoded(whole)["fields"]["payload"].endswith("…")
    torn = decoded(whole[:40])
    assert (torn["record"], torn["fields"]["stream"], torn["fields"]["number"]) == ("Task", "sums", 7)
    assert "payload" not in torn["fields"]
    assert decoded(b"no \x00 task") == {"text": "no \\x00 task"}
    assert "unknown" in decoded(b"\xc3\x01unknown schema")["text"]
    assert decoded(b"") == {"text": ""}


def test_a_message_that_is_too_large_for_a_letter_leaves_its_beginning() -> None:
    topics = Topics("t")
    headers = Stamp("run-1", "sums", 4, policy="solver").to_headers()
    large = Message(SOURCE, 0, 5, b"sums:4", b"x" * (8 << 20), headers)
    out = dead_letter(topics, "run-1", "curate.solver", large, ("undecodable", "y" * 5000))
    letter = codec.decode(out.value, DeadLetter)
    assert len(out.value) < 8 << 20
    assert (letter.number, len(letter.detail)) == (4, 1000)
    [found] = fold(letter)
    assert not found.is_whole
    odd = replace(large, headers=[("h", b"z" * MOST_BYTES)], value=b"v")
    assert len(dead_letter(topics, "run-1", "curate.solver", odd, ("undecodable", "")).value) < 1 << 20


def test_only_the_header_of_a_redrive_tells_that_a_message_was_sent_back() -> None:
    message = Message(SOURCE, 0, 5, b"", b"", [("attempt", b"1")])
    assert not was_sent_back(message)
    assert was_sent_back(replace(message, headers=[*message.headers, ("redrive", b"3")]))


def row(**more: Any) -> dict[str, Any]:
    plain = {
        "offset": 3, "created_ms": 0, "component": "curate.solver", "reason": "missing_object", "detail": "gone",
        "topic": SOURCE, "partition": 2, "source_offset": 40, "policy": "solver", "stream": "sums", "number": 6,
        "value_bytes": 9, "is_whole": True, "redriven": None,
    }  # fmt: skip
    return plain | more


def test_people_see_where_a_letter_is_from_and_what_became_of_it() -> None:
    table = drawn(letters_table([row(), row(offset=4, redriven=7, number=-1)], None))
    assert "t.trajectories.solver[2]@40" in table
    assert "sums:6" in table
    assert "yes, see 7" in table
    assert "no number" in table
    assert "2 dead letters: 2 missing_object" in table
    assert "everything that was written could be read" in drawn(letters_table([], None))
    assert "of reason other" in drawn(letters_table([], "other"))
    assert f"newest {MOST_ROWS}" in drawn(letters_table([row()] * (MOST_ROWS + 1), None))
    one = row(key="sums:6", headers={"run_id": "run-1"}, hex="c3 01", decoded={"text": "[bold]"})
    assert "[bold]" in drawn(letter_view(one)), "bytes are no markup"
    assert "run_id: run-1" in drawn(letter_view(one))


def test_people_see_what_a_redrive_did() -> None:
    one = {"offsets": [3, 5], **row(), "stands_at": 41}
    done = {"run": "t", "dry_run": False, "redriven": [one], "already": [1], "refused": [{"offset": 2, "why": "old"}]}
    said = drawn(redrive_table(done))
    assert "sent back: letter 3, 5, sums:6" in said
    assert "already redriven: letter 1" in said
    assert "refused: letter 2: old" in said
    assert "would be" in drawn(redrive_table({**done, "dry_run": True}))
    assert "nothing to send back" in drawn(redrive_table({**done, "redriven": [], "already": [], "refused": []}))
