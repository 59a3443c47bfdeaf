"""What this package brings, by name."""

from __future__ import annotations

from agentgym import Reward, hookimpl
from agentgym.sandbox import SandboxBackend, SandboxOptions, SandboxPlugin
from agentgym_even.environment import EvenLengths, brevity


@hookimpl
def environments() -> dict[str, type[EvenLengths]]:
    return {"even": EvenLengths}


@hookimpl
def rewards() -> dict[str, Reward]:
    return {"brevity": Reward(name="brevity", function=brevity)}


@hookimpl
def losses() -> dict[str, str]:
    return {"pulled": "agentgym_even.training:Pulled"}


@hookimpl
def advantages() -> dict[str, str]:
    return {"signs": "agentgym_even.training:Signs"}


@hookimpl
def sandboxes() -> dict[str, SandboxPlugin]:
    return {"ruler": SandboxPlugin(create=_ruler, auto_rank=-1, interpreter=True)}


def _ruler(options: SandboxOptions) -> SandboxBackend:
    from agentgym_even.ruler import Ruler

    return Ruler(**options)
