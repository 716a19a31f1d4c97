"""Opens a world at an OpenEnv server, and acts in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace.envs.openenv.places import PLACES, Full
from headrace.envs.openenv.routes import Routes
from headrace.envs.openenv.session import Closed, OpenEnvSession, Refused
from headrace.envs.openenv.wire import (
    CAPACITY_REACHED,
    LIST_TOOLS,
    VALIDATION_ERROR,
    ActionForm,
    read_action_form,
    read_tools,
    show_observation,
)
from headrace.envs.tools.functions import BadArguments
from headrace.envs.worlds.contract import Step, WorldFailed
from headrace.infra.unreachable import OutOfTime


@dataclass(frozen=True, slots=True)
class Opening:
    """How an episode begins."""

    reset: Mapping[str, Any]
    """What the server's `reset` gets."""
    field: str
    """The field of an observation that the policy reads; empty for all."""
    limit_s: float
    """Seconds until the first observation and the actions are known."""
    needs_text: bool
    """Whether the policy would have nothing to read without a first observation."""
    note_full: Callable[[str], None]
    """Called with the server's words each time it is full."""


async def open_at(routes: Routes, opening: Opening) -> OpenedWorld:
    """Begin an episode; while the server is full, wait.

    Raises ConnectionError if the server is away, WorldFailed, and OutOfTime.
    """
    with _name_server(routes.url, "does not begin an episode"):
        form = read_action_form(await asyncio.to_thread(routes.get, "/schema"))
        places = PLACES[routes.url]
        return await places.open(partial(_begin, routes.url, form, opening, places.note_closed))


async def _begin(url: str, form: ActionForm, opening: Opening, on_close: Callable[[], None]) -> OpenedWorld:
    """Begin an episode. Raises also Full."""
    session = await OpenEnvSession.connect(url)
    try:
        async with asyncio.timeout(opening.limit_s) as limit:
            try:
                first = await session.ask("reset", opening.reset)
            except Closed as error:
                raise ConnectionError(f"{url} closed the connection at the start: {error}") from error
            except Refused as error:
                if error.code != CAPACITY_REACHED:
                    raise
                opening.note_full(str(error))
                raise Full(f"{url} is full ({error})") from error
            text, actions = await _look(session, form, first, opening)
    except BaseException as error:
        await session.close()
        if isinstance(error, TimeoutError) and limit.expired():
            raise OutOfTime(f"{url} began no episode within {opening.limit_s:g} s (start_limit_s)") from error
        raise
    return OpenedWorld(session, form, actions, text, opening.field, on_close)


async def _look(
    session: OpenEnvSession, form: ActionForm, first: Mapping[str, Any], opening: Opening
) -> tuple[str, list[dict[str, Any]]]:
    """Return the first observation, and the actions."""
    if first.get("done"):
        raise WorldFailed("it is over before the first action")
    text = show_observation(first.get("observation"), opening.field)
    if opening.needs_text and not text.strip():
        raise WorldFailed("the first observation is empty: set `prompt` of the environment")
    if not form.has_tools:
        return text, form.list_actions()
    return text, read_tools((await session.ask("step", LIST_TOOLS)).get("observation"))


class OpenedWorld:
    """A world of an episode: see `World`."""

    def __init__(
        self,
        session: OpenEnvSession,
        form: ActionForm,
        actions: Sequence[Mapping[str, Any]],
        observation: str,
        field: str,
        on_close: Callable[[], None],
    ) -> None:
        self.observation, self.actions = observation, actions
        self._session, self._form, self._field = session, form, field
        self._at_end = ExitStack()
        self._at_end.callback(on_close)

    async def act(self, name: str, arguments: Mapping[str, Any]) -> Step:
        """See `World.act`. A server that closes the connection now has failed: the episode's state is lost."""
        with _name_server(self._session.url, "failed at an action"):
            try:
                found = await self._session.ask("step", self._form.write(name, arguments))
            except Refused as error:
                if error.code != VALIDATION_ERROR:
                    raise
                raise BadArguments(error.why) from error
            text = show_observation(found.get("observation"), self._field)
            return Step(text, found.get("reward"), found.get("done", False))

    async def close(self) -> None:
        """Give the world back, once however often it is called. Raises nothing."""
        with self._at_end:  # also when cancelled: a place that nobody gives back would be counted for ever
            await self._session.close()


@contextmanager
def _name_server(url: str, what: str) -> Iterator[None]:
    """Raise WorldFailed, which names the server, for all that it does wrong."""
    try:
        yield
    except Closed as error:
        raise WorldFailed(f"{url} {what}: it closed the connection: {error}") from error
    except (Refused, WorldFailed) as error:
        raise WorldFailed(f"{url} {what}: {error}") from error
