"""Runs in the process of an agent: mini-swe-agent between a context and the policy's endpoint."""

from __future__ import annotations

import platform
import re
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import minisweagent
import yaml
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.exceptions import Submitted
from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel

from agentgym.agents import AgentFailed
from agentgym.env import Reply
from agentgym.sandbox import RunStatus
from agentgym.types import Json
from agentgym_plugins.agents.child import WorkerContext, WorkerSession

SUBMIT: Final = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
_EXIT: Final = re.compile(r"\[exit code (-?\d+)\]")
_ENDED: Final = re.compile(r"\[ended(:| after) .+\]")
OWN: Final = Path(minisweagent.package_dir, "config", "mini_textbased.yaml")


def play(
    context: WorkerContext,
    *,
    file: str,
    where: str,
    step_limit: int,
    command_s: float,
    agent: Mapping[str, Json],
    model: Mapping[str, Json],
) -> None:
    """One episode. file: of templates; empty is the program's own. The rest: see `MiniSwe`."""
    config: dict[str, Any] = yaml.safe_load(Path(file or OWN).read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="agentgym-mini-swe-") as folder:
        environment = ContextEnvironment(context, where, folder, command_s, config.get("environment", {}))
        api = {"api_base": f"{context.url}/v1", "api_key": context.key}
        of_model = {**config.get("model", {}), **model}
        of_model["model_kwargs"] = {**of_model.get("model_kwargs", {}), **api}
        of_agent = {name: value for name, value in config["agent"].items() if name != "mode"}
        of_agent |= {"step_limit": step_limit, "cost_limit": 0.0, **agent}
        program = DefaultAgent(
            LitellmTextbasedModel(model_name=f"openai/{context.model}", **of_model), environment, **of_agent
        )
        try:
            end = program.run("\n\n".join(message["content"] for message in context.messages))
        finally:
            context.note("steps", program.n_calls)
    status = str(end.get("exit_status", ""))
    context.note("exit_status", status)
    if status != "Submitted":
        raise AgentFailed(status or "no_answer", f"mini-swe-agent ended with {status!r} and submitted nothing")


class ContextEnvironment:
    """Where the program's commands run. A submission is the answer to the episode's environment; one that it answers
    is an observation, and the program goes on."""

    def __init__(
        self, context: WorkerContext, where: str, folder: str, command_s: float, config: Mapping[str, Any]
    ) -> None:
        self.config = config
        self._context, self._command_s = context, command_s
        self._command: str = config.get("command", "{action}")
        self._env: dict[str, str] = config.get("env", {})
        self._local = None
        self._has_bash = where == "session" and any(one["function"]["name"] == "bash" for one in context.tools)
        if where == "folder":
            self._local = _Folder(cwd=folder, env=self._env, timeout=max(1, int(command_s)))
        elif context.session is None and not self._has_bash:
            raise AgentFailed("no_session", "the episode has no session of a sandbox; set agent.where: folder")

    def execute(self, action: Mapping[str, str], cwd: str = "") -> dict[str, Any]:
        command = self._command.replace("{end}", f"end_{secrets.token_hex(8)}").replace("{action}", action["command"])
        output = self._run(command)
        submission = _submission(output)
        if submission is None:
            return output
        reply: Reply = self._context.answer(submission)
        if reply.done or not reply.messages:
            raise Submitted(
                {"role": "exit", "content": submission,
                 "extra": {"exit_status": "Submitted", "submission": submission}}
            )  # fmt: skip
        text = "\n\n".join(message["content"] for message in reply.messages)
        return {"output": text, "returncode": 0, "exception_info": ""}

    def _run(self, command: str) -> dict[str, Any]:
        if self._local is not None:
            found: dict[str, Any] = self._local.execute({"command": command})
            return found
        if self._has_bash:  # with the user, the folder and the time that the task gives its agent
            script = _script(command, self._env)
            return _of_tool(self._context.call_tool("bash", {"command": script}))
        assert self._context.session is not None
        return _in_session(self._context.session, command, self._env, self._command_s)

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        return {**platform.uname()._asdict(), "cwd": "", **kwargs}

    def serialize(self) -> dict[str, Any]:
        return {"info": {"config": {"environment": dict(self.config)}}}


class _Folder(LocalEnvironment):  # type: ignore[misc]
    """Its commands, without its own idea of what a submission ends."""

    def _check_finished(self, output: Mapping[str, Any]) -> None:
        return


def _script(command: str, env: Mapping[str, str]) -> str:
    return "".join(f"export {name}='{value}'\n" for name, value in env.items()) + f"exec 2>&1\n{command}"


def _of_tool(text: str) -> dict[str, Any]:
    """What a tool `bash` says: the output and, in brackets in a last line, how a command ended that did not succeed."""
    output, _, last = text.rstrip("\n").rpartition("\n")
    if (failed := _EXIT.fullmatch(last)) is not None:
        return {"output": output, "returncode": int(failed[1]), "exception_info": ""}
    if _ENDED.fullmatch(last):
        fault = f"An error occurred while executing the command: {last.strip('[]')}"
        return {"output": output, "returncode": -1, "exception_info": fault}
    return {"output": text, "returncode": 0, "exception_info": ""}


def _in_session(session: WorkerSession, command: str, env: Mapping[str, str], command_s: float) -> dict[str, Any]:
    ran = session.exec(["sh", "-c", _script(command, env)], wall_s=command_s)
    ended = ran.status in (RunStatus.OK, RunStatus.ERROR)
    fault = "" if ended else f"An error occurred while executing the command: {ran.status.value}"
    return {
        "output": ran.stdout + ran.stderr,
        "returncode": ran.exit_code if ended and ran.exit_code is not None else -1,
        "exception_info": fault,
    }


def _submission(output: Mapping[str, Any]) -> str | None:
    """What follows the line that submits; None where there is none."""
    first, _, rest = str(output["output"]).lstrip().partition("\n")
    return rest if first.strip() == SUBMIT and output["returncode"] == 0 else None
