"""Concurrent calls: one makes another fail, take longer or look broken; or looks broken itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial

from agentgym.sandbox import Limits, RunResult, RunStatus, SandboxBackend
from agentgym_sandboxes.audit.findings import Category, Judgement, broken, contained, escaped
from agentgym_sandboxes.audit.host import Host
from agentgym_sandboxes.audit.programs.checks import described, left, settled
from agentgym_sandboxes.audit.programs.prelude import program
from agentgym_sandboxes.audit.trial import Scene, Snippet

LIMITS = Limits(wall_s=30.0, cpu_s=8, memory_mib=256)
NUM_VICTIMS = 40

_OTHERS = """
import os
others = 0
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open("/proc/%s/status" % pid) as file:
            uid = next(int(line.split()[1]) for line in file if line.startswith("Uid:"))
        others += uid > 65000 and uid != os.getuid()
    except OSError:
        pass
print(others)
"""
_IDLE = "import time; time.sleep(4)"


@contextlib.asynccontextmanager
async def _beside(backend: SandboxBackend, code: str, begun_s: float = 0.4) -> AsyncIterator[asyncio.Task[RunResult]]:
    """A call that has begun and goes on."""
    task = asyncio.create_task(backend.run(code, limits=Limits(wall_s=120.0, cpu_s=8, memory_mib=256)))
    await asyncio.sleep(begun_s)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for _ in range(100):  # until it is cleaned up, before the next trial starts
            if (await backend.run(_OTHERS, limits=LIMITS)).stdout == "0\n":
                break


async def _until(task: asyncio.Task[RunResult], backend: SandboxBackend) -> list[RunResult]:
    """Calls in a row for as long as a hostile one goes on: whenever it is ready, one of them meets it."""
    results = [await backend.run("print(6 * 7)", limits=LIMITS)]
    while not task.done():
        results.append(await backend.run("print(6 * 7)", limits=LIMITS))
    return results


def _unharmed(results: list[RunResult]) -> Judgement:
    for number, result in enumerate(results):
        if (result.status, result.stdout) != (RunStatus.OK, "42\n"):
            return escaped(f"call {number + 1} beside it failed: {described(result)}")
    return contained(f"{len(results)} calls beside it were unaffected")


async def _takes_homes(backend: SandboxBackend, host: Host) -> Judgement:
    code = program("""
import time
taken = 0
for uid in range(os.getuid() - 70, os.getuid() + 70):
    try:
        os.mkdir("/work/%d" % uid)
        taken += 1
    except OSError:
        pass
say("made", "folders", taken)
time.sleep(1)
""")
    async with _beside(backend, code) as task:
        victims = await _until(task, backend)
        hostile = await task
    if "made: folders" not in hostile.stdout:
        return settled(hostile) or broken(described(hostile))
    return _unharmed(victims)


async def _takes_all_room(backend: SandboxBackend, host: Host) -> Judgement:
    code = program("""
import time
try:
    for number in range(20000):
        open("/work/%d-%d" % (os.getuid(), number), "w").close()
except OSError as error:
    say("made", "files", errno.errorcode[error.errno])
time.sleep(2)
""")
    async with _beside(backend, code) as task:
        victims = await _until(task, backend)
        hostile = await task
    early = settled(hostile)
    return early if early is not None else _unharmed(victims)


async def _takes_the_processor(backend: SandboxBackend, host: Host) -> Judgement:
    """Half a second of the processor for a call, before 32 others have had ten times as much."""
    busy = program("""
for _ in range(5):
    try:
        os.fork()
    except OSError:
        pass
while True:
    pass
""")
    work = """
