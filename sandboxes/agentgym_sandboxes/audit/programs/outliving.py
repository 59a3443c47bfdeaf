"""Outliving the call: processes that survive it, and files that are hard to find or to remove."""

from __future__ import annotations

import asyncio
import textwrap
from functools import partial

from agentgym.sandbox import Limits, RunResult, RunStatus, SandboxBackend
from agentgym_sandboxes.audit.findings import Category, Judgement, contained, escaped
from agentgym_sandboxes.audit.host import Host
from agentgym_sandboxes.audit.programs.checks import Check, described, kills_itself, left, refused, settled
from agentgym_sandboxes.audit.programs.prelude import program
from agentgym_sandboxes.audit.trial import Scene, Snippet

LIMITS = Limits(wall_s=60.0, cpu_s=4, memory_mib=256)
SOON_S = 20.0  # what is left runs longer
NUM_CALLS = 80  # more than an agent has users for calls


def _leaves(name: str, tries: str, child: str) -> Snippet:
    """A child does something that might let it survive; it exits by itself after some seconds."""
    body = textwrap.indent(textwrap.dedent(child).strip("\n"), "    ")
    return Snippet(
        name=name,
        category=Category.OUTLIVING,
        tries=tries,
        limits=LIMITS,
        check=_soon(left("child")),
        code=f"""
import ctypes, signal, time
read, write = os.pipe()
def ready():
    os.write(write, b"x")
if not os.fork():
{body}
    end = time.monotonic() + 40
    while time.monotonic() < end:
        time.sleep(0.05)
    os._exit(0)
os.read(read, 1)
say("made", "child")
""",
    )


def _soon(check: Check) -> Check:
    """A check that also fails if the call waited for the processes that it left."""

    def soon(result: RunResult) -> Judgement:
        if result.wall_s > SOON_S:
            return escaped(f"the call took {result.wall_s:.1f} s because of what it left")
        return check(result)

    return soon


async def _many_dirty_calls(backend: SandboxBackend, host: Host) -> Judgement:
    """More calls than there are users, each of which leaves a daemon and a file."""
    code = program("""
import time
open("/tmp/left-%d" % os.getuid(), "w").close()
if not os.fork():
    os.setsid()
    os.close(1), os.close(2)
    time.sleep(4)
    os._exit(0)
say("made", "daemon")
""")
    made = 0
    for start in range(0, NUM_CALLS, 4):
        calls = [backend.run(code, limits=LIMITS) for _ in range(start, start + 4)]
        for result in await asyncio.gather(*calls):
            early = settled(result)
            if early is not None:
                return early
            if result.status is not RunStatus.OK:
                return escaped(f"after {made} calls one fails: {described(result)}")
            made += 1
    return contained(f"{made} calls in a row, each with a daemon")


_program = partial(Snippet, category=Category.OUTLIVING, limits=LIMITS)

