"""A run on three hosts, and what it takes to lose a process, a host and the network: times in a table.

    python benchmarks/hosts.py
    python benchmarks/hosts.py --write docs/results.md --keep hosts-run

The hosts are namespaces of this machine, each with its own network, processes and /dev/shm (needs root). The controller
is on the first, the trainer on the second, generators on the first and third. The exit code is 1 when the run does not
end well.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent)]  # the repository, which has the tests

from tests.hosts.namespaces import NamespaceHost, Running, namespaces, why_unavailable  # noqa: E402

LOST_AFTER_S = 8
CUT_S = 20
WAIT_S = 150.0
SETTINGS = (
    "env.options.levels=[1]",
    "optimizer.lr=1e-9",  # else the policy learns the task, and nothing is left to train on
    "loop.steps=100000",
    "loop.groups_per_step=2",
    "loop.group_size=8",
    "loop.checkpoint_every=20",
    "loop.eval_every=0",
    "eval.at_end=false",
    "logging.sinks=[]",
    "generator.replicas=2",
    "hosts.trainer=[host1]",
    "hosts.generator=[host0,host2]",
)


@dataclass(slots=True)
class Table:
    rows: list[tuple[str, str, float]] = field(default_factory=list)

    def add(self, event: str, until: str, seconds: float) -> None:
        self.rows.append((event, until, seconds))
        print(f"{event:46} {until:52} {seconds:6.1f} s", flush=True)

    def markdown(self) -> str:
        lines = ["| event | until | s |", "|---|---|--:|"]
        return "\n".join([*lines, *(f"| {event} | {until} | {seconds:.1f} |" for event, until, seconds in self.rows)])


@dataclass(slots=True)
class Watched:
    """A run, by what it writes."""

    program: Running
    output: Path
    runs: Path
    read_to: int = 0

    def step(self) -> int:
        for path in self.runs.glob("*/metrics.jsonl"):
            lines = path.read_text().splitlines()
            return int(json.loads(lines[-1])["step"]) if lines else 0
        return 0

    async def until(self, condition: Callable[[], bool], what: str) -> float:
        """Seconds until it is so."""
        began = time.monotonic()
        while not condition():
            if self.program.process.returncode is not None or time.monotonic() - began > WAIT_S:
                raise SystemExit(f"waited for: {what}\n{self.output.read_text()[-4000:]}")
            await asyncio.sleep(0.05)
        return time.monotonic() - began

    async def until_said(self, pattern: str) -> float:
        """Seconds until it prints something new that matches."""

        def said() -> bool:
            found = re.compile(pattern).search(self.output.read_text(), self.read_to)
            if found:
                self.read_to = found.end()
            return found is not None

        return await self.until(said, pattern)

    async def until_steps(self, number: int = 2) -> float:
        goal = self.step() + number
        return await self.until(lambda: self.step() >= goal, f"step {goal}")

    def skip(self) -> None:
        self.read_to = len(self.output.read_text())


async def measure(folder: Path, table: Table) -> None:
    async with namespaces(3) as hosts:
        for host in hosts:
            await lend(host, folder)
        names = ", ".join(host.name for host in hosts)
        given = (*SETTINGS, f"launcher={{name: attach, machines: [{names}]}}", f"hosts.lost_after_s={LOST_AFTER_S}")
        output = folder / "train.log"
        command = [word for setting in (*given, f"logging.runs_dir={folder / 'runs'}") for word in ("--set", setting)]
        program = await hosts[0].start("agentgym", "train", "--env", "math", *command, output=output)
        run = Watched(program, output, folder / "runs")
        table.add("`agentgym train`", "the hosts are checked", await run.until_said("hosts: host0"))
        table.add("", "the first step is trained", await run.until(lambda: run.step() > 0, "a step"))
        await run.until_steps(5)
        for event in (kill_a_process, cut_and_mend, kill_a_host):
            run.skip()
            await event(hosts, run, table, folder)
            await run.until_steps(5)
        began = time.monotonic()
        program.signal(2)  # Ctrl-C
        ended = await asyncio.wait_for(program.wait(), WAIT_S)
        table.add("Ctrl-C", f"the command has ended ({ended.code})", time.monotonic() - began)
        left = await asyncio.gather(*(host.run("ls", "/dev/shm") for host in hosts))
        if any(one.output.strip() for one in left):
            raise SystemExit(f"left in /dev/shm: {[one.output for one in left]}")


async def lend(host: NamespaceHost, folder: Path) -> None:
    log = folder / f"{host.name}.log"
    before = log.read_text().count("waiting for a controller") if log.exists() else 0
    await host.start("agentgym", "host", output=log)
    while log.read_text().count("waiting for a controller") == before:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def kill_a_process(hosts: list[NamespaceHost], run: Watched, table: Table, folder: Path) -> None:
    await hosts[2].run("pkill", "-KILL", "-f", "name generator")
    table.add("SIGKILL of a generator on another host", "noticed", await run.until_said("is down and starts again"))
    table.add("", "the next two steps are trained", await run.until_steps())


async def cut_and_mend(hosts: list[NamespaceHost], run: Watched, table: Table, folder: Path) -> None:
    hosts[2].cut()
    event = f"network of a generator's host cut for {CUT_S} s"
    began = time.monotonic()
    table.add(event, f"the host is lost (lost_after_s {LOST_AFTER_S})", await run.until_said("is lost: it has said"))
    table.add("", "two more steps are trained, without it", await run.until_steps())
    await asyncio.sleep(max(0.0, CUT_S - (time.monotonic() - began)))
    hosts[2].mend()
    table.add("its network is back", "the host is used again", await run.until_said("host host2 is back"))


async def kill_a_host(hosts: list[NamespaceHost], run: Watched, table: Table, folder: Path) -> None:
    hosts[2].kill()
    event = "power failure of a generator's host"
    table.add(event, f"the host is lost (lost_after_s {LOST_AFTER_S})", await run.until_said("is lost: it has said"))
    table.add("", "two more steps are trained, without it", await run.until_steps())
    hosts[2].boot()
    await lend(hosts[2], folder)
    table.add(
        "it boots, and `agentgym host` runs", "the host is used again", await run.until_said("host host2 is back")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into a page of the documentation")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the run and what the hosts printed")
    arguments = parser.parse_args()
    if reason := why_unavailable():
        raise SystemExit(reason)
    table = Table()
    with tempfile.TemporaryDirectory(prefix="agentgym-hosts-") as scratch:
        folder = arguments.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        asyncio.run(measure(folder.absolute(), table))
    if arguments.write:
        text = arguments.write.read_text()
        before, rest = text.split("<!-- hosts -->")
        after = rest.split("<!-- /hosts -->")[1]
        arguments.write.write_text(f"{before}<!-- hosts -->\n{table.markdown()}\n<!-- /hosts -->{after}")


if __name__ == "__main__":
    sys.exit(main())
