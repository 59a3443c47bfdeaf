"""More memory than a call may have, wherever the kernel accounts for it."""

from __future__ import annotations

from functools import partial

from agentgym.sandbox import Limits, RunResult, RunStatus
from agentgym_sandboxes.audit.findings import Category, Judgement, contained, escaped
from agentgym_sandboxes.audit.programs.checks import Check, described, ended, reached, refused, unless_settled
from agentgym_sandboxes.audit.trial import Snippet

LIMITS = Limits(wall_s=12.0, cpu_s=6, memory_mib=128)
MANY = Limits(wall_s=12.0, cpu_s=6, memory_mib=256)


def _no_more_than(mib: int) -> Check:
    """It ends by any limit, or is refused, before it has said `reached` of more than so many MiB."""

    @unless_settled
    def check(result: RunResult) -> Judgement:
        counted = reached(mib, at_least=0)(result)
        if result.status in (RunStatus.OOM, RunStatus.TIMEOUT) and "no count" in counted.detail:
            return contained(described(result))
        return counted

    return check


@unless_settled
def _ran_out(result: RunResult) -> Judgement:
    """It may catch the error, but does not get what it asked for."""
    if result.status is RunStatus.OOM:
        return contained("oom")
    if result.status is RunStatus.OK:
        return escaped(f"it got everything it asked for: {described(result)}")
    return contained(f"ended: {described(result)}")


_program = partial(Snippet, category=Category.RESOURCES, claim="memory_limit", limits=LIMITS)

