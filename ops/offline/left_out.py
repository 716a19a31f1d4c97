"""Which characters of results the alphabet of a policy lacks: they are left out of what the policy reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from headrace.envs.tools.solutions import SolutionPlayed
from headrace.infra.recipe.settings import Recipe
from headrace.infra.weights.policy_files import Tokenizer
from headrace.infra.weights.prompt_tokens import CannotEncode


class NotingTokenizer(Tokenizer):
    """Notes the characters that it was asked for one by one, as for a result that it cannot encode, and has not."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lacked: set[str] = set()

    def encode_plain(self, text: str) -> list[int]:
        """See `Tokenizer.encode_plain`."""
        try:
            return super().encode_plain(text)
        except CannotEncode:
            self.lacked.update(text if len(text) == 1 else ())
            raise


def look_at_solutions(recipe: Recipe, workflow: str, solutions: Sequence[SolutionPlayed]) -> Iterator[str]:
    """Yield a sentence on each policy that could not read all results in the worked solutions of a workflow."""
    turns = [turn for one in solutions if not one.fault for turn in one.turns]
    there = {character for turn in turns for result in turn.results for character in result}
    for policy in recipe.policies_of(workflow):
        alphabet = recipe.policies[policy].alphabet
        if alphabet and (lacked := "".join(sorted(there - set(alphabet)))):
            yield (
                f"policies.{policy}.alphabet needs more characters, {lacked!r}: results in the worked solutions of "
                f"{workflow} have them, and the policy reads these results without them"
            )
