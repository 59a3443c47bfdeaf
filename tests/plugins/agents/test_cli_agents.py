"""The command-line agents: unchanged, from npm and PyPI, each with its own settings; what is missing is said."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest

from agentgym.env import Environment, Reply
from agentgym.errors import UserError
from agentgym.rollout.config import RolloutConfig
from agentgym.testing import play_agent
from agentgym.types import Message, Outcome, Stop, Task
from agentgym_plugins.agents.aider import Aider
from agentgym_plugins.agents.cli_agents import ClaudeCode, Codex, GeminiCli, OpenCode, QwenCode
from agentgym_plugins.agents.openhands import OpenHands
from tests.agent_programs import NEWEST, program

WRITE = "printf hello > a.txt"
WRITTEN = "a.txt\n```\nhello\n```\n"


def calls(tool: str, **arguments: object) -> Message:
    """The policy's turn that calls a tool."""
    return {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": tool, "arguments": arguments}}]}


AGENTS = {
    "aider": (Aider(program=program("aider")), WRITTEN),
    "claude_code": (ClaudeCode(program=program("claude")), calls("Bash", command=WRITE, description="Write")),
    "claude_code_full": (
        ClaudeCode(program=program("claude"), bare=False), calls("Bash", command=WRITE, description="Write"),
    ),
    "codex": (Codex(program=program("codex")), calls("exec_command", cmd=WRITE)),
    "gemini_cli": (
        GeminiCli(program=program("gemini")), calls("run_shell_command", command=WRITE, description="Write"),
    ),
    "opencode": (OpenCode(program=program("opencode")), calls("bash", command=WRITE, description="Write")),
    "openhands": (OpenHands(program=program("openhands")), calls("terminal", command=WRITE, security_risk="LOW")),
    "qwen_code": (
        QwenCode(program=program("qwen")),
        calls("run_shell_command", command=WRITE, is_background=False, description="Write"),
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
    agent, acts = AGENTS[name]
    replies = [acts, "Written.", "Once more."] if name != "aider" else [acts, "Once more."]
    prompts = []

    def policy(prompt):
        prompts.append(prompt)
        return replies[len(prompts) - 1]

    config = RolloutConfig(max_turns=6, max_turn_tokens=2000, max_episode_tokens=1_000_000, episode_time_s=280)
    episode = await play_agent(agent, TwoQuestions(), policy, config=config)
    notes = episode.info["agent"]
    assert episode.stop is Stop.DONE and episode.info["success"] is True, notes
    assert {name: text.strip() for name, text in notes["files"].items()} == {"a.txt": "hello"}
    assert len(prompts) == len(replies)  # no call names a session, or remembers
    assert "Be brief.\n\nWrite hello." in prompts[0] and "-- And once more?" in prompts[-1]
    rewrites = name in (
        "aider",
        "gemini_cli",
        "qwen_code",
    )  # its own words, files or the date are in what was said before
    assert bool(episode.branch_reasons) == rewrites, episode.branch_reasons
    assert NEWEST or agent.tested in notes["version"]


@pytest.mark.agents
async def test_gemini_cli_compacts_before_another_prompt_and_what_it_wrote_is_a_branch():
    count = calls("run_shell_command", command="seq 1 3000", description="Count")
    summary = "<state_snapshot>It was counted.</state_snapshot>"
    replies = [count, "Counted.", summary, summary, "Once more."]
    prompts = []

    def policy(prompt):
        prompts.append(prompt)
        return replies[len(prompts) - 1]

    agent = GeminiCli(program=program("gemini"), context_tokens=4000)
    config = RolloutConfig(max_turns=6, max_turn_tokens=2000, max_episode_tokens=1_000_000, episode_time_s=280)
    episode = await play_agent(agent, TwoQuestions(), policy, config=config)
    assert episode.stop is Stop.DONE and episode.info["success"] is True, episode.info["agent"]
    assert ["2999" in prompt for prompt in prompts] == [False, True, True, True, False]
    assert summary in prompts[4] and len(episode.all_branches) == 4 and len(episode.turns) == 5


class Compacting(OpenCode):
    """As its users have it; its base prompt exceeds this limit."""

    def variables(self, context, home):
        found = super().variables(context, home)
        file = home / ".config" / "opencode" / "opencode.json"
        file.write_text(file.read_text().replace('"compaction": {"auto": false}', '"compaction": {"auto": true}'))
        return found


@pytest.mark.agents
async def test_opencode_that_never_stops_compacting_has_failed():
    agent = Compacting(program=program("opencode"), context_tokens=6000, max_idle_calls=5)
    config = RolloutConfig(max_turn_tokens=2000, max_episode_tokens=1_000_000, episode_time_s=280)
    episode = await play_agent(agent, TwoQuestions(), lambda prompt: "Fine.", config=config)
    assert (episode.stop, episode.outcome) == (Stop.AGENT, Outcome.INVALID), episode.info["agent"]
    assert episode.info["agent"]["failure"]["kind"] == "idle_calls" and len(episode.turns) < 20


@pytest.mark.parametrize("kind", [Aider, ClaudeCode, Codex, GeminiCli, OpenCode, OpenHands, QwenCode])
async def test_a_program_that_is_missing_or_does_not_start_is_named(kind, tmp_path):
    with pytest.raises(UserError, match=f"no program 'no-such'; `{kind.installs} {kind.package}`"):
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


@pytest.mark.parametrize(
    ("kind", "event"), [(Aider, ""), (OpenHands, '{"kind": "ConversationErrorEvent", "code": "odd"}')]
)
async def test_a_program_that_ends_without_a_message_of_the_policy_has_failed(kind, event, tmp_path):
    quiet = tmp_path / "quiet"
    quiet.write_text(f"#!/bin/sh\necho before; echo '{event}'\n")
    quiet.chmod(0o755)
    episode = await play_agent(kind(program=str(quiet)), TwoQuestions(), [])
    failure = episode.info["agent"]["failure"]
    assert (
        episode.stop is Stop.AGENT
        and failure["kind"] == "no_answer"
        and ("odd" if event else "before") in failure["message"]
    )


class ThreeLongQuestions(TwoQuestions):
    """So long ones that a conversation has to be compacted."""

    max_turns = 3

    async def reply(self, context):
        if context.turn == 3:
            return Reply(done=True)
        return Reply(messages=({"role": "user", "content": "And once more?" + 3000 * " long"},))


@dataclass(frozen=True, kw_only=True)
class TitledOpenCode(OpenCode):
    """With the call that names its session."""

    def options(self):
        return [word for word in super().options() if word not in ("--title", "task")]


SIDE_CALLS = {  # the agent, the room of a conversation, and whether each of its turns is trained
    "aider": (Aider(program=program("aider"), context_tokens=1000), 1_000_000, [True, True, False, True]),
    "claude_code": (ClaudeCode(program=program("claude")), 30_000, [True, True, False, False, True]),
    "codex": (Codex(program=program("codex"), context_tokens=20_000), 1_000_000, [True, False, True, False, True]),
    "openhands": (OpenHands(program=program("openhands"), context_tokens=9000), 1_000_000, [True, True, False, True]),
    "opencode": (TitledOpenCode(program=program("opencode")), 1_000_000, [False, True, True, True]),
    "all_are_trained": (
        Codex(program=program("codex"), context_tokens=20_000, side_calls="train"), 1_000_000, [True] * 5,
    ),
}  # fmt: skip


@pytest.mark.agents
@pytest.mark.parametrize("name", SIDE_CALLS)
async def test_turns_that_name_or_summarise_a_session_are_kept_and_not_trained(name):
    agent, room, trained = SIDE_CALLS[name]
    said = itertools.count(1)
    config = RolloutConfig(max_turns=20, max_turn_tokens=2000, max_episode_tokens=room, episode_time_s=280)
    episode = await play_agent(agent, ThreeLongQuestions(), lambda prompt: f"This is {next(said)}.", config=config)
    assert episode.stop is Stop.DONE and [not turn.masked for turn in episode.turns] == trained, episode.info
    numbers = [number for number, yes in enumerate(trained, start=1) if not yes]
    assert episode.info["agent"].get("side_turns", []) == numbers
