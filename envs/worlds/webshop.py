"""Shopping by text: search a catalogue, click a product and its options, and buy, as in WebShop (arXiv 2207.01206).

The reward, from 0 to 1, is that of what was bought. The catalogue is generated, and the same for every seed. The tier
`tiny` is for models of 100,000 parameters: 48 products with short names, on pages of some dozen characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from headrace.envs.contract import Problem, Score, Split
from headrace.envs.split_shares import is_of_split
from headrace.envs.worlds.contract import Step
from headrace.envs.worlds.drawn import DrawnByTier
from headrace.envs.worlds.shop import ITEM, LONG, NEXT, SHORT, Shop, begin_visit, read_action, read_goal, write_goal
from headrace.envs.worlds.shop_catalogue import draw_catalogue, draw_goal, draw_tiny_catalogue
from headrace.envs.worlds.shop_reward import Goal, Product, compute_reward
from headrace.infra.errors import UsageError

TIERS = TINY, SHOP = ("tiny", "shop")
MOST_PRODUCTS = 100_000
RULES = """\
You shop by text. In each turn you read a page, and answer with one action: `search[words]` where there is a search \
bar, else `click[name]` of something that can be clicked. Choose the options that are asked for, then buy. Think \
first, then end your answer with the action, as in this line:
ACTION: search[soft red hat]"""
NO_ACTION, OVER = "This is no action.", "You have left the shop."


class Webshop(DrawnByTier):
    """Problems without end.

    Args:
        seed: Of the problems; held-out ones are the same for every seed.
        tiers: `tiny` and `shop`, drawn alike.
        products: Of the catalogue of the tier `shop`, up to 100,000.

    Raises ValueError for settings out of their range.
    """

    name = stream = "webshop"
    all_tiers = TIERS

    def __init__(self, seed: int, tiers: Sequence[str] = (SHOP,), products: int = 1000) -> None:
        super().__init__(seed, tiers)
        if not isinstance(products, int) or not 1 <= products <= MOST_PRODUCTS:
            raise ValueError(f"products must be a whole number from 1 to {MOST_PRODUCTS}; got {products!r}")
        self._products = products

    def prepare_scoring(self) -> None:
        """Index the catalogues, before the time of the first step begins."""
        for tier in self._tiers:
            self._find_shop(tier).prepare()

    @cached_property
    def _tiny(self) -> Shop:
        return Shop(draw_tiny_catalogue(), SHORT)

    @cached_property
    def _shop(self) -> Shop:
        return Shop(draw_catalogue(self._products), LONG)

    def _find_shop(self, tier: str) -> Shop:
        return self._tiny if tier == TINY else self._shop

    def problem(self, split: Split, index: int) -> Problem:
        """Return a problem: a goal, with the first page as the prompt."""
        task_id, draw = self.begin_draw(split, index)
        while True:
            tier = draw.choice(self._tiers)
            shop = self._find_shop(tier)
            goal = draw_goal(draw, draw.choice(shop.products), is_tiny=tier == TINY)
            if is_of_split(split, goal.text):
                break
        state = {**begin_visit(), "goal": write_goal(goal), "tier": tier, "is_over": False}
        prompt = f"{goal.text}\n" if tier == TINY else f"{RULES}\n\n{shop.show(state, goal)}"
        return Problem(task_id, prompt, tier=tier, extra=state)

    def score(self, problem: Problem, text: str) -> Score:  # noqa: ARG002
        """Raise UsageError: a text cannot be scored."""
        raise UsageError('shopping is played turn by turn: use workflow = "world"')

    def act(self, problem: Problem, action: str) -> Step:
        """See `Acts.act`. An answer without an action leaves the shop."""
        state: Any = problem.extra
        shop, goal = self._find_shop(state["tier"]), read_goal(state["goal"])
        asked = None if state["is_over"] else read_action(action)
        if asked is None:
            seen = OVER if state["is_over"] else NO_ACTION
            state["is_over"] = True
            return Step(seen, 0.0, done=True)
        verb, words = asked
        if verb == "search":
            shop.search(state, words)
        elif state["page"] == ITEM and words == shop.style.buy.lower():
            state["is_over"] = True
            return Step(OVER, compute_reward(shop.products[state["item"]], goal, state["options"]), done=True)
        else:
            shop.click(state, words)
        return Step(shop.show(state, goal), 0.0)

    def solve(self, problem: Problem) -> Sequence[str]:
        """Return the answers of a perfect policy: a search, the first product that fits, its options, the purchase."""
        goal, shop = read_goal(problem.extra["goal"]), self._find_shop(problem.extra["tier"])
        words = " ".join(dict.fromkeys(" ".join((*goal.attributes, goal.query)).split()))
        bought, path = _find_fitting(shop, goal, words) or _find_fitting(shop, goal, goal.asin) or (None, [])
        if bought is None:
            raise ValueError(f"no product of the shop fits the goal {goal.text!r}")
        options = [option.lower() for option in goal.options.values()]
        return [*path, *(f"click[{name}]" for name in (bought.asin.lower(), *options, shop.style.buy.lower()))]


def _find_fitting(shop: Shop, goal: Goal, query: str) -> tuple[Product, list[str]] | None:
    """Return the first product among the results of a query that gets a reward of 1, and the actions to its page."""
    visit, path = begin_visit(), [f"search[{query}]"]
    shop.search(visit, query)
    while True:
        for one in shop.list_shown(visit):
            if _is_wanted(shop.products[one], goal):
                return shop.products[one], path
        if NEXT.lower() not in shop.list_clickable(visit):
            return None
        shop.click(visit, NEXT.lower())
        path.append(f"click[{NEXT.lower()}]")


def _is_wanted(product: Product, goal: Goal) -> bool:
    """Return whether a product with the asked options gets a reward of 1."""
    has_all = all(value in product.options.get(name, ()) for name, value in goal.options.items())
    return has_all and compute_reward(product, goal, goal.options) == 1
