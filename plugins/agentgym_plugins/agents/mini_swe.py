"""mini-swe-agent, unchanged: its default agent and its text-based model; its commands run where the episode's do."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, Literal

from agentgym.errors import UserError
from agentgym.types import Json
from agentgym_plugins.agents.function import InProcess

TEMPLATES: Final = Path(__file__).with_name("templates")


@dataclass(frozen=True, kw_only=True)
class MiniSwe(InProcess):
    """mini-swe-agent; its commands run where the episode's do."""

    extra: ClassVar[str] = "mini_swe"

    templates: str = "mini_textbased"
    """The program's own `mini_textbased`; `tiny`, in which an action is a Python block that is written to a file and
    submitted, for the policy that ships with the package; or a YAML file of the program's kind, with the sections
    agent, model and environment."""
    where: Literal["session", "folder"] = "session"
    """Where commands run: in the episode's session, by the environment's tool `bash` where it has one (as `harbor` has,
    with the task's user and time), or in a folder of this machine, as you."""
    allow_unsafe: bool = False
    """Allow `where: folder` with templates that let the policy write the command itself."""
    step_limit: int = 50
    """Turns of the policy."""
    command_s: float = 30.0
    """Seconds of one command."""
    agent: dict[str, Json] = field(default_factory=dict)
    """Settings that override the section agent of the templates, as cost_limit."""
    model: dict[str, Json] = field(default_factory=dict)
    """Settings that override the section model of the templates."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step_limit < 1 or self.command_s <= 0:
            raise ValueError(f"step_limit {self.step_limit} must be at least 1, command_s {self.command_s:g} above 0")
        if self.where == "folder" and self.templates != "tiny" and not self.allow_unsafe:
            raise ValueError(
                "where: folder runs what the policy writes as you, on this machine, with your files and your network "
                "in its reach; take where: session, or, if that is what you want, set allow_unsafe: true"
            )
        if self.templates not in ("mini_textbased", "tiny") and not Path(self.templates).is_file():
            raise UserError(f"templates is {self.templates!r}; give mini_textbased, tiny or a YAML file")

    @property
    def wants_session(self) -> bool:
        return self.where == "session"

    def turn_saying(self, text: str) -> str:
        submits = f"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo {shlex.quote(text)}"
        return text if self.templates == "tiny" else f"```mswea_bash_command\n{submits}\n```"

    def variables(self) -> Mapping[str, str]:
        return {
            "MSWEA_SILENT_STARTUP": "1",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",  # the client of the endpoint tries again by itself
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # it is fetched from the network otherwise
        }

    def called(self) -> tuple[str, Mapping[str, Json]]:
        own = TEMPLATES / "mini_swe_tiny.yaml"
        file = own if self.templates == "tiny" else "" if self.templates == "mini_textbased" else Path(self.templates)
        settings: dict[str, Json] = {
            "file": str(file),
            "where": self.where,
            "step_limit": self.step_limit,
            "command_s": self.command_s,
            "agent": self.agent,
            "model": self.model,
        }
        return "agentgym_plugins.agents.mini_swe_program:play", settings
