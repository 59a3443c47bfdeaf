"""Which sandboxes have images and containers that can be built and cleaned."""

from __future__ import annotations

from typing import Literal, cast

from agentgym.cli.sandbox.action import Request
from agentgym.errors import UserError
from agentgym.sandbox import ImageBackend, SandboxBackend


def image_backend(request: Request, action: Literal["build", "clean"]) -> tuple[SandboxBackend, ImageBackend]:
    """The same thing twice, once for each of its sides. Raises UserError when it has nothing for the action."""
    backend = request.backend(request.arguments.sandbox)
    if not callable(getattr(backend, action, None)):
        why = "needs no image" if action == "build" else "leaves nothing behind"
        raise UserError(f"sandbox {backend.name!r} {why}, so there is nothing to {action}")
    return backend, cast(ImageBackend, backend)
