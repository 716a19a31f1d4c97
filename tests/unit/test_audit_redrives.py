"""What an audit says of dead letters that say that a message was sent back."""

from __future__ import annotations

from typing import Any

from made_recipes import sums_recipe

from headrace.infra.kafka.clients import Message
from headrace.ops.audit.fold import AuditFold
from headrace.schemas import codec
from headrace.schemas.headers import Stamp
from headrace.schemas.records import DeadLetter

RECIPE = sums_recipe()
TOPICS = RECIPE.topics
GROUPS, CURATED, ANSWERS = TOPICS.trajectories("solver"), TOPICS.curated("solver"), TOPICS.eval_groups("solver")


class Scene:
    """Dead letter 0 is about the group at offset 4, which was sent back to offset 9 of its topic."""

    def __init__(self, topic: str = GROUPS) -> None:
        self.topic = topic
        self.letters: list[DeadLetter | None] = [self.letter("curate.solver", 4, "undecodable"), self.notice()]
        self.copies = [(9, b"0")]

    def letter(self, component: str, offset: int, reason: str, **more: Any) -> DeadLetter:
        return DeadLetter("r", component, self.topic, 1, offset, reason, **more)

    def notice(self, redrives: int = 0) -> DeadLetter:
        return self.letter("redrive", 9, "redriven", redrives=redrives)

    def said(self) -> list[str]:
        fold = AuditFold("r", RECIPE)
        for offset, letter in enumerate(self.letters):
            value = codec.encode(letter) if letter else b"of a newer release"
            fold.fold_message(Message(TOPICS.dead_letters, 0, offset, b"", value, []))
        for offset, redrive in self.copies:
            headers = [*Stamp("r", "sums", 1, policy="solver").to_headers(), ("redrive", redrive)]
            message = Message(self.topic, 1, offset, b"", b"", headers if redrive else headers[:-1])
            if self.topic == ANSWERS:
                fold.redrives.fold_message(message)
            else:
                fold.fold_message(message)
        return list(fold.redrives.problems())


def test_of_a_message_that_was_sent_back_nothing_is_said() -> None:
    for topic in (GROUPS, CURATED, ANSWERS):
        assert Scene(topic).said() == []


def test_a_redrive_without_a_record_that_was_sent_back_is_named() -> None:
    for topic in (GROUPS, CURATED, ANSWERS):
        for copies in ([], [(8, b"0")], [(9, b"")]):
            scene = Scene(topic)
            scene.copies = copies
            [what] = scene.said()
            assert what == (
                "the dead letter t.dead-letters[0]@1 says that the message of dead letter 0 was sent back to "
                f"{topic}[1]@9, but no record that was sent back is there"
            )


def test_a_redrive_of_a_dead_letter_that_does_not_exist_is_named() -> None:
    for redrives in (1, 5, -1, 1 << 60):
        scene = Scene()
        scene.letters[1] = scene.notice(redrives)
        [what] = scene.said()
        assert what == (
            f"the dead letter t.dead-letters[0]@1 says that the message of dead letter {redrives} was sent back, but "
            "before it there is no dead letter at that offset"
        )
    scene = Scene()
    scene.letters.append(scene.notice(1))
    assert len(scene.said()) == 1, "a notice is not sent back"


def test_all_dead_letters_of_a_record_name_its_one_copy_whose_header_names_the_first() -> None:
    scene = Scene()
    scene.letters = [*[scene.letter("curate.solver", 4, "undecodable")] * 2, scene.notice(0), scene.notice(1)]
    assert scene.said() == []


def test_a_message_that_failed_again_is_sent_back_once_more() -> None:
    scene = Scene()
    again = scene.letter("redrive", 12, "redriven", redrives=2)
    scene.letters += [scene.letter("curate.solver", 9, "undecodable"), again]
    scene.copies.append((12, b"2"))
    assert scene.said() == []


def test_a_dead_letter_that_this_release_cannot_read_may_have_been_sent_back() -> None:
    scene = Scene()
    scene.letters[0] = None
    assert scene.said() == []


def test_a_task_that_was_sent_back_may_be_deleted_once_it_is_played() -> None:
    for topic in (TOPICS.tasks("sums"), "t.trajectories.dropped"):
        scene = Scene(topic)
        scene.copies = []
        assert scene.said() == [], "nor is a topic read that the newest recipe lacks"
