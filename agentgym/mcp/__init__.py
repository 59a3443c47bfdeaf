"""Tools of MCP servers: a process for each episode or one for all, an address, or a server in this process.

shop = McpServer.stdio("python", "shop_server.py")

async def start(self, context):
    return await shop.open()

async def toolbox(self, context):
    return context.state

async def finish(self, context):
    if context.state is not None:
        await context.state.close()
"""

from agentgym.mcp.server import McpServer, McpSession

__all__ = ["McpServer", "McpSession"]
