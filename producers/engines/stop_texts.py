"""Texts that end a generation. Tokens after a complete stop text are cut; an engine may stop there by itself."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.envs.transcript import Ids
from headrace.producers.engines.contract import TextCodec

TOKENS_A_CHARACTER = 4
"""Most bytes of a character in UTF-8; limits how many tokens back a stop text may begin."""


@dataclass(slots=True)
class StopTexts:
    """Looks for texts in one generation while it grows."""

    texts: tuple[str, ...]
    codec: TextCodec
    looked_at: int = 0
    """Number of tokens already searched without a match."""

    def is_in(self, ids: Ids) -> bool:
        """Return whether the generated tokens contain one of the texts; each call searches only new tokens."""
        begin = max(0, self.looked_at - TOKENS_A_CHARACTER * max(map(len, self.texts)))
        self.looked_at = len(ids)
        text = self.codec.decode(ids[begin:], special_tokens=True)
        return any(one in text for one in self.texts)


def find_stop(ids: Ids, texts: Sequence[str], codec: TextCodec) -> int | None:
    """Return the number of tokens up to the end of the first stop text; None if there is no stop text.

    Special tokens count as text. Found by bisection, because a text stays contained when tokens are added.
    """

    def has_stop(count: int) -> bool:
        text = codec.decode(ids[:count], special_tokens=True)
        return any(one in text for one in texts)

    return bisect_left(range(len(ids)), x=True, key=has_stop) if has_stop(len(ids)) else None
