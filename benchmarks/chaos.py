"""Drills: a process of a run is killed, stopped or delayed, its disk filled or its network cut, at every phase.

    python benchmarks/chaos.py --list                       # the cells
    python benchmarks/chaos.py --cells 0:8                  # some of them
    python benchmarks/chaos.py --only kill,trainer          # those that have these words
    python benchmarks/chaos.py --seed 1 --append table.md   # other moments of the same phases

A phase is hit by its cause: the run says on a pipe what it begins (chaos_run.py), and the fault comes at a moment
within that call, which the seed chooses. Then the run ends by itself, or is resumed until it does; the auditor reads
its folder, and every group of every step must have been trained once. Prints a Markdown table; exit code 1 when a
cell fails. Full disks and cut networks take root: the run gets a small file system, and a network, of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from agentgym.runs.audit import audit

STEPS, GROUPS, SIZE = 4, 2, 4
SETTINGS = {
    "env.name": "math",
    "env.options.levels": "[1]",
    "loop.steps": STEPS,
    "loop.groups_per_step": GROUPS,
    "loop.group_size": SIZE,
    "loop.checkpoint_every": 2,
    "loop.eval_every": 2,
    "loop.eval_tasks": 2,
    "eval.tasks": 4,
    "eval.samples_per_task": 1,
    "generator.replicas": 2,
    "generator.device": "cpu",
    "generator.probe_every_s": 1,
    "generator.start_timeout_s": 60,
    "trainer.device": "cpu",
    "trainer.step_timeout_s": 40,
    "logging.sinks": "[]",
}
VARIANTS: dict[str, dict[str, object]] = {  # what a victim or a fault needs
    "reference": {"loss.kl_coef": 0.01, "trainer.reference_every": 1, "trainer.reference_mix": 0.5},
    "weights": {"weights.store": "torchstore"},
    "network": {"trainer.procs": 2},
    "worker": {"rollout.workers": 2, "rollout.env_timeout_s": 10},
}
KINDS = {  # phase -> the call that it is, in the order of a run: faults `--together` come one after another
    "startup": "start",
    "sampling": "generate",
    "update": "train",
    "publish": "publish",
    "evaluation": "evaluate",
    "save": "save",
    "shutdown": "stop",
}
MOMENTS = {"generate": 12, "rollout": 6, "train": 3, "publish": 2, "save": 3, "evaluate": 3}  # of which one is drawn
DELAY_S = 5.0
DISK_MIB = 96  # a checkpoint has 15, and a resume saves one more
PATIENCE_S = 240.0  # for a run to end
MAX_RESUMES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """victim: a process (weights is the store's), memory, disk or network."""

    fault: str
    victim: str
    phase: str

    @property
    def kind(self) -> str:
        """The call that the phase is. In the controller no episode of training is sampled where there are workers."""
        return "rollout" if (self.victim, self.phase) == ("worker", "sampling") else KINDS[self.phase]

    def __str__(self) -> str:
        return f"{self.fault} {self.victim} at {self.phase}"


def cells() -> list[Cell]:
    """Each fault at the phases where its victim is there."""
    phases = tuple(KINDS)
    plan: list[tuple[str, str, Sequence[str]]] = [
        ("kill", "controller", phases),
        ("kill", "trainer", phases),
        ("kill", "generator", phases),
        ("kill", "worker", phases),
        ("stop", "worker", ("startup", "sampling", "shutdown")),
        ("delay", "worker", ("sampling", "save")),
        ("term", "controller", phases),
        ("stop", "trainer", ("startup", "update", "publish", "save", "shutdown")),
        ("stop", "generator", phases),
        ("delay", "controller", phases),
        ("delay", "trainer", phases),
        ("delay", "generator", ("sampling", "publish", "evaluation")),
        ("term", "trainer", ("update", "save")),
        ("term", "generator", ("sampling", "evaluation")),
        ("kill", "reference", ("startup", "update", "shutdown")),
        ("kill", "weights", ("startup", "publish", "shutdown")),
        ("fill", "disk", phases),
        ("fill", "memory", ("startup", "publish")),
        ("remove", "memory", ("sampling", "publish")),
        ("cut", "network", ("startup", "update", "publish", "save")),
    ]
    return [Cell(fault=fault, victim=victim, phase=phase) for fault, victim, where in plan for phase in where]


@dataclass(slots=True)
class Run:
    """One start of `agentgym`, and what it says."""

    process: subprocess.Popen[bytes]
    lines: queue.Queue[str | None] = field(default_factory=queue.Queue)

    @classmethod
    def start(cls, words: Sequence[str], log: Path, prefix: Sequence[str] = ()) -> Run:
        reader, writer = os.pipe()
        with contextlib.suppress(OSError):
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 1 << 20)
        command = [*prefix, sys.executable, str(Path(__file__).with_name("chaos_run.py")), str(writer), *words]
        with log.open("ab") as output:
            started = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                pass_fds=[writer],
                start_new_session=True,
            )
        os.close(writer)
        run = cls(started)
        threading.Thread(target=run._read, args=(reader,), daemon=True).start()
        return run

    def _read(self, reader: int) -> None:
        with os.fdopen(reader) as lines:
            for line in lines:
                self.lines.put(line.strip())
        self.lines.put(None)

    def until(self, line: str, nth: int, timeout_s: float = PATIENCE_S) -> bool:
        """Whether it says this so often from now on, before it ends."""
        with contextlib.suppress(queue.Empty):
            while self.lines.get_nowait() is not None:
                pass
            return False
        until_s = time.monotonic() + timeout_s
        while nth:
            try:
                said = self.lines.get(timeout=max(0.0, until_s - time.monotonic()))
            except queue.Empty:
                return False
            if said is None:
                return False
            nth -= said == line
        return True

    def actor(self, name: str) -> int:
        """A process of an actor that runs: waits until there is one. Raises LookupError when the run ends first."""
        while self.process.poll() is None:
            for child in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    words = child.cmdline()
                    named = "--name" in words and words[words.index("--name") + 1].startswith(name)
                    if named and child.status() != psutil.STATUS_STOPPED:
                        return child.pid
            time.sleep(0.005)
        raise LookupError(f"the run ended without a {name}")

    def finish(self, timeout_s: float = PATIENCE_S) -> int | None:
        """Its exit code; None where it had to be killed."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.end()
            return None

    def end(self) -> None:
        """Whatever is left of it, stopped processes too."""
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    child.kill()
        self.process.kill()
        self.process.wait()


@dataclass(slots=True, kw_only=True)
class Result:
    """ended: how the run that was hit ended. seconds: from its last fault to the end of it all."""

    cells: Sequence[Cell]
    moments: list[str] = field(default_factory=list)
    ended: str = ""
    resumes: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return not self.faults

    def row(self) -> str:
        how = {0: "by itself", 1: "by a resume"}.get(self.resumes, f"by {self.resumes} resumes")
        verdict = "whole" if self.is_good else "; ".join(self.faults)
        names = [", ".join(getattr(cell, name) for cell in self.cells) for name in ("fault", "victim", "phase")]
        return f"| {' | '.join([*names, ', '.join(self.moments), self.ended, how, f'{self.seconds:.0f}', verdict])} |"


HEADER = "| fault | of | phase | moment | the run that was hit | done | s | audit |\n|---|---|---|---|---|---|--:|---|"


def drill(cells: Sequence[Cell], root: Path, seed: int, settings: Mapping[str, object]) -> Result:
    """One run, hit by the cells one after another, in a folder below `root`. The first says what the run has."""
    draw = random.Random(f"{seed} {' '.join(map(str, cells))}")
    folder = Path(tempfile.mkdtemp(prefix="drill-", dir=root))
    log, path, result = folder / "log", folder / "runs" / "drill", Result(cells=cells)
    path.parent.mkdir()
    variant = VARIANTS.get(cells[0].victim, {})
    words = ["train", "--plain", "--runs-dir", str(path.parent), "--name", "drill"]
    steps = int(str(settings.get("loop.steps", STEPS if len(cells) == 1 else STEPS * len(cells))))
    longer = {"loop.steps": steps, "loop.checkpoint_every": steps // 2, "loop.eval_every": steps // 2}
    words += [f"{key}={value}" for key, value in {**SETTINGS, **longer, **variant, **settings}.items()]
    with contextlib.ExitStack() as stack:
        if cells[0].victim == "disk":
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", path.parent], check=True)
            stack.callback(subprocess.run, ["umount", "-l", path.parent], check=False)
        run = Run.start(words, log, _prefix(cells[0]))
        stack.callback(run.end)
        undo = contextlib.ExitStack()
        for cell in cells:
            kind = cell.kind
            nth = draw.randint(1, MOMENTS.get(kind, 1)) if len(cells) == 1 else 1
            share = draw.random()
            if not _hit(cell, run, path, nth, share, undo):
                result.faults.append(f"{cell}: it was never reached (exit code {run.finish(1.0)})")
                break
            result.moments.append(f"{kind} {nth}, {share:.2f}")
        began = time.monotonic()
        code = run.finish()
        undo.close()
        result.ended = ended(code)
        while code != 0 and result.resumes < MAX_RESUMES:
            result.resumes += 1
            again = words if not (path / "status.json").is_file() else ["train", "--plain", "--resume", str(path)]
            resumed = Run.start(again, log)
            stack.callback(resumed.end)
            code = resumed.finish()
        result.seconds = time.monotonic() - began
        result.faults += judge(path, code, steps)
        if result.faults or result.resumes > 1:
            sys.stderr.write(f"{result.row()}\n" + "".join(tail(log)))
    if result.is_good:
        shutil.rmtree(folder, ignore_errors=True)
    return result


def judge(path: Path, code: int | None, steps: int = STEPS) -> list[str]:
    """What is wrong at the end of it all."""
    faults = [] if code == 0 else [f"it is not done: {ended(code)}"]
    if not (path / "status.json").is_file():
        return [*faults, "there is no run"]
    found = audit(path)
    faults += [f"{one.kind}: {one.where}: {one.text}" for one in found.findings]
    if code == 0 and (found.steps, found.trained) != (steps, steps * GROUPS * SIZE):
        faults.append(f"{found.steps} steps trained {found.trained} episodes")
    return faults


def ended(code: int | None) -> str:
    if code is None:
        return "hung"
    if code < 0:
        return f"died of {signal.Signals(-code).name}"
    return "went on" if code == 0 else f"ended with exit code {code}"


def _prefix(cell: Cell) -> list[str]:
    """What gives the run a network, or a shared memory, of its own."""
    if cell.victim == "network":
        return ["unshare", "--net", "--", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    if cell.victim == "memory":
        small = f'mount -t tmpfs -o size={DISK_MIB}m tmpfs /dev/shm && exec "$@"'
        return ["unshare", "--mount", "--", "sh", "-c", small, "sh"]
    return []


def _hit(cell: Cell, run: Run, path: Path, nth: int, share: float, undo: contextlib.ExitStack) -> bool:
    """Wait for the phase, then do it. Whether the phase came. undo: gets what makes it good once the run has ended."""
    if not run.until(f"begin {cell.kind}", nth):
        return False
    try:
        if cell.victim in ("trainer", "generator", "worker", "reference", "weights"):
            pid = run.actor(cell.victim)
        else:
            pid = run.process.pid
    except (LookupError, psutil.Error):
        return False
    time.sleep(share * {"startup": 4.0, "evaluation": 0.2, "update": 0.1, "save": 0.1}.get(cell.phase, 0.02))
    shared = Path(f"/proc/{run.process.pid}/root/dev/shm")
    match cell.fault:
        case "kill" | "term" | "stop":
            number = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stop": signal.SIGSTOP}[cell.fault]
            _send(pid, number)
        case "delay":
            _send(pid, signal.SIGSTOP)
            time.sleep(DELAY_S)
            _send(pid, signal.SIGCONT)
        case "fill":
            filler = (path.parent if cell.victim == "disk" else shared) / "filler"
            undo.callback(filler.unlink, missing_ok=True)
            _fill(filler)
        case "remove":
            for stored in shared.glob("agentgym-*/*.safetensors"):
                stored.unlink(missing_ok=True)
        case "cut":
            inside = ["nsenter", "--net", "--target", str(pid), "ip", "link", "set", "lo"]
            subprocess.run([*inside, "down"], check=True)
            time.sleep(DELAY_S)
            subprocess.run([*inside, "up"], check=False)
    return True


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _fill(path: Path) -> None:
    """All the room that there is, and what is made free meanwhile."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(1 << 16)):
            pass
    with path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(512)):
            pass


