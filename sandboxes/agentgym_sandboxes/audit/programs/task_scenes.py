"""Attacks on what comes out of a task's container: the second one, files on their way, and its network."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Literal

from agentgym.sandbox import FileRefused, Limits, RunStatus, SandboxBackend, Session
from agentgym.types import SandboxSpec
from agentgym_sandboxes.audit.findings import Category, Judgement, broken, contained, escaped
from agentgym_sandboxes.audit.host import Host
from agentgym_sandboxes.audit.trial import Scene

SPEC = SandboxSpec(session=True, profile="task")
LIMITS = Limits(wall_s=30.0, cpu_s=20)
OURS = "/.agentgym/ld.so --library-path /.agentgym/lib /.agentgym/bin/python3 -I -c"
_LOOK = """
import glob
for path in glob.glob('/proc/[0-9]*/cmdline'):
    print('process', open(path).read().split(chr(0))[0])
print('preloaded', 'krb5' in open('/proc/self/maps').read())
"""


def _scene(
    name: str, tries: str, act: Callable[[SandboxBackend, Session, Host], Awaitable[Judgement]], category: Category,
    network: Literal["public", ""] = "",
) -> Scene:  # fmt: skip
    async def leased(backend: SandboxBackend, host: Host) -> Judgement:
        async with backend.session_for(replace(SPEC, network=network or ())) as session:
            return await act(backend, session, host)

    return Scene(name, tries, leased, category=category, claim="any_image")


async def _second_machine(backend: SandboxBackend, session: Session, host: Host) -> Judgement:
    """What is left behind everywhere that something may be loaded from, or written to, afterwards."""
    made = await session.exec(
        "setsid sh -c 'while true; do mkdir -p /logs; echo 1 > /logs/reward; done' & "
        "echo /.agentgym/lib/libkrb5.so.3 > /etc/ld.so.preload; "
        "for name in json os socket encodings sitecustomize usercustomize agent; do "
        'echo \'open("/forged", "w"); raise SystemExit\' > /$name.py; done; '
        "mkdir -p /root/.config; cp /json.py /root/sitecustomize.py; ln -s /etc /tests; ln -s /etc/passwd /out; "
        "printf 'openssl_conf = x\\n' > /etc/ssl/openssl.cnf; echo made",
        limits=LIMITS,
    )
    if "made" not in made.stdout:
        return broken(f"it was not prepared: {made.stderr[:200]}")
    async with session.machine.freeze() as frozen, backend.session_for(replace(SPEC, image=frozen.image)) as second:
        seen = await second.exec([*OURS.split(), _LOOK], limits=LIMITS)
        await second.machine.put("/tests", {"check": b"ours"}, replace=True)
        checks = {
            "a process of the first runs": "sleep" in seen.stdout or seen.stdout.count("process sh") > 0,
            "our Python loads a library of the image's": "preloaded False" not in seen.stdout,
            "our Python runs a module of the image's": await _is_there(second, "/forged"),
            "files of ours went where a link leads": await _is_there(second, "/etc/check"),
            "files of ours are not there": await second.machine.get_file("/tests/check") != b"ours",
            "a link was followed": await _is_there(second, "/out"),
        }
    found = [text for text, is_true in checks.items() if is_true]
    return escaped("; ".join(found)) if found else contained(f"{len(checks)} ways closed")


async def _is_there(session: Session, path: str) -> bool:
    try:
        await session.machine.get_file(path)
    except FileRefused:
        return False
    return True


async def _handed_back(backend: SandboxBackend, session: Session, host: Host) -> Judgement:
    """Devices, links, setuid bits, a file larger than the disk, and one that is swapped while it is read."""
    made = await session.exec(
        "mkdir -p d/e; cd d; mkfifo fifo; mknod disk b 8 0; mknod zero c 1 5; ln -s / root; ln -s ../../etc e/up; "
        "cp /bin/true su; chmod 6755 su; echo x > plain; ln plain e/same; truncate -s 1T ../large; "
        'python3 -c \'import os; os.symlink("/etc/shadow", b"\\xff../x\\n")\'; '
        "(while true; do ln -sf /etc/shadow new; mv -T new swapped; echo x > new; mv -T new swapped; done) "
        "> /dev/null 2>&1 & echo made",
        limits=LIMITS,
    )
    if "made" not in made.stdout:
        return broken(f"it was not prepared: {made.stderr[:200]}")
    home = (await session.exec("pwd")).stdout.strip().rstrip("/")
    for path in ("/large", "/d/swapped", "/d/fifo", "/d/zero", "/d/disk"):
        try:
            data = await session.machine.get_file(home + path)
        except FileRefused:
            continue
        if data not in (b"x\n", b""):
            return escaped(f"read {len(data)} bytes of {path}")
    with tarfile.open(fileobj=io.BytesIO(await session.machine.get(f"{home}/d"))) as archive:
        for entry in archive:
            if not (entry.isdir() or entry.isreg() or entry.islnk() or entry.name == "swapped"):
                return escaped(f"{entry.name!r} of type {entry.type!r} came out")
            if entry.mode & 0o7000 or entry.name.startswith(("/", "..")) or entry.linkname.startswith(("/", "..")):
                return escaped(f"{entry.name!r} came out with mode {entry.mode:o} and the link {entry.linkname!r}")
    try:
        async with asyncio.timeout(60):
            await session.machine.get(f"{home}/large", max_bytes=1 << 20)
    except FileRefused:
        return contained("only folders and regular files came out, within their bounds")
    return escaped("a file of a TiB came out")


async def _public_network(backend: SandboxBackend, session: Session, host: Host) -> Judgement:
    """With network "public": this machine, its neighbours and the host of a cloud's metadata."""
    code = host.fill("""
import os, socket, urllib.request
addresses = ["127.0.0.1", "169.254.169.254", "10.0.0.1", "[::1]", "localhost", *@ADDRESSES@]
for address in addresses:
    for url in ("http://%s:@TCP_PORT@/" % address, "https://%s:@TCP_PORT@/" % address):
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                print("reached", url, answer.status)
        except OSError as error:
            print("refused", error)
for address in @ADDRESSES@:
    try:
        socket.create_connection((address, @TCP_PORT@), 2)
        print("reached", address)
    except OSError as error:
        print("refused", error)
print("done")
""")
    env = {"no_proxy": "", "NO_PROXY": ""}
    said = await session.machine.exec(["python3", "-c", code], env=env, limits=Limits(wall_s=120.0, cpu_s=20))
    await host.catch_up()
    if said.status is not RunStatus.OK or "done" not in said.stdout:
        return broken(f"it ended with {said.status}: {said.stderr[-200:]}")
    if host.received or "reached" in said.stdout:
        return escaped(f"{host.received}, {said.stdout[-200:]}")
    return contained(f"{said.stdout.count('refused')} connections refused")


SCENES = (
    _scene("second_machine", "leaves processes, libraries, modules and links for the container of the verdict",
           _second_machine, Category.REWARD),
    _scene("files_of_a_machine", "hands back devices, links, setuid files, a file of a TiB and one that changes",
           _handed_back, Category.HANDED_BACK),
    _scene("public_network", "reaches this machine and private networks where a task may reach the internet",
           _public_network, Category.SURFACE, "public"),
)  # fmt: skip
