"""Writes games for ALFWorld's engine: `python examples/alfworld_games.py FOLDER`, with the extra `alfworld`.

Houses are drawn by Headrace, of all six families of goals by turns; the engine's planner solves each, which takes a
second or more, and its walkthrough is kept in the file.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from random import Random

from headrace.envs.worlds.alfworld_games import SUFFIX, Game, read_logic
from headrace.envs.worlds.floor_plans import FAMILIES, draw_house
from headrace.envs.worlds.game_files import write_game


def write_games(folder: Path, count: int, seed: int, tier: str = "house") -> list[Path]:
    """Write games, and return their paths; a house that the planner does not solve is left out."""
    folder.mkdir(parents=True, exist_ok=True)
    logic, draw, written = read_logic(), Random(f"games {seed}"), list[Path]()  # noqa: S311
    for number in range(count):
        family = FAMILIES[number % len(FAMILIES)]
        state = draw_house(draw, tier, family)
        path = folder / f"{family}-{seed}-{number}{SUFFIX}"
        path.write_text(write_game(state, *logic))
        if walkthrough := Game(path, plans=True).plan:
            path.write_text(write_game(state, *logic, walkthrough))
            written.append(path)
        else:
            path.unlink()
    return written


def main() -> None:
    """Write games into a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=100, help="number of games")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    print(len(write_games(asked.folder, asked.count, asked.seed)), "games in", asked.folder)


if __name__ == "__main__":
    main()
