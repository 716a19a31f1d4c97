"""Finding an answer in a completion and comparing it exactly. Nothing here raises, whatever the text."""

from __future__ import annotations

import re
from fractions import Fraction

from headrace.infra.deprecated_names import deprecated_names

BOXED = "\\boxed{"
LONGEST_NUMBER = 400
"""Characters; a longer text is not a number but an attempt to keep the scorer busy."""

_INTEGER = r"[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+"
_NUMBER = re.compile(
    rf"([+-]?)(?:(?P<whole>{_INTEGER})?(?:\.(?P<decimals>[0-9]*))?|(?P<over>[0-9]+)/(?P<under>[0-9]+))"
)
_LATEX_FRACTION = re.compile(r"([+-]?)\\frac\{([+-]?[0-9]+)\}\{([0-9]+)\}")
_MIXED = re.compile(r"([+-]?)([0-9]+)(?: ([0-9]+)/([0-9]+)|\\frac\{([0-9]+)\}\{([0-9]+)\})")
"""A whole number and a fraction: `1 1/2`, `1\\frac{1}{2}`."""
_SPACING = re.compile(r"\\[,;:!]|\\left|\\right|\$")
_SPACE = re.compile(r"(?:\\ |~|\s)+")
_SPACE_BETWEEN_DIGITS = re.compile(r"(?<=[0-9]) (?=\.?[0-9])|(?<=[0-9],) (?=[0-9])")
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf)\{([^{}]*)\}")
_FRACTION_ARGUMENTS = re.compile(r"\\frac\s*(?:\{([^{}]*)\}|([0-9a-zA-Z]))\s*(?:\{([^{}]*)\}|([0-9a-zA-Z]))")
_ROOT_ARGUMENT = re.compile(r"\\sqrt\s*([0-9a-zA-Z])")
_SPELLINGS = (
    ("\N{MINUS SIGN}", "-"),
    ("\\dfrac", "\\frac"),
    ("\\tfrac", "\\frac"),
    ("{,}", ","),
    ("\\$", ""),
    ("\\%", ""),
    ("%", ""),
    ("^{\\circ}", ""),
    ("^\\circ", ""),
)
"""Other ways to write the same, and signs of units that a number may have or not."""


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
    r"""Return the exact value of an integer, a decimal, `a/b`, `\frac{a}{b}` or a mixed number `1 1/2`, or None."""
    plain = _keep_spaces_of_digits(text)
    if len(plain) > LONGEST_NUMBER:
        return None
    if latex := _LATEX_FRACTION.fullmatch(plain):
        return _parse_ratio(latex[1], int(latex[2]), int(latex[3]))
    if mixed := _MIXED.fullmatch(plain):
        sign, whole, *parts = mixed.groups()
        over, under = (int(part) for part in parts if part is not None)
        return _parse_ratio(sign, int(whole) * under + over, under)
    return _plain_number(plain)


def _plain_number(plain: str) -> Fraction | None:
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
    r"""Return an answer without what does not change its meaning: spacing, `$`, `%`, `\left`, `\text{}`, a final stop.

    A space between digits stays: `3 4` is not 34, and `1 1/2` is not 11/2.
    """
    return _keep_spaces_of_digits(text).replace(", ", ",")


def _keep_spaces_of_digits(text: str) -> str:
    """Normalise, but keep a space after a comma between digits, too: `1, 234` is two numbers, `1,234` is one."""
    plain = _TEXT.sub(r"\1", text)
    for spelling, usual in _SPELLINGS:
        plain = plain.replace(spelling, usual)
    plain = _FRACTION_ARGUMENTS.sub(_brace_fraction, plain)
    plain = _ROOT_ARGUMENT.sub(r"\\sqrt{\1}", plain)
    plain = _SPACE.sub(" ", _SPACING.sub("", plain)).strip()
    kept = _SPACE_BETWEEN_DIGITS.sub("\0", plain)
    return kept.replace(" ", "").replace("\0", " ").removesuffix(".")


def _brace_fraction(found: re.Match[str]) -> str:
    over, under = (one if one is not None else other for one, other in (found.group(1, 2), found.group(3, 4)))
    return f"\\frac{{{over}}}{{{under}}}"


def is_same_answer(given: str, gold: str) -> bool:
    """Return whether two answers are equal: as exact numbers where both are numbers, else as normalised text."""
    left, right = parse_number(given), parse_number(gold)
    if left is not None and right is not None:
        return left == right
    return normalise_answer(given) == normalise_answer(gold)


__getattr__ = deprecated_names(
    __name__,
    {"last_boxed": find_last_boxed, "normalised": normalise_answer, "number": parse_number, "same": is_same_answer},
)
