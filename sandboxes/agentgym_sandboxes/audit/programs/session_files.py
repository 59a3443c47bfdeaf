"""Files of a session on their way to our process and back: links, devices, long ways up, and bad archives."""

# ruff: noqa: E501

from __future__ import annotations

import contextlib
import io
import tarfile
from collections.abc import Callable

from agentgym.sandbox import FileRefused, Limits, Session
from agentgym_sandboxes.audit.findings import Judgement, broken, contained, escaped
from agentgym_sandboxes.audit.programs.checks import described
from agentgym_sandboxes.audit.programs.session_scene import in_session, make

LIMITS = Limits(wall_s=30.0, cpu_s=10, memory_mib=256)


async def _all_refused(session: Session, paths: list[str]) -> Judgement:
    """Reading, and listing, each of these."""
    said = []
    for path in paths:
        try:
            data = await session.read(path, max_bytes=1 << 20)
        except FileRefused as error:
            said.append(f"{path[:20]}: {error}")
        else:
            return escaped(f"read {len(data)} bytes of {path!r}")
    return contained("; ".join(said))


async def _read_outside(session: Session) -> Judgement:
    up = ["../../etc/passwd", "/etc/passwd", "a/../../../etc/passwd", "..", ".", "", "\x00"]
    return await _all_refused(session, [*up, "/proc/self/environ", "x" * 5000])


async def _read_links(session: Session) -> Judgement:
    code = """
import os
os.symlink("/etc/passwd", "link")
os.symlink("/etc", "folder-link")
os.symlink("loop", "loop")
os.makedirs("a/b")
os.symlink("../../../../etc/hostname", "a/b/up")
os.symlink("/proc/self/root/etc", "root")
open("real", "w").write("text")
os.symlink("real", "to-real")
print("made")
"""
    await make(session, code)
    paths = ["link", "folder-link/passwd", "loop", "a/b/up", "root/passwd"]
    judgement = await _all_refused(session, paths)
    listed = {info.path for info in await session.files()}
    if listed & set(paths):
        return escaped(f"lists links: {sorted(listed & set(paths))}")
    return judgement


async def _read_specials(session: Session) -> Judgement:
    code = """
import os, socket
os.mkfifo("fifo")
s = socket.socket(socket.AF_UNIX); s.bind("socket")
os.mkdir("folder")
os.symlink("/dev/zero", "zero")
print("made")
"""
    await make(session, code)
    return await _all_refused(session, ["fifo", "socket", "folder", "zero", "/dev/zero"])


async def _read_oversized(session: Session) -> Judgement:
    await make(session, "open('large', 'wb').write(bytes(3 << 20))\nprint('made')")
    return await _all_refused(session, ["large"])


async def _growing_file(session: Session) -> Judgement:
    """A file that grows, and is swapped for a link, while it is read."""
    code = """
import os, time
open("small", "w").write("x")
if not os.fork():
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        try:
            os.symlink("/etc/passwd", "new")
            os.rename("new", "small")
            with open("new", "w") as file:
                file.write("x")
            os.rename("new", "small")
        except OSError:
            pass
    os._exit(0)
print("made")
"""
    await make(session, code)
    num_read = 0
    for _ in range(100):
        try:
            data = await session.read("small", max_bytes=1 << 20)
        except FileRefused:
            continue
        num_read += 1
        if b"root:" in data:
            return escaped("the link was followed")
    return contained(f"{num_read} of 100 reads, none through the link")


