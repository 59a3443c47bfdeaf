"""Drills over three hosts, made of namespaces of this machine: a process or a host dies, or a host loses its network.

    python benchmarks/chaos_hosts.py --list
    python benchmarks/chaos_hosts.py --cells 0:5 --append table.md

Trainer and generators are on hosts that `agentgym host` lends; the controller is on this machine. A host that was
killed comes up again after 5 s and is lent again, and a network that was cut comes back after 20 s. Judged as by
chaos.py. Needs root.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT)]

from benchmarks.chaos import HEADER, KINDS, MAX_RESUMES, MOMENTS, SETTINGS, Cell, Result, Run, ended, judge, tail  # noqa: E402
from tests.hosts.namespaces import NamespaceHost, namespaces  # noqa: E402

AWAY_S = 5.0  # of a host that was killed
CUT_S = 20.0
LOST_S = 30.0


def cells() -> list[Cell]:
    phases = ("startup", "sampling", "update", "publish", "save", "evaluation")
    some = ("sampling", "update", "save", "evaluation")
    plan: list[tuple[str, str, Sequence[str]]] = [
        ("kill", "trainer", phases),
        ("kill", "generator", phases),
        ("kill-host", "trainer", ("update", "save")),
        ("kill-host", "generator", ("sampling", "evaluation")),
        ("cut-host", "trainer", ("update", "publish")),
        ("cut-host", "generator", some[:2]),
    ]
    return [Cell(fault=fault, victim=victim, phase=phase) for fault, victim, where in plan for phase in where]


async def lend(host: NamespaceHost, log: Path) -> None:
    await host.start(sys.executable, "-m", "agentgym.cli.main", "host", output=log)


def process_of(name: str, logs: Path) -> psutil.Process:
    """The newest process of an actor, on whichever host: this machine sees those of its namespaces."""
    found = []
    for process in psutil.process_iter(["cmdline", "create_time"]):
        words = process.info["cmdline"] or []
        if (
            "--name" in words
            and words[words.index("--name") + 1].startswith(name)
            and any(str(logs) in w for w in words)
        ):
            found.append(process)
    if not found:
        raise LookupError(f"no process of {name}")
    return max(found, key=lambda one: one.info["create_time"])


def host_of(process: psutil.Process, hosts: Sequence[NamespaceHost]) -> NamespaceHost:
    inside = Path(f"/proc/{process.pid}/ns/pid").readlink()
    return next(host for host in hosts if host.first and Path(f"/proc/{host.pid}/ns/pid").readlink() == inside)


async def hit(cell: Cell, hosts: Sequence[NamespaceHost], logs: Path, log: Path) -> None:
    process: psutil.Process | None = None
    while process is None:
        with contextlib.suppress(LookupError):
            process = process_of(cell.victim, logs)
        await asyncio.sleep(0.01)
    host = host_of(process, hosts)
    match cell.fault:
        case "kill":
            process.send_signal(signal.SIGKILL)
        case "kill-host":
            host.kill()
            await asyncio.sleep(AWAY_S)
            host.boot()
            await lend(host, log)
        case "cut-host":
            host.cut()
            await asyncio.sleep(CUT_S)
            host.mend()


async def drill(cell: Cell, root: Path, seed: int) -> Result:
    draw = random.Random(f"{seed} {cell}")
    folder = Path(tempfile.mkdtemp(prefix="drill-", dir=root))
    log, path, result = folder / "log", folder / "runs" / "drill", Result(cells=[cell])
    path.parent.mkdir()
    async with namespaces(3) as hosts:
        for host in hosts:
            await lend(host, log)
        machines = ",".join(host.address for host in hosts)
        mine = {"launcher.name": "attach", "launcher.machines": f"[{machines}]", "hosts.lost_after_s": LOST_S}
        words = ["train", "--plain", "--runs-dir", str(path.parent), "--name", "drill"]
        words += [f"{key}={value}" for key, value in {**SETTINGS, **mine}.items()]
        run = Run.start(words, log)
        try:
            kind = KINDS[cell.phase]
            nth = draw.randint(1, MOMENTS.get(kind, 1))
            if not await asyncio.to_thread(run.until, f"begin {kind}", nth):
                result.faults.append(f"{cell}: it was never reached (exit code {run.finish(1.0)})")
            else:
                await hit(cell, hosts, path / "logs", log)
                result.moments.append(f"{kind} {nth}")
            began = time.monotonic()
            code = await asyncio.to_thread(run.finish)
            result.ended = ended(code)
            while code != 0 and result.resumes < MAX_RESUMES:
                result.resumes += 1
                again = words if not (path / "status.json").is_file() else ["train", "--plain", "--resume", str(path)]
                run = Run.start(again, log)
                code = await asyncio.to_thread(run.finish)
            result.seconds = time.monotonic() - began
            result.faults += judge(path, code)
        finally:
            run.end()
    if result.faults:
        sys.stderr.write(f"{result.row()}\n" + "".join(tail(log)))
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--cells", default=":", metavar="FROM:TO")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--append", type=Path, metavar="FILE", help="write the rows there, too")
    arguments = parser.parse_args()
    begin, _, end = arguments.cells.partition(":")
    chosen = list(enumerate(cells()))[int(begin or 0) : int(end) if end else None]
    if arguments.list:
        print("\n".join(f"{number:3}  {cell}" for number, cell in chosen))
        return 0
    root, good = Path(tempfile.mkdtemp(prefix="agentgym-chaos-")), True
    print(HEADER, flush=True)
    for _, cell in chosen:
        result = asyncio.run(drill(cell, root, arguments.seed))
        good &= result.is_good
        print(result.row(), flush=True)
        if arguments.append:
            with arguments.append.open("a") as table:
                table.write(result.row() + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
