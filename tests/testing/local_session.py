"""A session whose Python is this one, with one fault: for the test of the suite of sessions alone."""

from __future__ import annotations

import ast
import contextlib
import io
import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentgym.sandbox import DEFAULT_LIMITS, FileInfo, Limits, RunResult, RunStatus
from agentgym.testing import FakeSandbox, FakeSession


@dataclass
class LocalSession(FakeSession):
    fault: str = ""
    names: dict[str, Any] = field(default_factory=dict)

    async def run(self, code: str, *, stdin: str = "", limits: Limits = DEFAULT_LIMITS) -> RunResult:
        if self.fault == "forgets":
            self.names = {}
        if "while True" in code:
            self.names = {} if self.fault == "loses names" else self.names
            return RunResult(status=RunStatus.TIMEOUT, exit_code=None, stdout="", stderr="")
        body = ast.parse(code).body
        if isinstance(body[-1], ast.Expr) and "print" not in code and self.fault != "shows no value":
            body[-1] = ast.parse(f"print(repr({ast.unparse(body[-1])}))").body[0]
        out = io.StringIO()
        try:
            with contextlib.redirect_stdout(out):
                exec(compile(ast.Module(body, []), "<run>", "exec"), self.names)
        except NameError as error:
            return RunResult(status=RunStatus.ERROR, exit_code=1, stdout="", stderr=str(error))
        return RunResult(status=RunStatus.OK, exit_code=0, stdout=out.getvalue(), stderr="")

    async def exec(
        self, command: str | Sequence[str], *, stdin: str = "", folder: str = ".", limits: Limits = DEFAULT_LIMITS
    ) -> RunResult:
        line = " ".join(command) if self.fault == "joins words" else command
        with tempfile.TemporaryDirectory() as work:
            for name, data in self.contents.items():
                path = Path(work, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            words = ["sh", "-c", line] if isinstance(line, str) else line
            done = subprocess.run(words, cwd=Path(work, folder), input=stdin, capture_output=True, text=True)
        status = RunStatus.ERROR if done.returncode else RunStatus.OK
        return RunResult(status=status, exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr)

    async def read(self, path: str, *, max_bytes: int = 16 << 20) -> bytes:
        return b"\x00data" if self.fault == "reads all" else await super().read(path, max_bytes=max_bytes)

    async def write(self, path: str, data: bytes) -> None:
        await super().write(path.strip("/.") if self.fault == "writes anywhere" else path, data)

    async def files(self, path: str = ".") -> tuple[FileInfo, ...]:
        found = await super().files(path)
        return found[::-1] if self.fault == "unsorted" else found

    async def reset(self) -> None:
        self.contents.clear()
        if self.fault != "keeps names":
            self.names.clear()

    async def restore(self, snapshot: bytes) -> None:
        before = dict(self.contents)
        await super().restore(snapshot)
        if self.fault == "merges":
            self.contents |= before


@dataclass
class LocalSessions(FakeSandbox):
    fault: str = ""

    @asynccontextmanager
    async def session(self, *, network: tuple[str, ...] = ()) -> AsyncIterator[FakeSession]:
        if self.fault != "shares" or not self.sessions:
            self.sessions.append(LocalSession(fault=self.fault))
        yield self.sessions[-1]
