"""Which sandboxes have images and containers that can be built and cleaned."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal, cast

from agentgym.errors import UserError
from agentgym.sandbox import ImageBackend, SandboxBackend, SandboxUnavailable
from agentgym_sandboxes.commands.action import Request, refusal


def image_backend(request: Request, action: Literal["build", "clean"]) -> tuple[SandboxBackend, ImageBackend]:
    """The named backend, as both of its protocols. Raises UserError when it does not have the action."""
    backend = request.backend(request.arguments.sandbox)
    if not callable(getattr(backend, action, None)):
        why = "needs no image" if action == "build" else "leaves nothing behind"
        raise UserError(f"sandbox {backend.name!r} {why}, so there is nothing to {action}")
    return backend, cast(ImageBackend, backend)


@asynccontextmanager
async def in_use(backend: SandboxBackend) -> AsyncIterator[None]:
    """Closes it. Raises UserError when it is unavailable."""
    try:
        yield
    except SandboxUnavailable as error:
        raise refusal([(backend.name, error)]) from error
    finally:
        await backend.close()
