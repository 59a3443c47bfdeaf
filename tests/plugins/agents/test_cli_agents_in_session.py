"""Command-line agents inside a session: they come along, reach the endpoint and nothing else, and change its files."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from agentgym.env import Environment, Reply
from agentgym.rollout.config import RolloutConfig
from agentgym.sandbox import Session
from agentgym.testing import play_agent
from agentgym.types import SandboxSpec, Stop, Task
from agentgym_plugins.agents.cli_agents import CliAgent
from agentgym_sandboxes.docker.backend import DockerBackend
from agentgym_sandboxes.docker.config import DockerConfig
from tests.plugins.agents.test_cli_agents import AGENTS, WRITE
from tests.sandboxes.images import image_of, static_busybox

pytestmark = [pytest.mark.agents, pytest.mark.docker, pytest.mark.usefixtures("engine")]

CARRIED = ("claude_code", "codex", "gemini_cli", "opencode", "qwen_code")
SAYS = "printf hello > a.txt; bash -c ': > /dev/tcp/1.1.1.1/443'"
CONFIG = RolloutConfig(max_turns=6, max_turn_tokens=2000, max_episode_tokens=1_000_000, episode_time_s=600)


class WriteHello(Environment[Session]):
    """Looks into the session's files, and asks once more."""

    name = "write_hello"
    rewards = {"success": 1.0}
    max_turns = 2

    def tasks(self, split, seed=0):
        yield Task(
            task_id="t", prompt=({"role": "user", "content": "Write hello."},), sandbox=SandboxSpec(session=True)
        )

    async def start(self, context):
        return context.session

    async def reply(self, context):
        session = context.state
        context.info["files"] = sorted(one.path for one in await session.files())
        context.info["success"] = await session.read("a.txt") == b"hello"
        if context.turn == 2:
            return Reply(done=True)
        return Reply(messages=({"role": "user", "content": "And once more?"},))


@asynccontextmanager
async def sandbox(agent: CliAgent, **options: object) -> AsyncIterator[DockerBackend]:
    await agent.check()
    config = DockerConfig(
        pool_size=1, spares=0, spare_sessions=0, reap_every_s=1e6, volumes=dict(await agent.volumes())
    )
    async with DockerBackend(replace(config, **options)) as backend:
        yield backend


@pytest.mark.parametrize("name", CARRIED)
async def test_an_agent_in_a_session_changes_its_files_and_reaches_the_policy_alone(name: str) -> None:
    await play_in_session(name)


@pytest.mark.parametrize(("name", "profile"), [("claude_code", "hardened"), ("codex", "task"), ("qwen_code", "task")])
async def test_an_agent_brings_all_that_an_image_of_one_busybox_lacks(name: str, profile: str, tmp_path: Path) -> None:
    busybox = static_busybox(tmp_path)
    assert busybox is not None, "there is no static busybox"
    with image_of(busybox, ["ENV PATH=/bin", "WORKDIR /srv/app"]) as image:
        await play_in_session(name, session_image=image, session_profile=profile)


async def play_in_session(name: str, **options: object) -> None:
    agent, acts = AGENTS[name]
    agent = replace(agent, where="session")
    replies = [json.loads(json.dumps(acts).replace(WRITE, SAYS)), "Written.", "Once more."]
    prompts = []

    def policy(prompt):
        prompts.append(prompt)
        return replies[len(prompts) - 1]

    async with sandbox(agent, container_memory_mib=2048, cpus=2.0, **options) as backend:
        episode = await play_agent(agent, WriteHello(), policy, config=CONFIG, sandbox=backend)
    notes = episode.info["agent"]
    assert episode.stop is Stop.DONE and episode.info["success"] is True, notes
    assert episode.info["files"] == ["a.txt"] and len(prompts) == 3
    lost = "(empty)\nError: (none)\nExit Code: 1\n"  # Qwen Code may lose what a command prints that ends at once
    assert ("Network is unreachable" in prompts[1] or lost in prompts[1]) and "And once more?" in prompts[2]


@dataclass(frozen=True, kw_only=True)
class Script(CliAgent):
    """A script for Node."""

    package = "script@1.0.0"
    continues = ()

    program: str = ""

    def options(self):
        return ()


async def test_what_a_carried_program_does_wrong_is_its_own_and_what_it_wrote_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "package" / "script.js"
    file.parent.mkdir()
    file.with_name("package.json").write_text("{}")
    file.write_text(
        "#!/usr/bin/env node\nif (process.argv.includes('--version')) process.exit();\n"
        "console.error('begun in', process.env.HOME);\neval(process.argv[2]);\n"
    )
    file.chmod(0o755)
    agent = Script(program=str(file), where="session", output_mib=1)
    wrong = {
        "exit": ("process.exit(3)", 0.0),
        "timeout": ("for (;;);", 2.0),
        "output_limit": ("for (;;) require('fs').writeSync(1, 'x'.repeat(65536))", 0.0),
        "oom": ("const kept = []; for (;;) kept.push(Buffer.alloc(1 << 24, 1))", 0.0),
    }
    async with sandbox(agent, container_memory_mib=512) as backend:
        for kind, (script, time_s) in wrong.items():
            one = replace(agent, flags=(script,), time_s=time_s)
            episode = await play_agent(one, WriteHello(), [], config=CONFIG, sandbox=backend)
            notes = episode.info["agent"]
            assert episode.stop is Stop.AGENT and notes["failure"]["kind"] == kind, (kind, episode.error, notes)
            begun = "begun in /tmp/agent-home" in notes["errors"]
            assert len(notes["output"]) <= 8000 and (begun or kind in ("oom", "timeout"))  # on a busy machine too late
