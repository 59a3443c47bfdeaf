"""A process that finds no memory for a thread says so in time."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys, threading
from agentgym.actors import child

child.PATIENCE_S = 1
if len(sys.argv) > 1:
    child.bound_thread_starts()

class Starved(threading.Thread):
    def _bootstrap(self):  # what the system calls in the new thread, which then finds no memory for a frame
        raise MemoryError

ran = threading.Thread(target=print, args=("ran",))
ran.start()
ran.join()
try:
    Starved().start()
except MemoryError as error:
    print(error)
"""


def test_a_thread_that_finds_no_memory_to_begin_raises_instead_of_waiting_forever() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, "bounded"], capture_output=True, text=True, timeout=60)
    assert done.stdout == "ran\na new thread did not begin within 1 s: it finds no memory\n", done.stderr
