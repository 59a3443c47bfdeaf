"""A trial in a session: what it does, and that the session works afterwards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from agentgym.sandbox import Limits, RunStatus, SandboxBackend, Session
from agentgym_sandboxes.audit.findings import Category, Judgement, broken, escaped
from agentgym_sandboxes.audit.host import Host
from agentgym_sandboxes.audit.programs.checks import described
from agentgym_sandboxes.audit.trial import Scene

LIMITS = Limits(wall_s=30.0, cpu_s=10, memory_mib=256)


class NotMade(Exception):
    """The session's code did not make what the trial is about; holds its result on one line."""


def in_session(name: str, tries: str, act: Callable[[Session], Awaitable[Judgement]]) -> Scene:
    """A scene of one session, which must still work at its end."""

    async def leased(backend: SandboxBackend, host: Host) -> Judgement:
        async with backend.session() as session:
            try:
                judgement = await act(session)
            except NotMade as error:
                judgement = broken(str(error))
            alive = await session.run("print(6 * 7)", limits=LIMITS)
            if alive.stdout != "42\n":
                return escaped(f"the session no longer works: {described(alive)}")
            return judgement

    return Scene(name, tries, leased, category=Category.HANDED_BACK, claim="sessions")


async def make(session: Session, code: str) -> None:
    """Run code that must print `made`. Raises NotMade."""
    result = await session.run(code, limits=LIMITS)
    if result.status is not RunStatus.OK or "made" not in result.stdout:
        raise NotMade(described(result))
