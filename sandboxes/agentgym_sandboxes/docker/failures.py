"""How a Docker engine fails."""

from __future__ import annotations

import agentgym.sandbox
from agentgym.errors import InfraError
from agentgym.sandbox import SandboxUnavailable


class EngineError(InfraError):
    """The engine refused or did not answer."""

    @property
    def status(self) -> int | None:
        """The status of its HTTP answer, if it gave one."""
        from docker.errors import APIError

        cause = self.__cause__
        return cause.status_code if isinstance(cause, APIError) else None


class NoEngineAnswers(SandboxUnavailable):
    """Nothing listens where engines were looked for."""


class ImageGone(SandboxUnavailable):
    """No engine has the image any more, so no container can be started; the message says what makes it."""


class ImageUnusable(ImageGone, agentgym.sandbox.ImageUnusable):
    """A task's image can't hold a session; the message says why."""


class EngineUnreachable(EngineError):
    """The engine did not answer at all, or not in time."""


class EngineDiskFull(EngineError):
    """The engine has no room left where it keeps its containers."""
