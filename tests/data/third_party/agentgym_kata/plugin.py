"""What this package brings, by name."""

from __future__ import annotations

from agentgym import MetricSink, Reward, hookimpl
from agentgym.sandbox import SandboxBackend, SandboxOptions, SandboxPlugin
from agentgym_kata.environment import Kata, short
from agentgym_kata.sink import Report

agentgym_api = "0.1"


@hookimpl
def environments() -> dict[str, type[Kata]]:
    return {"kata": Kata}


@hookimpl
def rewards() -> dict[str, Reward]:
    return {"short": Reward(name="short", function=short, inline=True)}


@hookimpl
def sandboxes() -> dict[str, SandboxPlugin]:
    return {"plain": SandboxPlugin(create=_plain, config="agentgym_kata.plain:Plain")}


@hookimpl
def sinks() -> dict[str, type[MetricSink]]:
    return {"report": Report}


@hookimpl
def losses() -> dict[str, str]:
    return {"pulled": "agentgym_kata.training:Pulled"}


@hookimpl
def advantages() -> dict[str, str]:
    return {"signs": "agentgym_kata.training:Signs"}


@hookimpl
def tool_formats() -> dict[str, str]:
    return {"tags": "agentgym_kata.tags:Tags"}


@hookimpl
def agents() -> dict[str, str]:
    return {"drafts": "agentgym_kata.drafts:Drafts"}


def _plain(options: SandboxOptions) -> SandboxBackend:
    from agentgym_kata.plain import Plain

    return Plain(**options)
