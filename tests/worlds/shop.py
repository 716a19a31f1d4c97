"""A tool world written with OpenEnv's server classes; it runs in OpenEnv's environment: `python shop.py PORT`."""

from __future__ import annotations

import sys
from typing import Any

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State

TASKS = {"train": 5, "dev": 1, "test": 2}


class Shop(MCPEnvironment):
    """Two items are to be bought."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server = FastMCP("shop")
        self.bought = 0

        @server.tool
        def price(item: str) -> int:
            """Return the price of an item."""
            return len(item)

        @server.tool
        def buy(item: str, count: int = 1) -> str:
            """Buy items."""
            if item == "sold out":
                raise ValueError(item)
            self.bought += count
            return f"bought {count} {item}"

        super().__init__(server)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **given: Any) -> Observation:
        """Begin an episode."""
        self.bought = 0
        return Observation(metadata={"text": f"{given['split']} {given['index']}"})

    def _step_impl(self, action: Action, timeout_s: float | None = None, **_: Any) -> Observation:
        raise NotImplementedError

    async def step_async(self, action: Action, timeout_s: float | None = None, **more: Any) -> Observation:
        """Call a tool; when two items are bought, the episode is over."""
        made = await super().step_async(action, timeout_s, **more)
        if isinstance(action, CallToolAction):
            if action.arguments.get("item") == "crash":
                raise RuntimeError("the shop burned down")
            made.done, made.reward = self.bought >= 2, self.bought / 2 if self.bought else None
        return made

    @property
    def state(self) -> State:
        """What was bought."""
        return State(step_count=self.bought)

    def list_splits(self) -> list[Any]:
        """Return the splits, in both forms that a world may give."""
        return ["train", {"name": "dev", "type": "validation"}, "test"]

    def num_tasks(self, split: str) -> int:
        """Count the tasks of a split."""
        return TASKS[split]


app = create_app(Shop, CallToolAction, CallToolObservation, env_name="shop", max_concurrent_envs=2)

if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