async def _write_through(session: Session) -> Judgement:
    code = """
import os
os.mkdir("target"); open("target/file", "w").write("before")
os.symlink("target/file", "link")
os.symlink("/tmp", "out")
os.symlink("/work", "work")
os.mkfifo("fifo")
print("made")
"""
    await make(session, code)
    for path in ("../up", "/tmp/planted", "out/planted", "work/planted", "a/../../planted", ".", "", "target"):
        try:
            await session.write(path, b"planted")
        except FileRefused:
            continue
        return escaped(f"wrote to {path!r}")
    for path in ("link", "fifo"):
        with contextlib.suppress(FileRefused):
            await session.write(path, b"planted")
    looked = await session.run(
        "import glob\nprint(open('target/file').read(), glob.glob('/tmp/planted') + glob.glob('/work/planted') + glob.glob('/work/up'))",
        limits=LIMITS,
    )
    if looked.stdout != "before []\n":
        return escaped(f"something was written through a link: {described(looked)}")
    return contained("nothing was written outside or through a link")


async def _many_names(session: Session) -> Judgement:
    """A listing that is long and strange."""
    code = r"""
import os
for name in (b"\n", b"\xff\xfe", b"a" * 255, b"\x1b[2J", "e\u0301".encode()):
    open(name, "w").close()
os.makedirs("/".join("d" * 40 for _ in range(60)))
for number in range(500):
    open("f%d" % number, "w").close()
print("made")
"""
    await make(session, code)
    try:
        found = await session.files()
    except FileRefused as error:
        return contained(f"refused: {error}")
    bad = [info.path for info in found if info.path.startswith("/") or ".." in info.path.split("/")]
    if bad:
        return escaped(f"lists {bad[0]!r}")
    return contained(f"{len(found)} names")