# fmt: off
SNIPPETS: tuple[Snippet | Scene, ...] = (
    _leaves("deaf_daemon", "a daemon that ignores every signal and has closed everything", """
        os.setsid()
        if os.fork():
            os._exit(0)
        for number in range(1, 65):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        ready()
        os.closerange(0, 64)
    """),
    _leaves("held_pipes", "a child that keeps the output open", "    os.setsid()\n    ready()"),
    _leaves("subreaper", "a child that adopts its orphans, so that they never reach PID 1", """
        os.setsid()
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
        if not os.fork():
            if not os.fork():
                time.sleep(40)
                os._exit(0)
            os._exit(0)
        ready()
    """),
    _leaves("borrowed_name", "a child that looks like the agent's own process", """
        ctypes.CDLL(None).prctl(15, b"python3", 0, 0, 0)
        os.setpgid(0, 0)
        ready()
    """),
    _leaves("stopped_child", "a child that has stopped itself, and so takes no signal but one", """
        os.setsid()
        ready()
        os.kill(os.getpid(), signal.SIGSTOP)
    """),
    _leaves("other_image", "a child that has become another program", """
        os.setsid()
        ready()
        os.execv("/bin/sleep", ["[kworker/0:1]", "40"])
    """),
    _leaves("threads_only", "a process whose first thread has ended, which looks like a zombie", """
        import threading
        os.setsid()
        def stay():
            ready()
            time.sleep(40)
            os._exit(0)
        threading.Thread(target=stay).start()
        ctypes.CDLL(None).pthread_exit(None)
    """),
    _program("strange_names", "leaves names with line breaks, invalid UTF-8, 255 bytes and leading dashes",
        left("names"), r"""
        names = [b"\n", b"\xff\xfe", b"a" * 255, b"-rf", b" ", b"*", b"\x1b[2J", "é".encode() * 100, b"$(id)", b"..."]
        for folder in (b"/tmp/", os.getcwdb() + b"/"):
            for name in names:
                os.mkdir(folder + name)
                open(folder + name + b"/" + name, "w").close()
        say("made", "names")
    """),
    _program("closed_folders", "leaves folders that nobody may read, enter or write", left("folders"), """
        for folder in ("/tmp", os.getcwd()):
            for mode in (0, 0o111, 0o222, 0o444, 0o555):
                path = "%s/mode-%o" % (folder, mode)
                os.makedirs(path + "/inner/most")
                open(path + "/inner/file", "w").close()
                os.chmod(path + "/inner/file", 0)
                os.chmod(path + "/inner", mode)
                os.chmod(path, mode)
        os.chmod(os.getcwd(), 0)
        say("made", "folders")
    """),
    _program("other_kinds_of_files", "leaves fifos, sockets, loops of links, and files with every mode bit",
        left("kinds"), """
        import socket
        for folder in ("/tmp", os.getcwd()):
            os.mkfifo(folder + "/fifo")
            socket.socket(socket.AF_UNIX).bind(folder + "/socket")
            os.symlink("loop", folder + "/loop")
            os.symlink("/etc", folder + "/to-etc")
            os.symlink("..", folder + "/up")
            open(folder + "/bits", "w").close()
            os.chmod(folder + "/bits", 0o7777)
            os.mkdir(folder + "/sticky")
            os.chmod(folder + "/sticky", 0o7777)
        say("made", "kinds")
    """),
    _program("names_of_the_sweeper", "takes the names that the cleaner might need for itself", left("names"), """
        for folder in ("/tmp", "/work"):
            for number in range(8):
                for name in (".sweep-%d-%d" % (os.getuid(), number), ".sweep-%d" % number, ".trash-%d" % number):
                    path = "%s/%s" % (folder, name)
                    os.makedirs(path + "/a/b/c")
                    os.makedirs(path + "/d/e")
                    open(path + "/a/f", "w").close()
        say("made", "names")
    """),
    _program("race_with_the_sweeper", "makes and renames folders as fast as it can when its time is up",
        kills_itself, limits=Limits(wall_s=0.7, cpu_s=3, memory_mib=256), code="""
        import time
        say("made", "begin")
        end, number = time.monotonic() + 4, 0
        os.fork()
        while time.monotonic() < end:
            number += 1
            try:
                os.makedirs("/tmp/%d/%d/in" % (os.getpid(), number % 30))
                os.rename("/tmp/%d/%d" % (os.getpid(), number % 30), "/tmp/r%d-%d" % (os.getpid(), number % 40))
            except OSError:
                pass
        escaped("time", "came to its end")
    """),
    _program("immutable_files", "marks its files so that not even root may remove them", refused(2), """
        import array, fcntl
        for folder in (os.getcwd(), "/tmp"):
            fd = os.open(folder + "/fixed", os.O_CREAT | os.O_RDWR)
            for name, flag in (("immutable", 0x10), ("append only", 0x20)):
                flags = array.array("l", [flag])
                attempt(name, lambda: fcntl.ioctl(fd, 0x40086602, flags, True))
    """),
    Scene("more_calls_than_users", "80 calls that each leave a daemon and a file, to use up the agent's users",
        _many_dirty_calls, category=Category.OUTLIVING),
)
