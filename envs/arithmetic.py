r"""Arithmetic without end: problems by code, answers exact, judged by the last `\boxed{}` only.

Every tier is a bijection from range(space) to prompts, so a split is a set of codes: a fixed shuffle of the codes gives
the first eighth to `held_out`, the next quarter to `warm_start` and the rest to `train`. No prompt is in two splits,
and `held_out` is the same for every seed; the seed only orders `train` and `warm_start`.

`sum1` is the tier that a model of 100,000 parameters learns in minutes. There are only 100 sums of two one-digit
numbers, so its problems also carry the name of the unknown (`kx=3+4?`), which must be ignored: a held-out problem was
never seen, but its sum has been, under other names. It measures whether the sums are learnt, not whether unseen sums
can be inferred; for that take `sum2` or higher.
"""

from __future__ import annotations

import difflib
import math
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from headrace.envs.answers import find_last_boxed, parse_number
from headrace.envs.contract import Problem, Score, Split, WorkedExample
from headrace.envs.permutation import Permutation

ALPHABET = string.ascii_lowercase + string.digits + "+-*/%=?(),\\{} "
"""Every character of prompts and worked examples, for a character tokenizer; the space is for workflows."""

PromptAndAnswer = tuple[str, Fraction]
"""Prompt and exact answer."""


@dataclass(frozen=True, slots=True)
class Tier:
    """One kind of problem."""

    name: str
    space: int
    """Number of problems."""
    ask: Callable[[int], PromptAndAnswer]
    """The problem of a code in range(space); no two codes give the same prompt."""


def _split_digits(code: int, *bases: int) -> list[int]:
    """Split a code into mixed-radix digits, the last base running fastest."""
    found = []
    for base in reversed(bases):
        code, digit = divmod(code, base)
        found.append(digit)
    return found[::-1]


def _make_sum1(code: int) -> PromptAndAnswer:
    first, second, a, b = _split_digits(code, 26, 26, 10, 10)
    return f"{string.ascii_lowercase[first]}{string.ascii_lowercase[second]}={a}+{b}?", Fraction(a + b)


def _make_sum2(code: int) -> PromptAndAnswer:
    a, b = (10 + digit for digit in _split_digits(code, 90, 90))
    return f"{a}+{b}=", Fraction(a + b)


def _make_sum3(code: int) -> PromptAndAnswer:
    a, b = (100 + digit for digit in _split_digits(code, 900, 900))
    return f"{a}+{b}=", Fraction(a + b)


def _make_chain(code: int) -> PromptAndAnswer:
    a, b, c = (10 + digit for digit in _split_digits(code, 90, 90, 90))
    return f"{a}+{b}-{c}=", Fraction(a + b - c)


def _make_product(code: int) -> PromptAndAnswer:
    a, b = (2 + digit for digit in _split_digits(code, 98, 98))
    return f"{a}*{b}=", Fraction(a * b)


def _make_modulo(code: int) -> PromptAndAnswer:
    a, m = _split_digits(code, 990, 18)
    return f"{10 + a}%{2 + m}=", Fraction((10 + a) % (2 + m))


def _make_linear(code: int) -> PromptAndAnswer:
    a, b, c = _split_digits(code, 8, 49, 99)
    return f"{2 + a}x+{1 + b}={1 + c}", Fraction(c - b, 2 + a)


PROPER_FRACTIONS = tuple((over, under) for under in range(2, 10) for over in range(1, under))


def _make_fraction(code: int) -> PromptAndAnswer:
    (a, b), (c, d) = (
        PROPER_FRACTIONS[digit] for digit in _split_digits(code, len(PROPER_FRACTIONS), len(PROPER_FRACTIONS))
    )
    return f"{a}/{b}+{c}/{d}=", Fraction(a, b) + Fraction(c, d)


NOT_COPRIME = tuple((a, b) for a in range(2, 100) for b in range(2, 100) if math.gcd(a, b) > 1)
"""Three pairs in five are coprime; with them, always answering 1 would be right more often than not."""


def _make_gcd(code: int) -> PromptAndAnswer:
    a, b = NOT_COPRIME[code]
    return f"gcd({a},{b})=", Fraction(math.gcd(a, b))


