"""Gives monty's processes a uid and a system call filter of their own, under root."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from agentgym.sandbox import SandboxUnavailable
from agentgym_sandboxes.host.seccomp_filter import filter_program

UID = 61_170  # of no user or package; below 65,536, because many containers map no more
START_TIMEOUT_S = 20.0


def confined_binary() -> tempfile.TemporaryDirectory[str]:
    """A folder with a program `monty` that gives up root's rights and becomes the real one; remove it after use.

    Raises SandboxUnavailable where the system does not allow it.
    """
    folder = tempfile.TemporaryDirectory(prefix="agentgym-monty-")
    try:
        filter_path, wrapper = Path(folder.name) / "filter", Path(folder.name) / "monty"
        filter_path.write_bytes(filter_program())
        words = [sys.executable, "-I", "-S", str(Path(__file__).with_name("confined.py"))]
        command = shlex.join([*words, str(UID), str(filter_path), _real_binary()])
        wrapper.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        wrapper.chmod(0o700)
        tried = subprocess.run(
            [wrapper, "--version"], capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False
        )
        if tried.returncode:
            raise SandboxUnavailable(tried.stderr.strip().rpartition("\n")[2] or f"exit code {tried.returncode}")
    except (OSError, subprocess.TimeoutExpired, SandboxUnavailable) as error:
        folder.cleanup()
        raise SandboxUnavailable(
            f"monty's processes could not be kept from root's rights: {error}. Start agentgym as an ordinary user, or "
            "let the interpreter alone keep code from using them: --sandbox.options.allow_root true."
        ) from error
    return folder


def _real_binary() -> str:
    """The binary as pydantic-monty finds it."""
    beside = Path(sysconfig.get_path("scripts")) / "monty"
    found = os.environ.get("MONTY_BIN") or (str(beside) if beside.is_file() else shutil.which("monty"))
    if found is None:
        raise SandboxUnavailable("its program `monty` was not found")
    return found