def tail(log: Path) -> Iterator[str]:
    for line in log.read_text(errors="replace").splitlines()[-120:]:
        yield f"    {line[:300]}\n"


def part_of(every: list[tuple[int, Cell]], part: str) -> list[tuple[int, Cell]]:
    begin, colon, end = part.partition(":")
    return every[int(begin or 0) : int(end) if end else None] if colon else [every[int(part)]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--cells", default=":", metavar="FROM:TO,...", help="or single numbers, in the order given")
    parser.add_argument("--only", default="", metavar="WORD,WORD", help="cells that have all of these words")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--append", type=Path, metavar="FILE", help="write the rows there, too")
    parser.add_argument("--together", action="store_true", help="all of them in one run, one after another")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another setting of the runs")
    arguments = parser.parse_args()
    every = list(enumerate(cells()))
    picked = [one for part in arguments.cells.split(",") for one in part_of(every, part)]
    words = [word for word in arguments.only.split(",") if word]
    chosen = [(n, cell) for n, cell in picked if all(word in str(cell).split() for word in words)]
    if arguments.list:
        print("\n".join(f"{number:3}  {cell}" for number, cell in chosen))
        return 0
    settings = dict(one.partition("=")[::2] for one in arguments.set)
    root = Path(tempfile.mkdtemp(prefix="agentgym-chaos-"))
    print(HEADER, flush=True)
    good = True
    each = [cell for _, cell in chosen]
    for one in [each] if arguments.together else [[cell] for cell in each]:
        result = drill(one, root, arguments.seed, settings)
        good &= result.is_good
        print(result.row(), flush=True)
        if arguments.append:
            with arguments.append.open("a") as table:
                table.write(result.row() + "\n")
    with contextlib.suppress(OSError):
        root.rmdir()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
