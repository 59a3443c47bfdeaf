"""Output without end."""

from __future__ import annotations

from functools import partial

from agentgym.sandbox import Limits, RunResult, RunStatus
from agentgym_sandboxes.audit.findings import Category, Judgement, broken, contained, escaped
from agentgym_sandboxes.audit.programs.checks import Check, described, left, unless_settled
from agentgym_sandboxes.audit.trial import Snippet

LIMITS = Limits(wall_s=10.0, cpu_s=5, memory_mib=256, output_bytes=4096)  # killed at 512 KiB
SLOW = Limits(wall_s=1.0, cpu_s=3, memory_mib=256, output_bytes=4096)


def _cut(*statuses: RunStatus) -> Check:
    """No more than the limit is handed back, and the call ends early."""

    @unless_settled
    def check(result: RunResult) -> Judgement:
        most = LIMITS.output_bytes
        longest = max(len(text) for text in (result.stdout, result.stderr, result.stdout_bytes, result.stderr_bytes))
        if longest > most:
            return escaped(f"{longest} came back, {most} are allowed")
        if result.status not in statuses:
            return escaped(f"wrote all it wanted: {result.status.value}")
        if longest < most // 2 or not result.truncated:
            return broken(f"only {longest} came, truncated {result.truncated}; {described(result)}")
        return contained(f"{result.status.value} after {longest} kept")

    return check


_program = partial(Snippet, category=Category.RESOURCES, limits=LIMITS)

# fmt: off
SNIPPETS = (
    _program("stdout_flood", "4 MiB of lines", _cut(RunStatus.OUTPUT_LIMIT), plain=True,
        code="for _ in range(4096):\n    print('x' * 1023)\n"),
    _program("stderr_flood", "4 MiB of errors", _cut(RunStatus.OUTPUT_LIMIT),
        "import sys\nfor _ in range(4096):\n    sys.stderr.write('x' * 1023 + chr(10))\n"),
    _program("two_floods", "both streams in turn, from two processes", _cut(RunStatus.OUTPUT_LIMIT), """
        fd = 1 if os.fork() else 2
        for _ in range(4096):
            os.write(fd, b"x" * 1024)
    """),
    _program("endless_line", "one line of 8 MiB in a single write", _cut(RunStatus.OUTPUT_LIMIT), """
        line = bytes(8 << 20)
        while line:
            line = line[os.write(1, line):]
    """),
    _program("drops_of_output", "single bytes, so that the reader wakes up for each",
        _cut(RunStatus.TIMEOUT, RunStatus.OUTPUT_LIMIT), limits=SLOW, code="""
        import time
        end = time.monotonic() + 4
        while time.monotonic() < end:
            os.write(1, b"x")
    """),
    _program("binary_flood", "random bytes, which grow when they are decoded as text", _cut(RunStatus.OUTPUT_LIMIT),
        "for _ in range(4096):\n    os.write(1, os.urandom(1024))\n"),
    _program("flood_after_the_end", "a daemon goes on writing when the program has ended", left("flood"), """
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
    """),
)