TIERS = {
    tier.name: tier
    for tier in (
        Tier("sum1", 26 * 26 * 10 * 10, _make_sum1),
        Tier("sum2", 90 * 90, _make_sum2),
        Tier("sum3", 900 * 900, _make_sum3),
        Tier("chain", 90**3, _make_chain),
        Tier("modulo", 990 * 18, _make_modulo),
        Tier("times", 98 * 98, _make_product),
        Tier("gcd", len(NOT_COPRIME), _make_gcd),
        Tier("linear", 8 * 49 * 99, _make_linear),
        Tier("fraction", len(PROPER_FRACTIONS) ** 2, _make_fraction),
    )
}
"""Tier by name, easiest first."""


class Arithmetic:
    """Problems of one or several tiers, taken in turn.

    `tasks` limits every tier to so many training problems, at most all, so that a run comes to the end of its data set
    and begins again; held-out problems and worked examples stay what they are. Raises ValueError for a tier that there
    is not.
    """

    name = "arithmetic"

    def __init__(
        self, seed: int, tiers: Sequence[str] = ("sum1",), instruction: str = "", tasks: int | None = None
    ) -> None:
        if isinstance(tiers, str) or not tiers:
            raise ValueError(f'tiers must be a list of at least one name, as in ["sum1"]; got {tiers!r}')
        if tasks is not None and (not isinstance(tasks, int) or tasks < 1):
            raise ValueError(f"tasks, the number of training problems of every tier, must be at least 1; got {tasks!r}")
        self._decks = [_Deck(_find_tier(name), seed, tasks) for name in tiers]
        self._instruction = instruction

    def size(self, split: Split) -> int:
        """Return after how many problems each one of the largest tier was asked; smaller tiers come round again."""
        return len(self._decks) * max(deck.size(split) for deck in self._decks)

    def problem(self, split: Split, index: int) -> Problem:
        """Return the problem at an index; the order begins again at the end. Raises ValueError for index < 0."""
        if index < 0:
            raise ValueError(f"index must be 0 or more, got {index}")
        deck = self._decks[index % len(self._decks)]
        question, answer = deck.draw(split, index // len(self._decks))
        tier = deck.tier.name
        return Problem(task_id=f"{tier}:{question}", prompt=question + self._instruction, answer=str(answer), tier=tier)

    def score(self, problem: Problem, text: str) -> Score:
        """Return reward 1 when the last box holds a number equal to the answer, else 0."""
        boxed = find_last_boxed(text)
        value = None if boxed is None else parse_number(boxed)
        right = value is not None and value == Fraction(problem.answer)
        return Score(float(right), {"boxed": float(boxed is not None)})

    def example(self, index: int) -> WorkedExample:
        """Return a problem of the split `warm_start` and its boxed answer."""
        problem = self.problem("warm_start", index)
        return WorkedExample(problem.text, f"\\boxed{{{problem.answer}}}")

    def tiers(self) -> tuple[str, ...]:
        """Return all tiers, easiest first, also those that this environment does not ask."""
        return tuple(TIERS)

    def asked(self) -> tuple[str, ...]:
        """Return the tiers that it asks, easiest first."""
        mine = {deck.tier.name for deck in self._decks}
        return tuple(name for name in TIERS if name in mine)


class _Deck:
    """One tier's problems, cut into splits and shuffled."""

    def __init__(self, tier: Tier, seed: int, tasks: int | None) -> None:
        self.tier = tier
        held_out, warm_start = tier.space // 8, tier.space // 4
        self._codes = Permutation(tier.space, f"split {tier.name}")
        self._begin = {"held_out": 0, "warm_start": held_out, "train": held_out + warm_start}
        sizes = {"held_out": held_out, "warm_start": warm_start, "train": tier.space - held_out - warm_start}
        self._orders = {
            split: Permutation(size, f"order {tier.name} {split} {0 if split == 'held_out' else seed}")
            for split, size in sizes.items()
        }
        self._sizes = sizes | {"train": min(tasks or sizes["train"], sizes["train"])}

    def size(self, split: Split) -> int:
        return self._sizes[split]

    def draw(self, split: Split, index: int) -> PromptAndAnswer:
        order = self._orders[split]
        return self.tier.ask(self._codes[self._begin[split] + order[index % self.size(split)]])


def _find_tier(name: str) -> Tier:
    if name not in TIERS:
        near = difflib.get_close_matches(str(name), TIERS, n=1, cutoff=0.0)
        raise ValueError(f"there is no tier {name!r}; did you mean {near[0]!r}? All: {', '.join(TIERS)}")
    return TIERS[name]
