"""Processes that a process has started, directly or not, and that are still there."""

from __future__ import annotations

import contextlib

import psutil

from agentgym.actors.process_id import ProcessId


def descendants(pid: int) -> list[psutil.Process]:
    """None of a process that has ended."""
    found: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        found = psutil.Process(pid).children(recursive=True)
    return found


def titled(title: str) -> list[ProcessId]:
    """Returns the descendants of this process that have the title in their command line."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if title in child.cmdline():
                found.append(ProcessId.of(child.pid))
    return found
