"""`agentgym` that says on a pipe what it does, for drills: `begin KIND` and `end KIND` for every call of its activity.

python benchmarks/chaos_run.py DESCRIPTOR train ...
"""

from __future__ import annotations

import contextlib
import os
import sys

from agentgym.cli.main import main
from agentgym.rollout.activity import Activity


def announce(descriptor: int) -> None:
    """Nothing waits for the reader: the run's own timing stays."""
    os.set_inheritable(descriptor, False)
    os.set_blocking(descriptor, False)
    begin, end = Activity.begin, Activity.end

    def begun(self: Activity, kind: str) -> object:
        say(f"begin {kind}\n")
        return begin(self, kind)

    def ended(self: Activity, kind: str, call: object) -> None:
        say(f"end {kind}\n")
        end(self, kind, call)

    def say(line: str) -> None:
        with contextlib.suppress(OSError):  # the drill reads no more
            os.write(descriptor, line.encode())

    Activity.begin, Activity.end = begun, ended  # type: ignore[method-assign]


if __name__ == "__main__":
    announce(int(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
