"""Killing, steering or reading the agent and its supervisor, and concurrent calls."""

from __future__ import annotations

import asyncio
from functools import partial

from agentgym.sandbox import Limits, SandboxBackend
from agentgym_sandboxes.audit.findings import Category, Judgement, broken, escaped
from agentgym_sandboxes.audit.host import Host
from agentgym_sandboxes.audit.programs.checks import described, kills_itself, refused, settled
from agentgym_sandboxes.audit.programs.prelude import program
from agentgym_sandboxes.audit.trial import Scene, Snippet

LIMITS = Limits(wall_s=30.0, cpu_s=4, memory_mib=256)


async def _spy_on_neighbour(backend: SandboxBackend, host: Host) -> Judgement:
    """Two concurrent calls: what one can do to the other."""
    victim = program("""
import glob, time
open("secret", "w").write("TOP")
open("/tmp/secret-file", "w").write("TOP")
end = time.monotonic() + 20
while not glob.glob("/tmp/spied-*") and time.monotonic() < end:
    time.sleep(0.02)
say("alive", open("secret").read(), open("/tmp/secret-file").read())
""")
    spy = program("""
import glob, signal, time
begun = time.monotonic()
while not os.path.exists("/tmp/secret-file") and time.monotonic() < begun + 3:
    time.sleep(0.02)
homes = [home for home in glob.glob("/work/*") if home != os.getcwd()]
for home in homes:
    attempt("list its folder", lambda: os.listdir(home))
    attempt("read its file", lambda: open(home + "/secret").read())
    attempt("move its folder", lambda: os.rename(home, "/tmp/mine"))
for action in (lambda: open("/tmp/secret-file").read(), lambda: os.unlink("/tmp/secret-file"),
               lambda: os.rename("/tmp/secret-file", "/tmp/mine")):
    if os.path.exists("/tmp/secret-file"):
        attempt("its file in /tmp", action)
me = os.getpid()
for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
    if pid != me:
        attempt("kill", lambda: os.kill(pid, signal.SIGKILL))
        attempt("stop", lambda: os.kill(pid, signal.SIGSTOP))
        attempt("its memory", lambda: open("/proc/%d/mem" % pid, "rb"))
        attempt("its environment", lambda: open("/proc/%d/environ" % pid, "rb").read())
        attempt("its descriptors", lambda: os.listdir("/proc/%d/fd" % pid))
        attempt("its folder", lambda: os.listdir("/proc/%d/cwd" % pid))
held("done", len(homes))
open("/tmp/spied-%d" % me, "w").close()
while os.path.exists("/tmp/secret-file") and time.monotonic() < begun + 20:
    time.sleep(0.02)
""")
    first, second = await asyncio.gather(backend.run(victim, limits=LIMITS), backend.run(spy, limits=LIMITS))
    early = settled(second)
    if early is not None:
        return early
    if "alive: TOP: TOP" not in first.stdout:
        return escaped(f"the other call did not come to its end: {described(first)}")
    return refused(1)(second)


async def _planted_start_up(backend: SandboxBackend, host: Host) -> Judgement:
    """One call leaves start-up files where the Python of another call, at the same time, might read them."""
    planter = program("""
import site, time
for version in range(7, 15):
    for home in {os.environ.get("HOME", "/"), "/tmp", "/work"}:
        folder = "%s/.local/lib/python3.%d/site-packages" % (home, version)
        try:
            os.makedirs(folder, exist_ok=True)
            with open(folder + "/usercustomize.py", "w") as file:
                file.write("print('escaped: start-up file: run as', __import__('os').getuid())")
            path = folder
            while path not in ("/", "/tmp", "/work", os.getcwd()):
                os.chmod(path, 0o755)
                path = os.path.dirname(path)
            os.chmod(folder + "/usercustomize.py", 0o644)
        except OSError:
            pass
say("made", "start-up files")
time.sleep(1.2)
""")
    runner = program("""
import subprocess, sys, time
time.sleep(0.5)
done = subprocess.run([sys.executable, "-c", "print('held: start-up files: none run')"],
                      capture_output=True, text=True)
print(done.stdout + done.stderr)
""")
    planted, ran = await asyncio.gather(backend.run(planter, limits=LIMITS), backend.run(runner, limits=LIMITS))
    if "made: start-up files" not in planted.stdout:
        return settled(planted) or broken(described(planted))
    return refused(1)(ran)


