"""Commands that write a revision of the recipe, `swap` and `up --new-recipe`, by the production code of both.

A command may be held up between any two of its dealings with the log. So an action is one dealing: the code runs again
from its beginning, is told what it was told before, and is stopped where it would deal with the log once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from headrace.infra.errors import HeadraceError
from headrace.infra.kafka.clients import Outgoing, RunAddress
from headrace.infra.recipe.settings import Recipe
from headrace.infra.recipe.table import Named
from headrace.infra.run import revisions, run
from headrace.infra.run.run import Run
from headrace.ops import swap
from headrace.schemas.records import RecipeRevision
from protocol.clients import Cut, Writer
from protocol.processes import Key, Process
from protocol.run import ADDRESS, STORE
from protocol.world import State, Step, World

T = TypeVar("T")
CHAIN = Path(__file__).with_name("chain.toml")


class Command(Process):
    """It is given once, and is gone when it has its answer, be it that another command came between."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.told: list[Any] = []
        """Answers of the log."""
        self._asked = 0

    def actions(self) -> tuple[str, ...]:
        return ("go",) if self.is_up else ()

    def start(self) -> None:
        self.is_up = True

    def go(self) -> None:
        """Deal with the log once more."""
        self._asked, NOW.command, NOW.may = 0, self, 1
        try:
            self.run()
            self.end()
        except Cut:
            """It goes on from here."""
        except HeadraceError:
            self.end()
        finally:
            NOW.command = None

    def ask(self, call: Callable[[], T]) -> T:
        """Return what the log answered, or answers now. Raises Cut."""
        self._asked += 1
        if self._asked > len(self.told):
            if not NOW.may:
                raise Cut
            NOW.may -= 1
            self.told.append(call())
        found: T = self.told[self._asked - 1]
        return found

    def run(self) -> None:
        """Do it, from the beginning."""
        raise NotImplementedError

    def forget(self) -> None:
        self.told = []

    def key(self) -> Key:
        return self.name, self.is_up, tuple(map(_known, self.told))


class Swap(Command):
    """`headrace swap`."""

    def run(self) -> None:
        swap.swap(cast(Run, SimpleNamespace(address=ADDRESS)), CHAIN)


class Up(Command):
    """`headrace up --new-recipe`, as the launcher does it."""

    def __init__(self, name: str, recipe: Recipe) -> None:
        super().__init__(name)
        curate = recipe.curate.model_copy(update={"chain": (*recipe.curate.chain, Named(use="drop_zero_variance"))})
        self.recipe = recipe.model_copy(update={"curate": curate})

    def run(self) -> None:
        settle = partial(revisions.plan_revision, ADDRESS, self.recipe, STORE, new_recipe=True)
        if settle() is not None:
            revisions.write_later_revision(ADDRESS, settle)


class SteppedWriter:
    """Stands in for `TransactionalWriter` in a command."""

    def __init__(self, _cluster: object, transactional_id: str, _topics: object) -> None:
        assert NOW.command is not None
        self._ask = NOW.command.ask
        self.writer = self._ask(lambda: Writer(transactional_id))

    def begin(self) -> None:
        """With the first record."""

    def produce(self, outgoing: Iterable[Outgoing]) -> None:
        def begin_and_produce() -> int:
            self.writer.begin()
            return len(self.writer.produce(outgoing))

        self._ask(begin_and_produce)

    def commit(self) -> None:
        self._ask(self.writer.commit)

    def close(self) -> None:
        """A command that is stopped leaves open what is open."""


def stepped_read(address: RunAddress) -> list[RecipeRevision]:
    """Stand in for `read_revisions` in a command."""
    assert NOW.command is not None
    return NOW.command.ask(lambda: run.read_revisions(address))


class Now:
    """Whose turn it is."""

    command: Command | None = None
    may = 0
    """How often it may deal with the log."""


NOW = Now()


def _known(told: Any) -> Key:
    if isinstance(told, Writer):
        return told.epoch, told.is_open
    if isinstance(told, list):
        return tuple((one.revision, one.recipe, one.ended) for one in told)
    return told


class Race(World):
    """Two commands, and nobody else."""

    def cast(self) -> list[Process]:
        return [Swap("S"), Up("U", self.recipe)]

    def has_end(self) -> bool:
        return False

    def steps(self, state: State, *, is_over: bool = False) -> Iterator[Step]:
        """Yield the steps of a world in which time does nothing but end transactions."""
        return World.steps(self, state, is_over=not self.thaw(state).transactions)


class Changed(World):
    """A run that both commands are given to."""

    def cast(self) -> list[Process]:
        return [Swap("S"), Up("U", self.recipe), *World.cast(self)]
