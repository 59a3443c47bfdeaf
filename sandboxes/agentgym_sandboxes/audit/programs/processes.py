"""Too many processes and threads, in every way to start one."""

from __future__ import annotations

from functools import partial

from agentgym.sandbox import Limits, RunStatus
from agentgym_sandboxes.audit.findings import Category
from agentgym_sandboxes.audit.programs.checks import ended, left, reached
from agentgym_sandboxes.audit.trial import Snippet

LIMITS = Limits(wall_s=1.2, cpu_s=2, memory_mib=256, processes=16)
COUNTED = Limits(wall_s=15.0, cpu_s=6, memory_mib=512, processes=16)
KILLED = (RunStatus.TIMEOUT, RunStatus.PROCESS_LIMIT, RunStatus.OOM)

_program = partial(Snippet, category=Category.RESOURCES, claim="process_limit", limits=COUNTED)

# fmt: off
SNIPPETS = (
    _program("fork_bomb", "every process forks forever", ended(*KILLED, after="fork"), limits=LIMITS, code="""
        import time
        end = time.monotonic() + 6
        said = False
        while time.monotonic() < end:
            try:
                os.fork()
                said or say("made", "fork")
                said = True
            except OSError:
                pass
    """),
    _program("shell_fork_bomb", "a shell function that pipes into itself in the background, at most six deep",
        reached(24), """
        import subprocess, time
        bomb = 'f() { [ "$1" = 0 ] && { sleep 5; return; }; n=$(($1 - 1)); f $n | f $n & sleep 5; }; f 5'
        shells, said, most, over = [], open("said", "w"), 0, False
        for _ in range(3):
            try:
                shells.append(subprocess.Popen(["sh", "-c", bomb], stderr=said))
            except OSError:
                pass
        while most <= 24 and not over:
            over = os.path.getsize("said") > 0 or all(shell.poll() is not None for shell in shells)
            now = 0
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:  # PID 1 may share our uid without being ours
                    now += pid != "1" and os.stat("/proc/" + pid).st_uid == os.getuid()
                except OSError:
                    pass
            most = max(most, now)
            time.sleep(0.02)
        say("reached", "processes", most)
    """),
    _program("zombies", "200 children that end and are never waited for", reached(16), """
        count = 0
        for _ in range(200):
            try:
                if not os.fork():
                    os._exit(0)
            except OSError:
                break
            count += 1
        say("reached", "zombies", count)
    """),
    _program("daemon_swarm", "80 daemons, each a session leader of its own and a child of PID 1", reached(16), """
        import time
        read, write = os.pipe()
        made = 0
        for _ in range(80):
            try:
                pid = os.fork()
            except OSError:
                break
            if not pid:
                os.setsid()
                try:
                    if os.fork():
                        os._exit(0)
                except OSError:
                    os._exit(1)
                os.close(1), os.close(2)
                os.write(write, b"x")
                time.sleep(20)
                os._exit(0)
            if os.waitpid(pid, 0)[1]:
                break  # later ones would take the places of those that have ended
            made += 1
        begun = 0
        while begun < made:
            begun += len(os.read(read, 1000))
        say("reached", "daemons", begun)
    """),
    _program("threads_in_children", "five children with 20 threads each: neither number is much alone", reached(16),
        """
        import threading
        threading.stack_size(65536)
        read, write = os.pipe()
        gate, end = os.pipe()  # all stay until we have counted
        children = 0
        for _ in range(5):
            try:
                pid = os.fork()
            except OSError:
                break
            if pid:
                children += 1
                continue
            os.close(end)
            os.write(write, b"x")
            for _ in range(20):
                try:
                    threading.Thread(target=os.read, args=(gate, 1), daemon=True).start()
                except RuntimeError:
                    break
                os.write(write, b"x")
            os.write(write, b".")
            os.read(gate, 1)
            os._exit(0)
        ended = b""
        while ended.count(b".") < children:
            ended += os.read(read, 1000)
        say("reached", "threads", ended.count(b"x"))
    """),
    _program("relay_of_processes", "a process that forks and exits endlessly, so that the kill always misses it",
        left("relay"), limits=LIMITS, code="""
        import time
        if not os.fork():
            os.setsid()
            end = time.monotonic() + 5
            while time.monotonic() < end:
                try:
                    if os.fork():
                        os._exit(0)
                except OSError:
                    pass
            os._exit(0)
        time.sleep(0.1)
        say("made", "relay")
    """),
)
