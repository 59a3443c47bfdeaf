"""A sandbox for code that its user trusts: a process with limits, and judged by the public grader."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import Self

from agentgym import GradeRequest, LimitHit, Limits, RunResult, RunStatus, SandboxSpec, UserError, Verdict
from agentgym.grading import grade_trusted
from agentgym.programs import kill_all, limited, tagged
from agentgym.sandbox import DEFAULT_LIMITS, Capabilities, SandboxBackend

FLOOD = 128  # times what is kept of an output: then the program is ended


@dataclass
class Plain(SandboxBackend):
    """trusted: has to be set, for programs run with the rights of the user."""

    trusted: bool = False
    num_calls: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if not self.trusted:
            raise UserError("programs run with your rights; set --sandbox.options.trusted true to allow that")

    @property
    def name(self) -> str:
        return "plain"

    def supports(self, spec: SandboxSpec) -> bool:
        return not spec.session and spec.image is None

    async def probe(self) -> Capabilities:
        return Capabilities(backend=self.name, detail="processes with your rights", full_python=True, memory_limit=True)

    async def start(self) -> Self:
        return self

    async def close(self) -> None:
        """Nothing outlives its call."""

    def metrics(self) -> dict[str, float]:
        return {"sandbox/calls_total": self.num_calls}

    async def grade(self, request: GradeRequest) -> Verdict:
        return await grade_trusted(request, self.run)

    async def run(self, code: str, *, stdin: str = "", limits: Limits = DEFAULT_LIMITS) -> RunResult:
        self.num_calls += 1
        tag, environ = tagged({})
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as given:
            given.write(stdin.encode())
            given.seek(0)
            process = await asyncio.create_subprocess_exec(
                *limited([sys.executable, "-s", "-c", code], memory_mib=limits.memory_mib),
                cwd=folder,
                env=environ,
                stdin=given,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
            assert process.stdout is not None and process.stderr is not None
            out, err = _Kept(process.stdout, limits.output_bytes), _Kept(process.stderr, limits.output_bytes)
            late = False
            try:
                async with asyncio.timeout(limits.wall_s):
                    await asyncio.gather(out.read(process), err.read(process))
                    await process.wait()
            except TimeoutError:
                late = True
            finally:
                await asyncio.to_thread(kill_all, process.pid if process.returncode is None else None, tag)
                await asyncio.gather(
                    out.read(process), err.read(process)
                )  # `wait` waits for the ends of the pipes, too
                await process.wait()
        used_s = time.monotonic() - began_s
        status, hit = RunStatus.OK if process.returncode == 0 else RunStatus.ERROR, None
        if late:
            status, hit = RunStatus.TIMEOUT, LimitHit(resource="wall_s", used=used_s, allowed=limits.wall_s)
        elif out.flooded or err.flooded:
            most = max(out.total, err.total)
            status = RunStatus.OUTPUT_LIMIT
            hit = LimitHit(resource="output_bytes", used=most, allowed=FLOOD * limits.output_bytes)
        return RunResult(
            status=status,
            exit_code=process.returncode,
            stdout=out.kept.decode("utf-8", "replace"),
            stderr=err.kept.decode("utf-8", "replace"),
            stdout_bytes=bytes(out.kept),
            stderr_bytes=bytes(err.kept),
            truncated=out.total > len(out.kept) or err.total > len(err.kept),
            wall_s=used_s,
            limit=hit,
        )


class _Kept:
    """The begin of what a program writes."""

    def __init__(self, stream: asyncio.StreamReader, most: int) -> None:
        self._stream, self._most = stream, most
        self.kept, self.total = bytearray(), 0

    @property
    def flooded(self) -> bool:
        return self.total > FLOOD * self._most

    async def read(self, process: asyncio.subprocess.Process) -> None:
        """To its end, which a flood brings about."""
        while piece := await self._stream.read(1 << 16):
            self.kept += piece[: self._most - len(self.kept)]
            self.total += len(piece)
            if self.flooded:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
