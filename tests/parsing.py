"""Runs programs up to where their arguments are parsed, each in a fork of one process that imported what is slow.

A line of JSON in, {"folder", "words"}, words as after `python`; one out, {"code", "printed", "errors"}.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any


@cache
def _server() -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def parsed(words: Sequence[str], folder: Path) -> dict[str, Any]:
    """What `python WORDS` gave in a folder, ended with 0 where it parsed its arguments."""
    server = _server()
    assert server.stdin and server.stdout
    server.stdin.write(json.dumps({"folder": str(folder), "words": [*words]}) + "\n")
    server.stdin.flush()
    found: dict[str, Any] = json.loads(server.stdout.readline())
    return found


def _run(words: list[str]) -> None:
    parse = argparse.ArgumentParser.parse_args

    def parse_args(self: argparse.ArgumentParser, *given: Any) -> None:
        parse(self, *given)
        raise SystemExit(0)

    argparse.ArgumentParser.parse_args = parse_args  # type: ignore[assignment, method-assign]
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path.insert(0, "")
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path.insert(0, str(Path(words[0]).parent))
        runpy.run_path(words[0], run_name="__main__")


def _forked(folder: str, words: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as errors:
        if not (child := os.fork()):
            code = 1
            try:
                os.dup2(printed.fileno(), 1)
                os.dup2(errors.fileno(), 2)
                os.chdir(folder)
                _run(words)
                code = 0
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
                if isinstance(ended.code, str):
                    print(ended.code, file=sys.stderr)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        texts = []
        for file in (printed, errors):
            file.seek(0)
            texts.append(file.read())
    return {"code": code, "printed": texts[0], "errors": texts[1]}


def _serve() -> None:
    import agentgym.cli.main
    import agentgym.run.services
    import agentgym.trainer.engine  # noqa: F401 - what most programs import, and seconds long

    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(_forked(asked["folder"], asked["words"])), flush=True)


if __name__ == "__main__":
    sys.path.pop(0)  # this folder, which is no program's
    _serve()
