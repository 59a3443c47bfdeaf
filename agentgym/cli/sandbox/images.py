"""Which sandboxes have images and containers that can be built and cleaned."""

from __future__ import annotations

from typing import cast

from agentgym.cli.sandbox.action import Request
from agentgym.errors import UserError
from agentgym.sandbox import ImageBackend, SandboxBackend


def image_backend(request: Request) -> tuple[SandboxBackend, ImageBackend]:
    """The same thing twice, once for each of its sides. Raises UserError when it has no image."""
    backend = request.backend(request.arguments.sandbox)
    if not callable(getattr(backend, "build", None)) or not callable(getattr(backend, "clean", None)):
        raise UserError(
            f"sandbox {backend.name!r} needs no image and leaves nothing, so there is nothing to build or clean"
        )
    return backend, cast(ImageBackend, backend)
