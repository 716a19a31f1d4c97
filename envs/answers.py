"""Finds an answer in a completion and compares it exactly. No function here raises, whatever the text."""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

BOXED = "\\boxed{"
LONGEST_NUMBER = 400
"""Most characters of a number; a longer text is an attempt to keep the scorer busy."""

_BOX = re.compile(r"\\boxed\s*\{")
_ESCAPED_OR_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_INTEGER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
_DECIMAL = rf"(?:{_INTEGER}(?:\.[0-9]*)?|\.[0-9]+)"
_SIGNED = rf"[+-]?{_DECIMAL}"
_RATIO = re.compile(rf"({_SIGNED})/({_SIGNED})")
_LATEX_FRACTION = re.compile(rf"([+-]?)\\frac\{{({_SIGNED})\}}\{{({_SIGNED})\}}")
_MIXED = re.compile(r"([+-]?)([0-9]+)(?: ([0-9]+)/([0-9]+)|\\frac\{([0-9]+)\}\{([0-9]+)\})")
"""A whole number and a fraction: `1 1/2`, `1\\frac{1}{2}`."""
_POWER = r"(?:\{([+-]?[0-9]{1,3})\}|([0-9]{1,3}))"
_WITH_POWER = re.compile(rf"({_SIGNED})(?:[eE]([+-]?[0-9]{{1,3}})|(?:\\times|\\cdot|\*)10\^{_POWER})?")
"""A decimal; `1e-05`, as JSON and Python write it, and `3\\times 10^{5}`."""
_WIDE_SPACE = re.compile(r"\\q?quad(?![a-zA-Z])|\\hspace\{[^{}]*\}|(?<!\\)\\[,;:](?![0-9]{3}(?![0-9]))")
"""Spaces of LaTeX, except those that may separate thousands, as in `1\\,234`."""
_SPACING = re.compile(r"(?<!\\)\\[,;:!()\[\]]|\\(?:left|right|displaystyle)(?![a-zA-Z])|\\\\$|\$")
_SPACE = re.compile(r"(?:(?<!\\)\\ |~|\s)+")
_SPACE_BETWEEN_DIGITS = re.compile(r"(?<=[0-9]) (?=\.?[0-9])|(?<=[0-9][,.]) (?=[0-9])")
_TEXT = re.compile(r"\\(?:text|textrm|textbf|textit|mbox|mathrm|mathbf|mathit)\{([^{}]*)\}")
_ARGUMENT = r"\s*(?:\{([^{}]*)\}|([0-9a-zA-Z]|\\(?!frac|sqrt)[a-zA-Z]+))"
_FRACTION_ARGUMENTS = re.compile(rf"\\frac{_ARGUMENT}{_ARGUMENT}")
_ROOT_ARGUMENT = re.compile(r"\\sqrt\s*(?:(\[[^\[\]{}]*\])\s*)?([0-9a-zA-Z])")
_DEGREES = re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))")
_SCRIPT = re.compile(r"([\^_])\{([0-9a-zA-Z])\}")
_NAMED = re.compile(r"([a-zA-Z](?:_[0-9a-zA-Z]|_\{[0-9a-zA-Z]+\})?|\\[a-zA-Z]+)=([^=]+)")
"""A variable and its value, of a normalised answer: `x=5`, `x_1=5`, `\\theta=5`."""
_VULGAR_FRACTION = re.compile(
    "[\N{VULGAR FRACTION ONE QUARTER}-\N{VULGAR FRACTION THREE QUARTERS}"
    "\N{VULGAR FRACTION ONE SEVENTH}-\N{VULGAR FRACTION SEVEN EIGHTHS}]"
)
_RAISED = str.maketrans(
    "\N{SUPERSCRIPT ZERO}\N{SUPERSCRIPT ONE}\N{SUPERSCRIPT TWO}\N{SUPERSCRIPT THREE}⁴⁵⁶⁷⁸⁹⁻", "0123456789-"
)
_SUPERSCRIPT = re.compile(f"[{''.join(map(chr, _RAISED))}]+")
_SUBSCRIPT = re.compile("[\N{SUBSCRIPT ZERO}-\N{SUBSCRIPT NINE}]+")
_CHARACTERS = str.maketrans(
    {
        **{chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)},  # full width, as beside Chinese
        **dict.fromkeys("\N{MINUS SIGN}\N{HYPHEN}\N{NON-BREAKING HYPHEN}\N{EN DASH}\N{SMALL HYPHEN-MINUS}", "-"),
        **dict.fromkeys("\N{ZERO WIDTH SPACE}\N{WORD JOINER}\N{ZERO WIDTH NO-BREAK SPACE}\N{DEGREE SIGN}", ""),
        "\N{FRACTION SLASH}": "/",
        "\N{MULTIPLICATION SIGN}": "\\times ",
        "\N{MIDDLE DOT}": "\\cdot ",
        "\N{GREEK SMALL LETTER PI}": "\\pi ",
        "\N{INFINITY}": "\\infty ",
        "\N{PLUS-MINUS SIGN}": "\\pm ",
        "\N{SQUARE ROOT}": "\\sqrt ",
        "\N{LESS-THAN OR EQUAL TO}": "\\le ",
        "\N{GREATER-THAN OR EQUAL TO}": "\\ge ",
        "\N{NOT EQUAL TO}": "\\ne ",
        "\N{EMPTY SET}": "\\emptyset ",
    }
)
_SPELLINGS = (
    ("\\dfrac", "\\frac"),
    ("\\tfrac", "\\frac"),
    ("\\cfrac", "\\frac"),
    ("\\leq", "\\le"),
    ("\\geq", "\\ge"),
    ("\\neq", "\\ne"),
    ("\\varnothing", "\\emptyset"),
    ("{,}", ","),
    ("\\$", ""),
    ("\\%", ""),
    ("%", ""),
)
"""Other spellings of the same, and unit signs that a number may or may not have."""


