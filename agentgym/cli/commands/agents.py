"""`agentgym agents`: the agents that can play episodes, and whether one works here."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from agentgym.agents import Agent, Chat
from agentgym.commands import run_until_stopped
from agentgym.commands.parser import Parser
from agentgym.commands.shell import Shell
from agentgym.components import SEAMS, component
from agentgym.config import apply_overrides, build
from agentgym.env import Environment, EpisodeContext, Reply
from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.recipe import SandboxConfig
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.sandboxes import choose_sandbox
from agentgym.run.gym import with_volumes
from agentgym.tables.environments import first_line
from agentgym.testing import ScriptedGenerator, play_agent
from agentgym.types import Episode, SandboxSpec, Split, Stop, Task

DESCRIPTION = """
`agentgym agents` lists the agents: programs that play episodes and ask the policy through an endpoint. `agentgym agents
check NAME` starts one as a run does, in one episode that asks for a word and has it say another, with a policy that
only says these; it needs no model. With --agent.where session it does so in a session of the sandbox. It prints what
the program asked for, and why it failed if it did. Settings of the agent are given as --agent.NAME VALUE, those of the
sandbox as --sandbox.NAME VALUE.
"""
EXAMPLES = """
agentgym agents
agentgym agents check claude_code
agentgym agents check codex --agent.program ~/node_modules/.bin/codex
agentgym agents check claude_code --agent.where session --sandbox.options.image my-image:1
agentgym agents check command --agent.argv '[python, my_agent.py, --base-url, "{openai_url}"]'
"""
TAKES_OVERRIDES = True
MAX_TURNS = 20
MAX_TOKENS = 1_000_000
MAX_SHOWN = 600


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="for scripts: JSON on standard output")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", parser_class=Parser)
    check = actions.add_parser(
        "check", help="play one scripted episode with one", description=DESCRIPTION.strip(), examples=EXAMPLES
    )
    check.add_argument("name", metavar="NAME", help="a name, or an import path")
    check.add_argument("--seconds", type=float, default=120.0, metavar="S", help="the episode's time (default 120)")
    check.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="JSON on standard output")
    check.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show an error's traceback")


def run(arguments: argparse.Namespace, shell: Shell) -> int:
    registry = shell.plugins()
    if arguments.action is None:
        return _list(registry, shell, as_json=arguments.json)
    if not 0 < arguments.seconds < math.inf:
        raise UserError(f"--seconds {arguments.seconds:g}: give the seconds that the episode may take, more than 0")
    chosen = _built(arguments.name, arguments.overrides, registry)
    agent = chosen.agent
    if isinstance(agent, Chat):
        raise UserError(f"the agent {arguments.name!r} is the built-in loop, and starts no program; nothing to check")
    generator = ScriptedGenerator([agent.turn_saying(text) for text in ("The word is ready.", "Done.")])
    config = RolloutConfig(
        max_turns=MAX_TURNS, max_turn_tokens=MAX_TOKENS, max_episode_tokens=MAX_TOKENS, max_retries=0,
        episode_time_s=arguments.seconds,
    )  # fmt: skip
    episode = run_until_stopped(_played(chosen, generator, config, registry, shell), shell.warn)
    return _report(arguments, episode, generator, shell)


@dataclass(frozen=True, kw_only=True)
class _Chosen:
    """The part of a recipe that chooses an agent, and the sandbox for one that works in a session."""

    agent: Agent = component("agents", "chat")
    sandbox: SandboxConfig = SandboxConfig()


class _TwoQuestions(Environment[None]):
    """Asks for two answers, so that the program is asked to go on with its conversation."""

    name = "two_questions"
    rewards: ClassVar[dict[str, float]] = {"success": 1.0}
    max_turns = 2

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        yield Task(task_id="check", prompt=({"role": "user", "content": "Say that the word is ready."},))

    async def start(self, context: EpisodeContext[None]) -> None:
        return None

    async def reply(self, context: EpisodeContext[None]) -> Reply:
        context.info["success"] = True
        if context.turn == 2:
            return Reply(done=True)
        return Reply(messages=({"role": "user", "content": "Say that you are done."},))


async def _played(
    chosen: _Chosen, generator: ScriptedGenerator, config: RolloutConfig, registry: PluginRegistry, shell: Shell
) -> Episode:
    """The episode, in a session of the sandbox where the agent works in one. Raises UserError."""
    agent, environment = chosen.agent, _TwoQuestions()
    try:
        if not agent.wants_session:
            return await play_agent(agent, environment, generator, config=config)
        await agent.check()
        sandbox = with_volumes(chosen.sandbox, await agent.volumes(), registry)
        task = replace(next(environment.tasks("test")), sandbox=SandboxSpec(session=True, grades=False))
        backend = await choose_sandbox(sandbox.name, sandbox.options, [task], registry, shell.warn)
        assert backend is not None
        async with backend:
            return await play_agent(agent, environment, generator, config=config, task=task, sandbox=backend)
    finally:
        await agent.close()


def _built(name: str, overrides: Sequence[str], registry: PluginRegistry) -> _Chosen:
    """The agent with its settings. Raises UserError."""
    given = apply_overrides({"agent": {"name": name}}, list(overrides))
    try:
        return build(_Chosen, given, "command line", registry.component)
    except UserError as error:
        if name not in registry.names("agents"):
            raise
        raise UserError(f"{error}; `agentgym settings agent.{name}` shows its settings") from error


def _list(registry: PluginRegistry, shell: Shell, *, as_json: bool) -> int:
    rows: list[tuple[str, str, str]] = []
    for name in sorted({*SEAMS["agents"].builtin, *registry.names("agents")}):
        found = registry.component("agents", name)
        builtin = name in SEAMS["agents"].builtin
        origin = "agentgym" if builtin else registry.provider("agents", name).distribution
        rows.append((name, origin, first_line(found)))
    if as_json:
        shell.say_json([dict(zip(("name", "distribution", "about"), row, strict=True)) for row in rows])
        return 0
    shell.say_table(["agent", "from", "what it is"], rows)
    shell.say("\n`agentgym agents check NAME` starts one; `agentgym settings agent.NAME` shows its settings.")
    return 0


def _report(arguments: argparse.Namespace, episode: Episode, generator: ScriptedGenerator, shell: Shell) -> int:
    """Say how it went; returns the exit code."""
    notes = episode.info.get("agent")
    notes = notes if isinstance(notes, dict) else {}
    well = bool(generator.requests) and episode.error is None and episode.stop is Stop.DONE
    failure = notes.get("failure")
    if failure is None and episode.error is None and not generator.requests:
        failure = {"kind": "no_calls", "message": "it never asked the policy"}
    elif failure is None and episode.stop is Stop.ABANDONED:
        failure = {"kind": "abandoned", "message": "it ended before the environment, which asks for two answers, did"}
    found = {
        "agent": arguments.name,
        "version": notes.get("version"),
        "works": well,
        "stop": episode.stop,
        "calls": len(generator.requests),
        "prompt_characters": max((len(request.prompt_ids) for request in generator.requests), default=0),
        "branches": len(episode.all_branches),
        "branch_reasons": list(episode.branch_reasons),
        "side_turns": notes.get("side_turns", []),
        "not_honoured": notes.get("not_honoured", {}),
        "failure": failure,
        "error": episode.error and episode.error.message,
    }
    if arguments.json:
        shell.say_json(found | {"output": notes.get("output"), "errors": notes.get("errors")})
        return 0 if well else 1
    for key, value in found.items():
        if value not in (None, [], {}) or key == "calls":
            shell.say(f"{key.replace('_', ' '):<18}{_text(value)}")
    if not well:
        for key in ("output", "errors"):
            if text := str(notes.get(key) or "").strip():
                shell.say(f"{key:<18}{text[-MAX_SHOWN:]}")
    return 0 if well else 1


def _text(value: object) -> str:
    """As a person reads it; of a long text the end, which says what failed."""
    if isinstance(value, dict):
        value = ", ".join(f"{key}: {one}" for key, one in value.items())
    elif isinstance(value, list):
        value = ", ".join(map(str, value))
    text = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
    return text if len(text) <= 2 * MAX_SHOWN else f"... {text[-2 * MAX_SHOWN :]}"
