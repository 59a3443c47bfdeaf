"""The command-line agents: unchanged, from npm, each with its own settings; what is missing is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentgym.env import Environment, Reply
from agentgym.errors import UserError
from agentgym.rollout.config import RolloutConfig
from agentgym.testing import play_agent
from agentgym.types import Stop, Task
from agentgym_plugins.agents.cli_agents import ClaudeCode, Codex, GeminiCli, OpenCode, QwenCode

BIN = Path(__file__).parents[3] / ".npm-agents" / "node_modules" / ".bin"
WRITE = "printf hello > a.txt"
AGENTS = {
    "claude_code": (ClaudeCode(program=f"{BIN}/claude"), "Bash", {"command": WRITE, "description": "Write"}),
    "claude_code_full": (
        ClaudeCode(program=f"{BIN}/claude", bare=False), "Bash", {"command": WRITE, "description": "Write"},
    ),
    "codex": (Codex(program=f"{BIN}/codex"), "exec_command", {"cmd": WRITE}),
    "gemini_cli": (GeminiCli(program=f"{BIN}/gemini"), "run_shell_command", {"command": WRITE, "description": "Write"}),
    "opencode": (OpenCode(program=f"{BIN}/opencode"), "bash", {"command": WRITE, "description": "Write"}),
    "qwen_code": (
        QwenCode(program=f"{BIN}/qwen"), "run_shell_command",
        {"command": WRITE, "is_background": False, "description": "Write"},
    ),
}  # fmt: skip


class TwoQuestions(Environment[None]):
    """Asks twice; the second question begins as an option would."""

    name = "two_questions"
    rewards = {"success": 1.0}
    max_turns = 2

    def tasks(self, split, seed=0):
        rules, asks = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Write hello."}
        yield Task(task_id="t", prompt=(rules, asks))

    async def start(self, context):
        return None

    async def reply(self, context):
        context.info.setdefault("heard", []).append(context.messages[-1]["content"])
        context.info["success"] = context.messages[-1]["content"] == "Once more."
        if context.turn == 2:
            return Reply(done=True)
        return Reply(messages=({"role": "user", "content": "-- And once more?"},))


@pytest.mark.agents
@pytest.mark.parametrize("name", AGENTS)
async def test_a_command_line_agent_uses_its_tool_and_goes_on_with_its_conversation(name):
    agent, tool, arguments = AGENTS[name]
    call = {"function": {"name": tool, "arguments": arguments}}
    replies = [{"role": "assistant", "content": "", "tool_calls": [call]}, "Written.", "Once more."]
    prompts = []

    def policy(prompt):
        prompts.append(prompt)
        return replies[len(prompts) - 1]

    config = RolloutConfig(max_turns=6, max_turn_tokens=2000, max_episode_tokens=1_000_000, episode_time_s=280)
    episode = await play_agent(agent, TwoQuestions(), policy, config=config)
    notes = episode.info["agent"]
    assert episode.stop is Stop.DONE and episode.info["success"] is True, notes
    assert notes["files"] == {"a.txt": "hello"} and len(prompts) == 3  # no call names a session, or remembers
    assert "Be brief.\n\nWrite hello." in prompts[0] and "-- And once more?" in prompts[2]
    rewrites = name in ("gemini_cli", "qwen_code")  # what a folder holds, or the date, is in what it said before
    assert bool(episode.branch_reasons) == rewrites, episode.branch_reasons


@pytest.mark.agents
async def test_gemini_cli_compacts_before_another_prompt_and_what_it_wrote_is_a_branch():
    call = {"function": {"name": "run_shell_command", "arguments": {"command": "seq 1 3000", "description": "Count"}}}
    summary = "<state_snapshot>It was counted.</state_snapshot>"
    replies = [{"role": "assistant", "content": "", "tool_calls": [call]}, "Counted.", summary, summary, "Once more."]
    prompts = []

    def policy(prompt):
        prompts.append(prompt)
        return replies[len(prompts) - 1]

    agent = GeminiCli(program=f"{BIN}/gemini", context_tokens=4000)
    config = RolloutConfig(max_turns=6, max_turn_tokens=2000, max_episode_tokens=1_000_000, episode_time_s=280)
    episode = await play_agent(agent, TwoQuestions(), policy, config=config)
    assert episode.stop is Stop.DONE and episode.info["success"] is True, episode.info["agent"]
    assert ["2999" in prompt for prompt in prompts] == [False, True, True, True, False]
    assert summary in prompts[4] and len(episode.all_branches) == 4 and len(episode.turns) == 5


@pytest.mark.parametrize("kind", [ClaudeCode, Codex, GeminiCli, OpenCode, QwenCode])
async def test_a_program_that_is_missing_or_does_not_start_is_named(kind, tmp_path):
    with pytest.raises(UserError, match=f"no program 'no-such'; `npm install -g {kind.package}`"):
        await kind(program="no-such").check()
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho no node here; sleep 100 & exit 3\n")  # what it left holds its output open
    broken.chmod(0o755)
    with pytest.raises(UserError, match=r"broken --version`: it exited with 3; it wrote: no node here"):
        await kind(program=str(broken)).check()
    broken.write_text("of another machine")
    with pytest.raises(UserError, match=r"broken --version`: .*cannot be started: .*Exec format error"):
        await kind(program=str(broken)).check()


@pytest.mark.parametrize("kind", [ClaudeCode, Codex, GeminiCli, OpenCode, QwenCode])
async def test_a_prompt_may_be_longer_than_an_argument_and_begin_as_an_option_or_command(kind, tmp_path):
    reader = tmp_path / "reader"
    reader.write_text("#!/bin/sh\nexec cat\n")
    reader.chmod(0o755)
    asked = "/help --help \0 {key} '\"$HOME" + 200_000 * "x"
    task = Task(task_id="t", prompt=({"role": "user", "content": asked},))
    episode = await play_agent(kind(program=str(reader)), TwoQuestions(), [], task=task)
    first, second = episode.info["heard"]
    assert first.strip() == asked and second == "-- And once more?"
