"""How a process ended, asked of the kernel, and what it printed last."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import struct
import time
from pathlib import Path

PIDFD_GET_INFO = 0xC040FF0B  # linux/pidfd.h; Linux 6.15 and later keep the status of a process that was reaped
PIDFD_INFO_EXIT = 1 << 3
EXIT_CODE_AT, INFO_BYTES = 60, 64
TRIES, TRY_S = 5, 0.002
READ_BYTES = 1 << 17  # a Rust backtrace may have 20 KiB
SHOWN = 2000  # characters
_BEGINS = re.compile(
    r"(Exception Group )?Traceback \(most recent call last\):|stack backtrace:|.*\(most recent call first\):"
    r"|.*Exception raised from .* \(most recent call first\):",
    re.IGNORECASE,
)
_OF_GROUP = re.compile(r"\s*[|+] ?")  # before each line of an ExceptionGroup
_FRAME = re.compile(r"\s|frame #\d+: |[-+]+ ")


def how_it_ended(descriptor: int, beat: Path | None = None) -> str:
    """Returns how the ended process of a pidfd ended. Monarch reaps those that it has started, within microseconds.

    beat: its heartbeats, which a process that ends in order removes.
    """
    for _ in range(TRIES):  # one that is being reaped has no status for a moment
        status = _waited(descriptor)
        status = _kept(descriptor) if status is None else status
        if status is not None:
            return by_signal(-status) if status < 0 else f"exit code {status}"
        time.sleep(TRY_S)
    if beat is not None and beat.exists():
        return "killed, or crashed in native code; its exit status is unknown (out of memory?)"
    return "its exit status is unknown"


def _waited(descriptor: int) -> int | None:
    """The exit code of a child, or its signal below 0, without reaping it. None where another has reaped it."""
    with contextlib.suppress(OSError):
        ended = os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is not None:
            return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
    return None


def _kept(descriptor: int) -> int | None:
    """The same, of any process that was reaped. None where the kernel does not tell."""
    info = bytearray(INFO_BYTES)
    struct.pack_into("=Q", info, 0, PIDFD_INFO_EXIT)
    with contextlib.suppress(OSError):
        fcntl.ioctl(descriptor, PIDFD_GET_INFO, info)
        if struct.unpack_from("=Q", info)[0] & PIDFD_INFO_EXIT:
            return os.waitstatus_to_exitcode(struct.unpack_from("=i", info, EXIT_CODE_AT)[0])
    return None


def by_signal(number: int) -> str:
    name = signal.Signals(number).name
    return f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")


def size_of(log: Path | None) -> int:
    """Its bytes now; 0 where there is none."""
    with contextlib.suppress(OSError):
        return 0 if log is None else log.stat().st_size
    return 0


def with_tail(reason: str, log: Path | None, begin: int = 0) -> str:
    """The reason, and what the process printed last when there is a log. begin: where its part of it begins."""
    said = "" if log is None else last_output(log, begin)
    return f"{reason}; its last output:\n{said}" if said else reason


def last_output(log: Path, begin: int = 0) -> str:
    """The end of a log without its traces; empty where there is none. begin: where the process's part begins."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(begin, log.stat().st_size - READ_BYTES))
        text = file.read().decode(errors="replace").strip()
        return (without_traces(text) or text)[-SHOWN:]
    return ""


def without_traces(text: str) -> str:
    """Removes the frames of Python, Rust and C++ traces; the line of the error precedes or follows them."""
    kept, in_trace = [], False
    for line in text.splitlines():
        plain = _OF_GROUP.sub("", line, count=1) if _OF_GROUP.match(line) else line
        if _BEGINS.fullmatch(plain.rstrip()):
            in_trace = True
        elif not in_trace or not _FRAME.match(plain):
            in_trace = in_trace and not plain.strip()
            kept.append(plain)
    return "\n".join(kept).strip()