def _archive(fill: Callable[[tarfile.TarFile], None], *, mode: str = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        fill(archive)
    return buffer.getvalue()


def _member(
    name: str, kind: bytes = tarfile.REGTYPE, *, link: str = "", size: int = 0, mode: int = 0o644
) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size, member.mode = kind, link, size, mode
    return member


def _bad_archives() -> dict[str, bytes]:
    def file(archive: tarfile.TarFile, name: str) -> None:
        archive.addfile(_member(name, size=7), io.BytesIO(b"planted"))

    def through_link(archive: tarfile.TarFile) -> None:
        archive.addfile(_member("out", tarfile.SYMTYPE, link="/tmp"))
        file(archive, "out/planted")

    def many(archive: tarfile.TarFile) -> None:
        for number in range(21_000):
            archive.addfile(_member(f"n{number}"))

    return {
        "up": _archive(lambda a: file(a, "../planted")),
        "far up": _archive(lambda a: file(a, "a/../../../tmp/planted")),
        "absolute": _archive(lambda a: file(a, "/tmp/planted")),
        "link": _archive(lambda a: a.addfile(_member("planted", tarfile.SYMTYPE, link="/etc/passwd"))),
        "through a link": _archive(through_link),
        "hard link": _archive(lambda a: a.addfile(_member("planted", tarfile.LNKTYPE, link="/etc/passwd"))),
        "device": _archive(lambda a: a.addfile(_member("planted", tarfile.CHRTYPE))),
        "fifo": _archive(lambda a: a.addfile(_member("planted", tarfile.FIFOTYPE))),
        "cut": _archive(lambda a: file(a, "planted"))[:700],
        "size that lies": _member("planted", size=1 << 40).tobuf() + bytes(1024),
        "no archive": b"not a tar archive at all" * 100,
        "many": _archive(many),
    }


async def _bad_restores(session: Session) -> Judgement:
    said = []
    await session.write("before", b"kept?")
    for name, data in _bad_archives().items():
        try:
            await session.restore(data)
        except FileRefused:
            said.append(name)
        looked = await session.run(
            "import glob, os\nprint([p for p in glob.glob('/tmp/planted') + glob.glob('/work/planted') + glob.glob('/tmp/*/planted') if os.path.lexists(p)], "
            "os.path.islink('planted'), os.path.islink('out'), os.path.exists('planted') and not os.path.isfile('planted'))",
            limits=LIMITS,
        )
        if looked.stdout != "[] False False False\n":
            return escaped(f"archive {name!r}: {described(looked)}")
    taken = sorted(set(_bad_archives()) - set(said))
    if taken:
        return escaped(f"took archives: {', '.join(taken)}")
    return contained(f"refused: {', '.join(said)}")


async def _packed_bomb(session: Session) -> Judgement:
    """An archive that is small as it comes and large when unpacked."""

    def fill(archive: tarfile.TarFile) -> None:
        archive.addfile(_member("bomb", size=200 << 20), io.BytesIO(bytes(200 << 20)))

    try:
        await session.restore(_archive(fill, mode="w:gz"))
    except FileRefused as error:
        return contained(str(error))
    found = sum(info.size for info in await session.files())
    return escaped(f"unpacked {found >> 20} MiB") if found > 128 << 20 else contained(f"{found} bytes came of it")


async def _bad_snapshot(session: Session) -> Judgement:
    """What a work folder can hold to make its own archive bad."""
    code = """
import os
os.symlink("/etc/passwd", "link")
os.mkfifo("fifo")
open("real", "w").write("text")
try: os.link("/etc/passwd", "hard")
except OSError: pass
os.mkdir("closed"); open("closed/x", "w").close(); os.chmod("closed", 0)
print("made")
"""
    await make(session, code)
    try:
        data = await session.snapshot()
    except FileRefused as error:
        return contained(f"refused: {error}")
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = archive.getmembers()
        for member in members:
            content = archive.extractfile(member)
            if content is not None and b"root:" in content.read():
                return escaped(f"{member.name!r} holds what a link leads to")
    odd = [
        m.name for m in members if not (m.isfile() or m.isdir()) or m.name.startswith("/") or ".." in m.name.split("/")
    ]
    if odd:
        return escaped(f"the archive holds {odd[0]!r}")
    if not any(m.name.endswith("real") for m in members):
        return broken(f"the archive holds only {[m.name for m in members][:5]}")
    return contained(f"{len(members)} plain members")


async def _reset_leaves_nothing(session: Session) -> Judgement:
    code = """
import builtins, os, time
planted = builtins.planted = 1
os.environ["PLANTED"] = "1"
open("left", "w").close(); open("/tmp/left-in-tmp", "w").close()
if not os.fork():
    os.setsid(); time.sleep(5); os._exit(0)
print("made")
"""
    await make(session, code)
    await session.reset()
    look = """
import builtins, os
me = os.getuid()
uids = [os.stat("/proc/" + pid).st_uid for pid in os.listdir("/proc") if pid.isdigit() and os.path.exists("/proc/" + pid)]
print("planted" in globals(), hasattr(builtins, "planted"), "PLANTED" in os.environ, os.listdir("."), os.path.exists("/tmp/left-in-tmp"))
"""
    looked = await session.run(look, limits=LIMITS)
    if looked.stdout != "False False False [] False\n":
        return escaped(f"after the reset: {described(looked)}")
    return contained("no name, no variable and no file was left")


# fmt: off
SCENES = (
    in_session("read_outside", "asks for files outside of the work folder, by ways up and absolute paths",
        _read_outside),
    in_session("read_links", "puts links where a file is asked for", _read_links),
    in_session("read_specials", "puts a fifo, a socket, a folder or a device where a file is asked for",
        _read_specials),
    in_session("read_oversized", "puts a file there that is larger than asked for", _read_oversized),
    in_session("swapped_file", "swaps a file for a link while it is read", _growing_file),
    in_session("write_through_links", "has files written through its links, and outside", _write_through),
    in_session("strange_listing", "has a long and strange folder listed", _many_names),
    in_session("bad_archives", "has archives restored that lead outside, hold links and devices, or lie",
        _bad_restores),
    in_session("packed_bomb", "has an archive restored that unpacks to 200 MiB", _packed_bomb),
    in_session("bad_snapshot", "fills the work folder with links, fifos and closed folders, then has it saved",
        _bad_snapshot),
    in_session("after_a_reset", "leaves names, variables, files and a daemon for after the reset",
        _reset_leaves_nothing),
)
