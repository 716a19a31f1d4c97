"""Texts that end a generation. Tokens are cut where one is complete; an engine stops early where it can."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.envs.transcript import Ids
from headrace.producers.engines.contract import TextCodec

TOKENS_A_CHARACTER = 4
"""At most, as of UTF-8: how far back a text may begin that new tokens complete."""


@dataclass(slots=True)
class StopTexts:
    """Looks for texts in one generation while it grows."""

    texts: tuple[str, ...]
    codec: TextCodec
    looked_at: int = 0
    """Tokens in which none was found."""

    def is_in(self, ids: Ids) -> bool:
        """Return whether the generated tokens so far spell one of the texts; tokens of before are not read again."""
        begin = max(0, self.looked_at - TOKENS_A_CHARACTER * max(map(len, self.texts)))
        self.looked_at = len(ids)
        text = self.codec.decode(ids[begin:], special_tokens=True)
        return any(one in text for one in self.texts)


def find_stop(ids: Ids, texts: Sequence[str], codec: TextCodec) -> int | None:
    """Return how many tokens it takes until they spell one of the texts; None if all of them spell none.

    Special tokens are part of what is spelled. By bisection: a text that is there stays there as tokens follow.
    """

    def has_stop(count: int) -> bool:
        text = codec.decode(ids[:count], special_tokens=True)
        return any(one in text for one in texts)

    return bisect_left(range(len(ids)), x=True, key=has_stop) if has_stop(len(ids)) else None
