"""Runs in the Python of an environment package: answers requests by the operations of the program that it loads.

Nothing of agentgym is imported. Requests and answers are lines of JSON on standard input and on what standard output
was at the start; what the package prints goes to standard error.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

MAX_LINE = 1 << 26
ORDERLY_S = 5.0  # for the package to end what it started, once agentgym was killed
OURS = Path(__file__).parents[1]
TAG = "AGENTGYM_AGENT"  # as in agentgym/programs.py


class Mistake(Exception):
    """The user's: told without a traceback."""


class Server:
    """operations: a class whose asynchronous methods are the requests. Those in its `together` run side by side."""

    def __init__(self, out: int, operations: Any) -> None:
        self._out = out
        self._stack = contextlib.AsyncExitStack()
        self._operations = operations(self._stack)
        self._running: dict[int, asyncio.Task[None]] = {}

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=MAX_LINE)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        async with self._stack:
            while line := await reader.readline():
                request = json.loads(line)
                if request["op"] == "cancel":
                    self._write({"id": request["target"], "value": None})  # at once: to clean up may take long
                    if task := self._running.get(request["target"]):
                        task.cancel()
                    continue
                task = asyncio.create_task(self._answer(request))
                self._running[request["id"]] = task
                if request["op"] not in self._operations.together:
                    await task
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _answer(self, request: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"id": request.pop("id")}
        try:
            answer["value"] = await getattr(self._operations, request.pop("op"))(**request)
        except asyncio.CancelledError:
            answer["error"] = {"kind": "cancelled", "text": ""}
        except Mistake as error:
            answer["error"] = {"kind": "mistake", "text": str(error)}
        except BaseException as error:  # of a package of anybody's
            traceback.print_exc()
            answer["error"] = {"kind": "failed", "text": f"{type(error).__name__}: {error}{_line_of(error)}"}
        finally:
            self._running.pop(answer["id"], None)
        self._write(answer)

    def _write(self, answer: Mapping[str, Any]) -> None:
        line = json.dumps(answer, default=str).encode() + b"\n"
        while line:
            line = line[os.write(self._out, line) :]


def _line_of(error: BaseException) -> str:
    """The line that raised it, unless it is one of ours."""
    *_, last = traceback.extract_tb(error.__traceback__)
    if last.filename.startswith("<frozen") or Path(last.filename).is_relative_to(OURS):
        return ""
    return f" ({last.filename}, line {last.lineno}: {last.line})"


def version_of(package: str) -> str:
    """Its name, and its version where it has one."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return f"{package} {metadata.version(package)}"
    return package


def digest_of(row: Any) -> int:
    """A number that is made of all that is in it."""
    text = json.dumps(row, sort_keys=True, default=str)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


def _end_without(parent: int) -> None:
    """Waits until agentgym is gone: a package that hangs does not see the end of its requests."""
    while os.getppid() == parent:
        time.sleep(0.5)
    time.sleep(ORDERLY_S)
    _end_all()


def _end_all() -> None:
    """Kill what the package has started, which inherited the tag, and this process with its group."""
    sign = f"{TAG}={os.environ[TAG]}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it is gone, or another user's
            if folder.name != str(os.getpid()) and sign in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
    os.killpg(0, signal.SIGKILL)


def _operations_of(program: str) -> Any:
    """The class `Operations` of a file that imports this one by the name that it has beside agentgym."""
    sys.modules["agentgym_envs.packages.serving"] = sys.modules["__main__"]
    spec = importlib.util.spec_from_file_location("agentgym_program", program)
    assert spec is not None and spec.loader is not None, "it is a file of ours"
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Operations


def main() -> None:
    sys.path.pop(0)  # this file's folder, whose modules are not the package's
    threading.Thread(target=_end_without, args=(int(sys.argv[1]),), daemon=True).start()
    out = os.dup(1)
    os.dup2(2, 1)
    asyncio.run(Server(out, _operations_of(sys.argv[2])).serve())
    _end_all()


if __name__ == "__main__":
    main()