def find_last_boxed(text: str) -> str | None:
    r"""Return the text in the last `\boxed{…}`, braces balanced, or None.

    Only the last box counts, even if it is cut off, because an earlier answer was taken back. A number outside a box
    never counts; otherwise the policy would learn to write many numbers instead of an answer.
    """
    boxes = [box.end() for box in _BOX.finditer(text)]
    if not boxes:
        return None
    depth = 1
    for found in _ESCAPED_OR_BRACE.finditer(text, boxes[-1]):  # \{ and \} are part of what is written
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0:
            return text[boxes[-1] : found.start()]
    return None


def parse_number(text: str) -> Fraction | None:
    r"""Return the exact value of a number, or None.

    A number is an integer, a decimal, `a/b`, `\frac{a}{b}`, a mixed number `1 1/2`, `1e-05` or `3\times 10^{5}`.
    """
    if len(text) > LONGEST_NUMBER:
        return None
    plain = _keep_spaces_of_digits(text)
    if power := _WITH_POWER.fullmatch(plain):
        return _read_decimal(power[1]) * Fraction(10) ** int(power[2] or power[3] or power[4] or 0)
    if ratio := _RATIO.fullmatch(plain):
        return _divide("", *map(_read_decimal, ratio.groups()))
    if latex := _LATEX_FRACTION.fullmatch(plain):
        return _divide(latex[1], _read_decimal(latex[2]), _read_decimal(latex[3]))
    if mixed := _MIXED.fullmatch(plain):
        sign, whole, *parts = mixed.groups()
        over, under = (int(part) for part in parts if part is not None)
        return _divide(sign, Fraction(int(whole) * under + over), Fraction(under))
    return None


def _read_decimal(plain: str) -> Fraction:
    return Fraction(plain.replace(",", ""))


def _divide(sign: str, over: Fraction, under: Fraction) -> Fraction | None:
    if under == 0:
        return None
    return -over / under if sign == "-" else over / under


def normalise_answer(text: str) -> str:
    r"""Return an answer without what does not change its meaning: spacing, `$`, `%`, `\left`, `\text{}`, a final stop.

    A space between digits stays: `3 4` is not 34, and `1 1/2` is not 11/2.
    """
    return _keep_spaces_of_digits(text).replace(", ", ",")


def _keep_spaces_of_digits(text: str) -> str:
    """Normalise, but keep a space after a comma between digits, too: `1, 234` is two numbers, `1,234` is one."""
    plain = _VULGAR_FRACTION.sub(_spell_fraction, text)
    plain = _SUPERSCRIPT.sub(lambda found: f"^{{{found[0].translate(_RAISED)}}}", plain)
    plain = _SUBSCRIPT.sub(lambda found: f"_{{{unicodedata.normalize('NFKC', found[0])}}}", plain)
    plain = plain.translate(_CHARACTERS)
    plain = _TEXT.sub(r"\1", plain)
    plain = _WIDE_SPACE.sub(" ", _DEGREES.sub("", plain))
    for spelling, usual in _SPELLINGS:
        plain = plain.replace(spelling, usual)
    plain = _SCRIPT.sub(r"\1\2", _FRACTION_ARGUMENTS.sub(_brace_fraction, plain))
    plain = _ROOT_ARGUMENT.sub(lambda found: f"\\sqrt{found[1] or ''}{{{found[2]}}}", plain)
    plain = _SPACE.sub(" ", _SPACING.sub("", plain)).strip()
    kept = _SPACE_BETWEEN_DIGITS.sub("\0", plain)
    return kept.replace(" ", "").replace("\0", " ").removesuffix(".")


def _spell_fraction(found: re.Match[str]) -> str:
    over, _, under = unicodedata.normalize("NFKC", found[0]).partition("\N{FRACTION SLASH}")
    return f" {over}/{under}"


def _brace_fraction(found: re.Match[str]) -> str:
    over, under = (one if one is not None else other for one, other in (found.group(1, 2), found.group(3, 4)))
    return f"\\frac{{{over}}}{{{under}}}"


def drop_name(answer: str) -> str:
    """Return the value in an answer that names its variable, as `5` in `x = 5`; other answers unchanged."""
    return _split_name(answer)[1]


def _split_name(answer: str) -> tuple[str, str]:
    """Return the variable that an answer names, and its value."""
    named = _NAMED.fullmatch(_keep_spaces_of_digits(answer)) if "=" in answer else None
    return (named[1], named[2]) if named else ("", answer)


def is_same_answer(given: str, gold: str) -> bool:
    """Return whether two answers are equal: as exact numbers if both are numbers, else as normalised text.

    An answer may name its variable (`x = 5`); if both do, the variables must be equal too.
    """
    (name, value), (other, wanted) = _split_name(given), _split_name(gold)
    if name and other and name != other:
        return False
    return _is_same_value(value, wanted)


def _is_same_value(given: str, gold: str) -> bool:
    left, right = parse_number(given), parse_number(gold)
    if left is not None and right is not None:
        return left == right
    return normalise_answer(given) == normalise_answer(gold)
