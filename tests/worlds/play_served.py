"""OpenEnv's own client plays an environment that Headrace serves; it runs in OpenEnv's environment."""

from __future__ import annotations

import asyncio
import json
import sys

from openenv.core.env_server.mcp_types import CallToolAction
from openenv.core.generic_client import GenericEnvClient


async def main(url: str) -> None:
    """Play one episode, and print it as JSON."""
    async with GenericEnvClient(base_url=url) as client:
        first = await client.reset(split="held_out", index=3, episode_id="e")
        tools = (await client.step({"type": "list_tools"})).observation["tools"]
        got = await client.step(CallToolAction(tool_name="get", arguments={"name": "a"}))
        state = await client.state()
        last = await client.step(CallToolAction(tool_name="answer", arguments={"text": "0"}))
    played = {
        "first": first.observation["text"],
        "tools": [tool["name"] for tool in tools],
        "got": [got.observation["tool_name"], got.observation["result"], got.reward, got.done],
        "state": state,
        "last": [last.reward, last.done],
    }
    sys.stdout.write(json.dumps(played))


asyncio.run(main(sys.argv[1]))
