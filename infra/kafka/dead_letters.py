"""Dead letters: bytes that could not be read are kept with the reason; nothing is lost, and nothing waits for them.

`headrace redrive` sends them back to where they came from, with a header that names the dead letter, and
writes another one of reason `redriven`: the number is open again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import structlog

from headrace.infra.kafka.clients import Message, Outgoing
from headrace.infra.kafka.decoding import Refusal
from headrace.schemas import codec
from headrace.schemas.headers import HeaderError, Stamp
from headrace.schemas.ids import now_ms
from headrace.schemas.records import DeadLetter, Outcome
from headrace.schemas.topics import Topics, policy_of

log = structlog.get_logger()

REDRIVEN = "redriven"
"""Reason of a dead letter that marks another one's message as sent back."""
TIME_TRAVEL = "time_travel"
"""Reason of the dead letter of a group that names a version which is not published."""
NOT_ISSUED = "not_issued"
"""Reason of the dead letter of a group of a number that the feeder never issued; it concludes none."""
REASONS = (
    "undecodable",
    "other_run",
    "misrouted",
    TIME_TRAVEL,
    "missing_object",
    "unknown_revision",
    "unusable",
    "poison",
    "forgotten",
    "unanswered",
    "algorithm_failed",
    NOT_ISSUED,
    REDRIVEN,
)
"""Reasons that this build writes; dead letters of newer builds may use other reasons."""
REDRIVE_HEADER = "redrive"
"""Header of a message that was sent back; its value is the offset of the dead letter."""
VERDICT_HEADER = "verdict"
"""Header that `headrace replay` gives to the trajectories of a run whose curators ask what is published; its value is
TAKEN, or the reason for which they refused the message."""
TAKEN = "taken"
MOST_DEAD_LETTER_BYTES = 7 << 20
"""Key, headers and value in a dead letter, which must fit into a message itself, or its writer could not go on."""
MOST_KEY_BYTES = 1000
"""Key of the dead letter's own message."""
DEAD_LETTER_DETAIL_LENGTH = 1000


def is_sent_back(message: Message) -> bool:
    """Return whether a message came by `headrace redrive`."""
    return any(name == REDRIVE_HEADER for name, _ in message.headers)


def verdict_of(message: Message) -> str | None:
    """Return what a run that is replayed decided of a message: TAKEN, or why not; None where it is no replay."""
    return next((value.decode(errors="replace") for name, value in message.headers if name == VERDICT_HEADER), None)


def build_dead_letter(topics: Topics, run_id: str, component: str, message: Message, refusal: Refusal) -> Outgoing:
    """Return the dead letter of a message that is refused.

    When the headers still name a task of this run, its number goes into the record and so concludes it as dead; of a
    replay that use alone. What is too large for a dead letter is cut off; the whole is at topic, partition and
    offset.
    """
    policy, stream, number, use = "", "", -1, 0
    try:
        stamp = Stamp.from_headers(message.headers)
        if stamp.run_id == run_id:
            policy, stream, number, use = stamp.policy, stamp.stream, stamp.number, stamp.use
    except HeaderError:
        pass
    detail = refusal.detail[:DEAD_LETTER_DETAIL_LENGTH].encode(errors="backslashreplace").decode()
    reason, whole, message = refusal.reason, message, _cut_to_fit(message)
    headers = dict(message.headers)  # of two of one name the last
    log.warning("message.dead", topic=message.topic, offset=message.offset, reason=reason, detail=detail)
    record = DeadLetter(
        run_id=run_id,
        component=component,
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        reason=reason,
        detail=detail,
        policy=policy,
        stream=stream,
        number=number,
        use=use,
        key=message.key,
        headers=headers,
        value=message.value,
        cut_bytes=_size(whole.key, whole.headers, whole.value) - _size(message.key, headers.items(), message.value),
        created_ms=now_ms(),
    )
    return Outgoing(topics.dead_letters, codec.encode(record), message.key[:MOST_KEY_BYTES])


def build_shadow_loss(run_id: str, policy_variant: str, message: Message, refusal: Refusal) -> Outcome | None:
    """Return the outcome of a message that a shadow cannot read. A shadow writes no dead letter.

    A dead letter concludes a number of the policy, and can be sent back to it: the policy's own curator writes that,
    where it cannot read the message either. None when the headers name no task of this run: it concludes nothing.
    """
    reason, detail, topic, offset = (
        refusal.reason,
        refusal.detail[:DEAD_LETTER_DETAIL_LENGTH],
        message.topic,
        message.offset,
    )
    log.warning("message.lost", line=policy_variant, topic=topic, offset=offset, reason=reason, detail=detail)
    try:
        stamp = Stamp.from_headers(message.headers)
    except HeaderError:
        return None
    if (stamp.run_id, stamp.policy) != (run_id, policy_of(policy_variant)):
        return None
    return Outcome(
        run_id=run_id,
        stream=stamp.stream,
        number=stamp.number,
        use=stamp.use,
        policy=stamp.policy,
        verdict="dropped",
        reason=reason,
        revision=stamp.revision,
        min_version=stamp.min_version,
        max_version=stamp.max_version,
        head_version=stamp.head_version,
    )


def _cut_to_fit(message: Message) -> Message:
    """Return a message that fits into a dead letter: of one that is too large the beginning."""
    beside = _size(message.key, message.headers)
    if beside > MOST_DEAD_LETTER_BYTES:
        return replace(message, key=b"", headers=[], value=message.value[:MOST_DEAD_LETTER_BYTES])
    return replace(message, value=message.value[: MOST_DEAD_LETTER_BYTES - beside])


def _size(key: bytes, headers: Iterable[tuple[str, bytes]], value: bytes = b"") -> int:
    return len(key) + sum(len(name.encode()) + len(content) for name, content in headers) + len(value)
