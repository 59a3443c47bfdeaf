"""What the tests of killable calls run in other processes."""

import os
import subprocess
import sys
import time


def double(argument):
    return argument * 2


def misbehave(argument):
    """Do what the argument names; anything else is returned with the process's id."""
    if argument == "spin":
        while True:
            pass
    if argument == "sleep":
        time.sleep(1000)
    if argument == "raise":
        raise KeyError("no such thing")
    if argument == "exit":
        os._exit(3)
    if isinstance(argument, dict) and "orphan" in argument:  # die, and leave a process behind that writes its id
        code = (
            f"import os, time; print(os.getpid(), file=open({argument['orphan']!r}, 'w'), flush=True); time.sleep(1000)"
        )
        subprocess.Popen([sys.executable, "-c", code])
        while not os.path.exists(argument["orphan"]) or not os.path.getsize(argument["orphan"]):  # noqa: PTH110, PTH202
            time.sleep(0.01)
        os._exit(3)
    if argument == "memory":
        return len(bytearray(8 << 30))
    if isinstance(argument, list):  # wait until a file is there
        while not os.path.exists(argument[0]):  # noqa: PTH110
            time.sleep(0.01)
    return [os.getpid(), argument, os.environ.get("PYTHONHASHSEED")]
