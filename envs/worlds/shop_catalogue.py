"""A generated catalogue, and goals that its products reach."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from headrace.envs.search.retrieval import split_words
from headrace.envs.worlds.shop_reward import Goal, Product

_WEAR = ("machine wash", "quality polyester", "long sleeve", "button closure", "elastic waist", "regular fit",
         "breathable mesh", "quick drying", "pure cotton")  # fmt: skip
_FEET = ("rubber sole", "memory foam", "arch support", "non slip", "lace up", "water resistant", "steel toe")
_HOME = ("easy clean", "heavy duty", "space saving", "solid wood", "eco friendly", "dishwasher safe", "super soft")
_CARE = ("cruelty free", "paraben free", "tea tree", "coconut oil", "sensitive skin", "long lasting", "dry hair")
_FOOD = ("gluten free", "sugar free", "non gmo", "low carb", "plant based", "dairy free", "kosher certified")
_TECH = ("high speed", "fast charging", "noise cancelling", "wireless bluetooth", "high resolution", "plug play")
# No two values of an option match (`MATCHES_ABOVE`): a wrong choice would earn as much as the right one.
_COLOUR = {"color": ("black", "blue", "brown", "green", "grey", "navy", "pink", "purple", "red", "white", "yellow")}
_DRESS = _COLOUR | {"size": ("small", "medium", "large", "xxl")}
_SHOE = _COLOUR | {"size": ("6", "7", "8", "9", "10", "11")}
_BED = _COLOUR | {"size": ("twin", "full", "queen", "king")}
_BOTTLE = {"size": ("2oz", "4oz", "8oz", "16oz")}
_SNACK = {
    "flavor name": ("apple cinnamon", "dark chocolate", "honey", "lemon", "peanut butter", "sea salt", "vanilla"),
    "size": ("one bag", "three bags", "six bags", "twelve bags"),
}


@dataclass(frozen=True, slots=True)
class _Shelf:
    """Products that may have the same attributes and options."""

    category: tuple[str, str]
    attributes: Sequence[str]
    options: Mapping[str, tuple[str, ...]]
    prices: tuple[int, int]
    """Dollars."""
    kinds: Sequence[str]


_SHELVES = (
    _Shelf(("clothing", "women"), _WEAR, _DRESS, (15, 60), ("summer dress", "knit sweater", "yoga leggings")),
    _Shelf(("clothing", "men"), _WEAR, _DRESS, (12, 70), ("polo shirt", "cargo shorts", "winter coat", "rain jacket")),
    _Shelf(("shoes", "women"), _FEET, _SHOE, (20, 90), ("ankle boots", "walking sandals")),
    _Shelf(("shoes", "men"), _FEET, _SHOE, (25, 120), ("running sneakers", "work loafers")),
    _Shelf(("home", "bedroom"), _HOME, _BED, (20, 150), ("duvet cover", "mattress topper")),
    _Shelf(("home", "kitchen"), _HOME, _COLOUR, (8, 60), ("coffee mug", "storage rack", "cutting board")),
    _Shelf(("home", "living room"), _HOME, _COLOUR, (30, 300), ("floor lamp", "accent chair", "throw pillow")),
    _Shelf(("beauty", "hair"), _CARE, _BOTTLE, (6, 40), ("repair shampoo", "scalp serum")),
    _Shelf(("beauty", "skin"), _CARE, _BOTTLE, (6, 50), ("face lotion", "body scrub")),
    _Shelf(("grocery", "snacks"), _FOOD, _SNACK, (4, 45), ("protein bars", "rice crackers", "mixed nuts")),
    _Shelf(("electronics", "audio"), _TECH, _COLOUR, (15, 200), ("studio headphones", "portable speaker")),
    _Shelf(("electronics", "accessories"), _TECH, _COLOUR, (6, 80), ("phone charger", "usb cable")),
)
TINY_KINDS, TINY_ATTRIBUTES = ("cup", "hat", "pen", "rug"), ("big", "old", "soft", "warm")
TINY_COLOURS = ("blue", "pink", "red", "tan")
TINY_SAME = 3
"""Products of the tiny catalogue that differ only in price, from 1 to 9 dollars."""


def draw_catalogue(products: int) -> list[Product]:
    """Return so many products, the same ones each time."""
    draw, found = Random(f"catalogue {products}"), dict[str, Product]()  # noqa: S311
    while len(found) < products:
        shelf = draw.choice(_SHELVES)
        kind, brand = draw.choice(shelf.kinds), _draw_brand(draw)
        own = draw.sample(shelf.attributes, 4)
        options = {name: _draw_some(draw, values) for name, values in shelf.options.items()}
        asin = "B0" + "".join(draw.choices(string.ascii_uppercase + string.digits, k=8))
        found[asin] = Product(
            asin,
            f"{brand} {own[0].title()} {own[1].title()} {kind.title()}",
            kind,
            (*shelf.category, kind),
            frozenset(split_words(kind)),
            draw.randint(*shelf.prices) - 0.01,
            tuple(own),
            options,
            tuple(f"{attribute}: made for every day" for attribute in own[2:]),
            f"The {kind} by {brand}, {' and '.join(own[:2])}.",
        )
    return list(found.values())


def draw_tiny_catalogue() -> list[Product]:
    """Return 48 products with short names: for each kind and attribute three of different prices, in any order."""
    draw, found = Random("tiny catalogue"), list[Product]()  # noqa: S311
    asins = [f"{letter}{digit}" for letter in "bcdfghjkmn" for digit in range(1, 10)]
    draw.shuffle(asins)
    for kind in TINY_KINDS:
        for attribute in TINY_ATTRIBUTES:
            colours = _draw_some(draw, TINY_COLOURS)
            for price in draw.sample(range(1, 10), TINY_SAME):
                asin, title, noun = asins[len(found)], f"{attribute} {kind}", frozenset({kind})
                found.append(Product(asin, title, kind, (kind,), noun, price, (attribute,), {"color": colours}))
    return found


def draw_goal(draw: Random, product: Product, *, is_tiny: bool) -> Goal:
    """Return a goal that the product reaches with a reward of 1."""
    options = {name: draw.choice(values) for name, values in product.options.items()}
    if is_tiny:
        price = min(9, product.price + draw.randint(0, 2))
        text = f"{product.title},{options['color']},{price:g}"
        attributes = product.attributes
    else:
        attributes = tuple(draw.sample(product.attributes, draw.randint(1, 2)))
        price = 10.0 * (product.price // 10 + draw.randint(1, 4))
        asked = "".join(f", and {name}: {value}" for name, value in options.items()).removeprefix(", and ")
        text = (
            f"i am looking for a {', '.join(attributes)} {product.query} with {asked}, and price lower than "
            f"{price:.2f} dollars"
        )
    return Goal(text, attributes, options, price, product.query, product.category, product.nouns, product.asin)


def _draw_some(draw: Random, values: Sequence[str]) -> tuple[str, ...]:
    """Return two or more of the values, in their order."""
    chosen = draw.sample(values, draw.randint(2, min(4, len(values))))
    return tuple(value for value in values if value in chosen)


def _draw_brand(draw: Random) -> str:
    return "".join(draw.choice(letters) for letters in ("BDFKLMNRSTVZ", "aeiou", "dklmnrstvz", "aeiou", "lnrsx"))
