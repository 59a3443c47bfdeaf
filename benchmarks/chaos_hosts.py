"""Drills over three hosts, made of namespaces of this machine: a process or a host dies, or a host loses its network.

    python benchmarks/chaos_hosts.py --list
    python benchmarks/chaos_hosts.py --cells 0:5 --append table.md
    python benchmarks/chaos_hosts.py --cells 1,2,12 --together      # several faults in one run

Trainer and generators are on hosts that `agentgym host` lends; the controller is on this machine. A host that was
killed comes up again after 5 s and is lent again, and a network that was cut comes back after 20 s. Judged as by
chaos.py, and no host may have anything left in /dev/shm. Needs root.
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

from benchmarks.chaos import (  # noqa: E402
    HEADER,
    KINDS,
    MAX_RESUMES,
    MOMENTS,
    SETTINGS,
    STEPS,
    Cell,
    Result,
    Run,
    ended,
    judge,
    part_of,
    tail,
)
from benchmarks.hosts import lend  # noqa: E402
from tests.hosts.namespaces import NamespaceHost, namespaces, why_unavailable  # noqa: E402

AWAY_S = 5.0  # of a host that was killed
CUT_S = 20.0
LOST_S = 10.0
END_S = 20.0  # for hosts that were lost to free their memory


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


async def hit(cell: Cell, hosts: Sequence[NamespaceHost], run: Run, logs: Path, folder: Path) -> None:
    """Raises LookupError when the run ends before the victim is there."""
    while True:
        with contextlib.suppress(LookupError):
            process = process_of(cell.victim, logs)
            break
        if run.process.poll() is not None:
            raise LookupError(f"the run ended without a {cell.victim}")
        await asyncio.sleep(0.01)
    host = host_of(process, hosts)
    match cell.fault:
        case "kill":
            process.send_signal(signal.SIGKILL)
        case "kill-host":
            host.kill()
            await asyncio.sleep(AWAY_S)
            host.boot()
            await lend(host, folder)
        case "cut-host":
            host.cut()
            await asyncio.sleep(CUT_S)
            host.mend()


async def drill(cells: Sequence[Cell], root: Path, seed: int) -> Result:
    """One run, hit by the cells one after another, in a folder below `root`."""
    draw = random.Random(f"{seed} {' '.join(map(str, cells))}")
    folder = Path(tempfile.mkdtemp(prefix="drill-", dir=root))
    log, path, result, steps = folder / "log", folder / "runs" / "drill", Result(cells=cells), STEPS * len(cells)
    path.parent.mkdir()
    async with namespaces(3) as hosts:
        await asyncio.gather(*(lend(host, folder) for host in hosts))
        machines = ",".join(host.address for host in hosts)
        mine = {"launcher.name": "attach", "launcher.machines": f"[{machines}]", "hosts.lost_after_s": LOST_S}
        mine |= {"loop.steps": steps, "loop.checkpoint_every": steps // 2, "loop.eval_every": steps // 2}
        words = ["train", "--plain", "--runs-dir", str(path.parent), "--name", "drill"]
        words += [f"{key}={value}" for key, value in {**SETTINGS, **mine}.items()]
        run = Run.start(words, log)
        try:
            for cell in cells:
                kind = KINDS[cell.phase]
                nth = draw.randint(1, MOMENTS.get(kind, 1)) if len(cells) == 1 else 1
                reached = await asyncio.to_thread(run.until, f"begin {kind}", nth)
                try:
                    if not reached:
                        raise LookupError(f"the phase was never reached (exit code {run.finish(1.0)})")
                    await hit(cell, hosts, run, path / "logs", folder)
                except LookupError as error:
                    result.faults.append(f"{cell}: {error}")
                    break
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
            result.faults += [*judge(path, code, steps), *await left_in_memory(hosts)]
        finally:
            run.end()
    if result.faults:
        sys.stderr.write(f"{result.row()}\n" + "".join(tail(log)))
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return result


async def left_in_memory(hosts: Sequence[NamespaceHost]) -> list[str]:
    """A host whose network was cut hears of the end a little later."""
    shared = [(host, Path(f"/proc/{host.pid}/root/dev/shm")) for host in hosts]
    until_s = time.monotonic() + END_S
    while left := [f"left behind: {host.name}: {one}" for host, at in shared for one in at.iterdir()]:
        if time.monotonic() > until_s:
            break
        await asyncio.sleep(0.1)
    return left


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--cells", default=":", metavar="FROM:TO,...")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--together", action="store_true", help="all of them in one run, one after another")
    parser.add_argument("--append", type=Path, metavar="FILE", help="write the rows there, too")
    arguments = parser.parse_args()
    every = list(enumerate(cells()))
    chosen = [one for part in arguments.cells.split(",") for one in part_of(every, part)]
    if arguments.list:
        print("\n".join(f"{number:3}  {cell}" for number, cell in chosen))
        return 0
    if reason := why_unavailable():
        raise SystemExit(reason)
    root, good = Path(tempfile.mkdtemp(prefix="agentgym-chaos-")), True
    print(HEADER, flush=True)
    each = [cell for _, cell in chosen]
    for one in [each] if arguments.together else [[cell] for cell in each]:
        result = asyncio.run(drill(one, root, arguments.seed))
        good &= result.is_good
        print(result.row(), flush=True)
        if arguments.append:
            with arguments.append.open("a") as table:
                table.write(result.row() + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
