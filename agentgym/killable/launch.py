"""Run as a script: sets the limits of a process, then becomes the agent's program. Standard library only.

usage: launch.py PARENT_PID MEMORY_BYTES PROGRAM ARGUMENT ...
"""

import ctypes
import os
import resource
import signal
import sys


def main() -> None:
    parent, memory, argv = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, linux/prctl.h
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if memory:
        memory = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
        resource.setrlimit(resource.RLIMIT_AS, (memory, hard))
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        sys.exit(f"{argv[0]} cannot be started: {error}")


main()
