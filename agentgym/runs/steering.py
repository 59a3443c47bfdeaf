"""What a person asks of a run while it goes on, in a file of its folder: `steering.jsonl`.

Lines are only appended, each by one write, so any number of clients and the run itself can write at once:
{"request": "9f2c41d0", "action": "checkpoint", "time": 1795335544.2}           by a client
{"request": "51b0c7aa", "action": "set", "setting": "optimizer.lr", "value": 1e-5, "time": ...}      the same
{"answer": "9f2c41d0", "state": "applied", "step": 12, "text": "", "time": ...}  by the run, between two steps
"""

from __future__ import annotations

import fcntl
import json
import secrets
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from agentgym.errors import UserError, nearest
from agentgym.runs.changes import is_value
from agentgym.runs.files import append_line, dump_line, writing
from agentgym.types import Json
from agentgym.yaml import dump_inline

FILE = "steering.jsonl"
MAX_BYTES = 2**20  # of the file: beyond it nothing more can be asked
Action = Literal["stop", "checkpoint", "evaluate", "set"]
ACTIONS: tuple[str, ...] = get_args(Action)
State = Literal["waiting", "applied", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """setting, value: of a `set`. step: after which it was applied or refused; None while it waits. text: why, or what
    was done."""

    id: str
    action: Action
    setting: str = ""
    value: Json = None
    time: float
    state: State = "waiting"
    step: int | None = None
    text: str = ""

    @property
    def shown(self) -> str:
        return f"{self.setting}={dump_inline(self.value)}" if self.action == "set" else self.action


@dataclass(slots=True)
class Steering:
    """The requests in a run's folder, in their order. Each `read` goes on where the last one ended."""

    folder: Path
    _found: dict[str, Request] = field(default_factory=dict)
    _offset: int = 0

    @property
    def path(self) -> Path:
        return self.folder / FILE

    def read(self) -> list[Request]:
        """All requests so far. Lines that are none are left out: anybody can write the file."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(MAX_BYTES + 4096)
        except OSError:
            return list(self._found.values())
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            self._take(line)
        return list(self._found.values())

    def waiting(self) -> list[Request]:
        return [one for one in self.read() if one.state == "waiting"]

    def ask(self, action: str, setting: str = "", value: Json = None) -> Request:
        """Append a request. One that waits for the same is returned instead, so two clients ask for one thing.

        setting, value: of a `set`, which are not checked here. Raises UserError for an unknown action, and InfraError
        where the folder can't be written.
        """
        if action not in ACTIONS:
            raise UserError(f"a run can't be asked to {action[:50]!r}.{nearest(action, ACTIONS)}")
        if self.path.is_symlink():
            raise UserError(f"{self.path} is a link; it has to be a file of the run")
        with writing(self.path), self.path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # two clients ask one after the other
            for one in self.waiting():
                if (one.action, one.setting, one.value) == (action, setting, value):
                    return one
            if self.path.stat().st_size > MAX_BYTES:
                raise UserError(f"{self.path} holds {MAX_BYTES} bytes of requests; remove it to ask for more")
            name = secrets.token_hex(4)
            line: dict[str, Json] = {"request": name, "action": action}
            line |= {"setting": setting, "value": value} if action == "set" else {}
            append_line(self.path, dump_line({**line, "time": time.time()}))
            self.read()
            return self._found[name]

    def answer(self, request: Request, state: State, step: int, text: str = "") -> None:
        """Answers a request, in the run. Raises InfraError where the folder can't be written."""
        line: dict[str, Json] = {"answer": request.id, "state": state, "step": step, "text": text, "time": time.time()}
        append_line(self.path, dump_line(line))
        self._found[request.id] = replace(request, state=state, step=step, text=text)

    def _take(self, line: bytes) -> None:
        try:
            record: Any = json.loads(line)
        except ValueError:
            return
        match record:
            case {"request": str(name), "action": str(action), "time": int() | float() as when} if action in ACTIONS:
                setting, value = str(record.get("setting", ""))[:100], record.get("value")
                if action != "set" or (setting and is_value(value)):
                    made = Request(id=name[:40], action=action, setting=setting, value=value, time=when)  # type: ignore[arg-type]
                    self._found.setdefault(name[:40], made)
            case {"answer": str(name), "state": "applied" | "refused" as state, "step": int(step)} if (
                name in self._found
            ):
                text = str(record.get("text", ""))[:500]
                self._found[name] = replace(self._found[name], state=state, step=step, text=text)