import os, time
seen = {}
def others_s():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat("/proc/" + pid).st_uid not in (0, os.getuid()):
                with open("/proc/%s/stat" % pid) as file:
                    fields = file.read().rpartition(")")[2].split()
                seen[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except OSError:
            pass
    return sum(seen.values())
begun_s, others_begun_s = time.process_time(), others_s()
while True:
    mine, others = time.process_time() - begun_s, others_s() - others_begun_s
    if mine >= 0.5 or others >= 5:
        break
    pause_s = time.process_time() + 0.02
    while time.process_time() < pause_s:
        pass
print(6 * 7 if mine >= 0.5 else "%.2f s of the processor, %.2f s for others" % (mine, others))
"""
    async with _beside(backend, busy, begun_s=0.8):
        return _unharmed([await backend.run(work, limits=Limits(wall_s=60.0, cpu_s=8, memory_mib=256))])


async def _restless_files(backend: SandboxBackend, host: Host) -> Judgement:
    code = program("""
import time
end = time.monotonic() + 3
os.fork()
mine = "/tmp/%d-%d-" % (os.getuid(), os.getpid())
say("made", "files")
while time.monotonic() < end:
    for number in range(300):
        open(mine + str(number), "w").close()
    for number in range(300):
        os.unlink(mine + str(number))
""")
    async with _beside(backend, code, begun_s=0.2), _beside(backend, code, begun_s=0.2) as task:
        victims = [await backend.run("print(6 * 7)", limits=LIMITS) for _ in range(NUM_VICTIMS)]
        hostile = await task
    early = settled(hostile)
    return early if early is not None else _unharmed(victims)


async def _folders_in_folders(backend: SandboxBackend, host: Host) -> Judgement:
    """Two calls, each of which keeps full folders inside the folders of the other."""
    code = program("""
import glob, time
os.umask(0)
mine = "/tmp/open-%d" % os.getuid()
os.mkdir(mine)
end = time.monotonic() + SECONDS
done = set()
while time.monotonic() < end:
    for folder in set(glob.glob("/tmp/open-*") + glob.glob("/tmp/open-*/in-*")) - done:
        if os.stat(folder).st_uid != os.getuid():
            inner = "%s/in-%d" % (folder, os.getuid())
            try:
                os.mkdir(inner)
                os.makedirs(inner + "/closed/deep", 0o700)
                done.add(folder)
            except OSError:
                pass
    time.sleep(0.01)
say("made", "folders", len(done))
""")
    calls = [backend.run(code.replace("SECONDS", seconds), limits=LIMITS) for seconds in ("0.7", "1.2")]
    for result in await asyncio.gather(*calls):
        judgement = left("folders")(result)
    look = await backend.run("import glob; print(glob.glob('/tmp/*') + glob.glob('/tmp/.*'))", limits=LIMITS)
    if look.stdout != "[]\n":
        return escaped(f"left: {described(look)}")
    return judgement


async def _hides_files(backend: SandboxBackend, host: Host) -> Judgement:
    """A full disk that it caused itself must not be blamed on its neighbour."""
    code = program("""
os.mkdir("/tmp/closed")
try:
    for number in range(20000):
        open("/tmp/closed/%d" % number, "w").close()
except OSError as error:
    say("made", "files", errno.errorcode[error.errno])
os.chmod("/tmp/closed", 0)
raise OSError(errno.ENOSPC, "no room")
""")
    async with _beside(backend, _IDLE, begun_s=0.1):
        return left_to_itself(await backend.run(code, limits=LIMITS), RunStatus.DISK_LIMIT)


async def _hides_memory(backend: SandboxBackend, host: Host) -> Judgement:
    """Memory that no process shows, then killed for lack of memory: caused by itself too."""
    code = program("""
say("made", "files")
for number in range(60):
    try:
        file = os.memfd_create("hidden")
        for _ in range(14):
            os.write(file, bytes(1 << 20))
    except OSError:
        break
held = []
while True:
    held.append(bytearray(os.urandom(1 << 16) * 16))
""")
    async with _beside(backend, _IDLE, begun_s=0.1):
        limits = Limits(wall_s=60.0, cpu_s=20, memory_mib=512)
        return left_to_itself(await backend.run(code, limits=limits), RunStatus.OOM)


def left_to_itself(result: RunResult, *statuses: RunStatus) -> Judgement:
    """It failed, and the failure is attributed to it."""
    early = settled(result)
    if early is not None:
        return early
    if "made: " not in result.stdout or result.status not in (*statuses, RunStatus.ERROR):
        return broken(described(result))
    return contained(described(result))


_program = partial(Snippet, category=Category.OUTLIVING, limits=LIMITS)

# fmt: off
SNIPPETS: tuple[Snippet | Scene, ...] = (
    Scene("taken_homes", "takes the names of the folders that calls after it will be given", _takes_homes,
        category=Category.OUTLIVING, claim="per_call_uid"),
    Scene("no_room_to_start", "takes all space for files, so that concurrent calls cannot even begin", _takes_all_room,
        category=Category.OUTLIVING, claim="per_call_uid"),
    Scene("all_of_the_processor",
        "runs 32 endless processes, so that a call beside it gets almost no CPU time",
        _takes_the_processor, category=Category.RESOURCES, claim="per_call_uid"),
    Scene("restless_files", "makes and removes files as fast as it can, while calls beside it are cleaned up after",
        _restless_files, category=Category.OUTLIVING, claim="per_call_uid"),
    Scene("folders_of_others", "keeps full folders in those of another call, which that one may not remove",
        _folders_in_folders, category=Category.OUTLIVING, claim="per_call_uid"),
    Scene("disk_out_of_sight",
        "fills the disk out of sight and fails for lack of space, as if a neighbour had taken it", _hides_files,
        category=Category.RESOURCES, claim="per_call_uid"),
    Scene("memory_out_of_sight",
        "fills the memory with what no process shows, and is killed as if a neighbour had taken it", _hides_memory,
        category=Category.RESOURCES, claim="per_call_uid"),
    _program("children_of_the_runner", "makes processes that are children of the runner, which must reap them",
        left("children"), """
        import ctypes, signal, time
        number = {"x86_64": 56, "aarch64": 220}.get(os.uname().machine)
        CLONE_PARENT = 0x8000
        syscall = ctypes.CDLL(None).syscall
        parent = os.getppid()
        made = 0
        for _ in range(8 if number else 0):
            pid = syscall(number, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
            if pid == 0:
                time.sleep(0.05 * (made % 2))
                os._exit(3)
            made += pid > 0
        time.sleep(0.2)
        say("made", "children", "%d of %d" % (made, parent))
    """),
)
