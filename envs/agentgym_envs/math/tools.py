"""What an agent may compute with: a calculator, or a Python in a sandbox of the episode's own."""

from __future__ import annotations

from dataclasses import dataclass

from agentgym.sandbox import Limits, RunStatus, Session
from agentgym.tools import ToolError, tool
from agentgym_envs.math.calculator import CannotCalculate, calculate

MAX_OUTPUT_CHARS = 2000


class Calculator:
    """The tool of `tools: calculator`."""

    @tool(parallel_safe=True)
    def calculate(self, expression: str) -> str:
        """Compute an arithmetic expression exactly.

        Args:
            expression: For example (3 + 4) * 2.5, 15% * 80, sqrt(2) or 7/3.
        """
        try:
            return calculate(expression)
        except CannotCalculate as error:
            raise ToolError(str(error)) from error


@dataclass(frozen=True, slots=True)
class Python:
    """The tool of `tools: python`."""

    _session: Session
    _limits: Limits

    async def python(self, code: str) -> str:
        """Run Python code. Names last until the end of the conversation. Returns what was printed.

        Args:
            code: The program; the value of a last expression is printed.
        """
        result = await self._session.run(code, limits=self._limits)
        printed = (result.stdout + result.stderr).rstrip()
        if len(printed) > MAX_OUTPUT_CHARS:
            printed = f"{printed[:MAX_OUTPUT_CHARS]}\n[cut: {len(printed)} characters were printed]"
        if result.status is RunStatus.OK:
            return printed or "(nothing was printed)"
        limit = result.limit
        why = f"; limit {limit.resource}: {limit.used:g} of {limit.allowed:g}" if limit else ""
        lost = "; all names are lost" if result.state_lost else ""
        raise ToolError(f"{printed}\n[{result.status.value}{why}{lost}]".strip())