_program = partial(Snippet, category=Category.OUTLIVING, limits=LIMITS)

# fmt: off
SNIPPETS: tuple[Snippet | Scene, ...] = (
    _program("kill_everyone", "sends SIGKILL to every process that it may signal", kills_itself, """
        import signal
        say("made", "begin")
        try:
            os.kill(-1, signal.SIGKILL)
            held("kill all", "no other process was there to be killed")
        except OSError as error:
            held("kill all", errno.errorcode[error.errno])
    """),
    _program("signal_the_runner", "sends its parent, PID 1 and all of low number each of nine signals", refused(9),
        """
        import signal
        names = ("KILL", "TERM", "STOP", "INT", "HUP", "QUIT", "CHLD", "USR1", "ALRM")
        before = os.listdir("/proc")
        for pid in sorted({1, 2, 3, os.getppid()} - {0, os.getpid()}):
            if str(pid) in before and (os.getuid() == 0 or os.stat("/proc/%d" % pid).st_uid != os.getuid()):
                for name in names:
                    attempt("SIG%s to %d" % (name, pid), lambda: os.kill(pid, getattr(signal, "SIG" + name)))
            elif pid == os.getppid():
                for name in names:
                    os.kill(pid, getattr(signal, "SIG" + name))  # of our uid: the kernel may drop it silently
                    state = open("/proc/%d/stat" % pid).read().rpartition(")")[2].split()[0]
                    say("held" if state in "SRD" else "escaped", "SIG%s to %d" % (name, pid), state)
    """),
    _program("process_groups", "kills the group of its parent, and joins groups and sessions of others", refused(3),
        """
        import signal
        parent = os.getppid()
        group = int(open("/proc/%d/stat" % (parent or 1)).read().rpartition(")")[2].split()[2])
        def kill_group():
            if group > 1:
                return os.killpg(group, signal.SIGKILL)
            os.kill(1, signal.SIGKILL)
            raise PermissionError(errno.EPERM, "the kernel dropped it: we are still here")
        attempt("kill its group", kill_group)
        attempt("join its group", lambda: os.setpgid(0, group or 1))
        attempt("move the parent", lambda: os.setpgid(parent or 1, parent or 1))
    """),
    _program("kill_own_group", "kills its own process group, which a careless runner shares", kills_itself, """
        import signal
        say("made", "begin")
        os.killpg(0, signal.SIGKILL)
    """),
    _program("attach_to_the_runner", "attaches to its parent as a debugger, and reads and writes its memory",
        refused(5), """
        import ctypes
        parent = os.getppid() or 1
        call("PTRACE_ATTACH", (101, 117), 16, parent, 0, 0)
        call("PTRACE_SEIZE", (101, 117), 0x4206, parent, 0, 0)
        block = ctypes.create_string_buffer(16)
        vector = (ctypes.c_ulong * 2)(ctypes.addressof(block), 16)
        call("process_vm_readv", (310, 270), parent, vector, 1, vector, 1, 0)
        call("process_vm_writev", (311, 271), parent, vector, 1, vector, 1, 0)
        attempt("/proc/PID/mem", lambda: open("/proc/%d/mem" % parent, "r+b"))
    """),
    _program("descriptors_of_the_runner", "opens what PID 1 and its parent have open, to write answers of its own",
        refused(4), """
        for pid in (1, os.getppid() or 1):
            for fd in range(6):
                attempt("fd %d of %d" % (fd, pid), lambda: os.open("/proc/%d/fd/%d" % (pid, fd), os.O_RDWR))
        child = os.pidfd_open(1)
        call("pidfd_getfd", 438, child, 1, 0)
    """),
    _program("urgent_priority", "asks to run before all others, so that nothing can end it", refused(4), """
        attempt("nice", lambda: os.setpriority(os.PRIO_PROCESS, 0, -20))
        attempt("real time", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10)))
        attempt("round robin", lambda: os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(10)))
        call("ioprio_set real time", (251, 30), 1, 0, 1 << 13)
    """),
    Scene("spy_on_a_neighbour", "reads, moves, stops and kills what a call at the same time owns",
        _spy_on_neighbour, category=Category.OUTLIVING, claim="per_call_uid"),
    Scene("start_up_files", "plants files that another call's Python would run when it starts", _planted_start_up,
        category=Category.OUTLIVING),
)
