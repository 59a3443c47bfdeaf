"""The command-line agents that people use, unchanged, started as their users start them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from odd_tokens import calling

from tests.agent_programs import program

pytestmark = pytest.mark.agents

CLAUDE, CODEX = program("claude"), program("codex")
FULL = ["-p", "Write hello to a.txt.", "--permission-mode", "bypassPermissions"]


async def run(folder: Path, argv: list[object], **environ: str) -> str:
    """What the program writes, ended with status 0; HOME is an empty folder beside its work folder."""
    work, home = folder / "work", folder / "home"
    work.mkdir(exist_ok=True)
    home.mkdir(exist_ok=True)
    process = await asyncio.create_subprocess_exec(
        *map(str, argv), cwd=work, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, env={"PATH": os.environ["PATH"], "HOME": str(home), **environ},
    )  # fmt: skip
    output, errors = await process.communicate()
    assert process.returncode == 0, (output + errors).decode()[-3000:]
    return output.decode()


@pytest.mark.parametrize("flags", [[], ["--bare"]], ids=["full", "bare"])
async def test_claude_code_plays_an_episode(play, tmp_path, flags) -> None:
    shell = calling("Bash", '{"command": "printf hello > a.txt", "description": "Write the file"}')
    played = play(shell, "Written.", max_tokens=1_000_000)
    environ = {
        "ANTHROPIC_BASE_URL": played.url, "ANTHROPIC_API_KEY": played.key, "ANTHROPIC_MODEL": "policy",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "IS_SANDBOX": "1",
    }  # fmt: skip
    said = await run(tmp_path, [CLAUDE, *FULL, *flags], **environ)
    assert (tmp_path / "work" / "a.txt").read_text() == "hello" and "Written." in said
    played.prove()
    assert len(played.episode.turns) == 2 and played.num_branches == 1


@pytest.mark.parametrize("compacts", [False, True])
async def test_codex_plays_an_episode(play, tmp_path, compacts) -> None:
    """Compacting is the policy's work, too: what it wrote is a branch, trained as it was sampled."""
    shell = calling("exec_command", '{"cmd": "printf hello > a.txt"}')
    says = [shell, "So far: a.txt is written.", "Written."] if compacts else [shell, "Written."]
    played = play(*says, max_tokens=1_000_000)
    config = tmp_path / "home" / ".codex" / "config.toml"
    config.parent.mkdir(parents=True)
    limit = "model_context_window = 64000\nmodel_auto_compact_token_limit = 2000\n" if compacts else ""
    config.write_text(
        f'model = "policy"\nmodel_provider = "gym"\n{limit}[model_providers.gym]\nname = "gym"\n'
        f'base_url = "{played.url}/v1"\nenv_key = "OPENAI_API_KEY"\nwire_api = "responses"\n'
    )
    argv = [CODEX, "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", FULL[1]]
    said = await run(tmp_path, argv, OPENAI_API_KEY=played.key)
    assert (tmp_path / "work" / "a.txt").read_text() == "hello" and "Written." in said
    played.prove()
    assert len(played.episode.turns) == len(says) and played.num_branches == (3 if compacts else 1)
    assert played.episode.info["agent"]["not_honoured"]["dropped tool web_search"] >= 2
