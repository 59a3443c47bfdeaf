"""A server of the tests: a shop that remembers, and ways to break."""

import os
import sys
import time

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

server = MCPServer("shop")
STOCK = {"apple": 3}


@server.tool()
def buy(item: str, count: int = 1) -> str:
    """Buy things."""
    if STOCK.get(item, 0) < count:
        raise ToolError(f"only {STOCK.get(item, 0)} of {item}")
    STOCK[item] -= count
    return f"left: {STOCK[item]}"


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def look(title: str = "all") -> dict[str, int]:
    """Look at the stock."""
    return dict(STOCK)


@server.tool()
def die() -> str:
    """Crash."""
    print("out of memory", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()
def hang() -> str:
    """Never answer."""
    time.sleep(1000)
    return "late"


@server.tool()
def pid() -> int:
    """The process."""
    return os.getpid()


if __name__ == "__main__":
    if sys.argv[1:] == ["http"]:
        server.run("streamable-http", port=0)
    else:
        server.run()
