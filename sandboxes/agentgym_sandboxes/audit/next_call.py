"""The next-call check: a plain program after a hostile one works, and finds nothing of it."""

from __future__ import annotations

import json

from agentgym.sandbox import Limits, RunResult, RunStatus, SandboxBackend
from agentgym_sandboxes.audit.programs.checks import described, one_line

LIMITS = Limits(wall_s=10.0, cpu_s=5, memory_mib=256, output_bytes=1 << 20)
MOST_SHOWN = 3
PASSING = ("process", "socket", "lock", "used")  # what may end by itself

_PLAIN = "print(sum(range(101)))\n"

_LOOK = """\
import json, os, signal, stat, sys
seen = {}
me, mine = os.getpid(), os.getuid()

def note(kind, value):
    values = seen.setdefault(kind, [])
    if len(values) < 400:
        values.append(value)

def name_of(uid):
    return "mine" if uid == mine else "call" if uid > 65000 else uid

def lines(path):
    try:
        with open(path, errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []

for pid in filter(str.isdigit, os.listdir("/proc")):
    status = dict(line.split(":", 1) for line in lines("/proc/%s/status" % pid) if ":" in line)
    if status and int(pid) != me:
        note("process", [name_of(int(status["Uid"].split()[0])), status["Name"].strip()])

folders = {"/tmp", "/work", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run", "/run/lock", "/dev", os.getcwd(),
           os.environ.get("HOME", "/"), os.environ.get("TMPDIR", "/tmp"), "/etc", "/", "/usr/lib/python3/dist-packages"}
for folder in sorted(map(os.path.realpath, folders)):
    try:
        names = os.listdir(folder)
    except OSError:
        continue
    for name in names:
        path = os.path.join(folder, name)
        if path != os.getcwd():
            note("file", ascii(path))
for path in ("/tmp", "/work", os.getcwd()):
    if os.path.isdir(path):
        found = os.statvfs(path)
        if found.f_blocks < 1 << 21:  # a small file system of the sandbox's own
            note("used", [path if path != os.getcwd() else "cwd", found.f_files - found.f_ffree])

for path in ("/proc/sysvipc/shm", "/proc/sysvipc/msg", "/proc/sysvipc/sem"):
    for line in lines(path)[1:]:
        note("ipc", path.rpartition("/")[2] + " " + line.split()[0])
for line in lines("/proc/net/unix")[1:]:
    if len(line.split()) > 7:
        note("socket", line.split()[7])
for path in ("/proc/net/tcp", "/proc/net/udp", "/proc/net/tcp6", "/proc/net/udp6"):
    for line in lines(path)[1:]:
        if line.split()[3] != "06":  # a connection in TIME_WAIT holds nothing
            note("socket", path.rpartition("/")[2] + " " + line.split()[1])
for line in lines("/proc/locks"):
    if "OFDLCK" not in line:  # those show whoever holds them, also outside
        note("lock", line.split()[1:4])
for line in lines("/proc/self/mounts"):
    note("mount", line.split()[1:3] + [line.split()[3].split(",")[0]])

note("environment", sorted((key, value.replace(str(mine), "UID")) for key, value in os.environ.items()))
note("cwd", os.getcwd().replace(str(mine), "UID"))
note("umask", os.umask(0o077))
import resource
note("limits", [list(resource.getrlimit(number)) for number in range(16)
                if number != resource.RLIMIT_NPROC])
note("signals", [str(signal.getsignal(number)) for number in range(1, 32)])
note("blocked", sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))))
note("timers", [signal.getitimer(kind) for kind in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)])
note("descriptors", sorted(fd for fd in range(3, 256) if os.path.exists("/proc/self/fd/%d" % fd)))
note("rights", [os.getgroups() == [] or os.getgroups() == [os.getgid()], os.getpriority(os.PRIO_PROCESS, 0)])
note("host name", os.uname().nodename)

import builtins, math, random, re, time, types
note("modules", [math.sqrt(16), json.dumps([1]), len("abc"), re.sub("a", "b", "aa"), sorted([2, 1]), isinstance(1, int),
                 type(time.time).__name__, type(print).__name__, builtins.len is len, __name__,
                 hasattr(sys.modules["__main__"], "planted") or hasattr(builtins, "planted"),
                 sum(callable(v) for v in vars(builtins).values()), len(sys.path), len(sys.meta_path)])
import decimal, locale
note("modules", [decimal.getcontext().prec, locale.setlocale(locale.LC_ALL), os.sep])
note("trace", [sys.gettrace() is None, sys.getprofile() is None, sys.getrecursionlimit()])

# and it works as a program should
with open("note", "w") as file:
    file.write("text")
note("works", open("note").read())
os.unlink("note")
read, write = os.pipe()
child = os.fork()
if child == 0:
    os.write(write, b"child")
    os._exit(7)
note("works", [os.waitpid(child, 0)[1], os.read(read, 5).decode()])
import threading
thread = threading.Thread(target=lambda: note("works", "thread"))
thread.start()
thread.join()
note("works", sys.stdin.read())
note("works", len(bytearray(32 << 20)))
print(json.dumps(seen))
"""


class NextCall:
    """Compares what a call sees after a trial with what it saw before."""

    def __init__(self, backend: SandboxBackend, *, full_python: bool) -> None:
        self._backend = backend
        self._full_python = full_python
        self._baseline: dict[str, list[str]] = {}

    async def start(self) -> None:
        """Record what a fresh call sees. Raises RuntimeError when a plain program does not work."""
        first = await self._look()
        if isinstance(first, str):
            raise RuntimeError(f"a plain program does not work in this sandbox: {first}")
        self._baseline = first

    async def difference(self) -> str:
        """What the previous call left, on one line; empty when nothing."""
        now = await self._look()
        if isinstance(now, str):
            return f"a plain program no longer works: {now}"
        found = []
        for kind in sorted(now.keys() | self._baseline.keys()):
            before, after = list(self._baseline.get(kind, [])), []
            for value in now.get(kind, []):
                before.remove(value) if value in before else after.append(value)
            if after:
                found.append(f"{kind} {', '.join(after[:MOST_SHOWN])}")
            elif before and kind not in PASSING:
                found.append(f"{kind} no longer {', '.join(before[:MOST_SHOWN])}")
        return one_line("; ".join(found))

    async def _look(self) -> dict[str, list[str]] | str:
        """What a call sees, by kind; or what went wrong."""
        if not self._full_python:
            result = await self._backend.run(_PLAIN, limits=LIMITS)
            return {} if result.stdout == "5050\n" else described(result)
        result = await self._backend.run(_LOOK, stdin="input", limits=LIMITS)
        return _seen(result)


def _seen(result: RunResult) -> dict[str, list[str]] | str:
    if result.status is not RunStatus.OK:
        return described(result)
    try:
        seen = json.loads(result.stdout)
    except ValueError:
        return described(result)
    return {kind: [json.dumps(value) for value in values] for kind, values in seen.items()}
