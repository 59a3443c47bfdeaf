"""What a call leaves for the next one to find; the next-call check judges."""

# ruff: noqa: E501

from __future__ import annotations

from functools import partial

from agentgym.sandbox import Limits, SandboxBackend
from agentgym_sandboxes.audit.findings import Category, Judgement, broken, contained, escaped
from agentgym_sandboxes.audit.host import Host
from agentgym_sandboxes.audit.programs.checks import described, left, refused, settled
from agentgym_sandboxes.audit.programs.prelude import program
from agentgym_sandboxes.audit.trial import Scene, Snippet

LIMITS = Limits(wall_s=10.0, cpu_s=5, memory_mib=256)


_program = partial(Snippet, category=Category.STATE, limits=LIMITS)


async def _same_chance(backend: SandboxBackend, host: Host) -> Judgement:
    """Two calls must not draw the same random numbers: one could predict the other's."""
    code = program("""
import random, secrets, uuid
say("drew", random.random(), "%s %s %s" % (secrets.token_hex(8), uuid.uuid4(), os.urandom(4).hex()))
""")
    first, second = await backend.run(code, limits=LIMITS), await backend.run(code, limits=LIMITS)
    for result in (first, second):
        early = settled(result)
        if early is not None:
            return early
        if not result.stdout.startswith("drew: "):
            return broken(described(result))
    common = set(first.stdout.split()) & set(second.stdout.split()) - {"drew:"}
    if common:
        return escaped(f"both drew {', '.join(sorted(common))}")
    return contained("all numbers differ")


# fmt: off
SNIPPETS: tuple[Snippet | Scene, ...] = (
    _program("files_everywhere", "leaves files and folders, some with a dot before their names, in every place that it may write to", left("files"), """
        made = []
        for folder, folders, _ in os.walk("/"):
            if folder.startswith(("/proc", "/sys")):
                folders[:] = []
                continue
            try:
                for name in ("left-file", ".left-file"):
                    open(folder + "/" + name, "w").write("secret")
                os.makedirs(folder + "/.left-folder/left-folder")
                made.append(folder)
            except OSError:
                pass
        open("here", "w").close()
        say("made", "files", made)
    """),
    _program("files_open_to_all", "makes its own folders and files accessible to everyone", left("files"), """
        os.chmod(".", 0o1777)
        os.umask(0)
        for folder in (".", "/tmp"):
            os.mkdir(folder + "/all", 0o777)
            open(folder + "/all/file", "w").close()
            os.chmod(folder + "/all/file", 0o666)
        say("made", "files")
    """),
    _program("shared_memory", "System V shared memory, which lasts until it is removed", refused(1),
        claim="seccomp", code="""
        call("shmget", (29, 194), 0x1234, 4096, 0o1666)
    """),
    _program("message_queues", "System V messages, which last until they are removed", refused(1), claim="seccomp",
        code="""
        call("msgget", (68, 186), 0x1234, 0o1666)
    """),
    _program("semaphores", "System V semaphores, which last until they are removed", refused(1), claim="seccomp",
        code="""
        call("semget", (64, 190), 0x1234, 1, 0o1666)
    """),
    _program("posix_message_queue", "a POSIX message queue, by its system call and as a file", refused(2), """
        call("mq_open", (240, 180), b"left", 0o102, 0o666, 0)
        for path in ("/dev/mqueue/left",):
            attempt(path, lambda: open(path, "w"))
    """),
    _program("posix_shared_memory", "POSIX shared memory, wherever the machine keeps it", left("tried"), """
        import _posixshmem
        try:
            _posixshmem.shm_open("/left", os.O_CREAT | os.O_RDWR, mode=0o666)
        except OSError as error:
            held("shm_open", errno.errorcode[error.errno])
        say("made", "tried")
    """),
    _program("abstract_socket", "a daemon that keeps a socket without a file", left("socket"), """
        import socket, time
        read, write = os.pipe()
        if not os.fork():
            os.setsid()
            sock = socket.socket(socket.AF_UNIX)
            sock.bind("\\0left-behind")
            sock.listen()
            os.write(write, b"x")
            os.close(1), os.close(2)
            time.sleep(4)
            os._exit(0)
        os.read(read, 1)
        say("made", "socket")
    """),
    _program("listening_port", "a daemon that keeps a port", left("port"), """
        import socket, time
        sock = socket.socket(socket.AF_INET)
        sock.bind(("127.0.0.1", 47118))
        sock.listen()
        if not os.fork():
            os.setsid()
            os.close(1), os.close(2)
            time.sleep(4)
            os._exit(0)
        say("made", "port")
    """),
    _program("file_lock", "a daemon that locks a file that all share", left("lock"), """
        import fcntl, time
        file = open("/etc/passwd")
        fcntl.flock(file, fcntl.LOCK_SH)
        if not os.fork():
            os.setsid()
            os.close(1), os.close(2)
            time.sleep(4)
            os._exit(0)
        say("made", "lock")
    """),
    _program("patched_modules", "replaces builtins, and functions of modules that are shared already, and plants import hooks",
        left("patches"), """
        import builtins, json, math, re, sys, time
        builtins.planted = True
        builtins.isinstance = lambda *a: True
        json.dumps = lambda *a, **k: "{}"
        math.sqrt = lambda x: 0
        re.sub = lambda *a: ""
        time.time = None
        class Hook:
            def find_spec(self, name, path=None, target=None):
                os.write(2, b"hooked\\n")
        sys.meta_path.insert(0, Hook())
        sys.path.insert(0, "/tmp")
        say("made", "patches")
    """),
    _program("settings_of_modules", "changes settings that modules keep: precision, locale, recursion, tracing",
        left("settings"), """
        import decimal, sys
        decimal.getcontext().prec = 3
        decimal.DefaultContext.prec = 3
        decimal.setcontext(decimal.Context(prec=3))
        sys.setrecursionlimit(500)
        sys.setprofile(lambda *a: None)
        say("made", "settings")
        sys.setprofile(None)
    """),
    _program("environment", "changes the environment", left("variables"), """
        os.environ["PLANTED"] = "1"
        os.environ["PATH"] = "/tmp"
        os.environ["PYTHONSTARTUP"] = "/tmp/x.py"
        os.environ["LD_PRELOAD"] = "/tmp/x.so"
        say("made", "variables")
    """),
    _program("folder_and_mask", "changes the current folder and the mask for new files", left("changes"), """
        os.chdir("/tmp")
        os.umask(0)
        say("made", "changes")
    """),
    _program("lowered_limits", "lowers limits, so that a process that inherits them cannot work", left("limits"), """
        import resource
        for name, amount in (("FSIZE", 0), ("NOFILE", 16), ("AS", 1 << 29), ("STACK", 1 << 20)):
            kind = getattr(resource, "RLIMIT_" + name)
            hard = resource.getrlimit(kind)[1]
            amount = amount if hard < 0 else min(amount, hard)
            resource.setrlimit(kind, (amount, hard))
        say("made", "limits")
    """),
    _program("signals_and_timers", "sets handlers, blocks signals, and starts timers", left("timers"), """
        import signal
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR2})
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_VIRTUAL, 1000)
        say("made", "timers")
    """),
    _program("open_descriptors", "leaves descriptors open", left("descriptors"), """
        kept = [os.dup(os.open("/dev/null", os.O_RDONLY)) for _ in range(6)]
        for fd in kept:
            os.set_inheritable(fd, True)
        say("made", "descriptors")
    """),
    Scene("shared_chance", "draws random numbers that another call draws too", _same_chance,
        category=Category.STATE),
)
