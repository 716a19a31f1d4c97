"""Games of ALFWorld's own engine, such as those of its data: the extra `alfworld`.

The engine runs in the child process of the episode. Its parser is not safe in threads, so one action runs at a time in
a process; each takes some 50 ms, and the start of a game half a second.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from headrace.envs.contract import Problem, Score, Split
from headrace.envs.worlds.contract import Step
from headrace.envs.worlds.household import OVER, RULES, begin_visit, list_available, note_action, read_move
from headrace.infra.errors import UsageError
from headrace.infra.recipe.recipe_paths import describe_places, find_path

SUFFIX = ".tw-pddl"
HELD_OUT_FOLDERS, TRAIN_FOLDER = frozenset({"valid_seen", "valid_unseen", "held_out"}), "train"
SHARE = 0.1
"""Share of other games that is held out, and of all but the held-out ones that is for worked examples."""
_ENGINE = threading.Lock()
_LIVE = "live"


class Game:
    """A game that is being played. Raises UsageError without the extra, and for a file that is no game.

    Args:
        path: Of the game file.
        plans: Whether the engine's planner looks for a solution, which takes long.
    """

    def __init__(self, path: Path, *, plans: bool = False) -> None:
        textworld, pddl, demangler = _import_engine()
        asked = textworld.EnvInfos(won=True, admissible_commands=True, policy_commands=plans)
        with _ENGINE:
            self._engine = demangler(pddl(asked))
            try:
                self._engine.load(str(path))
                self._state = self._engine.reset()
            except (Exception, SystemExit) as error:  # its translator of PDDL exits
                raise UsageError(f"{path} cannot be played by ALFWorld's engine: {error}") from error

    @property
    def seen(self) -> str:
        """What the last command made to read."""
        return str(self._state.feedback).strip()

    @property
    def commands(self) -> list[str]:
        """All commands that are possible."""
        return sorted(self._state.admissible_commands)

    @property
    def is_won(self) -> bool:
        """Whether the goal is reached."""
        return bool(self._state.won)

    @property
    def plan(self) -> list[str]:
        """The planner's solution from here; empty if it found none."""
        return list(self._state.policy_commands or ())

    def act(self, command: str) -> str:
        """Carry out a command and return what is read."""
        with _ENGINE:
            self._state, _, _ = self._engine.step(command)
        return self.seen


class AlfworldGames:
    """The games below a folder.

    Args:
        seed: Not used.
        games: A folder. Games below `train` are for training, those below `valid_seen`, `valid_unseen` and `held_out`
            are held out; of others a tenth is held out, by a hash of the path. A tenth of those for training is the
            split `warm_start`.
        lists_actions: Whether the available actions are told in each turn.

    Raises UsageError for a folder without games, and without the extra.
    """

    name = "alfworld"

    def __init__(self, seed: int, games: str, lists_actions: bool = True) -> None:  # noqa: ARG002
        self._folder, self._lists_actions = find_path(games), lists_actions
        if not games or not self._folder.is_dir():
            raise UsageError(f"games must be a folder of game files, but {describe_places(games, 'games')}")
        found = sorted(path.relative_to(self._folder).as_posix() for path in self._folder.rglob(f"*{SUFFIX}"))
        if not found:
            raise UsageError(
                f"there is no game file (*{SUFFIX}) below {games}: write some by examples/alfworld_games.py, or name "
                "the folder of ALFWorld's data"
            )
        splits: tuple[Split, ...] = ("train", "held_out", "warm_start")
        self._names = {split: [name for name in found if _find_split(name) == split] for split in splits}

    def size(self, split: Split) -> int:
        """Return the number of games."""
        return len(self._names[split])

    def problem(self, split: Split, index: int) -> Problem:
        """Return a game, with what is seen first as the prompt; after the last one comes the first.

        Raises UsageError for a file that is no game, and for a split without games.
        """
        if not (names := self._names[split]):
            raise UsageError(f"{self._folder} has no game of the split {split}: add games, or remove warm_start")
        name = names[index % len(names)]
        seen, commands = _see_first(self._folder / name)
        shown = list_available(seen, commands) if self._lists_actions else seen
        return Problem(name, f"{RULES}\n\n{shown}", extra={"game": name, **begin_visit()})

    def score(self, problem: Problem, text: str) -> Score:  # noqa: ARG002
        """Raise UsageError: a text cannot be scored."""
        raise UsageError('household tasks are played turn by turn: use workflow = "world"')

    def act(self, problem: Problem, action: str) -> Step:
        """See `Acts.act`. The game lives in `problem.extra`, in the child process, as long as the episode."""
        state: Any = problem.extra
        if state["is_over"]:
            return Step(OVER, 0.0, done=True)
        if _LIVE not in state:
            state[_LIVE] = Game(self._folder / state["game"])
        game: Game = state[_LIVE]
        command = read_move(action)
        is_stuck = note_action(state, command)
        seen = game.act(command)
        state["is_over"] = game.is_won or is_stuck
        shown = list_available(seen, game.commands) if self._lists_actions else seen
        return Step(shown, float(game.is_won), done=state["is_over"])

    def solve(self, problem: Problem) -> Sequence[str]:
        """Return the walkthrough in the game's file. Raises ValueError if it has none."""
        found = json.loads((self._folder / problem.extra["game"]).read_text()).get("walkthrough")
        if not found:
            raise ValueError(f"game {problem.task_id} has no walkthrough")
        return list(found)


def read_logic() -> tuple[str, str]:
    """Return the domain in PDDL and the grammar that the package brings. Raises UsageError without the extra."""
    _import_engine()
    from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH

    return Path(ALFRED_PDDL_PATH).read_text(), Path(ALFRED_TWL2_PATH).read_text()


@lru_cache(maxsize=8192)
def _see_first(path: Path) -> tuple[str, list[str]]:
    """Return what is read first, without the engine's greeting, and the commands that are possible then."""
    game = Game(path)
    return game.seen.partition("\n\n")[2] or game.seen, game.commands


def _find_split(name: str) -> Split:
    folders = set(name.split("/")[:-1])
    share = int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) / 2**64
    if folders & HELD_OUT_FOLDERS or (TRAIN_FOLDER not in folders and share < SHARE):
        return "held_out"
    return "warm_start" if share >= 1 - SHARE else "train"


def _import_engine() -> tuple[Any, Any, Any]:
    """Return TextWorld, its environment of PDDL, and what gives things their names. Raises UsageError."""
    try:
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        from textworld.envs import PddlEnv
    except ImportError as error:
        raise UsageError(
            f'engine = "alfworld" needs the extra (`make install EXTRAS=alfworld`, with g++ and cmake): {error}'
        ) from error
    return textworld, PddlEnv, AlfredDemangler
