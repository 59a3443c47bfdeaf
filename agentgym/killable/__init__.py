"""Functions in processes that can be killed: calls for plugins, and the pool that rewards and agents use, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentgym.killable.calls import CallFailed, KillableCalls

__all__ = ["CallFailed", "KillableCalls"]


if not TYPE_CHECKING:  # to a type checker, every misspelt name would exist

    def __getattr__(name: str) -> object:
        """Imported at the first use: a child process imports this package, and needs neither."""
        if name in __all__:
            from agentgym.killable import calls

            return getattr(calls, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
