"""A Python function as an agent: it is called with a context, in a kept process of its own."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from agentgym.agents import Agent, AgentContext
from agentgym.errors import UserError, pip_install_only
from agentgym.import_path import is_import_path
from agentgym.types import Json
from agentgym_plugins.agents.workers import Workers, check_python


@dataclass(frozen=True, kw_only=True)
class InProcess(Agent):
    """An agent that is a function in kept processes, each of which plays one episode at a time."""

    extra: ClassVar[str] = ""  # of ours, which installs its packages

    processes: int = 8
    """Episodes that are played at the same time, each in a kept process; the others wait."""
    python: str = ""
    """The interpreter of another environment, where the agent's packages are installed there; empty is this one."""
    environ: dict[str, str] = field(default_factory=dict)
    """Environment variables of the processes; of ours they have PATH and the like."""
    memory_mib: int = 4096
    """Memory of each process, in MiB; 0 is no limit."""
    output_mib: int = 16
    """MiB that may be written in one episode."""
    start_s: float = 120.0
    """Seconds that a process may take to start and import the agent."""

    def __post_init__(self) -> None:
        if self.processes < 1 or self.memory_mib < 0 or self.output_mib < 1 or self.start_s <= 0:
            raise ValueError(
                f"processes {self.processes} and output_mib {self.output_mib} must be at least 1, memory_mib "
                f"{self.memory_mib} at least 0, start_s {self.start_s:g} above 0"
            )

    @abstractmethod
    def called(self) -> tuple[str, Mapping[str, Json]]:
        """The import path of the function, and its keyword arguments besides the context."""

    def variables(self) -> Mapping[str, str]:
        """What its packages need in the environment."""
        return {}

    @cached_property
    def _workers(self) -> Workers:
        function, settings = self.called()
        return Workers(
            function,
            settings,
            environ={**self.variables(), **self.environ},
            python=self.python,
            processes=self.processes,
            memory_mib=self.memory_mib,
            output_mib=self.output_mib,
            start_s=self.start_s,
        )

    @cached_property
    def _slots(self) -> asyncio.Semaphore:
        return asyncio.Semaphore(self.processes)

    async def check(self) -> None:
        """Starts the first process."""
        check_python(self.python)
        try:
            await self._workers.first()
        except UserError as error:
            await self.close()
            advice = f"{self.python or 'python'} -m {pip_install_only(self.extra)}, or set agent.python"
            raise UserError(f"{error}. {advice}" if self.extra else str(error)) from error
        except BaseException:
            await self.close()
            raise

    def slot(self) -> AbstractAsyncContextManager[None]:
        return self._slots

    async def play(self, context: AgentContext) -> None:
        await self._workers.play(context)

    async def close(self) -> None:
        if "_workers" in vars(self):
            await self._workers.close()
        for name in ("_workers", "_slots"):  # another run has another event loop
            vars(self).pop(name, None)


@dataclass(frozen=True, kw_only=True)
class Function(InProcess):
    """A Python function that is called with a context."""

    function: str
    """The function, package.module:name or my_agent.py:name. A plain one has a context whose `call_tool` and `answer`
    block, an `async def` one as `agentgym.AgentContext` describes it."""
    options: dict[str, Json] = field(default_factory=dict)
    """Keyword arguments of the function."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_import_path(self.function):
            raise UserError(f"function is {self.function!r}; give package.module:name or my_agent.py:name")

    def called(self) -> tuple[str, Mapping[str, Json]]:
        return self.function, self.options
