"""A program that runs where the episode's commands run: inside its sandbox session, without any network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from agentgym.agents import AgentContext, AgentFailed
from agentgym.errors import UserError
from agentgym.programs import exit_reason
from agentgym.sandbox import FileRefused, Limits, RunStatus, Session

TASK: Final = "agent-task.json"  # in the session's work folder, which is where the program starts
MAX_FILES: Final = 100
HOME: Final = "/tmp/agent-home"  # of a command-line agent: outside of the folder that is graded
KEPT_BYTES: Final = 8000  # of each of its outputs, on the episode
LONGEST_S: Final = 86_400.0  # the episode's own time ends it before


async def url_inside(context: AgentContext) -> tuple[Session, str]:
    """The session, and where the endpoint is in it. Raises UserError where a task has no session."""
    if context.session is None:
        raise UserError(
            "agent.where is session, and the episode has none; choose a sandbox with sessions, as "
            "sandbox.name: docker, or leave agent.where at process"
        )
    return context.session, f"http://127.0.0.1:{await context.session.forward(context.url)}"


async def write_task(context: AgentContext, session: Session) -> None:
    """Write what AGENTGYM_TASK names."""
    given = {"messages": context.messages, "tools": [*context.tools], "model": context.model}
    await session.write(TASK, json.dumps(given).encode())


async def write_home(session: Session, texts: Mapping[str, str]) -> None:
    """Write settings into the empty home of a command-line agent. texts: by their paths in it."""
    for path, text in texts.items():
        words = ["sh", "-c", 'umask 077; mkdir -p "${0%/*}" && cat > "$0"', f"{HOME}/{path}"]
        result = await session.exec(words, stdin=text)
        if result.status is not RunStatus.OK:
            raise AgentFailed("home", f"its settings can't be written to {HOME}: {result.stderr[-1000:]}")


async def run_inside(
    context: AgentContext,
    session: Session,
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    stdin: str = "",
    answer_file: str,
    limits: Limits,
) -> str:
    """Run the program once, to its end; returns its answer. Raises AgentFailed for what it did wrong.

    What it wrote, its exit code and the sizes of the files that are there afterwards are noted.
    """
    variables = [f"{name}={value}" for name, value in environ.items()]
    result = await session.exec(["env", *variables, *argv], stdin=stdin, limits=limits)
    context.note("output", result.stdout[-KEPT_BYTES:])
    context.note("errors", result.stderr[-KEPT_BYTES:])
    context.note("exit", result.exit_code)
    found = await session.files()
    context.note("files", {one.path: one.size for one in found[:MAX_FILES] if not one.is_folder})
    if result.status is RunStatus.ERROR:
        code = result.exit_code or 1
        raise AgentFailed("exit", f"it {exit_reason(code)}; it wrote: {result.stderr[-1000:]}")
    if result.status is not RunStatus.OK:
        hit = result.limit
        used = f": {hit.resource} is {hit.allowed:g} at most" if hit is not None else ""
        raise AgentFailed(str(result.status), f"it was ended inside the session{used}")
    if not answer_file:
        return result.stdout.strip()
    if answer_file not in {one.path for one in found}:
        raise AgentFailed("no_answer", f"it ended without writing agent.answer_file = {answer_file!r} in its folder")
    try:
        return (await session.read(answer_file, max_bytes=1 << 20)).decode("utf-8", "replace").strip()
    except FileRefused as error:
        raise AgentFailed("no_answer", f"agent.answer_file = {answer_file!r} can't be read: {error}") from error
