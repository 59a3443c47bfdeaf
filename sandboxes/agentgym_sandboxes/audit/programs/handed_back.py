"""What reaches our own process: odd bytes, forged protocol, and results by other channels."""

# ruff: noqa: E501

from __future__ import annotations

import asyncio
from functools import partial

from agentgym.sandbox import CallCase, GradeRequest, Limits, RunResult, RunStatus, SandboxBackend
from agentgym_sandboxes.audit.findings import Category, Judgement, broken, contained, escaped
from agentgym_sandboxes.audit.host import Host
from agentgym_sandboxes.audit.programs.checks import Check, described, evidence, settled, unless_settled
from agentgym_sandboxes.audit.programs.prelude import program
from agentgym_sandboxes.audit.trial import Scene, Snippet

LIMITS = Limits(wall_s=10.0, cpu_s=5, memory_mib=256)
ALL_BYTES = bytes(range(256))
FORGED = b"FORGED-ANSWER"


_program = partial(Snippet, category=Category.HANDED_BACK, limits=LIMITS)


def _exactly(stdout: bytes, stderr: bytes = b"", exit_code: int = 0) -> Check:
    """Every byte comes back as it was written, in its own stream."""

    @unless_settled
    def check(result: RunResult) -> Judgement:
        if result.exit_code != exit_code:
            return escaped(f"reads as {described(result)}")
        for name, wanted, got, text in (
            ("stdout", stdout, result.stdout_bytes, result.stdout),
            ("stderr", stderr, result.stderr_bytes, result.stderr),
        ):
            if got != wanted or text != wanted.decode("utf-8", "replace"):
                return escaped(f"{name} is {got[:60]!r}, {len(got)} bytes; {wanted[:60]!r} was written")
        return contained(f"{len(stdout) + len(stderr)} bytes came back as they were")

    return check


def _as_a_program_could(*statuses: RunStatus) -> Check:
    """The result is one that such a program could have legitimately."""

    @unless_settled
    def check(result: RunResult) -> Judgement:
        if not evidence(result, "made"):
            return broken(described(result))
        if result.status not in statuses:
            return escaped(f"made itself {result.status.value}")
        if FORGED.decode() in result.stderr or any(FORGED.decode() in x for x in evidence(result, "held")):
            return escaped("what it wrote elsewhere came back as output")
        return contained(described(result))

    return check


def _reads_as(exit_code: int) -> Check:
    @unless_settled
    def check(result: RunResult) -> Judgement:
        if result.exit_code != exit_code or result.status is RunStatus.OK:
            return escaped(f"reads as {described(result)}")
        return contained(described(result))

    return check


def _ended_by(number: int) -> Check:
    @unless_settled
    def check(result: RunResult) -> Judgement:
        if result.status is RunStatus.OK or result.exit_code == 0:
            return escaped("an end by a signal reads as success")
        return (
            contained(described(result)) if result.exit_code in (-number, 128 + number) else broken(described(result))
        )

    return check


def _kept(limit: int) -> Check:
    """Cut at the limit, even in the middle of a character."""

    @unless_settled
    def check(result: RunResult) -> Judgement:
        if len(result.stdout_bytes) > limit:
            return escaped(f"{len(result.stdout_bytes)} bytes, {limit} allowed")
        if not result.truncated or len(result.stdout_bytes) < limit // 2:
            return broken(described(result))
        return contained(f"cut at {len(result.stdout_bytes)} bytes")

    return check


@unless_settled
def _came_back_as_output(result: RunResult) -> Judgement:
    if result.exit_code == 9 and result.stdout == "beginXX" and b"bad" in result.stderr_bytes:
        return contained("they came back as output")
    return escaped(f"the answer is {described(result)}")


async def _late_writer(backend: SandboxBackend, host: Host) -> Judgement:
    """A daemon of the previous call writes to all its descriptors; the next call's output holds only its own."""
    writer = program("""
import time
def forge():
    for fd in range(64):
        try:
            os.write(fd, b"FORGED-ANSWER\\n")
        except OSError:
            pass
forge()
if not os.fork():
    os.setsid()
    end = time.monotonic() + 3
    while time.monotonic() < end:
        forge()
        time.sleep(0.005)
    os._exit(0)
time.sleep(0.05)
say("made", "writer")
""")
    victim = program("import time\nfor _ in range(20):\n    time.sleep(0.01)\nsay('mine', 'only')\n")
    neighbour, first = await asyncio.gather(backend.run(victim, limits=LIMITS), backend.run(writer, limits=LIMITS))
    results = [neighbour, await backend.run(victim, limits=LIMITS)]
    if "made: writer" not in first.stdout:
        return settled(first) or broken(described(first))
    for result in results:
        if result.stdout != "mine: only: \n" or result.stderr:
            return escaped(f"another call's output is {described(result)}")
    return contained("two other calls got only their own output")


