"""The pages of a shop, and the clicks that lead from one to another, as in WebShop (arXiv 2207.01206).

A search gives 50 products, ten on a page. The page of a product has its options, its text, and the button to buy it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace.envs.search.retrieval import Retrieval
from headrace.envs.worlds.shop_reward import Goal, Product

MOST_FOUND = 50
SEARCH, RESULTS, ITEM, PART = "search", "results", "item", "part"
BACK, PREVIOUS, NEXT = "Back to Search", "< Prev", "Next >"
PARTS = ("Description", "Features", "Reviews")
_ACTION = re.compile(r"(search|click)\[([^\]]+)\]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Style:
    """How pages are written."""

    separator: str = " [SEP] "
    on_page: int = 10
    """Products on a page of results."""
    buy: str = "Buy Now"
    is_short: bool = False
    """Whether only results, options and the button to buy are shown."""


LONG, SHORT = Style(), Style("|", on_page=3, buy="buy", is_short=True)


def read_action(text: str) -> tuple[str, str] | None:
    """Return verb and argument of the first `search[…]` or `click[…]` of a text, in lower case; None without one."""
    found = _ACTION.search(text)
    return (found[1].lower(), found[2].strip().lower()) if found else None


def begin_visit() -> dict[str, Any]:
    """Return the state of a visit to the shop: plain JSON."""
    return {"page": SEARCH, "found": [], "number": 1, "item": -1, "part": "", "options": {}}


class Shop:
    """Products, which are found by BM25.

    Args:
        products: Their texts differ.
        style: Of the pages.
    """

    def __init__(self, products: Sequence[Product], style: Style) -> None:
        self.products, self.style = products, style
        self._numbers = {_write_document(product): number for number, product in enumerate(products)}
        self._retrieval = Retrieval(lambda: list(self._numbers))

    def prepare(self) -> None:
        """Index the products."""
        self._retrieval.prepare()

    def find(self, query: str) -> list[int]:
        """Return the numbers of the products that fit best, best first."""
        return [self._numbers[text] for text in self._retrieval.find(query, MOST_FOUND)]

    def list_shown(self, visit: Mapping[str, Any]) -> list[int]:
        """Return the products on the page of results."""
        first = (visit["number"] - 1) * self.style.on_page
        return list(visit["found"][first : first + self.style.on_page])

    def list_clickable(self, visit: Mapping[str, Any]) -> list[str]:
        """Return what can be clicked, in lower case."""
        page, clickable = visit["page"], list[str]()
        if page == RESULTS:
            is_last = visit["number"] * self.style.on_page >= len(visit["found"])
            clickable = [BACK, *([PREVIOUS] if visit["number"] > 1 else []), *([] if is_last else [NEXT])]
            clickable += [self.products[number].asin for number in self.list_shown(visit)]
        elif page == PART:
            clickable = [BACK, PREVIOUS]
        elif page == ITEM:
            options = (value for values in self.products[visit["item"]].options.values() for value in values)
            clickable = [BACK, PREVIOUS, *PARTS, self.style.buy, *options]
        return [name.lower() for name in clickable]

    def search(self, visit: dict[str, Any], query: str) -> None:
        """Show the first results. A shop can be searched from its first page, and from there only."""
        if visit["page"] == SEARCH:
            visit.update(begin_visit(), page=RESULTS, found=self.find(query))

    def click(self, visit: dict[str, Any], name: str) -> None:
        """Follow a click; one on what is not there, or on the button to buy, changes nothing."""
        page, clickable = visit["page"], self.list_clickable(visit)
        if name not in clickable or name == self.style.buy.lower():
            return
        if name == BACK.lower():
            visit.update(begin_visit())
        elif name in (PREVIOUS.lower(), NEXT.lower()):
            if page == RESULTS:
                visit["number"] += 1 if name == NEXT.lower() else -1
            else:
                visit.update(page=RESULTS if page == ITEM else ITEM, part="")
        elif page == RESULTS:
            found = next(one for one in self.list_shown(visit) if self.products[one].asin.lower() == name)
            visit.update(page=ITEM, item=found, options={})
        elif name.title() in PARTS:
            visit.update(page=PART, part=name.title())
        else:
            values = self.products[visit["item"]].options
            option = next(one for one, known in values.items() if name in (value.lower() for value in known))
            visit["options"] = {**visit["options"], option: name}

    def show(self, visit: Mapping[str, Any], goal: Goal) -> str:
        """Return a page as text."""
        if self.style.is_short:
            return self.style.separator.join(self._list_short(visit))
        clickable = self.list_clickable(visit)
        available = {"has_search_bar": visit["page"] == SEARCH, "clickables": clickable}
        return f"{self.style.separator.join(self._list_long(visit, goal))}\nAvailable actions: {json.dumps(available)}"

    def _list_short(self, visit: Mapping[str, Any]) -> list[str]:
        if visit["page"] == RESULTS:
            shown = [self.products[number] for number in self.list_shown(visit)]
            return [f"{one.asin} {one.title} {one.price:g}" for one in shown] or ["nothing"]
        return self.list_clickable(visit)[2 + len(PARTS) :]

    def _list_long(self, visit: Mapping[str, Any], goal: Goal) -> list[str]:
        page, head = visit["page"], ["Instruction:", goal.text]
        if page == SEARCH:
            return ["WebShop", *head, "Search"]
        head += [BACK]
        if page == RESULTS:
            turning = [PREVIOUS] if visit["number"] > 1 else []
            turning += [NEXT] if visit["number"] * self.style.on_page < len(visit["found"]) else []
            told = [f"Page {visit['number']} (Total results: {len(visit['found'])})", *turning]
            shown = [self.products[number] for number in self.list_shown(visit)]
            return [*head, *told, *(part for one in shown for part in (one.asin, one.title, f"${one.price:.2f}"))]
        product = self.products[visit["item"]]
        head += [PREVIOUS]
        if page == PART:
            texts = {"Description": product.description, "Features": "; ".join(product.features)}
            return [*head, texts.get(visit["part"]) or f"No {visit['part'].lower()}."]
        options = [part for name, values in product.options.items() for part in (name, *values)]
        told = [product.title, f"Price: ${product.price:.2f}", "Rating: N.A.", *PARTS, self.style.buy]
        return [*head, *options, *told]


def write_goal(goal: Goal) -> dict[str, Any]:
    """Return a goal as plain JSON."""
    return {**asdict(goal), "nouns": sorted(goal.nouns)}


def read_goal(plain: Mapping[str, Any]) -> Goal:
    """Return the goal that `write_goal` wrote."""
    tuples = {name: tuple(plain[name]) for name in ("attributes", "category")}
    return Goal(**{**plain, **tuples, "nouns": frozenset(plain["nouns"])})


def _write_document(product: Product) -> str:
    """Return the text by which a product is found."""
    return " ".join((product.asin, product.title, *product.attributes, *product.features, product.description))
