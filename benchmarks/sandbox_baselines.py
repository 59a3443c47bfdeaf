"""The alternatives to our sandbox, measured in the same run: docker exec, docker run, a plain process.

They run the same program in the same image and check the same answer. None of them limits a call, isolates it
from the next, or cleans up after it.
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import docker

from agentgym_sandboxes.audit.bench import PRINTED, PROGRAM
from agentgym_sandboxes.audit.timing import Way

EXEC_SDK, EXEC_CLI = "docker exec, SDK", "docker exec, command line"
RUN_SDK, PLAIN = "docker run, SDK", "plain subprocess"
LABEL = "agentgym-benchmark"
PYTHON = sys.executable


class Baselines:
    """Use it as a context manager: it keeps one plain container of the image, which runs only `sleep`."""

    def __init__(self, image: str, at_once: int) -> None:
        self._image = image
        self._name = f"{LABEL}-{uuid.uuid4().hex[:8]}"
        self._client: Any = docker.APIClient(version="auto", timeout=60, num_pools=at_once + 2)
        # Without a network, like ours: setting one up takes longer than everything else.
        host = self._client.create_host_config(network_mode="none")
        self._settings: dict[str, Any] = {"labels": {LABEL: "1"}, "host_config": host}
        self._threads = ThreadPoolExecutor(max_workers=at_once)

    async def __aenter__(self) -> Self:
        await self._in_thread(self._start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._in_thread(lambda: self._client.remove_container(self._name, force=True))
        self._threads.shutdown()
        self._client.close()

    def ways(self) -> list[Way]:
        return [
            Way(name=EXEC_SDK, call=lambda: self._in_thread(self._exec), effort=5),
            Way(name=EXEC_CLI, call=self._exec_by_command, effort=5),
            Way(name=RUN_SDK, call=lambda: self._in_thread(self._run), effort=20),
            Way(name=PLAIN, call=self._plain, effort=2),
        ]

    def _start(self) -> None:
        self._client.create_container(self._image, command=["sleep", "infinity"], name=self._name, **self._settings)
        try:
            self._client.start(self._name)
        except BaseException:
            self._client.remove_container(self._name, force=True)
            raise

    def _exec(self) -> None:
        made = self._client.exec_create(self._name, ["python3", "-c", PROGRAM])
        output, errors = self._client.exec_start(made["Id"], demux=True)
        exit_code = self._client.exec_inspect(made["Id"])["ExitCode"]
        _check(exit_code, output, errors)

    async def _exec_by_command(self) -> None:
        await _process("docker", "exec", self._name, "python3", "-c", PROGRAM)

    def _run(self) -> None:
        """Create, start, wait, read, remove: the steps of `docker run --rm`."""
        made = self._client.create_container(self._image, command=["python3", "-c", PROGRAM], **self._settings)
        try:
            self._client.start(made["Id"])
            exit_code = self._client.wait(made["Id"])["StatusCode"]
            output = self._client.logs(made["Id"], stdout=True, stderr=False)
        finally:
            self._client.remove_container(made["Id"], force=True)
        _check(exit_code, output, b"")

    async def _plain(self) -> None:
        await _process(PYTHON, "-c", PROGRAM)

    async def _in_thread(self, function: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, function)


async def _process(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    _check(process.returncode, output, errors)


def _check(exit_code: int | None, output: bytes | None, errors: bytes | None) -> None:
    if exit_code != 0 or output != PRINTED.encode():
        raise RuntimeError(f"a baseline answered {output!r}, {errors!r}, exit code {exit_code}")
