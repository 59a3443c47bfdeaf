"""More time than a call may have."""

from __future__ import annotations

import textwrap

from agentgym.sandbox import Limits, RunStatus
from agentgym_sandboxes.audit.findings import Category
from agentgym_sandboxes.audit.programs.checks import ended
from agentgym_sandboxes.audit.trial import Snippet

LIMITS = Limits(wall_s=0.6, cpu_s=20, memory_mib=256)  # on any machine each takes seconds unless it is ended
CPU = Limits(wall_s=20.0, cpu_s=1, memory_mib=256)


def _runs_on(name: str, tries: str, code: str, *, plain: bool = False, limits: Limits = LIMITS) -> Snippet:
    """Prints that it escaped when it comes to its own end."""
    return Snippet(
        name=name,
        category=Category.RESOURCES,
        tries=tries,
        limits=limits,
        check=ended(RunStatus.TIMEOUT, after="" if plain else "start"),
        plain=plain,
        code=code if plain else f"say('made', 'start')\n{textwrap.dedent(code)}\nescaped('time', 'came to its end')\n",
    )


# fmt: off
SNIPPETS = (
    _runs_on("endless_loop", "counts for some seconds", "for n in range(200_000_000):\n    pass\n", plain=True),
    _runs_on("hash_collisions", "a dict whose keys all have the same hash", """
        import itertools, time
        table = {}
        end = time.monotonic() + 2.5
        for n in itertools.count():
            table[n * ((1 << 61) - 1)] = n
            if time.monotonic() > end:
                break
    """),
    _runs_on("sum_in_c", "adds 400 million numbers in one call into C, which no signal interrupts", """
        import itertools, time
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            sum(itertools.repeat(1, 400_000_000))
    """),
    _runs_on("sleep", "sleeps", "import time\ntime.sleep(2.5)"),
    _runs_on("ignored_signals", "ignores or handles every signal it can", """
        import signal, time
        for number in range(1, 65):
            try:
                signal.signal(number, (lambda *a: None) if number % 2 else signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            pass
    """),
    _runs_on("stopped", "stops itself, and is woken by a child only after some seconds", """
        import signal, time
        parent = os.getpid()
        if not os.fork():
            time.sleep(2.5)
            os.kill(parent, signal.SIGCONT)
            os._exit(0)
        os.kill(parent, signal.SIGSTOP)
    """),
    _runs_on("exit_handler", "a slow exit handler", """
        import atexit, time
        atexit.register(lambda: (time.sleep(2.5), escaped("time", "exit handler done")))
        raise SystemExit(0)
    """),
    _runs_on("thread_at_the_end", "leaves a thread that the interpreter waits for", """
        import threading, time
        threading.Thread(target=lambda: (time.sleep(2.5), escaped("time", "thread done"))).start()
        raise SystemExit(0)
    """),
    _runs_on("other_program", "becomes another program, which sleeps", """
        os.execv("/bin/sh", ["sh", "-c", "sleep 2.5; echo escaped: time: slept"])
    """),
    _runs_on("cpu_time", "uses more CPU time than its limit of a second, with wall time left", """
        import signal, time
        signal.signal(signal.SIGXCPU, signal.SIG_IGN)
        while time.process_time() < 4:
            pass
    """, limits=CPU),
)
