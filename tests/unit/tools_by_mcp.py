"""An MCP server for tests, and an environment that names it."""

from __future__ import annotations

import os
import sys

from headrace.envs.contract import Problem, Score
from headrace.envs.tools.mcp_server import McpServer


class Remote:
    name = "remote"

    def __init__(self, seed: int = 1) -> None:
        self.tools = (McpServer(sys.executable, __file__), self.local)

    def size(self, _split: str) -> int:
        return 1

    def problem(self, split: str, _index: int) -> Problem:
        return Problem(split, "3*4?", answer="12")

    def local(self, text: str) -> str:
        """Say it again."""
        return text

    def score(self, problem: Problem, text: str) -> Score:
        return Score(text == problem.answer)


def main() -> None:
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("sums")

    @server.tool()
    def multiply(a: int, b: int) -> int:
        """Multiply two integers."""
        return a * b

    @server.tool()
    def fail(why: str) -> str:
        """Raise."""
        raise ValueError(why)

    @server.tool()
    def leave() -> str:
        """End the server."""
        os._exit(1)

    server.run()


if __name__ == "__main__":
    main()
