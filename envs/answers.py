"""Finding an answer in a completion and comparing it exactly. Nothing here raises, whatever the text."""

from __future__ import annotations

import re
from fractions import Fraction

BOXED = "\\boxed{"
LONGEST_NUMBER = 400
"""Characters; a longer text is not a number but an attempt to keep the scorer busy."""

_INTEGER = r"[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+"
_NUMBER = re.compile(
    rf"([+-]?)(?:(?P<whole>{_INTEGER})?(?:\.(?P<decimals>[0-9]*))?|(?P<over>[0-9]+)/(?P<under>[0-9]+))"
)
_LATEX_FRACTION = re.compile(r"([+-]?)\\frac\{([+-]?[0-9]+)\}\{([0-9]+)\}")
_SPACING = re.compile(r"\\[,;:! ]|\\left|\\right|\$|\s")
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf)\{([^{}]*)\}")


def find_last_boxed(text: str) -> str | None:
    r"""Return the text in the last `\boxed{…}`, braces balanced, or None.

    Only the last one counts, also when it was cut off: an answer that was taken back does not count. A number outside a
    box never counts, or the policy learns to write numbers instead of answers.
    """
    start = text.rfind(BOXED)
    if start < 0:
        return None
    depth = 1
    begin = start + len(BOXED)
    for position in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[begin:position]
    return None


def parse_number(text: str) -> Fraction | None:
    r"""Return the exact value of an integer, a decimal, `a/b` or `\frac{a}{b}`, or None."""
    plain = normalise_answer(text)
    if len(plain) > LONGEST_NUMBER:
        return None
    if latex := _LATEX_FRACTION.fullmatch(plain):
        sign, over, under = latex.groups()
        return _parse_ratio(sign, int(over), int(under))
    found = _NUMBER.fullmatch(plain)
    if found is None:
        return None
    if found["under"] is not None:
        return _parse_ratio(found[1], int(found["over"]), int(found["under"]))
    whole, decimals = (found["whole"] or "").replace(",", ""), found["decimals"] or ""
    if not whole + decimals:
        return None
    return _parse_ratio(found[1], int(whole + decimals), 10 ** len(decimals))


def _parse_ratio(sign: str, over: int, under: int) -> Fraction | None:
    if under == 0:
        return None
    return Fraction(-over if sign == "-" else over, under)


def normalise_answer(text: str) -> str:
    r"""Return an answer without what does not change its meaning: spacing, `$`, `\left`, `\text{}`, a final stop."""
    plain = _TEXT.sub(r"\1", text)
    plain = _SPACING.sub("", plain).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    return plain.removesuffix(".")


def is_same_answer(given: str, gold: str) -> bool:
    """Return whether two answers are equal: as exact numbers where both are numbers, else as normalised text."""
    left, right = parse_number(given), parse_number(gold)
    if left is not None and right is not None:
        return left == right
    return normalise_answer(given) == normalise_answer(gold)