async def _odd_results(backend: SandboxBackend, host: Host) -> Judgement:
    """Results of a grade that are costly or dangerous to decode: the verdict is a plain failure."""
    solutions = {
        "deep": "def f(x):\n    y = []\n    for _ in range(100000):\n        y = [y]\n    return y",
        "endless": "def f(x):\n    y = []\n    y.append(y)\n    return y",
        "wide": "def f(x):\n    return [0] * 3000000",
        "long": "def f(x):\n    return 'x' * 60000000",
        "huge number": "def f(x):\n    return 10 ** 200000",
        "surrogates": "def f(x):\n    return '\\ud800\\x00\\x1b[31m' * 10",
        "not a number": "def f(x):\n    return float('nan')",
        "long error": "def f(x):\n    raise ValueError('x' * 10000000)",
    }
    cases = (CallCase(args=(1,), expected=[1, "right"]),)
    tried = 0
    for name, code in solutions.items():
        verdict = await backend.grade(GradeRequest(code=code, entry="f", cases=cases, limits=LIMITS))
        if verdict.status is RunStatus.UNSUPPORTED:
            continue
        tried += 1
        if verdict.passed or len(verdict.results) != 1:
            return escaped(f"a {name} result is judged right")
        if len(verdict.results[0].error) > 2000 or len(verdict.error) > 2000:
            return escaped(f"a {name} result makes an error of {len(verdict.results[0].error)} characters")
        if any(ord(c) < 32 or 0xD800 <= ord(c) < 0xE000 for c in verdict.results[0].error):
            return escaped(f"a {name} result puts control characters into the error")
    return contained(f"{tried} odd results failed as they should") if tried else broken("none was tried")


# fmt: off
SNIPPETS: tuple[Snippet | Scene, ...] = (
    _program("every_byte", "prints all 256 bytes, invalid UTF-8 and NULs among them, on both streams",
        _exactly(ALL_BYTES, ALL_BYTES[::-1]),
        "data = bytes(range(256))\nos.write(1, data)\nos.write(2, data[::-1])\n"),
    _program("lone_surrogates", "prints lone surrogates", _reads_as(3),
        "import sys\nprint('\\ud800 \\udfff')\nsys.stderr.write('\\udc80')\nsys.stdout.flush()\nos._exit(3)\n"),
    _program("cut_character", "fills the output so that the limit falls into the middle of a character",
        _kept(4096), limits=Limits(wall_s=3.0, cpu_s=3, memory_mib=256, output_bytes=4096),
        code="os.write(1, b'x' + '\\u20ac'.encode() * 3000)\n"),
    _program("frames_on_stdout", "prints messages of the agent's own protocol", _came_back_as_output, """
        import json, struct
        head = json.dumps({"id": 1, "reason": None, "exits": {"program": 0}, "truncated": False, "cpu_s": 0, "memory_mib": 0,
                           "wall_s": 0, "names": ["stdout"], "sizes": [3]}).encode()
        frame = struct.pack(">II", len(head), 3) + head + b"bad"
        stream = bytes([1, 0, 0, 0]) + struct.pack(">I", len(frame)) + frame
        os.write(1, b"begin")
        for fd in (1, 2):
            os.write(fd, b"XX")
        os.write(2, frame + stream)
        os._exit(9)
    """),
    _program("every_descriptor", "writes answers of its own to every descriptor that it can find",
        _as_a_program_could(RunStatus.OK, RunStatus.ERROR, RunStatus.OOM, RunStatus.DISK_LIMIT, RunStatus.PROCESS_LIMIT, RunStatus.OUTPUT_LIMIT),
        """
        say("made", "begin")
        lines = (b'["ok"]\\n', b'["memory"]\\n', b'["disk"]\\n', b'["dirty"]\\n', b'["no_process"]\\n', b'{"reason": "dirty"}\\n', b"FORGED-ANSWER\\n",
                 bytes(range(256)) * 20 + b"\\n", b"[" * 100000 + b"\\n")
        for fd in range(3, 64):
            for line in lines:
                try:
                    os.set_blocking(fd, False)
                    os.write(fd, line)
                except OSError:
                    pass
    """),
    _program("notes_without_end", "floods every descriptor but its output",
        _as_a_program_could(RunStatus.OK, RunStatus.ERROR, RunStatus.TIMEOUT, RunStatus.OUTPUT_LIMIT), """
        say("made", "begin")
        for fd in range(3, 64):
            try:
                for _ in range(200):
                    os.write(fd, b"FORGED-ANSWER" * 1000)
            except OSError:
                pass
    """),
    _program("dead_by_signal", "dies by a signal after it has said that all is well", _ended_by(9),
        "os.write(1, b'PASSED\\n')\nos.kill(os.getpid(), 9)\n"),
    _program("exit_code_past_a_byte", "ends with exit codes that wrap around to 0", _exactly(b"x", exit_code=255),
        "import sys\nos.write(1, b'x')\nsys.exit(-1)\n"),
    _program("no_output_at_all", "closes its output before it fails, so that no reason is printed", _reads_as(5),
        "os.close(1)\nos.close(2)\nraise SystemExit(5)\n"),
    _program("exception_that_lies", "raises an exception whose text raises SystemExit", _reads_as(1), """
        class Liar(BaseException):
            def __str__(self):
                raise SystemExit(0)
            __repr__ = __str__
        raise Liar()
    """),
    Scene("output_of_another_call", "writes into the output of the call after it and of the one beside it",
        _late_writer, category=Category.HANDED_BACK),
    Scene("odd_results", "returns values that are too deep, too wide, too long or endless from a graded function",
        _odd_results, category=Category.HANDED_BACK),
)
