"""The reward of WebShop (arXiv 2207.01206) for what was bought: its type, attributes, options and price.

reward = type · (matching attributes + matching options + 1 if the price fits) / (attributes + options + 1)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from headrace.envs.search.retrieval import split_words

MATCHES_ABOVE = 85
"""Two texts match if their token set ratio is above this."""
COLOURS = (
    "beige", "black", "blue", "bronze", "brown", "copper", "coral", "cream", "gold", "gray", "green", "grey", "ivory",
    "khaki", "lilac", "maroon", "mint", "navy", "olive", "orange", "peach", "pink", "plum", "purple", "red", "rose",
    "silver", "tan", "teal", "violet", "white", "yellow",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Product:
    """An item of the shop."""

    asin: str
    """Its id."""
    title: str
    query: str
    """Words with which such things are searched."""
    category: tuple[str, ...]
    """Path such as clothing, women, dresses."""
    nouns: frozenset[str]
    """Those of the title, which say what it is."""
    price: float
    """In dollars."""
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    description: str = ""


@dataclass(frozen=True, slots=True)
class Goal:
    """What is to be bought."""

    text: str
    """The instruction."""
    attributes: tuple[str, ...]
    options: Mapping[str, str]
    price_upper: float
    """Dollars that it may cost at most."""
    query: str = ""
    category: tuple[str, ...] = ()
    nouns: frozenset[str] = frozenset()
    asin: str = ""
    """The id of a product that gets a reward of 1."""


def compute_reward(bought: Product, goal: Goal, options: Mapping[str, str]) -> float:
    """Return the reward, from 0 to 1, of a product that was bought with these options."""
    attributes = sum(_has_attribute(bought, attribute) for attribute in goal.attributes)
    chosen = [normalize_colour(option) for option in options.values()]
    wanted = [normalize_colour(option) for option in goal.options.values()]
    matching = sum(_has_match(chosen, option) for option in wanted)
    fits = attributes + matching + (bought.price <= goal.price_upper)
    return rate_type(bought, goal) * fits / (len(goal.attributes) + len(goal.options) + 1)


def rate_type(bought: Product, goal: Goal) -> float:
    """Return 1 for a product of the wanted kind, 0.5, 0.1 or 0 for others, by query, category and nouns."""
    shared = len(bought.nouns & goal.nouns) / len(goal.nouns) if goal.nouns else 0.2
    in_category = len(set(bought.category) & set(goal.category)) >= 2
    if shared == 0:
        return 0.0
    if shared < 0.1:
        return 0.1
    return 1.0 if bought.query == goal.query or in_category or shared > 0.2 else 0.5


def normalize_colour(option: str) -> str:
    """Return the colour, first by alphabet, that is in an option, or the option."""
    return next((colour for colour in COLOURS if colour in option), option)


def compute_token_set_ratio(one: str, other: str) -> int:
    """Return how alike two texts are as sets of words, from 0 to 100: 100 if one has all words of the other.

    As `fuzz.token_set_ratio` of thefuzz: the best ratio among the common words, and these with the rest of each text.
    """
    first, second = set(split_words(one)), set(split_words(other))
    common = _join(first & second)
    if not first or not second:
        return 0
    whole, other_whole = (f"{common} {_join(words - (first & second))}".strip() for words in (first, second))
    pairs = ((common, whole), (common, other_whole), (whole, other_whole))
    return round(100 * max(_compute_ratio(*pair) for pair in pairs))


def _has_attribute(product: Product, attribute: str) -> bool:
    texts = (product.title, " ".join(product.features), product.description)
    return _has_match(product.attributes, attribute) or any(attribute in text.lower() for text in texts)


def _has_match(given: Iterable[str], wanted: str) -> bool:
    return any(compute_token_set_ratio(one, wanted) > MATCHES_ABOVE for one in given)


def _join(words: Collection[str]) -> str:
    return " ".join(sorted(words))


def _compute_ratio(one: str, other: str) -> float:
    """Return 2 · common / all characters, where common is the length of the longest common subsequence."""
    row = [0] * (len(other) + 1)
    for sign in one:
        before = 0
        for at, against in enumerate(other, 1):
            before, row[at] = row[at], before + 1 if sign == against else max(row[at], row[at - 1])
    return 2 * row[-1] / (len(one) + len(other)) if one or other else 0.0
