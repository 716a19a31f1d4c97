"""Finds documents by BM25 (Robertson and Zaragoza 2009), and compares an answer with gold answers by F1."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

_WORD = re.compile(r"\w+")


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation."""
    return _WORD.findall(text.lower())


class Retrieval:
    """Documents, read and indexed at the first query: processes that do not search need no index.

    Args:
        read: Returns the texts.
    """

    def __init__(self, read: Callable[[], Sequence[str]]) -> None:
        self._read = read

    @cached_property
    def _indexed(self) -> tuple[Sequence[str], Any]:
        import bm25s

        texts, index = self._read(), bm25s.BM25()
        index.index([split_words(text) for text in texts], show_progress=False)
        return texts, index

    def find(self, query: str, most: int) -> list[str]:
        """Return the documents that fit best, best first; of equals the earlier one; none without a word in common."""
        texts, index = self._indexed
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
