"""The command-line agents that people use, unchanged: what each needs to work without a person and without a network.

A program's settings are written into its empty home; its telemetry, updates and calls that name a session are off.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

from agentgym.agents import AgentContext, AgentFailed
from agentgym.errors import UserError
from agentgym.programs import Program
from agentgym.sandbox import Session
from agentgym.tools import Schema
from agentgym.types import Json, Message
from agentgym_plugins.agents.carried import AT, Carried, cache_folder
from agentgym_plugins.agents.command import StartedProgram, arguments_of, environ_of, whole_path
from agentgym_plugins.agents.in_session import HOME, write_home

log = logging.getLogger(__name__)

VERSION_S = 300.0  # of a first start, which compiles hundreds of Python modules
_GEMINI_TOKENS = 1_048_576  # what Gemini CLI takes for the context of a model that it does not know


@dataclass(frozen=True, kw_only=True)
class CliAgent(StartedProgram):
    """A command-line agent, started in an empty folder with the task as its prompt; its last message is the answer."""

    installs: ClassVar[str] = "npm install -g"
    """The command that installs a package."""
    package: ClassVar[str]
    """With the version that was tested."""
    side_words: ClassVar[str] = ""
    """Words in the last message of a call that summarises the session although it has tools."""
    continues: ClassVar[Sequence[str]]
    """Words that have it go on with its last conversation."""

    program: str
    """The program: its name on PATH, or its path."""
    flags: tuple[str, ...] = ()
    """More of its own options."""
    context_tokens: int = 32_000
    """At how many tokens of a conversation it compacts it; give what rollout.max_episode_tokens leaves."""
    side_calls: Literal["mask", "train"] = "mask"
    """What becomes of turns in which it names its session or summarises it: they are not trained, or as all others."""
    max_idle_calls: int = 40
    """Calls of the policy in a row that call no tool, continue no conversation and have no longer prompt than those
    before, at which the episode ends as the agent's fault: it never stops compacting. 0 is no limit."""
    memory_mib: int = 0
    """Memory of each of its processes, in MiB; 0 is no limit. JavaScript engines reserve far more than they use."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_idle_calls < 0:
            raise ValueError(f"max_idle_calls is {self.max_idle_calls}; give at least 1, or 0 for no limit")
        if self.context_tokens < 1000:
            raise ValueError(f"context_tokens is {self.context_tokens}; give at least 1000")

    @abstractmethod
    def options(self) -> Sequence[str]:
        """The options with which it asks nobody and ends by itself, a subcommand before them."""

    def words(self, *, again: bool) -> Sequence[str]:
        return whole_path(self.program), *self.options(), *self.flags, *(self.continues if again else ())

    def stdin(self, context: AgentContext, *, again: bool) -> str:
        """The prompt, which may be longer than an argument, and begin as an option does."""
        [prompt] = arguments_of(["{prompt}" if again else "{instructions}"], context, "", "", "")
        return prompt

    def installed(self) -> Path:
        """The file of the program that a session is given."""
        return Path(shutil.which(self.program, path=self.environ.get("PATH")) or self.program).resolve()

    @cached_property
    def _carried(self) -> Carried:
        return Carried.of(self.installed(), self.environ.get("PATH"))

    async def volumes(self) -> Mapping[str, str]:
        if self.where == "process":
            return {}
        return {AT: str(await asyncio.to_thread(self._carried.folder, cache_folder()))}

    def words_inside(self, *, again: bool) -> Sequence[str]:
        return *self._carried.words, *self.words(again=again)[1:]

    async def prepare_inside(self, context: AgentContext, session: Session, url: str) -> Mapping[str, str]:
        """Its settings are those of a process, with the home and the endpoint as the session has them."""
        variables, texts = await asyncio.to_thread(self._settings, context)
        own, outside = variables["HOME"], context.url

        def inside(text: str) -> str:
            return text.replace(own, HOME).replace(outside, url)

        await write_home(session, {path: inside(text) for path, text in texts.items()})
        return {name: inside(value) for name, value in variables.items()}

    def _settings(self, context: AgentContext) -> tuple[dict[str, str], dict[str, str]]:
        """Its environment variables in a process, and what it would have in its home then, by path."""
        with tempfile.TemporaryDirectory(prefix="agentgym-agent-") as folder:
            home, task = Path(folder), json.dumps({"messages": context.messages, "model": context.model})
            own = self.variables(context, home)
            files = (one for one in home.rglob("*") if one.is_file())
            texts = {str(one.relative_to(home)): one.read_text(encoding="utf-8") for one in files}
            shared = environ_of(context, context.url, f"{home}/task.json")
            return {"HOME": str(home), **shared, **own}, {"task.json": task, **texts}

    def is_side_call(self, messages: Sequence[Message], tools: Sequence[Schema]) -> bool:
        """Calls without tools are such, as all of its own work has some."""
        summarises = bool(self.side_words) and self.side_words in messages[-1]["content"]
        return self.side_calls == "mask" and (not tools or summarises)

    async def check(self) -> None:
        """Raises UserError for a program that is missing or does not start."""
        if shutil.which(self.program, path=self.environ.get("PATH")) is None:
            raise UserError(
                f"agent.program: there is no program {self.program!r}; `{self.installs} {self.package}` installs the "
                "tested one; agent.program takes its path"
            )
        found = await self.version()
        if self.tested not in found:
            log.warning("%s is %s; the tested version is %s", self.program, found, self.tested)
        vars(self)["_version"] = found
        if self.where == "session":
            _ = self._carried

    @property
    def tested(self) -> str:
        """The version that was tested."""
        return re.split("@|==", self.package)[-1]

    async def version(self) -> str:
        """What the program says of its version. Raises UserError where it does not start."""
        with tempfile.TemporaryDirectory(prefix="agentgym-agent-") as home:
            argv, environ = (whole_path(self.program), "--version"), {"HOME": home, **self.environ}
            program = Program(argv, folder=Path(home), environ=environ, output_mib=1)
            try:
                return (await program.run(VERSION_S)).strip()
            except AgentFailed as error:
                raise UserError(f"`{self.program} --version`: {error.message}{program.output[-500:]}") from None

    async def play(self, context: AgentContext) -> None:
        context.note("version", vars(self).get("_version", ""))
        await super().play(context)


@dataclass(frozen=True, kw_only=True)
class ClaudeCode(CliAgent):
    """Anthropic's Claude Code, with its tools for commands and files; its prompt is short with `--bare`."""

    package = "@anthropic-ai/claude-code@2.1.332"
    side_words = "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools."
    continues = ("--continue",)

    program: str = "claude"
    bare: bool = True
    """Its short system prompt of 4 KB and three tools, instead of 50 KB and all of them."""

    def options(self) -> Sequence[str]:
        return "-p", *(["--bare"] if self.bare else []), "--permission-mode", "bypassPermissions"

    def stdin(self, context: AgentContext, *, again: bool) -> str:
        """With a line before a slash, or it is a command that the program answers without the policy."""
        prompt = super().stdin(context, again=again)
        return f"\n{prompt}" if prompt.startswith("/") else prompt

    def variables(self, context: AgentContext, home: Path) -> Mapping[str, str]:
        least = 100_000  # it takes no smaller one, and compacts when the endpoint refuses a prompt as too long
        window = {"CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(self.context_tokens)} if self.context_tokens >= least else {}
        return {
            **window,
            "ANTHROPIC_MODEL": context.model,
            "ANTHROPIC_SMALL_FAST_MODEL": context.model,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "IS_SANDBOX": "1",  # or it refuses to run as root without asking for permissions
        }


@dataclass(frozen=True, kw_only=True)
class Codex(CliAgent):
    """OpenAI's Codex, with its tools for commands; sub-agents, goals and search on the web are off."""

    package = "@openai/codex@0.171.0"
    continues = ("resume", "--last", "-")

    program: str = "codex"

    def installed(self) -> Path:
        """The program that the script of the package starts, in the package for this kind of machine."""
        script = super().installed()
        for packages in (script.parents[2], script.parents[1] / "node_modules" / "@openai"):
            for found in packages.glob("codex-linux-*/vendor/*/bin/codex"):
                return found
        return script

    def options(self) -> Sequence[str]:
        return "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"

    def variables(self, context: AgentContext, home: Path) -> Mapping[str, str]:
        config = home / ".codex" / "config.toml"
        config.parent.mkdir(exist_ok=True)
        text = {  # a string of JSON is one of TOML
            "model": context.model, "model_provider": "endpoint", "web_search": "disabled",
            "model_reasoning_summary": "none", "model_context_window": self.context_tokens,
            "model_auto_compact_token_limit": self.context_tokens * 9 // 10,
        }  # fmt: skip
        provider: dict[str, Json] = {
            "name": "endpoint", "base_url": f"{context.url}/v1", "env_key": "OPENAI_API_KEY", "wire_api": "responses",
        }  # fmt: skip
        tables: dict[str, dict[str, Json]] = {
            "features": {"goals": False}, "agents": {"enabled": False}, "analytics": {"enabled": False},
            "model_providers.endpoint": provider,
        }  # fmt: skip
        lines = [f"{name} = {json.dumps(value)}" for name, value in text.items()]
        for name, values in tables.items():
            lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
        config.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return {}


@dataclass(frozen=True, kw_only=True)
class OpenCode(CliAgent):
    """OpenCode; it is not asked to compact, because it never ends when its own prompt exceeds the limit."""

    package = "opencode-ai@1.18.33"
    continues = ("--continue",)

    program: str = "opencode"

    def options(self) -> Sequence[str]:
        return "run", "-m", "endpoint/{model}", "--title", "task"

    def variables(self, context: AgentContext, home: Path) -> Mapping[str, str]:
        limit = {"context": self.context_tokens, "output": self.context_tokens // 4}
        provider: dict[str, Json] = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": f"{context.url}/v1", "apiKey": context.key},
            "models": {context.model: {"name": context.model, "limit": limit}},
        }
        config = {
            "provider": {"endpoint": provider}, "permission": {"bash": "allow", "edit": "allow"},
            "share": "disabled", "autoupdate": False, "compaction": {"auto": False},
        }  # fmt: skip
        file = home / ".config" / "opencode" / "opencode.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(config), encoding="utf-8")
        names = ("MODELS_FETCH", "AUTOUPDATE", "SHARE", "LSP_DOWNLOAD")
        return {f"OPENCODE_DISABLE_{name}": "1" for name in names}


@dataclass(frozen=True, kw_only=True)
class QwenCode(CliAgent):
    """Qwen Code, with all of its tools: a prompt of 77 KB."""

    package = "@qwen-code/qwen-code@0.24.4"
    continues = ("--continue",)

    program: str = "qwen"

    def options(self) -> Sequence[str]:
        return "--yolo", "--auth-type", "openai"

    def variables(self, context: AgentContext, home: Path) -> Mapping[str, str]:
        settings = {
            "memory": {f"enable{name}": False for name in ("ManagedAutoMemory", "ManagedAutoDream", "AutoSkill")},
            "general": {"enableAutoUpdate": False},
            "privacy": {"usageStatisticsEnabled": False},
        }
        file = home / ".qwen" / "settings.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(settings), encoding="utf-8")
        return {"OPENAI_MODEL": context.model}


@dataclass(frozen=True, kw_only=True)
class GeminiCli(CliAgent):
    """Google's Gemini CLI, with its tools for commands and files."""

    package = "@google/gemini-cli@0.61.0"
    continues = ("--resume", "latest")

    program: str = "gemini"

    def options(self) -> Sequence[str]:
        return "-m", "{model}", "--yolo"

    def variables(self, context: AgentContext, home: Path) -> Mapping[str, str]:
        settings = {
            "security": {"auth": {"selectedType": "gemini-api-key"}},
            "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
            "privacy": {"usageStatisticsEnabled": False},
            "model": {"compressionThreshold": self.context_tokens / _GEMINI_TOKENS},
        }
        file = home / ".gemini" / "settings.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(settings), encoding="utf-8")
        return {
            "GEMINI_API_KEY": context.key,
            "GOOGLE_GEMINI_BASE_URL": context.url,
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
        }
