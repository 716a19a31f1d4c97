"""An agent with a tool of its own: it looks up a price, and answers with it."""

from random import Random

from headrace.envs.contract import Problem, Score


class Prices:
    name = "prices"

    def __init__(self, seed):
        self.seed, self.tools = seed, [self.price]

    def size(self, split):
        return None  # without end

    def problem(self, split, index):
        draw = Random(f"{split} {self.seed} {index}")
        prices = {item: draw.randint(1, 999) for item in "abcdefgh"}
        item = draw.choice("abcdefgh")
        prompt = f"{draw.randint(100, 999)}: {item}?"  # the number of a customer
        return Problem(f"{split} {index}", prompt, answer=str(prices[item]), extra=prices)

    def price(self, item: str, problem: Problem) -> str:
        """Return the price of an item."""
        return str(problem.extra.get(item, "unknown item"))

    def score(self, problem, text):
        return Score(text.strip() == problem.answer)

    def solve(self, problem):
        return [f"@price {problem.text[-2]}", problem.answer]