# fmt: off
SNIPPETS = (
    _program("one_big_block", "300 MiB in one piece, where 128 are allowed", _ran_out, plain=True,
        code="x = b'x' * (300 << 20)\nprint(len(x))\n"),
    _program("many_small_blocks", "a list of strings that grows to some 300 MiB", _ran_out, plain=True,
        code="kept = []\nfor number in range(300000):\n    kept.append(str(number) * 170)\nprint(len(kept))\n"),
    _program("doubling_string", "a string that doubles 29 times", _ran_out, plain=True,
        code="x = 'x'\nfor _ in range(29):\n    x = x + x\nprint(len(x))\n"),
    _program("wide_format", "a number padded to 300 million digits, made in C in one step", _ran_out, plain=True,
        code="x = f'{1:0300000000}'\nprint(len(x))\n"),
    _program("caught_memory_errors", "goes on after every MemoryError, with smaller pieces, until it has 300 MiB",
        reached(128), """
        kept, size = [], 16 << 20
        while size > 4096 and sum(map(len, kept)) < 300 << 20:
            try:
                kept.append(bytearray(size))
            except MemoryError:
                size //= 2
        total = sum(map(len, kept)) >> 20
        kept.clear()
        say("reached", "MiB", total)
    """),
    _program("decompression_bomb", "a small stream that unpacks to 150 MiB", _ran_out, """
        import zlib
        packer = zlib.compressobj(1)
        data = b"".join(packer.compress(bytes(1 << 20)) for _ in range(150)) + packer.flush()
        say("made", "bomb", len(data))
        print(len(zlib.decompress(data)))
    """),
    _program("mapped_memory", "300 MiB of shared anonymous memory by mmap", refused(1), """
        import mmap
        attempt("mmap", lambda: mmap.mmap(-1, 300 << 20))
    """),
    _program("thread_stacks", "ten threads with stacks of 64 MiB", reached(4, at_least=0), """
        import threading
        threading.stack_size(64 << 20)
        gate, count = threading.Event(), 0
        for _ in range(10):
            try:
                threading.Thread(target=gate.wait, args=(4,)).start()
            except RuntimeError:
                break
            count += 1
        gate.set()
        say("reached", "threads", count)
    """),
    _program("endless_recursion", "recursion without a limit, 600000 frames deep", _ran_out, """
        import sys
        sys.setrecursionlimit(10 ** 8)
        def down(depth, pad):
            a = b = c = d = e = f = g = h = i = j = k = l = m = n = o = p = depth
            return down(depth - 1, (pad, depth)) if depth else 0
        down(600000, None)
    """),
    _program("memory_of_many_processes",
        "eight processes with 170 MiB each: every one of them is within its own limit", _no_more_than(1200),
        limits=MANY, code="""
        import mmap, time
        tally = mmap.mmap(-1, 4096)
        for number in range(8):
            if not os.fork():
                kept = []
                for step in range(17):
                    kept.append(b"x" * (10 << 20))
                    tally[number] = 10 * (step + 1) % 256
                time.sleep(12)
                os._exit(0)
        end = time.monotonic() + 12
        most = 0
        while time.monotonic() < end and most < 8 * 170:
            alive = sum(tally[:8])
            most = max(most, alive)
            if any(os.waitpid(-1, os.WNOHANG)[:1]):
                break
            time.sleep(0.02)
        say("reached", "MiB", most)
    """),
    _program("memory_files", "1300 MiB in memory files, which no limit of a single process counts",
        _no_more_than(1200), limits=MANY, code="""
        total, block, kept, first = 0, bytes(1 << 20), [], os.getpid()
        while total < 1300:
            fd = os.memfd_create("x")
            kept.append(fd)
            try:
                for _ in range(15):
                    os.write(fd, block)
                    total += 1
                if len(kept) > 50 and not os.fork():
                    kept.clear()  # the child goes on with descriptors of its own; the parent keeps these open
                    os.closerange(3, 64)
                    continue
                elif len(kept) > 50:
                    os.wait()
                    break
            except OSError as error:
                break
        PF_EXITING = 4  # of the parent: it is being killed, and the kernel has taken back what it held
        flags = int(open("/proc/%d/stat" % first).read().rpartition(")")[2].split()[6])
        if os.getpid() == first or os.getppid() == first and not flags & PF_EXITING:
            say("reached", "MiB", total)
    """),
    _program("pipe_buffers", "as many pipes as it can have, each grown to 1 MiB and filled", reached(40), """
        import fcntl
        total, kept = 0, []
        while len(kept) < 90:
            try:
                read, write = os.pipe()
                kept.append(write)
                fcntl.fcntl(write, 1031, 1 << 20)
            except OSError:
                break
            os.set_blocking(write, False)
            try:
                while True:
                    total += os.write(write, bytes(1 << 16))
            except OSError:
                pass
        say("reached", "MiB", total >> 20)
    """),
    _program("socket_buffers", "as many socket pairs as it can have, filled in both directions", reached(24), """
        import socket
        total, kept = 0, []
        while len(kept) < 200 and total < 300 << 20:
            try:
                pair = socket.socketpair()
            except OSError:
                break
            kept.append(pair)
            for end in pair:
                end.setblocking(False)
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
                try:
                    while True:
                        total += end.send(bytes(1 << 16))
                except OSError:
                    pass
        say("reached", "MiB", total >> 20)
    """),
    _program("locked_memory", "pins pages so that they cannot be reclaimed", refused(2), """
        import ctypes
        block = ctypes.create_string_buffer(1 << 20)
        call("mlock", (149, 228), ctypes.byref(block), 1 << 20, held_by=("EPERM", "ENOMEM", "EAGAIN"))
        call("mlockall", (151, 230), 3, held_by=("EPERM", "ENOMEM", "EAGAIN"))
    """),
    _program("datagram_buffers",
        "datagrams to itself that it never reads: memory of the host that no old control group counts", reached(40),
        """
        import socket
        kept = []
        try:
            while len(kept) < 100:
                sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                sock.bind(("127.0.0.1", 0))
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 26)
                sock.setblocking(False)
                kept.append(sock)
                for _ in range(60):
                    sock.sendto(bytes(60000), sock.getsockname())
        except OSError:
            pass
        total = 0
        for sock in kept:
            try:
                while True:
                    total += len(sock.recv(65536))
            except OSError:
                pass
        say("reached", "MiB", total >> 20)
    """),
    _program("stream_buffers", "connections to itself, filled and never read, with the largest buffers available",
        reached(40), """
        import socket
        server = socket.socket()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 26)
        server.bind(("127.0.0.1", 0))
        server.listen(100)
        total, kept = 0, []
        try:
            while total < 200 << 20:
                sock = socket.socket()
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 26)
                sock.settimeout(1)
                sock.connect(server.getsockname())
                kept += [sock, server.accept()[0]]
                sock.setblocking(False)
                try:
                    while True:
                        total += sock.send(bytes(1 << 18))
                except BlockingIOError:
                    pass
        except OSError:
            pass
        say("reached", "MiB", total >> 20)
    """),
    _program("wrong_victim",
        "fills all memory from small processes with low scores, so that the kernel kills the runner instead",
        ended(*RunStatus, after="begin"), limits=Limits(wall_s=20.0, cpu_s=6, memory_mib=256), code="""
        import marshal, select, subprocess, sys, time
        def inner(number, done, gate):
            import os
            for score in (-1000, 0, 300, 500, 999):
                try:
                    with open("/proc/self/oom_score_adj", "w") as file:
                        file.write(str(score))
                    break
                except OSError:
                    pass
            kept = []
            try:
                while len(kept) < 12:
                    kept.append(os.memfd_create("x"))
                    for _ in range(15):
                        os.write(kept[-1], bytes(1 << 20))
            except OSError:
                pass
            os.write(done, bytes([number]))
            os.read(gate, 1)  # keeps what it has until we end
        read, done = os.pipe()
        gate, end = os.pipe()
        code = "import marshal, sys, types; types.FunctionType(marshal.loads(%r), {})(*map(int, sys.argv[1:]))"
        line = [sys.executable, "-I", "-S", "-E", "-c", code % marshal.dumps(inner.__code__)]
        say("made", "begin")
        eaters = [subprocess.Popen(line + [str(number), str(done), str(gate)], pass_fds=[done, gate])
                  for number in range(8)]
        answered, until = set(), time.monotonic() + 5
        while len(answered) < 8 and time.monotonic() < until:
            if select.select([read], [], [], 0.05)[0]:
                answered.update(os.read(read, 8))
            answered.update(number for number in range(8) if eaters[number].poll() is not None)
    """),
)
