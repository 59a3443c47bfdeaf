"""Output without end."""

from __future__ import annotations

from agentgym.sandbox import Limits, RunResult, RunStatus
from agentgym_sandboxes.audit.checks import Check, first_look, left, told
from agentgym_sandboxes.audit.findings import Category, Judgement, broken, contained, escaped
from agentgym_sandboxes.audit.snippet import Snippet

LIMITS = Limits(wall_s=10.0, cpu_s=5, memory_mib=256, output_bytes=4096)  # killed at 512 KiB
SLOW = Limits(wall_s=1.0, cpu_s=3, memory_mib=256, output_bytes=4096)


def _cut(*statuses: RunStatus) -> Check:
    """No more than the limit is handed back, and the call ends early."""

    def check(result: RunResult) -> Judgement:
        early = first_look(result)
        if early is not None:
            return early
        most = LIMITS.output_bytes
        longest = max(
            len(text) for text in (result.stdout, result.stderr, result.stdout_bytes, result.stderr_bytes)
        )
        if longest > most:
            return escaped(f"{longest} came back, {most} are allowed")
        if result.status not in statuses:
            return escaped(f"wrote all it wanted: {result.status.value}")
        if longest < most // 2 or not result.truncated:
            return broken(f"only {longest} came, truncated {result.truncated}; {told(result)}")
        return contained(f"{result.status.value} after {longest} kept")

    return check


SNIPPETS = (
    Snippet(
        name="stdout_flood",
        category=Category.RESOURCES,
        tries="4 MiB of lines",
        limits=LIMITS,
        check=_cut(RunStatus.OUTPUT_LIMIT),
        plain=True,
        code="for _ in range(4096):\n    print('x' * 1023)\n",
    ),
    Snippet(
        name="stderr_flood",
        category=Category.RESOURCES,
        tries="4 MiB of errors",
        limits=LIMITS,
        check=_cut(RunStatus.OUTPUT_LIMIT),
        code="import sys\nfor _ in range(4096):\n    sys.stderr.write('x' * 1023 + chr(10))\n",
    ),
    Snippet(
        name="two_floods",
        category=Category.RESOURCES,
        tries="both streams in turn, from two processes",
        limits=LIMITS,
        check=_cut(RunStatus.OUTPUT_LIMIT),
        code="""
            fd = 1 if os.fork() else 2
            for _ in range(4096):
                os.write(fd, b"x" * 1024)
        """,
    ),
    Snippet(
        name="endless_line",
        category=Category.RESOURCES,
        tries="one line of 8 MiB in a single write",
        limits=LIMITS,
        check=_cut(RunStatus.OUTPUT_LIMIT),
        code="""
            line = bytes(8 << 20)
            while line:
                line = line[os.write(1, line):]
        """,
    ),
    Snippet(
        name="drops_of_output",
        category=Category.RESOURCES,
        tries="single bytes, so that the reader wakes up for each",
        limits=SLOW,
        check=_cut(RunStatus.TIMEOUT, RunStatus.OUTPUT_LIMIT),
        code="""
            import time
            end = time.monotonic() + 4
            while time.monotonic() < end:
                os.write(1, b"x")
        """,
    ),
    Snippet(
        name="binary_flood",
        category=Category.RESOURCES,
        tries="random bytes, which grow when they are made text",
        limits=LIMITS,
        check=_cut(RunStatus.OUTPUT_LIMIT),
        code="for _ in range(4096):\n    os.write(1, os.urandom(1024))\n",
    ),
    Snippet(
        name="flood_after_the_end",
        category=Category.RESOURCES,
        tries="a daemon goes on writing when the program has ended",
        limits=LIMITS,
        check=left("flood"),
        code="""
            import time
            if not os.fork():
                os.setsid()
                time.sleep(0.05)
                end = time.monotonic() + 5
                while time.monotonic() < end:
                    try:
                        os.write(1, b"late" * 100)
                    except OSError:
                        pass
                    time.sleep(0.01)
                os._exit(0)
            say("made", "flood")
        """,
    ),
)
