"""Dead letters as they are listed, shown and chosen for being sent back."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from drawn_page import drawn
from made_recipes import sums_recipe

from headrace.app.views.dead_letters import MOST_ROWS, dead_letter_view, dead_letters_table, redrive_table
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Connection, Message, RunAddress
from headrace.infra.kafka.dead_letters import MOST_DEAD_LETTER_BYTES, REDRIVEN, build_dead_letter, is_sent_back
from headrace.infra.kafka.decoding import Refusal
from headrace.infra.run.run import Run, RunEnded
from headrace.infra.store.object_store import StoreAddress
from headrace.ledger.ledger import Ledger
from headrace.ledger.run_streams import RunStreams
from headrace.ops.dead_letters import redrive as redrives
from headrace.ops.dead_letters.listing import (
    DeadLetterDetail,
    DecodedText,
    ListedDeadLetter,
    decode_value,
    find_dead_letters,
    select_by_reason,
)
from headrace.ops.dead_letters.redrive import Redriven, Refused, SentBack, choose, explain_refusal, redrive
from headrace.ops.plain_json import plain
from headrace.schemas import codec
from headrace.schemas.headers import Stamp
from headrace.schemas.records import DeadLetter, Task
from headrace.schemas.topics import Topics

SOURCE = "t.trajectories.solver"


def fold_all(*records: DeadLetter) -> list[ListedDeadLetter]:
    ledger = Ledger(None, "run-1", RunStreams(sums_recipe()))
    encoded = enumerate(map(codec.encode, records))
    ledger.add([Message("t.dead-letters", 0, offset, b"", value) for offset, value in encoded])
    return find_dead_letters(ledger)


def fold(*records: DeadLetter) -> list[ListedDeadLetter]:
    return [one for one in fold_all(*records) if one.reason != REDRIVEN]


def record(offset: int, reason: str = "undecodable", **more: Any) -> DeadLetter:
    made = DeadLetter(run_id="run-1", topic=SOURCE, offset=offset, reason=reason, stream="sums", number=offset)
    return replace(made, **more)


def evaluated(**more: Any) -> DeadLetter:
    headers = Stamp("run-1", "eval.sums", 1, purpose="eval", policy="p", **more).to_headers()
    return record(1, "missing_object", topic="t.eval-groups.p", headers=dict(headers))


def back(letter: int) -> DeadLetter:
    """The word that a letter's message stands at 900 more than the letter's offset again."""
    return record(900 + letter, REDRIVEN, redrives=letter)


def test_letters_of_this_run_are_listed_and_those_that_were_sent_back_say_by_which() -> None:
    letters = fold(record(10), record(11), back(1), record(12, run_id="run-0"))
    assert [(one.offset, one.source_offset, one.redriven) for one in letters] == [(0, 10, None), (1, 11, 2)]


def test_what_fails_again_is_a_new_letter_and_each_names_the_next() -> None:
    records = record(10), back(0), record(11), record(900), back(3), record(903)
    found = fold(*records)
    assert [(one.offset, one.copy_of, one.redriven, one.failed_again) for one in found] == [
        (0, None, 1, 3),
        (2, None, None, None),
        (3, 0, 4, 5),
        (5, 3, None, None),
    ]
    every = fold_all(*records)
    notices = [(one.offset, one.redrives, one.source_offset, one.failed_again) for one in every if one not in found]
    assert notices == [(1, 0, 900, 3), (4, 3, 903, 5)]
    assert [about[0].offset for about in choose(found, set(), None).send.values()] == [2, 5]
    [unlinked] = fold(back(-1), back(7), record(899))
    assert (unlinked.redriven, unlinked.failed_again, unlinked.copy_of) == (None, None, None), "no such letter"


def test_a_reason_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    letters = fold(record(10), record(11, "of_a_newer_build"))
    assert [one.offset for one in select_by_reason(letters, "of_a_newer_build")] == [1]
    assert select_by_reason(letters, "poison") == []
    for ask in (select_by_reason, lambda letters, reason: choose(letters, set(), reason)):
        with pytest.raises(UsageError, match="'undecodible'; the reasons are undecodable, other_run"):
            ask(letters, "undecodible")


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


def test_what_no_second_reading_could_mend_is_refused_and_says_why() -> None:
    for letter, says in (
        (record(1, "poison", topic="t.tasks.sums"), "poison"),
        (record(1, "other_run"), "another run"),
        (record(1, "misrouted"), "partition"),
        (record(1, "forgotten"), "had too many dead letters"),
        (evaluated(min_version=3), "accepts no further answer"),
        (record(1, topic="t.outcomes.solver"), "count twice"),
        (record(1, topic="t.batches.solver"), "count twice"),
        (record(1, value=b"x", cut_bytes=9), "lacks 9 bytes of its record"),
    ):
        [found] = fold(letter)
        assert says in explain_refusal(found)
        assert [one.offset for one, _ in choose([found], set(), None).refused] == [0]


def test_what_one_consumer_works_off_can_be_sent_back() -> None:
    topics = ("tasks.sums", "eval-tasks.sums", "trajectories.p", "eval-groups.p", "curated.p")
    for letter in (evaluated(), *(record(1, "missing_object", topic=f"t.{topic}") for topic in topics)):
        [found] = fold(letter)
        assert explain_refusal(found) == "", letter.topic


ENDED = Run(
    RunAddress(Connection("127.0.0.1:1"), "t"), "run-1", (), StoreAddress("127.0.0.1:2", "b", "k", "s"), ended="steps"
)


def test_a_run_that_has_ended_takes_nothing_back_and_that_is_no_error_where_there_is_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    letters = fold(record(10), record(11, "poison"), back(0), record(12, "missing_object"))
    monkeypatch.setattr(redrives, "listing", lambda run, ledger: letters)
    for dry_run in (True, False):
        done = redrive(ENDED, (0, 1), None, dry_run=dry_run)
        assert (done.redriven, done.already, [one.offset for one in done.refused]) == ((), (0,), [1])
        with pytest.raises(RunEnded, match="has ended"):
            redrive(ENDED, (), None, dry_run=dry_run)
        with pytest.raises(UsageError, match="no dead letter at offset 9"):
            redrive(ENDED, (9,), None, dry_run=dry_run)
        with pytest.raises(UsageError, match="no dead letter has reason"):
            redrive(ENDED, (), "typo", dry_run=dry_run)


def read(value: bytes) -> dict[str, Any]:
    """What `--json` prints of a value."""
    found: dict[str, Any] = plain(decode_value(value))
    return found


def test_a_value_is_shown_as_far_as_it_can_be_read() -> None:
    whole = codec.encode(Task(run_id="r", stream="sums", number=7, payload="x" * 500, versions={"p": 3}))
    assert read(whole)["record"] == "Task"
    assert read(whole)["fields"]["number"] == 7
    assert read(whole)["fields"]["payload"].endswith("…")
    torn = read(whole[:40])
    assert (torn["record"], torn["fields"]["stream"], torn["fields"]["number"]) == ("Task", "sums", 7)
    assert "payload" not in torn["fields"]
    assert read(b"no \x00 task") == {"text": "no \\x00 task"}
    assert "unknown" in read(b"\xc3\x01unknown schema")["text"]
    assert read(b"") == {"text": ""}


def test_a_message_that_is_too_large_for_a_letter_leaves_its_beginning() -> None:
    topics = Topics("t")
    headers = Stamp("run-1", "sums", 4, policy="solver").to_headers()
    large = Message(SOURCE, 0, 5, b"sums:4", b"x" * (8 << 20), headers)
    out = build_dead_letter(topics, "run-1", "curate.solver", large, Refusal("undecodable", "y" * 5000))
    letter = codec.decode(out.value, DeadLetter)
    assert len(out.value) < 8 << 20
    assert (letter.number, len(letter.detail)) == (4, 1000)
    [found] = fold(letter)
    assert found.value_bytes + found.cut_bytes == 8 << 20
    odd = replace(large, headers=[("h", b"z" * MOST_DEAD_LETTER_BYTES)], value=b"v")
    assert len(build_dead_letter(topics, "run-1", "curate.solver", odd, Refusal("undecodable", "")).value) < 1 << 20


def test_the_letter_of_a_replay_concludes_that_use_alone() -> None:
    headers = Stamp("run-1", "sums", 4, use=2, policy="solver").to_headers()
    out = build_dead_letter(
        Topics("t"), "run-1", "train.solver", Message(SOURCE, 0, 5, b"", b"", headers), Refusal("unusable", "")
    )
    letter = codec.decode(out.value, DeadLetter)
    assert (letter.stream, letter.number, letter.use) == ("sums", 4, 2)


WHOLE = Message(SOURCE, 0, 5, b"sums:4", b"x" * 100, Stamp("run-1", "sums", 4, policy="solver").to_headers())


def test_a_message_of_which_a_letter_lacks_a_part_is_never_sent_back() -> None:
    for message, is_cut in (
        (WHOLE, False),
        (replace(WHOLE, value=b"x" * (MOST_DEAD_LETTER_BYTES - 500)), False),
        (replace(WHOLE, value=b"x" * MOST_DEAD_LETTER_BYTES), True),
        (replace(WHOLE, key=b"k" * (MOST_DEAD_LETTER_BYTES + 1), value=b"v"), True),
        (replace(WHOLE, headers=[*WHOLE.headers, ("large", b"z" * MOST_DEAD_LETTER_BYTES)], value=b"v"), True),
        (replace(WHOLE, headers=[("twice", b"first"), ("twice", b"last")]), True),
    ):
        out = build_dead_letter(Topics("t"), "run-1", "curate.solver", message, Refusal("undecodable", ""))
        choice = choose(fold(codec.decode(out.value, DeadLetter)), {0}, None)
        assert len(choice.send) == (not is_cut)
        assert [f"{SOURCE}[0]@5" in why for _, why in choice.refused] == [True] * is_cut


def test_only_the_header_of_a_redrive_tells_that_a_message_was_sent_back() -> None:
    message = Message(SOURCE, 0, 5, b"", b"", [("attempt", b"1")])
    assert not is_sent_back(message)
    assert is_sent_back(replace(message, headers=[*message.headers, ("redrive", b"3")]))


def row(**more: Any) -> ListedDeadLetter:
    usual: dict[str, Any] = {
        "offset": 3, "created_ms": 0, "component": "curate.solver", "reason": "missing_object", "detail": "gone",
        "topic": SOURCE, "partition": 2, "source_offset": 40, "policy": "solver", "stream": "sums", "number": 6,
        "value_bytes": 9, "cut_bytes": 0, "redriven": None, "failed_again": None, "copy_of": None, "redrives": None,
    }  # fmt: skip
    return ListedDeadLetter(**usual | more)


def shown(letter: ListedDeadLetter, **more: Any) -> DeadLetterDetail:
    usual = {"key": "", "headers": {}, "hex": "", "decoded": DecodedText("")}
    return DeadLetterDetail(**{one.name: getattr(letter, one.name) for one in fields(letter)}, **usual | more)


def test_people_see_where_a_letter_is_from_and_what_became_of_it() -> None:
    table = drawn(dead_letters_table([row(), row(offset=4, redriven=7, failed_again=8, number=-1)], None), 160)
    for words in (
        "t.trajectories.solver[2]@40",
        "sums:6",
        "yes, see 7; failed again as 8",
        "no number",
        "2 dead letters: 2 missing_object",
    ):
        assert words in table
    assert "everything that was written could be read" in drawn(dead_letters_table([], None), 160)
    assert "of reason other" in drawn(dead_letters_table([], "other"), 160)
    assert f"newest {MOST_ROWS}" in drawn(dead_letters_table([row()] * (MOST_ROWS + 1), None), 160)
    one = shown(row(), key="sums:6", headers={"run_id": "run-1"}, hex="c3 01", decoded=DecodedText("[bold]"))
    assert "[bold]" in drawn(dead_letter_view(one), 160), "bytes are no markup"
    assert "7 bytes of the record, so it cannot be sent back" in drawn(dead_letter_view(replace(one, cut_bytes=7)), 160)
    notice = shown(row(offset=7, reason=REDRIVEN, redrives=4, failed_again=8, value_bytes=0))
    assert "letter 4; failed again as 8" in drawn(dead_letter_view(notice), 160)


def test_people_see_what_a_redrive_did() -> None:
    one = SentBack((3, 5), SOURCE, 2, 40, 41, "missing_object", "sums", 6)
    done = Redriven("t", dry_run=False, redriven=(one,), already=(1,), refused=(Refused(2, "old"),))
    said = drawn(redrive_table(done), 160)
    assert "sent back: dead letter 3, 5, sums:6" in said
    assert "already sent back: dead letter 1" in said
    assert "refused: dead letter 2: old" in said
    assert "would be" in drawn(redrive_table(replace(done, dry_run=True)), 160)
    assert "nothing to send back" not in said
    assert "nothing to send back" in drawn(redrive_table(replace(done, redriven=())), 160)
    assert "nothing to send back" in drawn(redrive_table(replace(done, redriven=(), already=(), refused=())), 160)
