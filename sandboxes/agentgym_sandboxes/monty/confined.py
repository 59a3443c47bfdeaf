"""Starts monty's process without root's rights: `python confined.py UID FILTER BINARY ARGUMENT...`, run as root.

The process gets a uid and gid of its own, no groups, capabilities, new privileges, terminal or inherited files but the
standard three, and a system call filter. Uses the standard library alone, as a script.
"""

import ctypes
import os
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
INSTRUCTION_BYTES = 8  # struct sock_filter


class Filter(ctypes.Structure):
    """struct sock_fprog"""

    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def main() -> None:
    uid, (filter_path, binary, *arguments) = int(sys.argv[1]), sys.argv[2:]
    with os.fdopen(os.open(filter_path, os.O_RDONLY), "rb") as file:
        instructions = file.read()
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # what the controller's libraries left open to their children
    program = os.open(binary, os.O_RDONLY)  # while root may still pass through the folders above it
    libc = ctypes.CDLL(None, use_errno=True)

    def prctl(*words: object) -> None:
        if libc.prctl(*words):
            raise OSError(ctypes.get_errno(), f"prctl {words[0]}")

    os.setsid()  # root's terminal would take input from it
    os.chdir("/")  # from root's folder it could open files that lie beneath closed ones
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)  # the capabilities go with it
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    filtering = Filter(len(instructions) // INSTRUCTION_BYTES, instructions)
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(filtering), 0, 0)
    os.execve(program, [binary, *arguments], {})


main()
