"""A generated world of people, firms and cities: its documents, and questions over one to three of them."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
FIRMS, CITIES = 40, 16
PETS = ("cat", "dog", "hen", "pig", "owl", "fox", "bee", "cow")
TRADES = ("tea", "tin", "silk", "salt", "wool", "corn", "iron", "wine")


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and the way to its answer."""

    text: str
    queries: tuple[str, ...]
    """Names to look up, one after another."""
    answer: str


class World:
    """People, firms and cities, each with one document, such as `kim: firm vexo, pet cat`.

    Args:
        seed: Of the names and facts.
        people: How many people have a document; a fifth of them is for held-out questions.
    """

    def __init__(self, seed: int, people: int) -> None:
        draw = Random(f"search {seed}")  # noqa: S311
        names = _draw_names(draw, "cvc", people), _draw_names(draw, "cvcv", FIRMS), _draw_names(draw, "cvcvc", CITIES)
        self.people, firms, cities = names
        self.facts = {name: {"firm": draw.choice(firms), "pet": draw.choice(PETS)} for name in self.people}
        self.facts |= {name: {"city": draw.choice(cities), "trade": draw.choice(TRADES)} for name in firms}
        rivers = _draw_names(draw, "cvcc", CITIES)
        self.facts |= {name: {"river": river} for name, river in zip(cities, rivers, strict=True)}
        self.documents = [
            f"{name}: {', '.join(f'{kind} {value}' for kind, value in facts.items())}"
            for name, facts in self.facts.items()
        ]

    def ask(self, draw: Random, hops: int, *, held_out: bool) -> Question:
        """Return a question that needs `hops` documents: from 1 to 3."""
        of_split = [name for at, name in enumerate(self.people) if (at % 5 == 0) == held_out]
        name = draw.choice(of_split)
        asked, queries = f" of {name}?", [name]
        for kind in ("firm", "city")[: hops - 1]:
            name = self.facts[name][kind]
            asked, queries = f" of {kind}{asked}", [*queries, name]
        kind = draw.choice(list(self.facts[name]))
        return Question(f"{kind}{asked}", tuple(queries), self.facts[name][kind])


def _draw_names(draw: Random, form: str, count: int) -> list[str]:
    """Return different names of consonants and vowels."""
    names: dict[str, None] = {}
    while len(names) < count:
        names["".join(draw.choice(CONSONANTS if sign == "c" else VOWELS) for sign in form)] = None
    return list(names)
