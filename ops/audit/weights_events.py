"""Passes the events of a policy's weights topic to the chain of its versions."""

from __future__ import annotations

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.topic_reader import name_offset
from headrace.infra.weights.paths import KINDS, MERGED, is_version, is_whole
from headrace.ops.audit.weights_chain import ChainLink, WeightsChain
from headrace.schemas.records import WeightsPublished


def fold_event(chain: WeightsChain, event: WeightsPublished, message: Message) -> None:
    """Take in the event that a message holds: a version, or its whole weights again."""
    if event.kind == MERGED:  # of an older run; nobody reads it
        return
    if event.kind not in KINDS:
        chain.broken.add_sentence(
            f"{name_offset(message)} is of kind {event.kind!r:.60}, which this release does not know"
        )
        return
    link = ChainLink(event.epoch, event.base_hash, event.weights_hash, name_offset(message))
    if is_whole(event):
        chain.fold_anchor(message.offset)
    else:
        chain.match_anchor(event.anchor_offset, name_offset(message))
    if is_version(event):
        chain.fold_event(event.version, link, event.base_version, final=event.final)
    else:
        chain.fold_whole(event.version, link)
