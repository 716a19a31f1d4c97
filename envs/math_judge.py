r"""Compares answers by math-verify: `make install EXTRAS=math`.

math-verify reads an answer as mathematics, so `x=2` equals `2` and `\frac{2}{4}` equals `0.5` (Hugging Face,
https://github.com/huggingface/Math-Verify). It uses sympy, which may compute for ever. Its own time limit uses signals,
which only a main thread can receive, so it is off: whoever calls it must have another one.
"""

from __future__ import annotations

from importlib.util import find_spec


def require_math_verify(setting: str) -> None:
    """Raise ValueError if math-verify is missing; the message names the setting and what to install."""
    if find_spec("math_verify") is None:
        raise ValueError(f"{setting} needs math-verify: make install EXTRAS=math")


def is_equal(given: str, gold: str) -> bool:
    """Return whether two answers are mathematically equal."""
    from math_verify import parse, verify

    left, right = (parse(f"\\boxed{{{answer}}}", parsing_timeout=None) for answer in (given, gold))
    return bool(verify(right, left, timeout_seconds=None))
