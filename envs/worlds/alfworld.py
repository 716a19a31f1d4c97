"""The environment `alfworld`: household tasks by Headrace's own engine, or by ALFWorld's."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.envs.contract import Environment
from headrace.envs.worlds.floor_plans import FAMILIES
from headrace.envs.worlds.household import Household

OWN, ALFWORLD = "own", "alfworld"
HOUSE = ("house",)


def open_alfworld(  # noqa: PLR0913, PLR0917 - settings, each given by its name
    seed: int,
    engine: str = OWN,
    games: str = "",
    tiers: Sequence[str] = HOUSE,
    families: Sequence[str] = FAMILIES,
    shows_example: bool = True,
    lists_actions: bool = True,
) -> Environment:
    """Return the environment.

    Args:
        seed: Of the problems.
        engine: `own`, which generates its houses, or `alfworld`, which plays the files of `games`.
        games: Folder of game files for ALFWorld's engine.
        tiers, families, shows_example: As in `Household`, for the own engine.
        lists_actions: As in `Household`.

    Raises ValueError for settings out of their range, and UsageError without the extra or without games.
    """
    if engine not in (OWN, ALFWORLD) or bool(games) != (engine == ALFWORLD):
        raise ValueError(
            f'engine must be "{OWN}", or "{ALFWORLD}" together with games = FOLDER; got engine = {engine!r}, games = '
            f"{games!r}"
        )
    if engine == OWN:
        return Household(seed, tiers, families, shows_example, lists_actions)
    from headrace.envs.worlds.alfworld_games import AlfworldGames

    return AlfworldGames(seed, games, lists_actions)
