"""Dead letters keep unusable messages with the reason, so that nothing is lost and nothing waits for them.

`headrace redrive` sends such a message back to its topic, with a header that names the dead letter. It also writes
another dead letter with reason `redriven`, so that the number is open again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import structlog

from headrace.infra.kafka.clients import Message, Outgoing
from headrace.infra.kafka.decoding import Refusal
from headrace.infra.own_frames import make_encodable
from headrace.schemas import codec
from headrace.schemas.headers import HeaderError, Stamp
from headrace.schemas.ids import now_ms
from headrace.schemas.records import DeadLetter, Outcome
from headrace.schemas.topics import Topics, policy_of

log = structlog.get_logger()

REDRIVEN = "redriven"
"""Reason of a dead letter that marks the message of another dead letter as sent back."""
TIME_TRAVEL = "time_travel"
"""Reason of the dead letter of a group that names an unpublished version."""
NOT_ISSUED = "not_issued"
"""Reason of the dead letter of a group whose number was never issued; it concludes no number."""
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
"""Header of trajectories that `headrace replay` copies from a run whose curators check versions and numbers. Its value
is TAKEN, or the reason for which the curators refused the message."""
TAKEN = "taken"
MOST_DEAD_LETTER_BYTES = 7 << 20
"""Most bytes of key, headers and value in a dead letter, so that the dead letter fits into a message."""
MOST_KEY_BYTES = 1000
"""Key of the dead letter's own message."""
DEAD_LETTER_DETAIL_LENGTH = 1000


def is_sent_back(message: Message) -> bool:
    """Return whether `headrace redrive` sent this message."""
    return any(name == REDRIVE_HEADER for name, _ in message.headers)


def verdict_of(message: Message) -> str | None:
    """Return the original run's verdict on a replayed message: TAKEN or the reason; None if it is not a replay."""
    return next((value.decode(errors="replace") for name, value in message.headers if name == VERDICT_HEADER), None)


def build_dead_letter(topics: Topics, run_id: str, component: str, message: Message, refusal: Refusal) -> Outgoing:
    """Return the dead letter of a refused message.

    If the headers name a task of this run, its number goes into the record and is concluded as dead; for a replay only
    the use is. A message that is too large is cut; the complete message is at its topic, partition and offset.
    """
    policy, stream, number, use = "", "", -1, 0
    try:
        stamp = Stamp.from_headers(message.headers)
        if stamp.run_id == run_id:
            policy, stream, number, use = stamp.policy, stamp.stream, stamp.number, stamp.use
    except HeaderError:
        pass
    detail = make_encodable(refusal.detail[:DEAD_LETTER_DETAIL_LENGTH])
    reason, whole, message = refusal.reason, message, _cut_to_fit(message)
    headers = dict(message.headers)  # of two headers with one name, the last
    # A message could not be read or used, and became a dead letter.
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
    """Return the outcome of a message that a shadow cannot read, in place of a dead letter.

    A dead letter concludes a number of the policy, and can be sent back, so only the policy's own curator writes it.
    Returns None if the headers name no task of this run: then nothing is concluded.
    """
    reason, detail, topic, offset = (
        refusal.reason,
        refusal.detail[:DEAD_LETTER_DETAIL_LENGTH],
        message.topic,
        message.offset,
    )
    # A shadow could not read a message; it writes no dead letter.
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
    """Return a message that fits into a dead letter: the beginning of a too large message."""
    beside = _size(message.key, message.headers)
    if beside > MOST_DEAD_LETTER_BYTES:
        return replace(message, key=b"", headers=[], value=message.value[:MOST_DEAD_LETTER_BYTES])
    return replace(message, value=message.value[: MOST_DEAD_LETTER_BYTES - beside])


def _size(key: bytes, headers: Iterable[tuple[str, bytes]], value: bytes = b"") -> int:
    return len(key) + sum(len(name.encode()) + len(content) for name, content in headers) + len(value)
