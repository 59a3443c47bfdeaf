"""Lets tests that root runs try what only an ordinary user may: a user id, control groups of its own, a Python.

Root's Python and this repository may lie where no one else may look, as under /root: such a folder is covered, for that
one process, by an empty one that holds them and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path

UID = 54321  # nobody's: what is tested must not need an account
CONTROLLERS = ("memory", "pids")
ROOT = Path("/sys/fs/cgroup")


def is_root() -> bool:
    return os.geteuid() == 0


def command(arguments: list[str], group: Path | None = None) -> list[str]:
    """An argument list that runs another as the ordinary user. group: of version 2, one to join first."""
    if not is_root():
        return arguments
    drop = f"setpriv --reuid {UID} --regid {UID} --clear-groups --inh-caps=-all {shlex.join(arguments)}"
    join = f"echo 0 > {group}/cgroup.procs\n" if group is not None else ""
    return ["unshare", "--mount", "sh", "-ec", f"{join}{_show_code()}exec {drop}"]


def _show_code() -> str:
    """Commands that make the folders of our code readable; none for those that are."""
    folders = {Path(sys.base_prefix), Path(sys.prefix).resolve(), Path(__file__).resolve().parents[2]}
    folders |= {Path(path).resolve() for path in sys.path if Path(path).is_dir()}
    folders = {shown for one in folders for shown in (filter(Path.is_dir, one.iterdir()) if _is_closed(one) else [one])}
    top = [one for one in sorted(folders) if not any(other in one.parents for other in folders)]
    closed = {one: path for one in top if (path := _first_closed(one)) is not None}
    spots = {one: f"/tmp/code-{os.getpid()}-{time.monotonic_ns()}-{number}" for number, one in enumerate(closed)}
    commands = [f"mkdir {spot}\nmount --bind {one} {spot}\n" for one, spot in spots.items()]
    commands += [f"mount -t tmpfs -o mode=755 tmpfs {path}\n" for path in sorted(set(closed.values()))]
    commands += [f"mkdir -p {one}\nmount --move {spot} {one}\nrmdir {spot}\n" for one, spot in spots.items()]
    return "".join(commands)


def _first_closed(folder: Path) -> Path | None:
    return next((p for p in reversed(folder.parents) if _is_closed(p)), None)


def _is_closed(folder: Path) -> bool:
    return not folder.stat().st_mode & 0o001


@contextlib.contextmanager
def control_groups(name: str) -> Iterator[tuple[str, Path | None]]:
    """Groups that the user may divide: their path, and with version 2 the folder to join.

    Raises OSError where root may not make any.
    """
    version_2 = (ROOT / "cgroup.controllers").exists()
    folders = [ROOT / name] if version_2 else [ROOT / controller / name for controller in CONTROLLERS]
    try:
        if version_2:
            _hand_down()
        for folder in folders:
            folder.mkdir()
            for path in (folder, *folder.glob("cgroup.*")):
                os.chown(path, UID, UID)
        yield f"/{name}", folders[0] if version_2 else None
    finally:
        for folder in folders:
            _remove(folder)


def _hand_down() -> None:
    """Let groups below the root of version 2 limit; in a container, that root must hold no process then."""
    control = ROOT / "cgroup.subtree_control"
    if set(CONTROLLERS) <= set(control.read_text().split()):
        return
    try:
        control.write_text(" ".join(f"+{c}" for c in CONTROLLERS))
    except OSError:
        (ROOT / "init").mkdir(exist_ok=True)
        for pid in (ROOT / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):  # one of the kernel's, or gone
                (ROOT / "init" / "cgroup.procs").write_text(pid)
        control.write_text(" ".join(f"+{c}" for c in CONTROLLERS))


def _remove(folder: Path) -> None:
    """Remove a group and those in it, once what ran there has ended."""
    deadline_s = time.monotonic() + 60
    for inner in [*folder.glob("*/"), folder]:
        while inner.exists():
            try:
                inner.rmdir()
            except OSError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.02)
