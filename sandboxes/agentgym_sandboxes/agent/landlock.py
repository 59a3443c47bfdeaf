"""Landlock, where the kernel has it: a child opens files for writing in its own folders only.

So its files in /proc are closed to it: else it could lower its own score and have the kernel kill the agent
when memory ends.
"""

from __future__ import annotations

import ctypes
import os
import struct

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on every machine
_VERSION = 1  # flag: only return the version
_WRITE_FILE, _REFER = 1 << 1, 1 << 13
_SCOPE_ABSTRACT_SOCKETS = 1
_BENEATH = 1
_SET_DUMPABLE, _NO_NEW_PRIVS = 4, 38
_FOLDERS = ("/work", "/tmp", "/dev")

_libc = ctypes.CDLL(None, use_errno=True)


def hide() -> None:
    """Let no process with our uid, but without CAP_SYS_PTRACE, look into this one."""
    _libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0)


def restrict_writes(*, alone: bool) -> None:
    """Restricts writes of this process and its children from now on. alone: nor reach abstract sockets of others.

    Does nothing on a kernel before 5.19, whose Landlock would also refuse to rename across folders.
    """
    version = _libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)
    if version < 2:
        return
    _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    rights = _WRITE_FILE | _REFER
    fields = (rights, 0, _SCOPE_ABSTRACT_SOCKETS) if alone and version >= 6 else (rights,)
    attributes = struct.pack(f"{len(fields)}Q", *fields)
    ruleset = _checked(_libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0))
    for folder in _FOLDERS:
        fd = os.open(folder, os.O_PATH)
        rule = struct.pack("=Qi", rights, fd)
        _checked(_libc.syscall(_ADD_RULE, ruleset, _BENEATH, rule, 0))
        os.close(fd)
    _checked(_libc.syscall(_RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, "landlock: " + os.strerror(number))
    return result
