"""Finds documents by BM25 (Robertson and Zaragoza 2009), and compares an answer with gold answers by F1."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

_WORD = re.compile(r"\w+")
_INDEXING = threading.Lock()
"""Searches run in several threads. It is no attribute, so that an environment can be sent to a child process."""


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation."""
    return _WORD.findall(text.lower())


class Retrieval:
    """Documents, which are read and indexed by `prepare` or the first query: the feeder, say, needs no index.

    Args:
        read: Returns the texts.
    """

    def __init__(self, read: Callable[[], Sequence[str]]) -> None:
        self._read = read
        self._indexed: tuple[Sequence[str], Any] | None = None

    def prepare(self) -> tuple[Sequence[str], Any]:
        """Return the texts and their index, which is built once. Raises what reading them raises."""
        import bm25s

        with _INDEXING:
            if self._indexed is None:
                texts, index = self._read(), bm25s.BM25()
                index.index([split_words(text) for text in texts], show_progress=False)
                self._indexed = texts, index
            return self._indexed

    def find(self, query: str, most: int) -> list[str]:
        """Return the documents that fit best, best first; of equals the earlier one; none without a word in common."""
        texts, index = self.prepare()
        words = [word for word in split_words(query) if word in index.vocab_dict]
        if not words:
            return []
        scores = index.get_scores(words)
        best = np.argsort(-scores, kind="stable")[:most]
        return [texts[at] for at in best if scores[at] > 0]


def compute_f1(given: str, golds: Iterable[str]) -> float:
    """Return the F1 of the words of two answers, as sets, for the gold answer that fits best (arXiv 1606.05250)."""
    return max((_compute_f1(set(split_words(given)), set(split_words(gold))) for gold in golds), default=0.0)


def _compute_f1(given: set[str], gold: set[str]) -> float:
    both = len(given & gold)
    return 2 * both / (len(given) + len(gold)) if both else 0.0
