"""Runs code as a plain process of the user's own. It exists for code that its user trusts, by name and flag only."""

from __future__ import annotations

import logging
from typing import ClassVar

from agentgym.errors import UserError
from agentgym.sandbox import Capabilities, SandboxUnavailable
from agentgym_sandboxes.local.backend import LocalBackend
from agentgym_sandboxes.local.python import find_python
from agentgym_sandboxes.unsafe_subprocess.config import UnsafeSubprocessConfig
from agentgym_sandboxes.unsafe_subprocess.enclosure import SubprocessEnclosure

log = logging.getLogger(__name__)

WHAT_IT_MEANS = (
    "code runs as you, with your files, your network and your processes in its reach, and what it starts may outlive it"
)


class UnsafeSubprocessBackend(LocalBackend):
    """See `UnsafeSubprocessConfig` for what can be set."""

    name: ClassVar[str] = "unsafe_subprocess"

    def __init__(self, config: UnsafeSubprocessConfig | None = None) -> None:
        self.config = config or UnsafeSubprocessConfig()
        super().__init__(self.config)

    async def probe(self) -> Capabilities:
        """It enforces nothing. Raises UserError when it is not allowed."""
        self._check_allowed()
        python = await find_python(self.config.python)
        return Capabilities(
            backend=self.name,
            detail=f"no isolation: {WHAT_IT_MEANS}. Python {python.version_text} of {python.path}",
            full_python=True,
        )

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), "sandbox/unsafe": 1.0}

    async def _prepare(self) -> str:
        self._check_allowed()
        log.warning("sandbox 'unsafe_subprocess' is not a sandbox: %s", WHAT_IT_MEANS)
        return (await find_python(self.config.python)).path

    def _new_enclosure(self) -> SubprocessEnclosure:
        try:
            return SubprocessEnclosure()
        except OSError as error:
            raise SandboxUnavailable(f"no folder for a call could be made: {error}") from error

    def _check_allowed(self) -> None:
        if not self.config.allow_unsafe:
            raise UserError(
                f"sandbox {self.name!r} is not a sandbox: {WHAT_IT_MEANS}. If that is what you want, set "
                "--sandbox.options.allow_unsafe true; else use a sandbox that contains it."
            )
